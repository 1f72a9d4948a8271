"""What a scheduler may know of remaining work in a replay, apart from the truth: a wrong declaration, or history."""

import random

from benchmarks.baselines.muri import Submitted
from benchmarks.baselines.replay import Estimator, Known
from fairlead.policy.queue.duration_estimates import History, declared_remaining_s

WRONG_BY = 2.0


class Noisy:
    """Each job declares its true time, wrong by a factor whose logarithm is uniform up to ``WRONG_BY`` either way."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._declared_s: dict[str, float] = {}

    def remaining_s(self, job: Submitted, done_s: float) -> float:
        """The declaration, corrected by what was done since; drawn when the job is first seen."""
        if job.uid not in self._declared_s:
            self._declared_s[job.uid] = job.work_s * WRONG_BY ** self._random.uniform(-1.0, 1.0)
        return declared_remaining_s(self._declared_s[job.uid], WRONG_BY, done_s)

    def completed(self, job: Submitted) -> None:
        """Nothing is learnt."""


class Learnt:
    """Nothing is declared: only what completed jobs of the same number of GPUs took, and others.

    Models tell next to nothing on these traces: their geometric mean times differ by a factor of about 3, where those
    of sizes differ by 19.
    """

    def __init__(self) -> None:
        self._history = History()

    def remaining_s(self, job: Submitted, done_s: float) -> float:
        """From the jobs that are complete by now."""
        return self._history.remaining_s(_kind(job), done_s)

    def completed(self, job: Submitted) -> None:
        """Remembered."""
        self._history = self._history.with_completed(_kind(job), job.work_s)


def make(name: str, seed: int) -> Estimator:
    """A fresh estimator: ``known``, ``noisy`` or ``learnt``."""
    if name == "noisy":
        return Noisy(seed)
    return Learnt() if name == "learnt" else Known()


def _kind(job: Submitted) -> str:
    return f"{job.num_gpus} GPUs"
