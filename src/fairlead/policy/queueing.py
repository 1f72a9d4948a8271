"""Which of the jobs that want to run should hold devices now, when any may be preempted.

Says who runs and with whom, as groups in an order; on which nodes they go is for placement. Knows nothing of quotas,
priorities or prices: those decide who is in the queue.
"""

from dataclasses import dataclass

from fairlead.policy.colocation import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A gang that wants devices: one that holds some now as well as one that waits."""

    uid: str
    num_gpus: int
    # Seconds that it still needs alone on its devices, as far as is known.
    remaining_s: float
    # Seconds for which it has held devices so far, and those that it would have needed alone for what it has done.
    attained_s: float = 0.0
    done_s: float = 0.0
    # Known only once it has run or resembles one that has; None never shares.
    profile: Profile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Jobs of one size that run together on the same devices; most often one alone."""

    jobs: tuple[Job, ...]

    def __post_init__(self) -> None:
        assert self.jobs, "a group has a member"
        assert len({job.num_gpus for job in self.jobs}) == 1, "members of a group are of one size"

    @property
    def num_gpus(self) -> int:
        """Devices that the group holds."""
        return self.jobs[0].num_gpus
