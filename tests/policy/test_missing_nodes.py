"""A gang that comes while nodes are away waits for them, and a reason says how many nodes take no pods and why."""

from dataclasses import replace

from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase, Workload
from tests.builders import node
from tests.policy.test_scheduling import decided, look, running, told, waiting

FEW = tuple(node(f"n{number}", gpus=4, cpu_milli=64_000) for number in range(6))


def new(run: Workload) -> Workload:
    """A run at which nobody has looked yet."""
    return replace(run, status=replace(run.status, reason=Reason(code=Code.SUBMITTED, message="submitted")))


def test_a_gang_that_is_submitted_while_nodes_are_away_waits_and_starts_when_they_are_back() -> None:
    gang = new(waiting("gang", 4, nodes=3))
    status = told(look((), gang), "gang")
    assert status.phase is Phase.PENDING
    assert status.reason.message.startswith("too few nodes are there that could hold it: gang needs 3 nodes")
    assert status.reason.remedy is not None
    assert "when such nodes are back" in status.reason.remedy
    assert decided(look((), replace(gang, status=status), nodes=FEW[:3])) == {"gang": "starts"}


def test_a_run_of_which_no_node_holds_a_pod_is_refused_at_once() -> None:
    for gang in (new(waiting("wide", 5, nodes=3)), new(waiting("one", 5))):
        status = told(look((), gang), gang.uid)
        assert (status.phase, status.reason.code) == (Phase.FAILED, Code.CANNOT_FIT)


def test_a_reason_counts_the_nodes_that_take_no_pods() -> None:
    nodes = (*(replace(each, closed="cordoned") for each in FEW[:3]), replace(FEW[3], ready=False), *FEW[4:])

    status = told(look((), waiting("gang", 4, nodes=5), nodes=nodes), "gang")
    assert "; 4 of 6 nodes take no pods (3 cordoned, 1 not ready)" in status.reason.message
    held = tuple(running(f"r{number}", f"n{number}", range(4)) for number in range(6))
    open_nodes = told(look(held, waiting("gang", 4, nodes=5), nodes=FEW), "gang")
    assert "take no pods" not in open_nodes.reason.message
