"""Takes new workloads into the snapshot, of each team so many in a pass as can be written in one. Pure.

Each new workload costs a decision and a write. Without a limit, a team that submits thousands makes each pass decide
all of them anew until the last is written, and other teams wait for that.

See decision 217.
"""

from collections import defaultdict
from dataclasses import replace

from fairlead.state.reasons import Code
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Snapshot

MOST_NEW = 100
"""New workloads of a team in a pass; the rest has its turn in later ones."""


def take_in(snapshot: Snapshot, most: int = MOST_NEW) -> tuple[Snapshot, frozenset[str]]:
    """Return the snapshot without the new workloads that have no turn yet, and the teams of these.

    Those of a high priority have their turn first, then the oldest.
    """
    new: dict[str, list[AnyWorkload]] = defaultdict(list)
    for workload in (*snapshot.workloads, *snapshot.parents):
        if _is_new(workload):
            new[workload.spec.team].append(workload)
    if not any(len(workloads) > most for workloads in new.values()):
        return snapshot, frozenset()
    later = {workload.uid for workloads in new.values() for workload in sorted(workloads, key=_turn)[most:]}
    teams = frozenset(team for team, workloads in new.items() if len(workloads) > most)
    workloads = tuple(workload for workload in snapshot.workloads if workload.uid not in later)
    parents = tuple(parent for parent in snapshot.parents if parent.uid not in later)
    return replace(snapshot, workloads=workloads, parents=parents), teams


def _is_new(workload: AnyWorkload) -> bool:
    """Return whether nothing was decided for a workload yet.

    Children are none: they are few at a time, and their parents know them.
    """
    status = workload.status
    return (
        status.phase is Phase.PENDING
        and status.reason.code is Code.SUBMITTED
        and workload.parent is None
        and workload.intent is Intent.RUN
    )


def _turn(workload: AnyWorkload) -> tuple[float, float, str]:
    return -float(getattr(workload.spec, "priority", 0) or 0), workload.created_at, workload.uid
