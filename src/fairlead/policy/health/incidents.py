"""Charges failures of gangs to nodes: a lost node or pod to its node, a kill or a hang to the gang.

A failure of the program is listed for the node where its first rank failed, and charged to nobody.

A program that fails again and again without progress does so on any node. So kills and hangs count for nodes only
after progress (or half an hour, if the program reports none), and a run that failed on ``MANY_NODES`` nodes in a row
is itself at fault; only the loss of a whole node, which no program causes, always counts.

See decision 233.
"""

from collections.abc import Iterable
from dataclasses import replace

from fairlead.policy.kinds.failures import Failure
from fairlead.state.node_health import FailureCause, Incident
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase, Pod, Workload

MANY_NODES = 3
LONG_S = 1800.0
"""A program without reports that ran for so long has made progress."""
OF_NODE = frozenset({Code.NODE_LOST, Code.POD_LOST, Code.START_TIMED_OUT, Code.NODE_SLOW, Code.GPU_FAULTY})
OF_GANG = frozenset({Code.KILLED, Code.STALLED})
CAUSES = {
    Code.NODE_LOST: FailureCause.UNREADY,
    Code.POD_LOST: FailureCause.EVICTED,
    Code.START_TIMED_OUT: FailureCause.NOT_STARTED,
    Code.NODE_SLOW: FailureCause.PREFLIGHT,
    Code.GPU_FAULTY: FailureCause.PREFLIGHT,
    Code.KILLED: FailureCause.UNKNOWN,
    Code.STALLED: FailureCause.HANG,
    Code.PROGRAM_FAILED: FailureCause.PROGRAM,
    Code.GPU_OUT_OF_MEMORY: FailureCause.PROGRAM,
    Code.LOSS_NOT_FINITE: FailureCause.PROGRAM,
}


def made_progress(workload: Workload, disruptions: int, now: float) -> bool:
    """Return whether a run that has just failed made progress before.

    Args:
        disruptions: The number of failures in a row without reported progress, this one included.
    """
    if disruptions <= 1:
        return True
    reports = workload.progress is not None and workload.progress.step is not None
    return not reports and workload.status.phase is Phase.RUNNING and now - workload.status.since >= LONG_S


def failed_on(workload: Workload, failure: Failure, own: Iterable[Pod], *, progressed: bool) -> tuple[str, ...]:
    """Return the nodes on which the last failures in a row began, this one last, as far as they are known.

    Args:
        own: The pods of the gang when it failed.
        progressed: Whether it made progress before, which ends the row.
    """
    before = () if progressed else workload.status.failures.nodes
    nodes = _nodes(failure, own)
    return tuple(dict.fromkeys((*before, *nodes)))[-MANY_NODES:] if len(nodes) == 1 else before


def is_of_program(failure: Failure, nodes: tuple[str, ...]) -> bool:
    """Return whether the program is at fault, as it failed in a row on these nodes."""
    return failure.reason.code in OF_NODE | OF_GANG and len(nodes) >= MANY_NODES


def blamed_program(failure: Failure, nodes: tuple[str, ...]) -> Failure:
    """Return the failure with the reason why the program, and no node, is at fault."""
    where = f"{', '.join(nodes[:-1])} and {nodes[-1]}"
    message = f"{failure.reason.message}; it failed on {where} in a row, so the program is at fault rather than a node"
    return replace(failure, reason=replace(failure.reason, message=message))


def with_incident(
    change: Change, workload: Workload, failure: Failure, own: Iterable[Pod], now: float, *, progressed: bool
) -> Change:
    """Return the change of a failed gang with what is entered in the histories of nodes: one incident, if any.

    A failure of the program itself, or that may be one, is only listed there.
    """
    code, own = failure.reason.code, tuple(own)
    nodes = _nodes(failure, own) or _first_node(failure, own)
    cause = FailureCause.PROGRAM if failure.is_exit_code else CAUSES.get(code)
    if cause is None or not nodes:
        return change
    in_a_row = failed_on(workload, failure, own, progressed=progressed)
    if code is not Code.NODE_LOST and is_of_program(failure, in_a_row):
        cause = FailureCause.PROGRAM
    is_certain = progressed or (code in OF_NODE and len(nodes) == 1)
    is_charged = code is Code.NODE_LOST or (cause is not FailureCause.PROGRAM and is_certain)
    spec = workload.spec
    incident = Incident(at=now, team=spec.team, run=spec.name, cause=cause, nodes=nodes, is_charged=is_charged)
    return replace(change, incident=incident)


def _nodes(failure: Failure, own: Iterable[Pod]) -> tuple[str, ...]:
    """Return the node that failed, or all nodes of the gang if it is one of them; none for other failures."""
    if failure.is_refusal:
        return ()
    if failure.reason.code in OF_NODE:
        return failure.nodes or ((failure.node,) if failure.node else ())
    if failure.reason.code in OF_GANG:
        return tuple(dict.fromkeys(pod.node for pod in own if pod.node))
    return ()


def _first_node(failure: Failure, own: Iterable[Pod]) -> tuple[str, ...]:
    """Return the node of the rank that failed first; none for a failure that has nothing to do with ranks."""
    if failure.reason.code not in CAUSES or failure.reason.code in OF_NODE:
        return ()
    ends = [(exit_.at, pod.node) for pod in own for exit_ in pod.exits if not exit_.ok and pod.node]
    return (min(ends)[1],) if ends else ()
