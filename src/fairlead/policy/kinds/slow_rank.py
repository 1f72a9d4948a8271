"""Reports a slow rank with what it costs.

See decision 216.
"""

from collections.abc import Iterable, Sequence

from fairlead.policy.queue.budgets import rate_of
from fairlead.specs.training import DAY_S
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Node, Phase, Pod, Workload
from fairlead.text.money import describe_microusd


def reason(run: Workload, live: Sequence[Pod], nodes: Iterable[Node]) -> Reason | None:
    """Return the reason of a run with a slow rank, with its node, its factor and its price; None without one."""
    slow = None if run.progress is None else run.progress.slow_rank
    if slow is None or run.status.phase is not Phase.RUNNING:
        return None
    pod = _pod_of(run, live, slow.rank)
    where = "" if pod is None else f" on {pod.node}"
    message = (
        f"rank {slow.rank}{where} takes {slow.factor:.2f} times as long as its peers since step {slow.since}; "
        f"without it a step would take {slow.step_s - slow.lost_s:.3g} s, not {slow.step_s:.3g}"
    )
    lost = rate_of(run.gang, nodes) * DAY_S * slow.lost_s / slow.step_s
    if lost:
        message += f": {describe_microusd(round(lost))} a day"
    return Reason(
        code=Code.SLOW_RANK,
        message=message,
        remedy="Look at that machine: clocks, temperature, other processes.",
    )


def _pod_of(run: Workload, live: Sequence[Pod], rank: int) -> Pod | None:
    index = rank // max(run.gang.world_size // run.gang.nodes, 1)
    return next((pod for pod in live if pod.index == index and pod.attempt == run.status.attempt), None)
