"""Decides which finished runs need not be kept any longer."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from fairlead.frozen import dataclass
from fairlead.policy.kinds.table import runs_of
from fairlead.policy.queue.durations import kind_of
from fairlead.specs.constraints import Constraints, Limit, broken, enforce
from fairlead.specs.training import DECADE_S
from fairlead.state.plan import Change, Plan
from fairlead.state.snapshot import AnyWorkload, Intent

RULES: Constraints = {
    "for_s": Limit(low=0.001, high=DECADE_S, zero=True),
    "last": Limit(low=0, high=1_000_000, whole=True),
}
# The limit per pass of a loop, which has other work to do.
MOST_AT_ONCE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The rule for finished runs; a run is kept if either attribute keeps it.

    Attributes:
        for_s: Seconds since the end for which a run is kept; None for no such rule.
        last: The number of newest runs kept per team and name, ignoring the number of a repeated name; None for no such
            rule. With neither, all are kept.
    """

    for_s: float | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        enforce(broken(self, RULES))


KEEP_ALL = Retention()
OF_CLUSTERS = Retention(for_s=30 * 86_400.0)
"""The retention of a cluster that was given none."""
KARMADA = ("karmada.io/managed", "true")
"""The label of objects that Karmada copied to a cluster."""


def managed_elsewhere(run: AnyWorkload) -> bool:
    """Return whether Karmada gave the run to this cluster; it creates a copy that is deleted here again."""
    name, value = KARMADA
    return run.spec.labels.get(name) == value


def expired(runs: Iterable[AnyWorkload], keep: Retention, now: float) -> list[AnyWorkload]:
    """Return the finished runs that no rule keeps, in the order in which they ended.

    Excluded are runs that are to resume or are being deleted, runs whose checkpoints an unfinished run starts from, and
    runs that Karmada would create again.
    Children are returned before their parent, and only with it.

    Args:
        runs: Finished and unfinished runs.
        keep: With ``KEEP_ALL`` none is returned.
    """
    if keep == KEEP_ALL:
        return []
    kinds = defaultdict[tuple[str, str], list[AnyWorkload]](list)
    children = defaultdict[str, list[AnyWorkload]](list)
    origins: list[str] = []
    for run in runs:
        if run.parent is not None:
            children[run.parent].append(run)
        if not run.status.phase.is_final:
            origins += (child.checkpoint.origin for child in runs_of(run.spec) if child.checkpoint.origin is not None)
        elif run.parent is None:
            kinds[kind_of(run.spec)].append(run)
    expired_runs: list[AnyWorkload] = []
    for ended in kinds.values():
        ended.sort(key=_ended_at, reverse=True)
        expired_runs += (
            run
            for run in ended[keep.last or 0 :]
            if run.intent not in (Intent.RUN, Intent.DELETE)
            and not managed_elsewhere(run)
            and (keep.for_s is None or now - _ended_at(run)[0] >= keep.for_s)
            and not any(run.uid in origin.split("/") for origin in origins)
        )
    families = (_with_children(run, children) for run in sorted(expired_runs, key=_ended_at))
    return [run for family in families for run in family if all(member.status.phase.is_final for member in family)]


def _with_children(run: AnyWorkload, children: Mapping[str, list[AnyWorkload]]) -> list[AnyWorkload]:
    return [*(descendant for child in children.get(run.uid, ()) for descendant in _with_children(child, children)), run]


def forgetting(runs: Iterable[AnyWorkload], keep: Retention, now: float) -> Plan:
    """Return the plan that forgets the first of the expired runs, at most ``MOST_AT_ONCE``."""
    gone = expired(runs, keep, now)[:MOST_AT_ONCE]
    return Plan(changes=tuple(Change(workload_uid=run.uid, version=run.version, forget=True) for run in gone))


def _ended_at(run: AnyWorkload) -> tuple[float, str]:
    return run.status.finished_at or run.status.since, run.uid
