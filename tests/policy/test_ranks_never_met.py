"""A gang whose ranks never connected to each other does not plainly succeed."""

from dataclasses import replace

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.kinds.training import NEVER_MET
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, RankExit, Snapshot, Workload
from tests.builders import node, status, training

NOW = 1_000_000_000.0
RUN = Workload(
    uid="net", spec=training("net", nodes=2), intent=Intent.RUN, version=1, created_at=NOW,
    status=status(Phase.RUNNING, since=NOW, started_at=NOW),
)  # fmt: skip


def pod(index: int, message: str | None) -> Pod:
    return Pod(
        uid=f"net-0-{index}", workload_uid="net", attempt=0, index=index, node="node-0", grant=Grant(),
        phase=PodPhase.SUCCEEDED, created_at=NOW, started_at=NOW, message=message,
        exits=(RankExit(rank=index, exit_code=0, at=NOW + 5),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ((NEVER_MET, NEVER_MET), Code.RANKS_NEVER_MET),
        ((NEVER_MET, None), Code.COMPLETED),
        ((None, NEVER_MET), Code.COMPLETED),
        ((None, None), Code.COMPLETED),
    ],
)
def test_a_gang_of_which_no_pod_saw_a_connection_says_so_in_its_end(
    messages: tuple[str | None, ...], code: Code
) -> None:
    pods = tuple(pod(index, message) for index, message in enumerate(messages))
    (change,) = decide(Snapshot(nodes=(node("node-0"),), workloads=(RUN,), pods=pods), NOW + 60).changes
    assert change.status is not None
    assert (change.status.phase, change.status.reason.code) == (Phase.SUCCEEDED, code)
    if code is Code.RANKS_NEVER_MET:
        assert "but its 2 ranks never met: none connected to another" in change.status.reason.message
        assert "start the program itself" in (change.status.reason.remedy or "")


def test_ranks_of_an_earlier_attempt_do_not_count() -> None:
    later = replace(RUN, status=replace(RUN.status, attempt=1))
    pods = tuple(replace(pod(index, None), attempt=1, uid=f"net-1-{index}") for index in range(2))
    (change,) = decide(Snapshot(nodes=(node("node-0"),), workloads=(later,), pods=pods), NOW + 60).changes
    assert change.status is not None
    assert change.status.reason.code is Code.COMPLETED
