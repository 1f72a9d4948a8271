"""Tiresias-L (NSDI'19), as Muri's simulator runs it: three queues by attained service."""

import math
from collections.abc import Sequence

from benchmarks.baselines.replay import Answer, Policy
from fairlead.policy.selection.jobs import Job, JobGroup

# GPU-seconds after which a job leaves the first and the second queue.
LIMITS_GPU_S = (3250.0, 7200.0)

# Attained service is a sum of floats: without it a job could be woken for ever just short of its limit.
_SAME_MOMENT_S = 1e-6


class TiresiasL:
    """Keeps the queues; a job that does not run goes behind those of its queue that do.

    Only the number of free GPUs counts, not where they are, so the order that it answers is that of size.
    """

    def __init__(self) -> None:
        self._queues: list[list[str]] = [[] for _ in range(len(LIMITS_GPU_S) + 1)]
        self._level: dict[str, int] = {}
        self._running: set[str] = set()

    def __call__(self, queue: Sequence[Job], num_gpus: int, now: float) -> Answer:
        """Runs whoever fits, queue by queue."""
        by_uid = {job.uid: job for job in queue}
        self._update(queue, by_uid)
        chosen: list[Job] = []
        free = num_gpus
        for names in self._queues:
            for uid in names:
                if by_uid[uid].num_gpus <= free:
                    free -= by_uid[uid].num_gpus
                    chosen.append(by_uid[uid])
        self._running = {job.uid for job in chosen}
        for names in self._queues:
            names.sort(key=lambda uid: uid not in self._running)
        wake_s = min((now + self._until_demoted_s(job) for job in chosen), default=math.inf)
        ordered = sorted(chosen, key=lambda job: -job.num_gpus)
        return Answer(groups=tuple(JobGroup(jobs=(job,)) for job in ordered), wake_s=wake_s)

    def _update(self, queue: Sequence[Job], by_uid: dict[str, Job]) -> None:
        for names in self._queues:
            names[:] = [uid for uid in names if uid in by_uid]
        for job in queue:
            if job.uid not in self._level:
                self._level[job.uid] = 0
                self._queues[0].append(job.uid)
            elif job.uid in self._running:
                level = self._level[job.uid]
                if level < len(LIMITS_GPU_S) and job.attained_s >= LIMITS_GPU_S[level] / job.num_gpus - _SAME_MOMENT_S:
                    self._queues[level].remove(job.uid)
                    self._queues[level + 1].append(job.uid)
                    self._level[job.uid] = level + 1

    def _until_demoted_s(self, job: Job) -> float:
        level = self._level[job.uid]
        if level == len(LIMITS_GPU_S):
            return math.inf
        return max(0.0, math.ceil(LIMITS_GPU_S[level] / job.num_gpus) - job.attained_s)


def tiresias_l() -> Policy:
    """A fresh Tiresias-L."""
    return TiresiasL()
