"""Tells on a workload that Fairlead itself failed while it looked at it, so that nothing is decided for it meanwhile.

Such a failure is an error in Fairlead, or an object that nobody foresaw. It is to delay that workload alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from fairlead.state.plan import Change, Event, InternalFailure
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Snapshot, Warned, Workload

EVENT = "InternalError"
MOST_ATTEMPTS = 200
"""Attempts in the search for workloads with which a pass fails: enough for eight among a hundred thousand."""
REMEDY = (
    "Its pods go on as they are. Stop or delete it and submit it again if it must not wait, "
    "and report this message: it is an error in Fairlead."
)


class InternalFailures:
    """The workloads at which a pass failed.

    Args:
        unreadable: Why workloads could not be observed, by uid.
        deferred: Uids of workloads that are to be decided later, which is no failure.
    """

    def __init__(self, unreadable: Mapping[str, str], deferred: Set[str] = frozenset()) -> None:
        self._deferred = deferred
        self._by_uid = {uid: InternalFailure(workload_uid=uid, problem=problem) for uid, problem in unreadable.items()}
        self._others: list[InternalFailure] = []

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid or uid in self._deferred

    @property
    def uids(self) -> frozenset[str]:
        """The uids of the workloads at which it failed, or that are to be decided later."""
        return frozenset((*self._by_uid, *self._deferred))

    def note(self, workload_uid: str, error: Exception) -> None:
        """Record an unexpected error at a workload; at none if it is not known whose it is."""
        failure = InternalFailure(workload_uid=workload_uid, problem=describe(error), error=error)
        if workload_uid:
            self._by_uid[workload_uid] = failure
        else:
            self._others.append(failure)

    def all(self) -> tuple[InternalFailure, ...]:
        """Return all failures."""
        return (*self._by_uid.values(), *self._others)

    def changes(
        self, snapshot: Snapshot, considered: Iterable[AnyWorkload], busy: frozenset[str], now: float
    ) -> list[Change]:
        """Return the changes that show the failures on their workloads, and that take back those which are over.

        Args:
            considered: The workloads that this pass looked at.
            busy: Uids of workloads that another change was decided for.
        """
        changes: list[Change | None] = []
        if self._by_uid:
            everyone = (*snapshot.workloads, *snapshot.parents)
            failing = (run for run in everyone if run.uid in self._by_uid and run.uid not in busy)
            changes += [tell(run, self._by_uid[run.uid].problem, now) for run in failing]
        shown = (run for run in considered if run.status.warning.reason is not None)
        changes += [settle(run) for run in shown if run.uid not in self and run.uid not in busy]
        return [change for change in changes if change is not None]


def without_failing(
    some: Sequence[tuple[int, Workload]],
    attempt: Callable[[Sequence[tuple[int, Workload]]], list[Change]],
    first: Exception,
    failures: InternalFailures,
) -> list[Change]:
    """Return the changes of an attempt without the workloads with which it fails; they are found by halving.

    Args:
        first: The error of the attempt with all.
        failures: Receives those workloads; if there are too many, or only several together fail, the attempt as such.
    """
    failing: list[tuple[str, Exception]] = []
    parts, num_attempts = [some], 0
    while parts:
        part = parts.pop()
        halves = (part[: len(part) // 2], part[len(part) // 2 :])
        for half in halves if len(part) > 1 else (part,):
            num_attempts += 1
            if num_attempts > MOST_ATTEMPTS:
                break
            try:
                attempt(half)
            except Exception as error:  # noqa: BLE001
                if len(half) == 1:
                    failing.append((half[0][1].uid, error))
                else:
                    parts.append(half)
    uids = {uid for uid, _ in failing}
    try:
        changes = attempt([entry for entry in some if entry[1].uid not in uids])
    except Exception:  # noqa: BLE001
        failures.note("", first)
        return []
    for uid, raised in failing:
        failures.note(uid, raised)
    return changes


def describe(error: Exception) -> str:
    """Return an unexpected error in a few words."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def tell(workload: AnyWorkload, problem: str, now: float) -> Change | None:
    """Return the change that shows a failure on its workload; None if it shows it already."""
    kind = type(workload.spec).__name__
    message = f"Fairlead failed at this {kind}, and decides nothing for it until that is over: {problem}"
    reason = Reason(code=Code.INTERNAL_ERROR, message=message, remedy=REMEDY)
    if workload.status.warning.reason == reason:
        return None
    status = replace(workload.status, warning=Warned(reason=reason, at=now))
    return Change(
        workload_uid=workload.uid, version=workload.version, status=status, event=Event(type=EVENT, reason=reason)
    )


def settle(workload: AnyWorkload) -> Change | None:
    """Return the change that takes back what ``tell`` showed; None if it shows nothing."""
    warning = workload.status.warning.reason
    if warning is None or warning.code is not Code.INTERNAL_ERROR:
        return None
    status = replace(workload.status, warning=Warned())
    return Change(workload_uid=workload.uid, version=workload.version, status=status)
