"""Attempts of runs that are over, as far as traces show them. A value for each, small enough to keep with its run."""

from collections.abc import Sequence

from fairlead.frozen import dataclass
from fairlead.state.snapshot import Pod, RankExit

MOST_NAMED_NODES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePull:
    """The pull of a pod's images; times are Unix seconds.

    Attributes:
        image: The image that took longest.
        size_bytes: Its size; None if unknown.
    """

    since: float
    until: float
    image: str
    node: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAttempt:
    """An attempt that is over; times are Unix seconds.

    Attributes:
        nodes: The names of its nodes as text; of many only the first.
        pull: The pull of images by the pod that started last; None for none, or if nobody saw it.
        started_at: The time at which the last of its pods had started; None if one never did.
        first_step_at: The time of the first step that it reported; None without one.
        problem: Why it failed; None if it did not.
    """

    attempt: int
    placed_at: float
    ended_at: float
    nodes: str
    num_pods: int
    pull: ImagePull | None = None
    started_at: float | None = None
    first_step_at: float | None = None
    problem: str | None = None


def finished_attempt(
    pods: Sequence[Pod],
    *,
    until: float,
    placed_at: float | None = None,
    first_step_at: float | None = None,
    pull: ImagePull | None = None,
) -> FinishedAttempt:
    """Sum up the pods of an attempt that is over.

    Args:
        pods: All of its pods, at least one; of those that were replaced, as far as they are known.
        until: The end of the attempt, if no rank reported any.
        placed_at: The time of the decision; by default that at which its first pod was created.
        first_step_at: The time of the first step that the run last reported, which may be of an earlier attempt.
    """
    placed = min(pod.created_at for pod in pods) if placed_at is None else placed_at
    last = {pod.index: pod for pod in sorted(pods, key=lambda pod: pod.replacement)}
    first, pods = [pod for pod in pods if not pod.replacement], [last[index] for index in sorted(last)]
    exits = [rank_exit for pod in pods for rank_exit in pod.exits]
    begun = [pod.started_at for pod in first if pod.started_at is not None]
    # Kubelet knows the second only, and cuts off the rest.
    started = max(placed, *begun) if len(begun) == len(first) else None
    names = sorted({pod.node for pod in pods})
    rest = len(names) - MOST_NAMED_NODES
    return FinishedAttempt(
        attempt=pods[0].attempt,
        placed_at=placed,
        ended_at=max((rank_exit.at for rank_exit in exits), default=until),
        nodes=",".join(names[:MOST_NAMED_NODES]) + (f" and {rest} others" if rest > 0 else ""),
        num_pods=len(pods),
        pull=pull,
        started_at=started,
        first_step_at=None if started is None or (first_step_at or 0.0) < started else first_step_at,
        problem=_problem(pods, exits),
    )


def _problem(pods: Sequence[Pod], exits: Sequence[RankExit]) -> str | None:
    bad = [rank_exit for rank_exit in exits if not rank_exit.ok]
    if not bad:
        return next((pod.message for pod in pods if pod.phase.is_final and pod.message is not None), None)
    first = min(bad, key=lambda rank_exit: rank_exit.at)
    ended = f"exit code {first.exit_code}" if first.signal is None else f"signal {first.signal}"
    return f"rank {first.rank} ended with {ended}"
