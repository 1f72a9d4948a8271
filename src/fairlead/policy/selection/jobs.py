"""The subjects of the queue's decisions: jobs that want devices, and groups of them that share the same ones.

No decision is made here.
"""

from collections.abc import Callable, Hashable
from typing import Any

from fairlead.frozen import dataclass
from fairlead.policy.gpu.stage_interleaving import MAX_MEMBERS

Kind = Any
"""Jobs of one kind slow others down alike, and are slowed down alike. Those of one queue can be sorted."""

Speeds = Callable[[tuple[Kind, ...]], tuple[float, ...]]
"""Of a group's kinds, sorted: the speed of each member as a share of its speed alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharable:
    """The properties by which a job may share its devices with others.

    Attributes:
        alike: Only jobs for which this is equal share.
        most: So many of those have room for all but GPUs beside each other.
        memory: The part of a device's memory that it says it needs; 0 when it does not say.
    """

    kind: Kind
    alike: Hashable = None
    most: int = MAX_MEMBERS
    memory: float = 0.0


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
    # None of one that does not share.
    sharable: Sharable | None = None
    # Of its team: how many times as much a second of it is worth.
    weight: int = 1

    def __post_init__(self) -> None:
        assert self.num_gpus >= 1, "a job without devices does not queue for them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Jobs of one size that run together on the same devices; most often one alone."""

    jobs: tuple[Job, ...]

    def __post_init__(self) -> None:
        assert 1 <= len(self.jobs) <= MAX_MEMBERS, f"a group of {len(self.jobs)}"
        assert len({job.num_gpus for job in self.jobs}) == 1, "members of a group are of one size"

    @property
    def num_gpus(self) -> int:
        """Devices that the group holds."""
        return self.jobs[0].num_gpus
