"""Places gangs whose nodes a test before the start has named: elsewhere, or where only slow nodes are free, there.

What a test says is judged in ``policy/kinds/preflights.py``. See decision 268.
"""

from collections.abc import Sequence

from fairlead.state.reasons import Code
from fairlead.state.snapshot import FailureHistory, Workload


def must_avoid(failures: FailureHistory) -> bool:
    """Return whether the nodes that the run avoids are not used even where no others have room."""
    return not failures.is_tested and failures.last is not None and failures.last.code is Code.GPU_FAULTY


def start_as_it_is(workload: Workload, nodes: Sequence[str]) -> str | None:
    """Return why a gang starts on slow nodes without another test; None if it is tested, or needs no test."""
    failures = workload.status.failures
    is_slow = failures.last is not None and failures.last.code is Code.NODE_SLOW
    if not workload.is_to_be_tested or not is_slow:
        return None
    slow = sorted(set(nodes) & set(failures.avoided_nodes))
    if not slow:
        return None
    return f"nothing else is free, so it starts on {', '.join(slow)} although a test named it slow"
