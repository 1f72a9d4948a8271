"""Operator and PostgreSQL are killed in turn while pods come and go: all that was stored is charged once."""

import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.manifests.placeholders import render_priority_class
from fairlead.cluster.kubernetes.manifests.roles import render_roles
from fairlead.cluster.kubernetes.operator.ledger.usage_ledger import UsageLedger
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.errors import ClusterError
from fairlead.ledger.bills import statement, stretches_of
from fairlead.ledger.usage import DAY_MS, HOUR_MS, WHOLE, milliseconds
from fairlead.policy.placement.node_eligibility import PRICE_LABEL
from fairlead.specs.training import Retry
from fairlead.state.snapshot import Intent
from tests.kubernetes.chaos.history import KEEP_HISTORY, STORED_AS_JSON, History
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import GPUS, gang, teach_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import COMMAND, Desk, a_desk
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.ledger.databases import postgres_programs, postgres_server
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]
DOLLARS = 36.0  # an hour of a node
NUM_NODES = 4


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    flags = {"apiserver": [STORED_AS_JSON, KEEP_HISTORY]}
    with started(lambda: ControlPlane(flags=flags), request) as plane:
        teach_kinds(plane)
        for content in (render_priority_class(), *render_roles()):
            applied(plane, content)
        labels = {PRICE_LABEL: str(DOLLARS)}
        add_nodes(plane, NUM_NODES, prefix="paid", gpus=GPUS, labels=labels)
        until(lambda: all(is_ready(node) for node in plane.request("GET", "/api/v1/nodes")["items"]))
        yield plane


@dataclass
class Life:
    """A pod on a node, as it was ever stored."""

    run: str
    node: str
    gpus: int
    began_ms: int
    ended_ms: set[int] = field(default_factory=set)
    """More than one where the fake kubelet told twice how it ended, which a real one does not."""


class Lives(History):
    """All pods of runs that ever had a node."""

    def __init__(self, etcd_url: str) -> None:
        super().__init__(etcd_url)
        self.lives: dict[str, Life] = {}

    def _pod(self, key: str, content: dict[str, Any] | None, now: float) -> None:
        super()._pod(key, content, now)
        node = ((content or {}).get("spec") or {}).get("nodeName")
        owners = ((content or {}).get("metadata") or {}).get("ownerReferences") or []
        if content is None or not node or not owners:
            return
        metadata = content["metadata"]
        (container,) = content["spec"]["containers"]
        life = self.lives.setdefault(metadata["uid"], Life(
            run=owners[0]["uid"], node=node, gpus=int(container["resources"]["requests"].get("nvidia.com/gpu", 0)),
            began_ms=milliseconds(seconds(metadata["creationTimestamp"])),
        ))  # fmt: skip
        for each in (content.get("status") or {}).get("containerStatuses") or ():
            ended = (each.get("state") or {}).get("terminated")
            if ended is not None:
                life.ended_ms.add(milliseconds(seconds(ended["finishedAt"])))


class Killable:
    """An operator with a ledger, as a process that is killed and started again."""

    def __init__(self, desk: Desk, place: str) -> None:
        self._desk, self._place = desk, place
        self._process: subprocess.Popen[bytes] | None = None
        self.log = desk.directory.parent / "operator.log"

    def start(self) -> None:
        namespace = self._desk.namespace
        arguments = ["operator", "--namespace", namespace, "--only", namespace, "--listen", "127.0.0.1:0"]
        environ = {**self._desk.environ, "KUBECONFIG": str(self._desk.operator_config), "FAIRLEAD_LEDGER": self._place}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*COMMAND, *arguments], cwd="/", env=environ, stderr=log, stdout=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=30)


@contextmanager
def a_ledger(kind: str, tmp_path: Path) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """A place with what ends its server and what starts it again; of a file there is nothing to end."""
    if kind == "sqlite":
        yield str(tmp_path / "ledger.db"), lambda: None, lambda: None
        return
    if postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    with postgres_server() as server:
        yield server.url, server.kill, server.start


