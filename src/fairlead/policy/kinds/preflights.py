"""Judges the test of a gang's nodes before its program starts: which node it named, and what follows.

A node whose network or GPU is slow is avoided where others have room; where none have, the gang starts all the same,
since a slow start is better than none. A node whose GPU computes wrongly is not used: the gang waits for another. After
``MOST_TESTS`` tests in a row that named slow nodes the gang starts as it is. No retry of the run is spent.

See decision 268.
"""

from collections.abc import Iterable
from dataclasses import replace

from fairlead.policy.queue.changes import change_to
from fairlead.specs.training import Training
from fairlead.state.plan import Change, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import FailureHistory, Phase, Pod, PodPhase, Workload
from fairlead.text.quantities import describe_duration, plural

# As a pod's supervising process says it (runtime/shim.py).
SAYINGS = {"preflight, slow: ": Code.NODE_SLOW, "preflight, faulty: ": Code.GPU_FAULTY}
CODES = frozenset(SAYINGS.values())
MOST_TESTS = 3


def named_nodes(spec: Training, pods: Iterable[Pod]) -> tuple[Reason, tuple[str, ...]] | None:
    """Return what a test says of the nodes of failed pods, with their names; None if these failed otherwise."""
    if spec.preflight is None:
        return None
    failed = sorted((pod for pod in pods if pod.phase is PodPhase.FAILED), key=lambda pod: pod.index)
    verdicts = [(_code(pod), pod) for pod in failed]
    if not verdicts or any(code is None for code, _ in verdicts):
        return None
    code, first = next((pair for pair in verdicts if pair[0] is Code.GPU_FAULTY), verdicts[0])
    assert code is not None
    assert first.message is not None
    says = next(first.message.removeprefix(prefix) for prefix in SAYINGS if first.message.startswith(prefix))
    reason = Reason(
        code=code, message=f"the test before the start names pod {first.index} of {spec.nodes} on {first.node}: {says}"
    )
    return reason, tuple(sorted({pod.node for code_, pod in verdicts if code_ is code and pod.node}))


def counted(failures: FailureHistory, code: Code) -> FailureHistory:
    """Return the failures of a run after a test that named a node."""
    number = failures.preflights + 1
    return replace(failures, preflights=number, is_tested=code is Code.NODE_SLOW and number >= MOST_TESTS)


def announce(workload: Workload) -> Change | None:
    """Return the change of a placed gang whose nodes are tested; None if it says so already, or they are not."""
    status, test = workload.status, workload.spec.preflight
    if (
        test is None
        or status.failures.is_tested
        or status.phase is not Phase.STARTING
        or status.reason.code is not Code.PLACED
    ):
        return None
    reason = Reason(
        code=Code.PREPARING, message=f"its nodes are tested before the program starts: {describe(workload.spec)}"
    )
    return replace(change_to(workload, replace(status, reason=reason)), event=Event(type="Preparing", reason=reason))


def describe(spec: Training) -> str:
    """Return the tests of a spec that has some, with their times, as a clause."""
    test = spec.preflight
    assert test is not None
    parts = []
    if test.gpu_s is not None:
        parts.append(f"GPUs for {describe_duration(test.gpu_s)}")
    if test.network_s is not None:
        parts.append(f"the network for at most {describe_duration(test.network_s)}")
    if test.loss_steps is not None:
        parts.append(f"the loss of {plural(test.loss_steps, 'step')}")
    return ", ".join(parts)


def describe_plan(spec: Training) -> str:
    """Return what the test of a spec that has one takes."""
    assert spec.preflight is not None
    longest = f", for at most {describe_duration(spec.preflight.longest_s)}" if spec.preflight.longest_s else ""
    return f"its nodes are tested before the program first starts{longest}: {describe(spec)}"


def _code(pod: Pod) -> Code | None:
    return next((code for prefix, code in SAYINGS.items() if (pod.message or "").startswith(prefix)), None)
