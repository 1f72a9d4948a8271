"""The status of a Team has what its runs hold, written only when it has changed."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.manifests.statuses import team_holdings
from fairlead.cluster.kubernetes.operator.teams.team_holdings import TeamHoldings
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.team import Team
from fairlead.state.snapshot import Grant, Pod, PodPhase, Snapshot, Workload
from tests.builders import node
from tests.kubernetes.builders import GIB, a_training, a_workload
from tests.kubernetes.turns import a_turn

HALF = Resources(gpu=GpuRequest(milli=500), cpu_milli=1500, memory_bytes=2 * GIB)
HELD = {"gpu": "1.5", "cpu": "4500m", "memory": "6Gi", "runs": 1}
NOTHING = {"gpu": "0", "cpu": "0", "memory": "0", "runs": 0}


def pod_of(run: Workload, phase: PodPhase = PodPhase.RUNNING) -> Pod:
    grant = Grant(cpu_milli=1500, memory_bytes=2 * GIB)
    uid = f"{run.uid}-0-0"
    return Pod(
        uid=uid, workload_uid=run.uid, attempt=0, index=0, node="node-0", grant=grant, phase=phase, created_at=0.0
    )


def seen(phase: PodPhase = PodPhase.RUNNING) -> Snapshot:
    """A run of three nodes that has pods, one that waits, and two teams."""
    holder = a_workload(a_training(nodes=3, resources=HALF))
    waiting = a_workload(a_training(name="later", resources=HALF), uid=holder.uid.replace("1", "2"))
    teams = (Team(name="research"), Team(name="vision"))
    return Snapshot(
        nodes=(node(gpus=8),), workloads=(holder, waiting), pods=(pod_of(holder, phase),), teams=teams
    )  # fmt: skip


class Board:
    """Teams with their statuses, an agent that acts at once, and the patches that were sent."""

    def __init__(self, **held: dict[str, Any]) -> None:
        self.held, self.sent = held, list[str]()
        self.refusal: ApiError | None = None
        self.may_act = True
        view = SimpleNamespace(client=self, teams=self, isolation=Isolation())
        self.holdings = TeamHoldings(cast(Informers, view), may_act=lambda: self.may_act, every_s=0.0)

    def all(self) -> list[Any]:
        return [SimpleNamespace(name=name, uid=name, held=held, is_leaving=False) for name, held in self.held.items()]

    def merge(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        name = path.split("/")[-2]
        self.sent.append(name)
        if self.refusal is not None:
            raise self.refusal
        self.held[name] = body["status"]["held"]
        return body

    def put(self, content: dict[str, Any]) -> None:
        assert set(content) == {"metadata", "status"}

    def submit(self, queue: str, job: str, work: Any) -> None:
        work()

    def act(self, snapshot: Snapshot) -> list[str]:
        self.sent.clear()
        self.holdings.act(a_turn(self, snapshot=snapshot))
        return list(self.sent)


def test_a_team_holds_what_its_runs_with_pods_asked_for() -> None:
    assert team_holdings(seen()) == {"research": HELD, "vision": NOTHING}
    assert team_holdings(seen(PodPhase.SUCCEEDED)) == {"research": NOTHING, "vision": NOTHING}


def test_holdings_are_written_when_they_change_and_not_for_a_team_that_never_held_anything() -> None:
    board = Board(research={}, vision={}, unknown={})
    assert board.act(seen()) == ["research"]
    assert board.act(seen()) == []
    assert board.act(seen(PodPhase.SUCCEEDED)) == ["research"]
    assert board.held == {"research": NOTHING, "vision": {}, "unknown": {}}


def test_a_new_leader_writes_only_what_is_not_there() -> None:
    assert Board(research=HELD, vision=NOTHING).act(seen()) == []
    assert Board(research={**HELD, "runs": 7}, vision=HELD).act(seen()) == ["research", "vision"]


def test_a_definition_that_drops_the_field_is_written_to_once_for_each_change() -> None:
    board = Board(research={})
    assert board.act(seen()) == ["research"]
    board.held["research"] = {}
    assert board.act(seen()) == []


def test_a_leader_that_leads_again_writes_over_what_another_wrote_meanwhile() -> None:
    board = Board(research={})
    assert board.act(seen()) == ["research"]
    board.held["research"] = NOTHING
    assert board.act(seen()) == ["research"]
    assert board.held["research"] == HELD


def test_one_that_does_not_lead_any_more_writes_nothing() -> None:
    board = Board(research={})
    board.may_act = False
    assert board.act(seen()) == []


@pytest.mark.parametrize("status", [404, 409, 422, 500])
def test_a_team_that_is_gone_or_refused_keeps_no_other_from_being_written(status: int) -> None:
    board = Board(research={}, vision=HELD)
    board.refusal = ApiError("PATCH", status, "", "")
    assert board.act(seen()) == ["research", "vision"]


def test_an_api_server_that_knows_nobody_is_asked_once() -> None:
    board = Board(research={}, vision=HELD)
    board.refusal = ApiError("PATCH", 401, "Unauthorized", "who are you?")
    with pytest.raises(ApiError):
        board.act(seen())
    assert board.sent == ["research"]