@pytest.mark.parametrize(("kind", "rounds"), [("postgresql", 4), ("sqlite", 2)])
def test_what_is_charged_is_a_recount_of_all_pods_however_operator_and_database_die(
    plane: ControlPlane, kind: str, rounds: int, tmp_path: Path
) -> None:
    namespace = f"t-{kind}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    plane.await_namespace(namespace)
    (tmp_path / "desk").mkdir()
    desk = a_desk(plane, namespace, tmp_path / "desk")
    cluster = WorkloadApi(Client(load_access((plane.kubeconfig(),))), namespace=namespace)
    history = Lives(plane.etcd_url)
    history.start()
    retry = Retry(infrastructure=3, program=2, backoff_s=0.5)

    def submit(number: int) -> list[str]:
        """Runs that end well, fail and start again, and last until they are deleted."""
        short = gang(namespace, f"short-{number}", nodes=2, gpus=2, run="2s", on_term="ends")
        fails = gang(namespace, f"fails-{number}", nodes=1, gpus=1, run="1s", exit_code="1", on_term="ends")
        lasts = gang(namespace, f"lasts-{number}", nodes=2, gpus=1, on_term="ends")
        return [cluster.submit(each).uid for each in (short, replace(fails, retry=retry), replace(lasts, grace_s=2.0))]

    def phases() -> dict[str, str]:
        return {run.spec.name: run.status.phase.value for run in cluster.workloads()}

    def is_running(number: int) -> bool:
        return phases().get(f"lasts-{number}") == "Running"

    def delete(number: int) -> None:
        run = cluster.named(f"lasts-{number}", namespace)
        cluster.set_intent(run.uid, Intent.DELETE)
        until(lambda: f"lasts-{number}" not in phases(), phases, timeout_s=90)

    uids: list[str] = []
    with a_ledger(kind, tmp_path) as (place, kill_database, start_database):
        operator = Killable(desk, place)
        try:
            operator.start()
            for number in range(rounds):
                uids += submit(number)
                until(lambda: is_running(number), phases, timeout_s=90)  # noqa: B023
                if number % 2 == 0:
                    # The operator is there all the time, and its database is not: what comes and goes is seen.
                    kill_database()
                    uids += submit(10 + number)
                    until(lambda: is_running(10 + number), phases, timeout_s=90)  # noqa: B023
                    delete(10 + number)
                    delete(number)
                    start_database()
                    until(lambda: seen_ms(place) > milliseconds(time.time()) - 2000, timeout_s=90)
                else:
                    # What is over while nobody led is read from the objects.
                    operator.kill()
                    kill_database()
                    time.sleep(1.0)
                    start_database()
                    operator.start()
                    delete(number)
            until(lambda: set(phases().values()) <= {"Succeeded", "Failed"}, phases, timeout_s=120)
            until(lambda: not open_pods(place), lambda: open_pods(place), timeout_s=60)
        finally:
            operator.kill()
            history.stop()
        check(place, history, uids)


def seen_ms(place: str) -> int:
    try:
        ledger = UsageLedger(place)
    except ClusterError:
        return 0
    try:
        return ledger.seen_ms() or 0
    finally:
        ledger.close()


def open_pods(place: str) -> set[str]:
    ledger = UsageLedger(place)
    try:
        return set(ledger.open_pods())
    finally:
        ledger.close()


def check(place: str, history: Lives, uids: list[str]) -> None:
    """Compare what is charged with a recount, second by second and in micro-dollars."""
    lives = [each for each in history.lives.values() if each.run in uids]
    assert len(lives) >= len(uids)
    least: defaultdict[tuple[str, str], int] = defaultdict(int)
    most: defaultdict[tuple[str, str], int] = defaultdict(int)
    for each in lives:
        assert each.ended_ms, each
        for bound, ended_ms in ((least, min(each.ended_ms)), (most, max(each.ended_ms))):
            bound[each.run, each.node] += (ended_ms - each.began_ms) * each.gpus * WHOLE // GPUS
    ledger = UsageLedger(place)
    try:
        charged: defaultdict[tuple[str, str], int] = defaultdict(int)
        for uid in uids:
            for part in ledger.of_run(uid):
                charged[uid, part.node] += (part.end_ms - part.start_ms) * part.share
        prices = dict(ledger.price_changes())
        last_ms = max(max(each.ended_ms) for each in lives) + 1
        first_ms = min(each.began_ms for each in lives)
        days = range(first_ms // DAY_MS, last_ms // DAY_MS + 1)
        held = [part for day in days for part in ledger.of_day(day)]
        by_run = {uid: ledger.spent_by_run(uid) for uid in uids}
    finally:
        ledger.close()
    wrong = {key for key in {*most, *charged} if not least[key] <= charged[key] <= most[key]}
    assert not wrong, "\n".join(
        f"{key}: {charged[key]} charged, {least[key]} to {most[key]} held\n{history.story(key[0])}" for key in wrong
    )
    rate = round(DOLLARS * 1_000_000)
    exact = {uid: Fraction(0) for uid in uids}
    for (uid, _), amount in charged.items():
        exact[uid] += Fraction(amount * rate, HOUR_MS * WHOLE)
    bill = statement(stretches_of(prices, held, first_ms, last_ms, key=lambda each: each.holder, rest=lambda _: None))
    billed: defaultdict[str, int] = defaultdict(int)
    lines: defaultdict[str, int] = defaultdict(int)
    for line in bill.lines:
        if line.key is not None:
            billed[line.key.uid] += line.microusd
            lines[line.key.uid] += 1
    assert sum(line.microusd for line in bill.lines) == bill.billed_microusd
    assert abs(bill.billed_microusd - Fraction(NUM_NODES * rate * (last_ms - first_ms), HOUR_MS)) <= NUM_NODES
    for uid in uids:
        # Each line, and each pod's part of a month, is rounded once.
        assert abs(billed[uid] - exact[uid]) <= lines[uid]
        assert abs(by_run[uid] - exact[uid]) <= sum(each.run == uid for each in lives)
    print(f"{len(lives)} pods of {len(uids)} runs, {float(sum(exact.values())):.0f} micro-dollars")
