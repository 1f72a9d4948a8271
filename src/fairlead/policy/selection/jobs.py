"""Defines the subjects of selection: jobs that request devices, and groups of them that share devices.

No decision is made here.
"""

from collections.abc import Callable, Hashable
from typing import Any

from fairlead.frozen import dataclass
from fairlead.policy.gpu.stage_interleaving import MAX_MEMBERS

Kind = Any
"""Jobs of one kind slow others down, and are slowed down, alike. Those of one queue are sortable."""

Speeds = Callable[[tuple[Kind, ...]], tuple[float, ...]]
"""Takes a group's kinds, sorted; returns the speed of each member as a share of its speed alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharable:
    """The properties that determine with which others a job may share its devices.

    Attributes:
        alike: Only jobs for which this is equal share.
        most: How many of them have room beside each other for everything but GPUs.
        memory: The part of a device's memory that it declares to need; 0 if it declares none.
    """

    kind: Kind
    alike: Hashable = None
    most: int = MAX_MEMBERS
    memory: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A gang that requests devices, whether it holds some now or waits."""

    uid: str
    num_gpus: int
    # Remaining seconds alone on its devices, as far as known.
    remaining_s: float
    # Seconds for which it has held devices so far, and the seconds that the work done would have taken alone.
    attained_s: float = 0.0
    done_s: float = 0.0
    # None for a job that does not share.
    sharable: Sharable | None = None
    # The weight of its team: a factor of the worth of a second.
    weight: int = 1

    def __post_init__(self) -> None:
        assert self.num_gpus >= 1, "a job without devices does not queue for them"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """Jobs of one size that run together on the same devices; usually one alone."""

    jobs: tuple[Job, ...]

    def __post_init__(self) -> None:
        assert 1 <= len(self.jobs) <= MAX_MEMBERS, f"a group of {len(self.jobs)}"
        assert len({job.num_gpus for job in self.jobs}) == 1, "members of a group are of one size"

    @property
    def num_gpus(self) -> int:
        """Return the number of devices that the group holds."""
        return self.jobs[0].num_gpus
