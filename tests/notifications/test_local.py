"""Notifications of this machine: which events are told, once, over restarts of the supervisor."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.home import Home
from fairlead.control.notifications.local import LocalNotifier
from fairlead.specs.training import Training
from fairlead.state.plan import Change, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase, Status, Workload
from tests.notifications.servers import Web, web_server


class Desk:
    """A state directory with a web server as its only destination."""

    def __init__(self, home: Home, web: Web) -> None:
        self.home, self.web = home, web
        self.cluster = LocalCluster(home)
        self.now = 1_000.0
        secret = home.path / "url"
        secret.write_text(f"{web.url}/s3cr3t\n")
        secret.chmod(0o600)
        home.notifications.write_text(f"- {{name: me, webhook: {{url_file: {secret}}}}}\n")
        self.notifier = LocalNotifier(home, starts=False)
        self.step()

    def submit(self, name: str) -> Workload:
        return self.cluster.store.submit(f"u-{name}", Training(name=name, run="true", workdir="/"), self.now)

    def end(self, name: str, phase: Phase) -> None:
        run = self.cluster.store.get(f"u-{name}")
        reason = Reason(code=Code.PROGRAM_FAILED, message="rank 0 failed")
        status = Status(phase=phase, reason=reason, since=self.now, finished_at=self.now)
        event = Event(type=phase.value, reason=reason)
        change = Change(workload_uid=run.uid, version=run.version, status=status, event=event)
        assert self.cluster.store.apply(change, self.now)

    def step(self, after_s: float = 1.0) -> None:
        self.now += after_s
        self.notifier.step(self.cluster, self.now)

    def restart(self) -> None:
        self.notifier = LocalNotifier(self.home, starts=False)

    @property
    def topics(self) -> list[tuple[str, str]]:
        notices = [notice for body in self.web.bodies for notice in json.loads(body)["notices"]]
        return [(notice["run"], notice["topic"]) for notice in notices]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with web_server() as web:
        desk = Desk(Home.open(tmp_path / "home"), web)
        yield desk
        desk.cluster.close()


def test_an_end_is_told_once_also_over_a_restart(desk: Desk) -> None:
    for name, phase in (("a", Phase.SUCCEEDED), ("b", Phase.FAILED), ("c", Phase.STOPPED)):
        desk.submit(name)
        desk.end(name, phase)
    desk.step()
    desk.restart()
    desk.step()
    assert desk.topics == [("a", "finished"), ("b", "failed")]
    assert len({headers["Fairlead-Notice"] for headers in desk.web.headers}) == 2


def test_what_happened_before_the_first_look_is_not_told(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home")
    cluster = LocalCluster(home)
    cluster.store.submit("u", Training(name="old", run="true", workdir="/"), 1.0)
    cluster.close()
    with web_server() as web:
        desk = Desk(home, web)
        desk.step()
        desk.cluster.close()
    assert web.bodies == []


def test_a_message_that_is_refused_for_now_is_sent_by_a_later_supervisor(desk: Desk) -> None:
    desk.submit("a")
    desk.end("a", Phase.FAILED)
    desk.web.answers = [500]
    desk.step()
    assert desk.notifier.is_waiting
    desk.restart()
    assert desk.notifier.is_waiting
    desk.step()
    assert len(desk.web.bodies) == 1
    desk.step(10.0)
    assert (len(desk.web.bodies), desk.notifier.is_waiting) == (2, False)
    assert "s3cr3t" not in desk.home.notices.read_text()


def test_a_run_that_waits_long_is_told_once(desk: Desk) -> None:
    desk.submit("slow")
    desk.step(1_000.0)
    assert desk.topics == []
    desk.step(1_000.0)
    desk.restart()
    desk.step(1_000.0)
    assert desk.topics == [("slow", "waiting")]


def test_a_mistake_in_the_file_leaves_the_last_good_one_in_force(desk: Desk) -> None:
    desk.home.notifications.write_text("- {name: me, slack: https://s3cr3t}\n")
    desk.submit("a")
    desk.end("a", Phase.FAILED)
    desk.step()
    assert desk.topics == [("a", "failed")]


def test_a_secret_that_others_can_read_is_not_used(desk: Desk) -> None:
    (desk.home.path / "url").chmod(0o644)
    desk.submit("a")
    desk.end("a", Phase.FAILED)
    desk.step()
    assert desk.topics == []
    assert "chmod 600" in desk.home.notices.read_text()


def test_what_a_program_reports_under_the_name_of_an_end_is_not_told(desk: Desk) -> None:
    desk.submit("a")
    reason = Reason(code=Code.REPORTED, message="it says so")
    desk.cluster.store.note("u-a", Event(type="Failed", reason=reason), desk.now)
    desk.step()
    assert desk.topics == []
