"""Which runs that are over need not be kept any longer."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.policy.queue.durations import kind_of
from fairlead.specs.constraints import Constraints, Limit, broken, enforce
from fairlead.specs.training import DECADE_S
from fairlead.state.plan import Change, Plan
from fairlead.state.snapshot import Intent, Workload

RULES: Constraints = {
    "for_s": Limit(low=0.001, high=DECADE_S, zero=True),
    "last": Limit(low=0, high=1_000_000, whole=True),
}
# Of one look of a loop, which has runs to look after meanwhile.
MOST_AT_ONCE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept of runs that are over: whatever either of these keeps.

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


def expired(runs: Iterable[Workload], keep: Retention, now: float) -> list[Workload]:
    """Return the runs that are over and that nothing keeps, in the order in which they ended.

    A run that is to go on or is being deleted is none of them, nor is one from whose own checkpoints a run that is not
    over begins.

    Args:
        runs: Those that are over, and those that are not.
        keep: None are returned for ``KEEP_ALL``.
    """
    if keep == KEEP_ALL:
        return []
    kinds = defaultdict[tuple[str, str], list[Workload]](list)
    origins = []
    for run in runs:
        if run.status.phase.is_final:
            kinds[kind_of(run.spec)].append(run)
        elif run.spec.checkpoint.origin is not None:
            origins.append(run.spec.checkpoint.origin)
    found: list[Workload] = []
    for ended in kinds.values():
        ended.sort(key=_ended_at, reverse=True)
        found += (
            run
            for run in ended[keep.last or 0 :]
            if run.intent not in (Intent.RUN, Intent.DELETE)
            and (keep.for_s is None or now - _ended_at(run)[0] >= keep.for_s)
            and not any(run.uid in origin.split("/") for origin in origins)
        )
    return sorted(found, key=_ended_at)


def forgetting(runs: Iterable[Workload], keep: Retention, now: float) -> Plan:
    """The plan that forgets the first of those that need not be kept, ``MOST_AT_ONCE`` at most."""
    gone = expired(runs, keep, now)[:MOST_AT_ONCE]
    return Plan(changes=tuple(Change(workload_uid=run.uid, version=run.version, forget=True) for run in gone))


def _ended_at(run: Workload) -> tuple[float, str]:
    return run.status.finished_at or run.status.since, run.uid
