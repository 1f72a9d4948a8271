"""Nodes of which detectors report a fault: how many are left at once, and what placement and people see of them."""

from dataclasses import replace

from fairlead.control.node_listing import NodeState, node_rows
from fairlead.policy.decide import decide
from fairlead.policy.health.node_faults import leaving_by_fault, with_health
from fairlead.policy.health.node_risk import DAY_S, taken_out
from fairlead.state.node_health import FailureCause, NodeFailure, NodeFault, NodeHistory
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Grant, Intent, Node, Phase, Pod, PodPhase, Snapshot, Workload
from tests.builders import node, status, training

NOW = 100 * DAY_S


def fault(since: float = 1.0, name: str = "GpuMemWatch") -> NodeFault:
    return NodeFault(name=name, detector="NVSentinel", cause=FailureCause.ECC, since=since, message="GPU 3")


def pool(number: int, prefix: str = "n") -> tuple[Node, ...]:
    return tuple(node(f"{prefix}-{index}", gpus=1) for index in range(number))


def test_a_fifth_of_a_pool_is_left_the_oldest_faults_first() -> None:
    nodes = pool(10)
    faults = {f"n-{index}": (fault(since=10.0 - index),) for index in range(5)}
    assert leaving_by_fault(nodes, faults) == {"n-3", "n-4"}
    away = tuple(replace(one, ready=False) if one.name == "n-9" else one for one in nodes)
    assert leaving_by_fault(away, faults) == {"n-4"}, "what is away for another reason counts"
    cordoned = tuple(replace(one, closed="cordoned") if one.name == "n-0" else one for one in nodes)
    assert leaving_by_fault(cordoned, faults) == {"n-0", "n-4"}, "a detector may have cordoned it already"
    full = tuple(replace(one, closed="full", full=True) for one in nodes)
    assert leaving_by_fault(full, faults) == {"n-3", "n-4"}, "a full node is not away"


def test_of_few_nodes_one_is_left_and_the_only_one_never() -> None:
    assert leaving_by_fault(pool(2), {"n-0": (fault(),), "n-1": (fault(),)}) == {"n-0"}
    assert leaving_by_fault(pool(1), {"n-0": (fault(),)}) == frozenset()
    others = (*pool(1), *(replace(one, cpu_milli=8000) for one in pool(9, "other")))
    assert leaving_by_fault(others, {"n-0": (fault(),)}) == frozenset(), "of its hardware it is the only one"


def test_a_gang_saves_and_leaves_a_faulty_node() -> None:
    run = Workload(
        uid="w", spec=training(grace_s=30.0), intent=Intent.RUN, status=status(Phase.RUNNING), version=1, created_at=0.0
    )
    pod = Pod(
        uid="w-0-0",
        workload_uid="w",
        attempt=0,
        index=0,
        node="n-0",
        grant=Grant(),
        phase=PodPhase.RUNNING,
        created_at=0.0,
    )
    nodes = with_health(pool(10), {}, {"n-0": (fault(),)})
    seen = Snapshot(nodes=nodes, workloads=(run,), pods=(pod,))
    (change,) = decide(seen, NOW).changes
    assert [notice.grace_s for notice in change.terminate] == [30.0]
    assert change.status is not None
    assert change.status.reason.code is Code.NODE_RECLAIMED
    assert "GpuMemWatch of NVSentinel: GPU 3" in change.status.reason.message
    assert change.incident is None, "the fault counts, and the attempt that ends for it does not"


def test_nodes_stay_the_same_objects_while_nothing_is_known_of_them() -> None:
    nodes = pool(3)
    assert with_health(nodes, {"n-0": NodeHistory(node="n-0", since=0.0)}, {}) is nodes


def test_a_node_that_was_taken_out_is_closed_and_counts_as_away() -> None:
    out = {f"n-{index}": taken_out(NodeHistory(node=f"n-{index}", since=0.0), "it fails", NOW) for index in range(2)}
    shown = with_health(pool(10), out, {"n-5": (fault(),)})
    assert [one.closed for one in shown[:2]] == ["taken out: it fails"] * 2
    assert all(one.leaving is None for one in shown), "the fifth is away already"


def test_the_list_of_nodes_says_the_state_of_each_and_why() -> None:
    failures = (
        NodeFailure(at=NOW - 40 * DAY_S, cause=FailureCause.XID, share=1.0),
        NodeFailure(at=NOW - DAY_S, cause=FailureCause.ECC, share=1.0),
        NodeFailure(at=NOW - 2 * DAY_S, cause=FailureCause.ECC, share=1.0),
    )
    history = NodeHistory(node="n-0", since=0.0, failures=2.0, at=NOW, recent=failures)
    histories = {"n-0": taken_out(history, "it fails, $5 against $1", NOW), "n-1": replace(history, node="n-1")}
    histories["n-2"] = replace(histories["n-0"], node="n-2")
    faults = {"n-3": (fault(),), "n-4": (fault(),)}
    nodes = list(pool(8))
    nodes[2] = replace(nodes[2], ready=False)
    nodes[5] = replace(nodes[5], closed="cordoned (...): new cable")
    nodes[6] = replace(nodes[6], ready=False)
    seen = Snapshot(
        nodes=with_health(tuple(nodes), histories, faults), workloads=(), pods=(), node_health=histories,
        node_faults=faults,
    )  # fmt: skip
    rows = {row.node: row for row in node_rows(seen, NOW)}
    assert [rows[f"n-{index}"].state for index in range(8)] == [
        NodeState.TAKEN_OUT, NodeState.READY, NodeState.IN_REPAIR, NodeState.FAULTY, NodeState.FAULTY,
        NodeState.CORDONED, NodeState.NOT_READY, NodeState.READY,
    ]  # fmt: skip
    assert rows["n-0"].reason == "it fails, $5 against $1"
    assert rows["n-3"].reason.endswith("runs stay, as too many nodes of its kind are away already")
    assert (rows["n-1"].causes, rows["n-1"].pool, rows["n-1"].gpus) == ({"ecc": 2}, "n", 1)
    assert (rows["n-1"].chance or 0) > 0.05
    assert rows["n-7"].chance is None
