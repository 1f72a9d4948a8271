"""Recognizes a pass over the queue that would repeat the last one, which started and stopped nothing.

Several passes follow each other at one instant, until one changes nothing. One that has recorded only why runs wait, or
nothing, comes to the same result again if no run was added, no capacity was freed and no time has passed.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields
from operator import attrgetter

from fairlead.frozen import dataclass, replace
from fairlead.state.plan import Change, HeldRoom
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Phase, Pod, Snapshot, Status, Workload

_BEGUN = frozenset((Phase.STARTING, Phase.RUNNING))
_of_run = attrgetter(*({attribute.name for attribute in fields(Workload)} - {"spec", "status", "version"}))
_of_status = attrgetter(*({attribute.name for attribute in fields(Status)} - {"reason", "phase", "since"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePass:
    """A pass that started and stopped nothing.

    Attributes:
        version: The version of the queue in ``PassCache``.
        reasons: What it recorded, by uid of the run.
        held: What it held free for runs.
        held_up: Teams of which a run found no room.
    """

    now: float
    version: int
    snapshot: Snapshot
    reasons: Mapping[str, Reason]
    held: tuple[HeldRoom, ...]
    held_up: frozenset[str]

    @classmethod
    def of(
        cls,
        changes: Sequence[Change],
        held: Sequence[HeldRoom],
        held_up: Set[str],
        snapshot: Snapshot,
        now: float,
        version: int,
        runs: Mapping[str, Workload],
    ) -> "IdlePass | None":
        """Return the pass that came to these changes; None if it changed more than reasons of pending runs."""
        reasons = dict[str, Reason]()
        for change in changes:
            before, after = runs[change.workload_uid].status, change.status
            if after is None or change.create or change.terminate or change.intent is not None:
                return None
            if not before.phase is after.phase is Phase.PENDING or before.since != after.since:
                return None
            if _of_status(before) != _of_status(after):
                return None
            reasons[change.workload_uid] = after.reason
        return cls(
            now=now, version=version, snapshot=snapshot, reasons=reasons, held=tuple(held), held_up=frozenset(held_up)
        )

    def is_repeated(self, snapshot: Snapshot, now: float, version: int, runs: Mapping[str, Workload]) -> bool:
        """Return whether a pass over this snapshot would come to the same, with nothing left to record."""
        last = self.snapshot
        return (
            now == self.now
            and version == self.version
            and snapshot.debts == last.debts
            and snapshot.completed == last.completed
            and snapshot.teams == last.teams
            and snapshot.spending == last.spending
            and snapshot.rules == last.rules
            and snapshot.partitioned == last.partitioned
            and snapshot.growth is None
            and all(runs[uid].status.reason == reason for uid, reason in self.reasons.items())
        )


def only_begins(old: Workload, change: Change) -> Workload | None:
    """Return the run after a change that only records that its ranks began; None for any other change.

    A pass that stops nothing does not notice it.
    """
    if change.status is None or replace(change, status=None, event=None) != _nothing(old):
        return None
    new = replace(old, status=change.status)
    return new if old.status.phase in _BEGUN and new.status.phase in _BEGUN and is_same_to_queue(old, new) else None


def _nothing(workload: Workload) -> Change:
    return Change(workload_uid=workload.uid, version=workload.version)


def is_same_to_queue(old: Workload, new: Workload) -> bool:
    """Return whether a pass that stops nothing treats both versions of a run alike.

    It does not read why a run waits, nor whether the ranks of one that holds its place have begun.
    """
    before, after = old.status, new.status
    if old.spec is not new.spec or _of_run(old) != _of_run(new):
        return False
    if before.phase is after.phase is Phase.PENDING:
        return before.since == after.since and _of_status(before) == _of_status(after)
    if before.phase in _BEGUN and after.phase in _BEGUN:
        return _of_status(before) == _of_status(after)
    return before == after


def queue_facts(pods: Sequence[Pod]) -> set[tuple[object, ...]]:
    """Return what such a pass reads of pods."""
    return {
        (pod.uid, pod.attempt, pod.index, pod.node, pod.grant, pod.phase.is_final, pod.terminating_since)
        for pod in pods
    }
