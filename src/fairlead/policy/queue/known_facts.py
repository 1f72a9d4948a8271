"""The port to facts about runs that a loop keeps between passes, as the queue reads them.

Nothing depends on them but the time that a pass takes.

See decision 221.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from fairlead.policy.disruption.eviction import HolderFacts
from fairlead.policy.placement.placement import FreeCapacity
from fairlead.policy.queue.durations import Durations
from fairlead.policy.queue.idle_pass import IdlePass
from fairlead.policy.queue.quotas import Ledger
from fairlead.policy.queue.spec_traits import SpecTraits
from fairlead.policy.queue.timeline import Timeline
from fairlead.policy.queue.waiting_lists import WaitingLists
from fairlead.state.snapshot import Snapshot, Workload


class KnownFacts(Protocol):
    """The port; ``PassCache`` implements it, and documents the attributes."""

    runs: dict[str, Workload]
    waiting: dict[str, Workload]
    automatic: dict[str, Workload]
    colocated: dict[str, Workload]
    queue_version: int
    idle_pass: IdlePass | None
    traits: SpecTraits
    lists: WaitingLists

    def look(self, snapshot: Snapshot, left_alone: frozenset[str] | None = None) -> None:
        """Update everything to a snapshot, of which these runs are neither judged nor started; None for those of
        before."""
        ...

    def ordered(self, by_uid: Mapping[str, Workload]) -> list[Workload]:
        """Return these runs in the order of the snapshot."""
        ...

    def moving(self) -> list[Workload]:
        """Return the runs that are moving, in the order of the snapshot."""
        ...

    def holders(self, reserved: Iterable[str]) -> list[Workload]:
        """Return all runs that hold something and those with reserved places."""
        ...

    def holder_facts(self, holders: Sequence[Workload]) -> HolderFacts:
        """Return facts about the runs that ``holders`` returned."""
        ...

    def timeline(self, durations: Durations, now: float) -> Timeline:
        """Return a timeline of capacity, which one pass may modify."""
        ...

    def ledger(self, reserved: Iterable[str]) -> Ledger:
        """Return the holdings of each team, including those of runs with reserved places."""
        ...

    def rooms(self, snapshot: Snapshot, now: float) -> FreeCapacity:
        """Return the free capacity, which one pass may modify."""
        ...
