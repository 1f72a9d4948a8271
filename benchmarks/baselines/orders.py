"""SRTF and SRSF: the whole queue in one order, nobody shares."""

from collections.abc import Callable, Sequence

from benchmarks.baselines.replay import Answer, Policy
from fairlead.policy.selection.jobs import Job, JobGroup


def srtf() -> Policy:
    """Shortest remaining time first."""
    return _ordered(lambda job: job.remaining_s)


def srsf() -> Policy:
    """Shortest remaining service first: time x GPUs (Tiresias, NSDI'19)."""
    return _ordered(lambda job: job.remaining_s * job.num_gpus)


def _ordered(key: Callable[[Job], float]) -> Policy:
    def policy(queue: Sequence[Job], num_gpus: int, now: float) -> Answer:
        return Answer(groups=tuple(JobGroup(jobs=(job,)) for job in sorted(queue, key=key)))

    return policy
