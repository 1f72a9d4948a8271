"""Decides which runs that are over need not be kept any longer."""

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
# Of one look of a loop, which has runs to look after meanwhile.
MOST_AT_ONCE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The rule for runs that are over: those are kept that either of these keeps.

    Attributes:
        for_s: Seconds since their end; None for no such reason to keep one.
        last: The newest so many of each team and name, the number behind a repeated name left out; None for no such
            reason. With neither, all are kept.
    """

    for_s: float | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        enforce(broken(self, RULES))


KEEP_ALL = Retention()


def expired(runs: Iterable[AnyWorkload], keep: Retention, now: float) -> list[AnyWorkload]:
    """Return the runs that are over and that nothing keeps, in the order in which they ended.

    A run that is to go on or is being deleted is none of them, nor is one from whose own checkpoints a run that is not
    over begins. Children are returned before their parent, and only with it.

    Args:
        runs: Those that are over, and those that are not.
        keep: None are returned for ``KEEP_ALL``.
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
            origins += (each.checkpoint.origin for each in runs_of(run.spec) if each.checkpoint.origin is not None)
        elif run.parent is None:
            kinds[kind_of(run.spec)].append(run)
    found: list[AnyWorkload] = []
    for ended in kinds.values():
        ended.sort(key=_ended_at, reverse=True)
        found += (
            run
            for run in ended[keep.last or 0 :]
            if run.intent not in (Intent.RUN, Intent.DELETE)
            and (keep.for_s is None or now - _ended_at(run)[0] >= keep.for_s)
            and not any(run.uid in origin.split("/") for origin in origins)
        )
    families = (_with_children(run, children) for run in sorted(found, key=_ended_at))
    return [run for family in families for run in family if all(each.status.phase.is_final for each in family)]


def _with_children(run: AnyWorkload, children: Mapping[str, list[AnyWorkload]]) -> list[AnyWorkload]:
    return [*(each for child in children.get(run.uid, ()) for each in _with_children(child, children)), run]


def forgetting(runs: Iterable[AnyWorkload], keep: Retention, now: float) -> Plan:
    """The plan that forgets the first of those that need not be kept, ``MOST_AT_ONCE`` at most."""
    gone = expired(runs, keep, now)[:MOST_AT_ONCE]
    return Plan(changes=tuple(Change(workload_uid=run.uid, version=run.version, forget=True) for run in gone))


def _ended_at(run: AnyWorkload) -> tuple[float, str]:
    return run.status.finished_at or run.status.since, run.uid
