"""A running gang says when one of its nodes does not answer, and stops saying so when it does."""

from dataclasses import replace

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.kinds.progress import warning_of
from fairlead.policy.pass_cache import PassCache
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Grant, Intent, Node, Phase, Pod, PodPhase, Snapshot, Warned, Workload
from tests import builders

NOW = 2_000_000_000.0


def world(nodes: tuple[Node, ...], run: Workload) -> Snapshot:
    pods = tuple(
        Pod(
            uid=f"run-0-{index}", workload_uid="run", attempt=0, index=index, node=f"node-{index}",
            grant=Grant(cpu_milli=1000, memory_bytes=1), phase=PodPhase.RUNNING, created_at=NOW - 100,
            started_at=NOW - 90,
        )
        for index in range(2)
    )  # fmt: skip
    return Snapshot(nodes=nodes, workloads=(run,), pods=pods)


def decided(seen: Snapshot, cache: PassCache | None) -> Change | None:
    plan = decide(seen, NOW, cache)
    assert not plan.failures
    return plan.changes[0] if plan.changes else None


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_silent_node_is_told_once_and_taken_back_when_it_answers(with_cache: bool) -> None:
    cache = PassCache() if with_cache else None
    status = builders.status(Phase.RUNNING, since=NOW - 90, started_at=NOW - 90)
    run = Workload(
        uid="run", spec=builders.training("run", nodes=2), intent=Intent.RUN, status=status, version=1, created_at=1.0
    )
    nodes = tuple(builders.node(f"node-{number}") for number in range(3))
    assert decided(world(nodes, run), cache) is None
    # One that holds none of its pods does not matter.
    assert decided(world((*nodes[:2], replace(nodes[2], ready=False)), run), cache) is None
    dark = (nodes[0], replace(nodes[1], ready=False), nodes[2])
    told = decided(world(dark, run), cache)
    assert told is not None
    assert told.event is not None
    assert told.event.reason.code is Code.NODE_SILENT
    assert "node node-1, which holds pod 1 of 2: its kubelet does not answer" in told.event.reason.message
    assert "`kubectl delete node node-1`" in str(told.event.reason.remedy)
    assert replace(told, event=None, status=None) == Change(workload_uid="run", version=run.version)
    assert told.status is not None
    assert told.status.phase is Phase.RUNNING
    warned = replace(run, status=told.status, version=2)
    assert warning_of(warned, NOW) == told.event.reason
    assert decided(world(dark, warned), cache) is None
    back = decided(world(nodes, warned), cache)
    assert back is not None
    assert (back.event, back.status) == (None, replace(told.status, warning=Warned()))
