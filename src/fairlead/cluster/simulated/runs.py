"""A live pod in detail: the progress of its program, computed from the times of its changes.

Effort is time in which a program works or saves at its own pace. Beside other pods it accrues more slowly; after a stop
notice that is followed by a checkpoint it does not accrue. Regular checkpoints lie at multiples of ``checkpoint_s`` of
work, and count once they are complete.
"""

import math
from dataclasses import dataclass

from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram
from fairlead.state.snapshot import Progress


@dataclass(slots=True)
class SimulatedPod:
    """A live pod.

    Attributes:
        times: Speed relative to the smallest gang of its run; ``program`` already has that speed.
        num_gpus: GPUs that it holds of its node, from ``divided_at`` on.
        gpu_s: GPU-seconds that it held up to then.
        held_s: Work that the checkpoint it started from holds.
        started_at: Time at which its ranks began.
        speed: Effort per second, from ``since`` on.
        data_speed: The part of it that reading allows.
        effort_s: Effort up to ``since``.
        ends_at: Time at which its work is done; None before it starts and when it never ends by itself.
        kill_at: Time of SIGKILL.
        in_place: Its attempt, if the gang goes on in place without a lost pod; None if it does not.
    """

    workload_uid: str
    pod_uid: str
    index: int
    program: SimulatedProgram
    times: float = 1.0
    num_gpus: float = 0.0
    divided_at: float = 0.0
    gpu_s: float = 0.0
    held_s: float = 0.0
    started_at: float | None = None
    speed: float = 1.0
    data_speed: float = 1.0
    since: float = 0.0
    effort_s: float = 0.0
    ends_at: float | None = None
    notice_at: float | None = None
    kill_at: float = math.inf
    in_place: int | None = None

    def start(self, at: float, held_s: float) -> None:
        """Start its ranks, from a checkpoint that holds so much work."""
        self.started_at = self.since = at
        self.held_s = min(held_s, self.program.duration_s)
        self._expect_end(at)

    def change_speed(self, at: float, speed: float) -> None:
        """Change the effort per second from a time on."""
        self.effort_s = self.effort_at(at)
        self.since = at
        self.speed = speed
        self._expect_end(at)

    def hold(self, at: float, num_gpus: float) -> None:
        """Change the number of GPUs that it holds from a time on."""
        self.gpu_s += self.num_gpus * (at - self.divided_at)
        self.divided_at, self.num_gpus = at, num_gpus

    def mean_gpus(self, since: float, until: float) -> float:
        """Return the mean number of GPUs that it held over its lifetime."""
        if self.gpu_s == 0.0 or until <= since:
            return self.num_gpus
        return (self.gpu_s + self.num_gpus * (until - self.divided_at)) / (until - since)

    def worked_until(self, now: float) -> float:
        """Return the end of its work so far; the stop notice if a checkpoint follows, which holds that work."""
        return min(now, self.notice_at) if self._saves_at_notice and self.notice_at is not None else now

    def effort_at(self, now: float) -> float:
        """Return the effort since its ranks began."""
        if self.started_at is None:
            return 0.0
        return self.effort_s + max(0.0, self.worked_until(now) - self.since) * self.speed

    def work_s(self, now: float) -> float:
        """Return the work done so far, including that of earlier attempts held by its checkpoint."""
        if self.started_at is None:
            return self.held_s
        return max(self.held_s, min(self._done(self.effort_at(now))[0], self._limit))

    def saved_s(self, now: float) -> float:
        """Return the work that the newest regular checkpoint holds."""
        if self.program.checkpoint_s is None:
            return self.held_s
        return max(self.held_s, min(self._done(self.effort_at(now))[1], self._limit))

    def saving_s(self, now: float) -> float:
        """Return the effort that went into regular checkpoints."""
        effort = min(self.effort_at(now), self._effort_for(self._limit))
        return max(0.0, effort - (self.work_s(now) - self.held_s))

    def active_at(self, now: float) -> float | None:
        """Return the last sign of progress: a step, or without steps any output until it hangs."""
        if self.started_at is None:
            return None
        work = self.work_s(now)
        if self.program.step_s is not None:
            work = max(self.held_s, count(work, self.program.step_s) * self.program.step_s)
        return self._reached_at(work, now)

    def progress(self, now: float) -> Progress | None:
        """Return the last report of rank 0; None when the program reports nothing or has not begun."""
        step_s = self.program.step_s
        if step_s is None or self.started_at is None:
            return None
        total = self.program.duration_s
        saved = count(self.saved_s(now), step_s)
        return Progress(
            step=count(self.work_s(now), step_s),
            total_steps=count(total, step_s) if math.isfinite(total) else None,
            throughput=self.speed / step_s,
            throughput_unit="steps/s",
            checkpoint_step=saved or None,
            checkpoint_at=self._reached_at(self.saved_s(now), now) if saved else None,
            resumed_step=count(self.held_s, step_s) or None,
            in_place_attempt=self.in_place,
            updated_at=self.active_at(now) or 0.0,
        )

    def _reached_at(self, work_s: float, now: float) -> float:
        """Return the time at which so much work was done, extrapolated backwards from the current speed."""
        return min(now, self.since + (self._effort_for(work_s) - self.effort_s) / self.speed)

    @property
    def _saves_at_notice(self) -> bool:
        return self.program.on_term is OnTerm.CHECKPOINT

    @property
    def _limit(self) -> float:
        """Return the work at which it ends or hangs."""
        hangs_after_s = self.program.hangs_after_s
        return self.program.duration_s if hangs_after_s is None else min(self.program.duration_s, hangs_after_s)

    def _expect_end(self, at: float) -> None:
        total_s = self.program.duration_s
        if self.program.hangs or not math.isfinite(total_s):
            self.ends_at = None
        else:
            self.ends_at = at + (self._effort_for(total_s) - self.effort_s) / self.speed

    def _effort_for(self, work_s: float) -> float:
        """Return the effort from its start to so much work, with checkpoints before that work but not the one at it."""
        effort, every, cost = work_s - self.held_s, self.program.checkpoint_s, self.program.checkpoint_cost_s
        if every is None or not cost or not math.isfinite(work_s):
            return effort
        num_before = math.ceil(work_s / every - 1e-6) - 1
        return effort + max(0, num_before - count(self.held_s, every)) * cost

    def _done(self, effort_s: float) -> tuple[float, float]:
        """Return the work, and the work in complete checkpoints, after so much effort."""
        every, cost = self.program.checkpoint_s, self.program.checkpoint_cost_s
        if every is None:
            return self.held_s + effort_s, self.held_s
        first = (count(self.held_s, every) + 1) * every
        beyond = effort_s - (first - self.held_s)
        if beyond < -1e-6 * every:
            return self.held_s + effort_s, self.held_s
        beyond = max(0.0, beyond)
        num = count(beyond, every + cost)
        rest = max(0.0, beyond - num * (every + cost))
        work = first + num * every + max(0.0, rest - cost)
        saved = first + (num if rest >= cost * (1 - 1e-6) else num - 1) * every
        return work, (saved if saved >= first else self.held_s)


def count(work_s: float, every_s: float) -> int:
    """Return whole multiples of ``every_s``, tolerating the rounding of sums of times."""
    return int(work_s / every_s + 1e-6)
