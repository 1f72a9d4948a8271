"""Pipelines that were applied are submitted when they are due, once, whoever was killed in between."""

import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.pipelines.submission import as_training
from fairlead.control.pipelines.triggers import AppliedPipeline, Triggers, all_applied, check, keep, remove
from fairlead.errors import ClusterError, Conflict
from fairlead.runtime.podfiles import write_json
from fairlead.specs import pipeline
from fairlead.specs.pipeline import On, Pipeline, Schedule, Step
from fairlead.state.plan import Change
from fairlead.state.snapshot import Phase, Workload

BEGAN = 1_800_000_000.0
MINUTE = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster after which nobody looks, so that runs are submitted and nothing more."""
    cluster = LocalCluster.open(tmp_path / "home")
    yield cluster
    cluster.close()


def applied(
    cluster: LocalCluster,
    work: Path,
    *,
    schedule: Schedule | None = None,
    on: On | None = None,
    name: str = "nightly",
) -> AppliedPipeline:
    work.mkdir(exist_ok=True)
    pipeline = Pipeline(name=name, workdir=str(work), steps={"a": Step(run="true")}, schedule=schedule, on=on)
    spec = as_training(pipeline, cluster.home)
    return AppliedPipeline(pipeline=pipeline, spec=spec, environ={"PATH": "/bin"}, at=BEGAN)


def look(cluster: LocalCluster, now: float) -> list[str]:
    """What a supervisor that begins now submits."""
    before = {run.uid for run in cluster.workloads()}
    Triggers(cluster.home, cluster).look(now)
    return [run.spec.labels["trigger"] for run in cluster.workloads() if run.uid not in before]


def finish(cluster: LocalCluster, run: Workload, phase: Phase = Phase.SUCCEEDED) -> None:
    status = replace(run.status, phase=phase, finished_at=time.time())
    assert cluster.store.apply(Change(workload_uid=run.uid, version=run.version, status=status), time.time())


EVERY_MINUTE = Schedule(cron="* * * * *")


def test_a_schedule_submits_a_run_when_its_time_comes(cluster: LocalCluster, tmp_path: Path) -> None:
    assert keep(cluster.home, applied(cluster, tmp_path / "work", schedule=EVERY_MINUTE))
    assert look(cluster, BEGAN + 1) == []
    assert look(cluster, BEGAN + MINUTE + 1) == [f"schedule-{BEGAN + MINUTE:.0f}"]
    assert look(cluster, BEGAN + MINUTE + 2) == []
    (run,) = cluster.workloads()
    assert [event.type for event in cluster.events(run.uid)] == ["Submitted", "Triggered"]
    # The run before is not over.
    assert look(cluster, BEGAN + 2 * MINUTE + 1) == []
    finish(cluster, run)
    assert look(cluster, BEGAN + 3 * MINUTE + 1) == [f"schedule-{BEGAN + 3 * MINUTE:.0f}"]
    assert cluster.workloads()[0].spec.name == "nightly-2"


def test_who_was_killed_before_it_said_so_submits_no_second_run(cluster: LocalCluster, tmp_path: Path) -> None:
    keep(cluster.home, applied(cluster, tmp_path / "work", schedule=EVERY_MINUTE))
    ((one, state),) = all_applied(cluster.home)
    assert len(look(cluster, BEGAN + MINUTE + 1)) == 1
    finish(cluster, cluster.workloads()[0])
    write_json(cluster.home.triggers / f"{one.key}.state", state)
    assert look(cluster, BEGAN + MINUTE + 2) == []
    assert look(cluster, BEGAN + 2 * MINUTE + 1) == [f"schedule-{BEGAN + 2 * MINUTE:.0f}"]


def test_changed_data_submits_a_run_once_it_has_settled(cluster: LocalCluster, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "part").write_text("one")
    keep(cluster.home, applied(cluster, tmp_path / "work", on=On(data=(str(data),))))
    assert look(cluster, BEGAN + 1) == []
    assert look(cluster, BEGAN + 2) == []
    for number, content in enumerate(("two", "one", "two"), 1):
        (data / "part").write_text(f"{content}, again {number % 2}")
        assert look(cluster, BEGAN + 3) == []
        assert look(cluster, BEGAN + 4) == [f"data-{BEGAN:.0f}-{number}"]
        assert look(cluster, BEGAN + 5) == []
        finish(cluster, cluster.workloads()[0])


def test_data_that_was_written_anew_with_the_same_content_submits_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.write_text("one")
    keep(cluster.home, applied(cluster, tmp_path / "work", on=On(data=(str(data),))))
    for _ in range(3):
        data.unlink()
        data.write_text("one")
        assert [look(cluster, BEGAN + 1) for _ in range(3)] == [[], [], []]


def test_the_same_applied_again_changes_nothing_and_what_is_removed_does_not_run(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    one = applied(cluster, tmp_path / "work", schedule=EVERY_MINUTE)
    assert keep(cluster.home, one)
    assert not keep(cluster.home, replace(one, at=BEGAN + 30))
    assert cluster.home.has_triggers
    assert remove(cluster.home, "default", "nightly")
    assert not remove(cluster.home, "default", "nightly")
    assert not list(cluster.home.triggers.iterdir())
    assert look(cluster, BEGAN + MINUTE + 1) == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("no JSON", "what was applied cannot be read"),
        ("{}", "what was applied cannot be read"),
        ('{"spec": "{}", "environ": {}, "at": 0}', "what was applied cannot be read"),
        (None, "its pipeline is no longer kept"),
    ],
)
def test_one_that_cannot_be_read_is_told_once_and_holds_up_no_other(
    cluster: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, told: str
) -> None:
    keep(cluster.home, applied(cluster, tmp_path / "work", schedule=EVERY_MINUTE))
    damaged = applied(cluster, tmp_path / "work", schedule=EVERY_MINUTE, name="broken")
    keep(cluster.home, damaged)
    if content is None:
        Path(shlex.split(as_training(damaged.pipeline, cluster.home).run)[3]).unlink()
    else:
        (cluster.home.triggers / "default.broken.json").write_text(content)
    triggers = Triggers(cluster.home, cluster)
    assert triggers.look(BEGAN + MINUTE + 1) == 1
    assert told in caplog.text
    assert "fairlead apply --remove broken --team default" in caplog.text
    with pytest.raises(ClusterError, match=told):
        list(all_applied(cluster.home))
    keep(cluster.home, applied(cluster, tmp_path / "work", schedule=EVERY_MINUTE, name="broken"))
    assert len(list(all_applied(cluster.home))) == 2


def test_data_that_are_not_there_are_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match=r"missing\.csv is not there"):
        check(applied(cluster, tmp_path / "work", schedule=None, on=On(data=("missing.csv",))))


def test_a_time_zone_is_refused_on_a_machine_that_knows_none(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "timezone_problem", lambda name: None)
    schedule = Schedule(cron="0 3 * * *", timezone="Mars/Olympus")
    with pytest.raises(Conflict, match="knows no time zone 'Mars/Olympus'"):
        check(applied(cluster, tmp_path / "work", schedule=schedule))
