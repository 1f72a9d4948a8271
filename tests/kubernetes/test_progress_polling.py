"""How often a run is asked what it says of itself."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.objects import PodObject, ResourceAmounts
from fairlead.cluster.kubernetes.engines.port import EngineStage, EngineStatus
from fairlead.cluster.kubernetes.informers.engine_objects import EngineObject
from fairlead.cluster.kubernetes.informers.pod_index import Marks
from fairlead.cluster.kubernetes.operator.runs.progress_polling import (
    EVERY_S,
    MOST_S,
    PER_SECOND,
    Listener,
    _Turn,
    turns_of_teams,
)
from fairlead.specs.engines import Engine
from tests.kubernetes.turns import a_turn

POD = PodObject(key="t/a", version=1, uid="u", phase="Running", node="n", requests=ResourceAmounts(), created_at=0.0)


@pytest.mark.parametrize(("silent_s", "every_s"), [(0.0, EVERY_S), (20.0, EVERY_S), (100.0, 25.0), (86_400.0, MOST_S)])
def test_a_run_is_asked_the_less_often_the_longer_it_said_nothing_new(silent_s: float, every_s: float) -> None:
    turn = _Turn(pod=POD, most_s=MOST_S, news_at=1000.0)
    assert turn.every_s(1000.0 + silent_s) == every_s


@pytest.mark.parametrize("turn_s", [0.2, 2_000.0])
def test_a_run_with_a_stall_timeout_is_asked_within_it(turn_s: float) -> None:
    turn = _Turn(pod=POD, most_s=15.0, news_at=0.0)
    assert turn.every_s(3600.0, turn_s) == 15.0


def test_many_runs_that_report_all_the_time_are_asked_in_turn() -> None:
    turn = _Turn(pod=POD, most_s=MOST_S, news_at=1000.0)
    assert turn.every_s(1000.0, turns_of_teams(["t"] * 1000)["t"]) == 1000 / PER_SECOND


def test_many_runs_of_one_team_leave_the_others_their_turns() -> None:
    turns_s = turns_of_teams(["many"] * 1000 + ["few"] * 5)
    assert turns_s["few"] == EVERY_S
    assert turns_s["many"] == 1000 / (PER_SECOND - 1.0)


@pytest.mark.parametrize(("num_failed", "every_s"), [(0, 5.0), (1, 10.0), (3, 40.0), (7, 640.0), (5_000, MOST_S)])
def test_who_cannot_be_asked_is_asked_half_as_often_each_time(num_failed: int, every_s: float) -> None:
    turn = _Turn(pod=POD, most_s=MOST_S, news_at=1000.0, num_failed=num_failed)
    assert turn.every_s(1000.0) == every_s


class Asked:
    """Counts the questions that are given out, and says that none was answered."""

    def __init__(self) -> None:
        self.uids: list[str] = []

    def submit(self, run: str, name: str, job: Callable[[], None]) -> None:
        self.uids.append(run)


def a_cluster(num_runs: int) -> Any:
    """One whose runs have all been up for an hour and report nothing, as whoever takes over meets them."""
    uids = [f"run-{number}" for number in range(num_runs)]
    marks = Marks()
    marks.add(runs=uids)
    found = SimpleNamespace(
        workload=SimpleNamespace(spec=SimpleNamespace(kind="Training", stall_timeout_s=None, env={}), parent=None),
        state=SimpleNamespace(
            gang=SimpleNamespace(attempt=0),
            progress=None,
            status=SimpleNamespace(phase=SimpleNamespace(is_final=False)),
        ),
    )
    pods = {uid: {uid: replace(POD, uid=uid, started_at=0.0)} for uid in uids}
    objects: dict[int, EngineObject] = {}
    engines = SimpleNamespace(of_run=lambda uid: objects)
    view = SimpleNamespace(marks=lambda: marks, find=lambda uid: found, pods_of=pods.__getitem__, engines=engines)
    view.isolation = Isolation()
    return SimpleNamespace(view=view)


def test_runs_that_are_met_together_are_asked_one_after_the_other() -> None:
    asked: Any = Asked()
    listener = Listener(a_cluster(1000))
    most = 0
    for second in range(int(MOST_S)):
        before = len(asked.uids)
        listener.act(a_turn(asked, 3600.0 + second))
        most = max(most, len(asked.uids) - before)
    assert most <= 4 * PER_SECOND
    assert len(set(asked.uids)) == 1000


def test_a_run_whose_reporting_pod_has_ended_is_asked_once_more() -> None:
    asked: Any = Asked()
    cluster = a_cluster(1)
    listener = Listener(cluster)
    listener.act(a_turn(asked, 3600.0))
    before = len(asked.uids)
    pods = cluster.view.pods_of("run-0")
    pods["run-0"] = replace(pods["run-0"], phase="Succeeded")
    for second in (1.0, 2.0):
        cluster.view.marks().add(runs=["run-0"])
        listener.act(a_turn(asked, 3600.0 + second))
    assert len(asked.uids) == before + 1


def test_a_run_whose_engine_is_done_is_asked_each_second_how_it_ended() -> None:
    asked: Any = Asked()
    cluster = a_cluster(1)
    listener = Listener(cluster)
    listener.act(a_turn(asked, 3600.0))
    before = len(asked.uids)
    cluster.view.engines.of_run("run-0")[0] = EngineObject(
        key="t/a-0", version=1, uid="o", engine=Engine.RAYJOB, run_uid="run-0",
        run_key=("Training", "t/a"), attempt=0,
        observed=EngineStatus(stage=EngineStage.SUCCEEDED), is_leaving=False,
    )  # fmt: skip
    cluster.view.marks().add(runs=["run-0"])
    for second in range(1, 6):
        listener.act(a_turn(asked, 3600.0 + second))
    assert len(asked.uids) - before >= 5
