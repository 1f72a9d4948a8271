"""Judges parents of any kind: the effects of stopping, suspending, resuming and deleting on their children.

The kind of a parent with intent RUN decides what it needs, by calling ``advance`` and ``finish``.

A parent is Pending until its kind has judged it for the first time, then Running until it is over. It is Stopping while
some of its children have not yet ended or been Suspended.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

from fairlead.frozen import dataclass
from fairlead.policy.kinds.internal_failures import InternalFailures
from fairlead.policy.kinds.lifecycle import has_more
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.table import parent_of
from fairlead.policy.placement.node_eligibility import is_spot
from fairlead.policy.queue.changes import change_to
from fairlead.specs.training import Tier
from fairlead.specs.workload import Kind, WorkloadSpec, renamed
from fairlead.state.phase_transitions import move_parent
from fairlead.state.plan import Change, ChildIntent, Event, SubmitChild
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AfterStop, AnyWorkload, Intent, Phase, PodPhase, Snapshot
from fairlead.text.lists import listed
from fairlead.text.quantities import plural

if TYPE_CHECKING:
    from fairlead.specs.federation import Federation
    from fairlead.specs.serving import Serving

HALTS = (Intent.SUSPEND, Intent.STOP, Intent.DELETE)
"""Intents of which each implies those before it."""
MOST_NAMED = 3
"""The number of children that a reason lists by name."""


def child_name(parent: AnyWorkload, name: str) -> str:
    """Return the full name of the child ``name`` of a parent."""
    return f"{parent.spec.name}-{name}"


def submit(parent: AnyWorkload, name: str, spec: WorkloadSpec) -> SubmitChild:
    """Return the order to submit a child, which gets its name and its team from the parent.

    Args:
        name: The name within the parent; a child already submitted under it is not submitted again.
        spec: A frozen dataclass of any kind of workload.
    """
    return SubmitChild(name=name, spec=renamed(spec, child_name(parent, name), parent.spec.team))


def running(*children: str) -> Reason:
    """Return the reason of a parent that waits for children, by their full names."""
    few = ", ".join(children) if len(children) <= MOST_NAMED else plural(len(children), "run")
    return Reason(code=Code.CHILDREN_RUNNING, message=f"waits for {few}")


def failed(child: AnyWorkload) -> Reason:
    """Return the reason of a parent that cannot continue because of a finished child."""
    name, status = child.spec.name, child.status
    message = f"{name} is {status.phase.value}: {status.reason.message}"
    return Reason(code=Code.CHILD_FAILED, message=message, remedy=status.reason.remedy, detail=status.reason.detail)


def advance(
    parent: AnyWorkload,
    reason: Reason,
    now: float,
    *,
    detail: object | None = None,
    submit: tuple[SubmitChild, ...] = (),
    children: tuple[ChildIntent, ...] = (),
    event: Event | None = None,
) -> Change | None:
    """Return the change of a parent that continues; None if nothing changes.

    Args:
        parent: Pending or Running; it is Running from then on.
        reason: Its current activity, as a sentence.
        detail: The new detail of its status; None keeps the one that it has.
        submit: Children to submit, made by ``submit``.
        children: New intents of children.
        event: The event to record; by default that it is Running, once.
    """
    before = parent.status
    detail = before.detail if detail is None else detail
    is_same = before.phase is not Phase.PENDING and reason == before.reason and detail == before.detail
    if is_same and not submit and not children and event is None:
        return None
    status = replace(before, reason=reason, detail=detail)
    if status.phase is Phase.PENDING:
        began = now if status.started_at is None else status.started_at
        status = move_parent(status, Phase.RUNNING, reason, now, started_at=began)
        event = event or Event(type=Phase.RUNNING.value, reason=reason)
    return Change(
        workload_uid=parent.uid,
        version=parent.version,
        status=status,
        event=event,
        submit=submit,
        children=children,
    )


def finish(
    parent: AnyWorkload, family: Family, phase: Phase, reason: Reason, now: float, *, detail: object | None = None
) -> Change:
    """Return the change that ends a parent: at once, or when its running children have stopped.

    Args:
        parent: Pending or Running.
        phase: Succeeded or Failed.
        detail: The new detail of its status; None keeps the one that it has.
    """
    status = parent.status if detail is None else replace(parent.status, detail=detail)
    return _halt(replace(parent, status=status), family, Intent.STOP, phase, reason, now)


def judge_parents(snapshot: Snapshot, now: float, failures: InternalFailures | None = None) -> list[Change]:
    """Return the changes of the parents of a snapshot: one for each, or those of children that precede its end.

    Args:
        failures: Receives the parents that cannot be judged, so that the others are judged all the same.
    """
    families = families_at(snapshot, now)
    names = {
        (run.spec.team, run.spec.name): run.parent
        for run in (*snapshot.workloads, *snapshot.parents)
        if not run.status.phase.is_final
    }
    changes: list[Change] = []
    for parent in snapshot.parents:
        if failures is not None and parent.uid in failures:
            continue
        try:
            change = _judge(parent, families[parent.uid], names, now)
            if change is not None:
                changes += _last_words(parent, families[parent.uid], change) or (change,)
        except Exception as error:
            if failures is None:
                raise
            failures.note(parent.uid, error)
    return changes


def _last_words(parent: AnyWorkload, family: Family, change: Change) -> tuple[Change, ...]:
    """Return the changes to children that have to be stored before a change that ends their parent."""
    kind, after = parent_of(parent.spec), change.status
    if after is None or not after.phase.is_final or parent.status.phase.is_final:
        return ()
    if parent.intent is Intent.DELETE or kind is None or kind.last_words is None:
        return ()
    return kind.last_words(replace(parent, status=after), family)


def foresee_parents(snapshot: Snapshot, known: Mapping[str, int]) -> Mapping[str, int]:
    """Compute ahead what parents will probably need next, once all existing pods have started.

    Args:
        known: The versions of parents for which this was done.

    Returns:
        The updated versions.
    """
    versions = {parent.uid: parent.version for parent in snapshot.parents}
    if versions == known or any(pod.phase in (PodPhase.CREATED, PodPhase.STARTING) for pod in snapshot.pods):
        return known
    families: Mapping[str, Family] = {}
    for parent in snapshot.parents:
        kind = parent_of(parent.spec)
        is_new = known.get(parent.uid) != parent.version and parent.intent is Intent.RUN
        if is_new and kind is not None and kind.foresee is not None and parent.status.phase is Phase.RUNNING:
            families = families or families_of(snapshot)
            kind.foresee(parent, families[parent.uid])
    return versions


def families_at(snapshot: Snapshot, now: float) -> dict[str, Family]:
    """Return the same as ``families_of``, with facts that some kinds derive across families."""
    families = families_of(snapshot)
    for spec in {type(parent.spec): parent.spec for parent in snapshot.parents}.values():
        kind = parent_of(spec)
        if kind is not None and kind.together is not None:
            families |= kind.together(snapshot, families, now)
    return families


def families_of(snapshot: Snapshot) -> dict[str, Family]:
    """Return the children of each parent, by its uid. A finished one that is about to resume is shown as Pending."""
    prefixes = tuple((parent.uid, child_name(parent, "")) for parent in snapshot.parents)
    over = _by_parent_of_ended(snapshot.ended, prefixes)
    others = _by_parent((*snapshot.workloads, *snapshot.parents), prefixes)
    ready, on_spot = _ready(snapshot), _on_spot(snapshot)
    members = {uid: _merged(over.get(uid, _NOBODY), others.get(uid, ())) for uid, _ in prefixes}
    return {
        uid: Family(
            children=children,
            settled=settled,
            moving=moving,
            ready=ready,
            on_spot=on_spot,
            demand=snapshot.demand.get(uid),
            measurement=snapshot.measurements.get(uid),
            unaddressed=snapshot.unaddressed.get(uid),
            engine=snapshot.engine_endpoints.get(uid),
            search=snapshot.engine_searches.get(uid),
            sites=snapshot.sites.get(uid),
        )
        for uid, (children, settled, moving) in members.items()
    }


# A child with its name within its family, ordered by age: tuples are quick to build and sort, even thousands of them.
_Member: TypeAlias = tuple[float, str, str, AnyWorkload]


def _by_parent(workloads: Iterable[AnyWorkload], prefixes: tuple[tuple[str, str], ...]) -> dict[str, list[_Member]]:
    of, members = dict(prefixes), defaultdict[str, list[_Member]](list)
    for child in workloads:
        uid = child.parent
        if uid is not None and uid in of:
            # Most of thousands have another intent.
            shown = _as_it_goes_on(child) if child.intent is Intent.RUN else child
            members[uid].append((child.created_at, child.uid, child.spec.name.removeprefix(of[uid]), shown))
    return members


@dataclass(frozen=True, slots=True)
class _Ended:
    """The finished members of a family.

    Attributes:
        by_name: Oldest first; empty if one of them is about to resume.
    """

    members: list[_Member]
    by_name: dict[str, AnyWorkload]


_NOBODY = _Ended([], {})


# The last result for finished children, and its inputs.
_LAST_ENDED: tuple[tuple[AnyWorkload, ...], tuple[tuple[str, str], ...], dict[str, _Ended]] = ((), (), {})


def _by_parent_of_ended(ended: tuple[AnyWorkload, ...], prefixes: tuple[tuple[str, str], ...]) -> Mapping[str, _Ended]:
    """Return the finished members of families, thousands of which may stay the same from pass to pass.

    If others have been appended since the last call, usually one, only these are processed.
    """
    global _LAST_ENDED
    before, prefixes_before, known = _LAST_ENDED
    # Comparing the same objects costs a pointer each.
    if prefixes != prefixes_before or ended[: len(before)] != before:
        before, known = (), {}
    elif len(ended) == len(before):
        return known
    ended_of = dict(known)
    for uid, new in _by_parent(ended[len(before) :], prefixes).items():
        new.sort()
        had = known.get(uid, _NOBODY)
        if had.members and not had.by_name:
            by_name: dict[str, AnyWorkload] = {}
        elif not had.members or had.members[-1] < new[0]:
            by_name = {**had.by_name, **_by_name(new)}
        else:
            by_name = _by_name(sorted([*had.members, *new]))
        ended_of[uid] = _Ended(sorted([*had.members, *new]), by_name if _stay(new) else {})
    _LAST_ENDED = ended, prefixes, ended_of
    return ended_of


def _by_name(members: Iterable[_Member]) -> dict[str, AnyWorkload]:
    return {name: child for _, _, name, child in members}


def _stay(members: Iterable[_Member]) -> bool:
    return all(child.status.phase.is_final for _, _, _, child in members)


def _merged(
    over: _Ended, others: Collection[_Member]
) -> tuple[Mapping[str, AnyWorkload], Mapping[str, AnyWorkload], Mapping[str, AnyWorkload] | None]:
    """Return the children by name, oldest first; the settled ones; and the others."""
    ordered = sorted(others)
    moving = {name: child for _, _, name, child in ordered}
    if over.by_name and not (ordered and ordered[0] < over.members[-1]):
        return {**over.by_name, **moving}, over.by_name, moving
    children = {name: child for _, _, name, child in sorted([*over.members, *ordered])}
    return children, over.by_name, moving if over.by_name else None


def _on_spot(snapshot: Snapshot) -> frozenset[str]:
    """Return the uids of replicas above the base of an endpoint that have a pod on a spot node."""
    above = {run.uid for run in snapshot.workloads if run.spec.capacity.tier is Tier.OVERFLOW}
    if not above:
        return frozenset()
    spot = {node.name for node in snapshot.nodes if is_spot(node)}
    return frozenset(
        pod.workload_uid
        for pod in snapshot.pods
        if pod.workload_uid in above and pod.node in spot and not pod.phase.is_final
    )


def _ready(snapshot: Snapshot) -> frozenset[str]:
    """Return the uids of workloads of which every pod of the current attempt passes its probe."""
    answers = defaultdict[tuple[str, int], list[bool]](list)
    for pod in snapshot.pods:
        answers[pod.workload_uid, pod.attempt].append(pod.ready and not pod.phase.is_final)
    return frozenset(
        run.uid
        for run in snapshot.workloads
        if (answer := answers.get((run.uid, run.status.attempt))) is not None
        and len(answer) == run.gang.nodes
        and all(answer)
    )


def _as_it_goes_on(child: AnyWorkload) -> AnyWorkload:
    status = child.status
    if child.intent is Intent.RUN and status.phase in (Phase.FAILED, Phase.STOPPED):
        return replace(child, status=replace(status, phase=Phase.PENDING, finished_at=None))
    return child


def _judge(
    parent: AnyWorkload, family: Family, names: Mapping[tuple[str, str], str | None], now: float
) -> Change | None:
    phase, intent = parent.status.phase, parent.intent
    if phase.is_final:
        return _after_the_end(parent, family, names, now)
    if phase is Phase.STOPPING:
        return _keep_stopping(parent, family, now)
    if intent is not Intent.RUN:
        return _obey(parent, family, now)
    if phase is Phase.SUSPENDED:
        return _go_on(parent, [child for child in family.unfinished if child.intent is Intent.SUSPEND], "resumed", now)
    kind = parent_of(parent.spec)
    assert kind is not None, "a leaf is no parent"
    change: Change | None = kind.judge(parent, family, now)
    return change if change is None else _unless_taken(parent, change, names, now)


def _after_the_end(
    parent: AnyWorkload, family: Family, names: Mapping[tuple[str, str], str | None], now: float
) -> Change | None:
    status = parent.status
    if parent.intent is Intent.DELETE:
        sites = _at_sites(family, Intent.DELETE)
        if not family.children and (not sites or _are_given_up(parent, family, sites, now)):
            return Change(workload_uid=parent.uid, version=parent.version, forget=True)
        return _order(parent, family.children.values(), Intent.DELETE)
    if parent.intent is not Intent.RUN:
        return None
    if status.phase is Phase.SUCCEEDED and not has_more(parent):
        return Change(workload_uid=parent.uid, version=parent.version, intent=Intent.STOP)
    name = parent.spec.name
    if (parent.spec.team, name) in names:
        message = f"it cannot be resumed while another unfinished run is named {name}"
        taken = Reason(code=Code.NAME_TAKEN, message=message, remedy="Resume it when that one is over.")
        event = Event(type="NotResumed", reason=taken)
        return Change(workload_uid=parent.uid, version=parent.version, intent=Intent.STOP, event=event)
    # The failed children of a parent that succeeded are results.
    was_undone = status.phase is not Phase.SUCCEEDED
    again = [
        child
        for child in family.children.values()
        if (was_undone and child.status.phase is Phase.FAILED)
        or (child.uid in status.halted and child.status.phase is Phase.STOPPED)
    ]
    return _go_on(parent, again, f"resumed after it had {status.phase.value.lower()}", now)


def _go_on(parent: AnyWorkload, children: Iterable[AnyWorkload], message: str, now: float) -> Change:
    """Return the change that makes a halted parent Pending again, and resumes children."""
    reason = Reason(code=Code.RESUMED, message=message)
    status = move_parent(
        parent.status, Phase.PENDING, reason, now,
        attempt=parent.status.attempt + 1, finished_at=None, halted=(),
    )  # fmt: skip
    orders = tuple(ChildIntent(uid=child.uid, intent=Intent.RUN) for child in children)
    return replace(change_to(parent, status), children=orders)


def _obey(parent: AnyWorkload, family: Family, now: float) -> Change | None:
    """Return the change that stops, suspends or deletes a parent that is neither final nor stopping."""
    again = f"`fairlead resume {parent.spec.name}` continues it."
    if parent.intent is Intent.SUSPEND:
        if parent.status.phase is Phase.SUSPENDED:  # and so is a child that a user has resumed by itself
            return _order(parent, _unsettled(family, Intent.SUSPEND), Intent.SUSPEND)
        reason = Reason(code=Code.SUSPENDED, message="suspended on request", remedy=again)
        return _halt(parent, family, Intent.SUSPEND, Phase.SUSPENDED, reason, now)
    if parent.intent is Intent.DELETE:
        reason = Reason(code=Code.STOPPED, message="stopped to be deleted")
    else:
        reason = Reason(code=Code.STOPPED, message="stopped on request", remedy=again)
    return _halt(parent, family, parent.intent, Phase.STOPPED, reason, now)


def _halt(parent: AnyWorkload, family: Family, intent: Intent, after: Phase, reason: Reason, now: float) -> Change:
    """Return the change that brings a parent to a phase, or to Stopping while it has unsettled children."""
    left = _unsettled(family, intent)
    if not left and not _is_at_engine(family) and not _at_sites(family, intent):
        return change_to(parent, move_parent(parent.status, after, reason, now))
    waits = Reason(
        code=reason.code, message=f"{reason.message}; {_awaited(parent, left, family, intent)}", remedy=reason.remedy
    )
    halted = () if intent is Intent.SUSPEND else (*parent.status.halted, *(child.uid for child in left))
    status = move_parent(parent.status, Phase.STOPPING, waits, now, halted=halted)
    status = replace(status, after_stop=AfterStop(phase=after, reason=reason))
    orders = _orders(left, intent)
    return replace(change_to(parent, status), children=orders)


def _keep_stopping(parent: AnyWorkload, family: Family, now: float) -> Change | None:
    status, intent = parent.status, parent.intent
    after, reason = status.after_stop.phase or Phase.STOPPED, status.after_stop.reason or status.reason
    if after is Phase.SUSPENDED and intent in (Intent.STOP, Intent.DELETE):
        after, reason = Phase.STOPPED, Reason(code=Code.STOPPED, message="stopped on request")
    if intent is Intent.DELETE:
        wanted = Intent.DELETE
    else:
        wanted = Intent.SUSPEND if after is Phase.SUSPENDED else Intent.STOP
    left = _unsettled(family, wanted)
    if left:
        return _order(parent, left, wanted)
    if _is_at_engine(family):
        return None
    if sites := _at_sites(family, wanted):
        if not _are_given_up(parent, family, sites, now):
            return None
        what = _at_each_site(parent)
        keep = f"keeps its {what}" if len(sites) == 1 else f"keep their {what}s"
        reason = replace(reason, message=f"{reason.message}; {listed(sites, MOST_NAMED)} did not answer and {keep}")
    return change_to(parent, move_parent(status, after, reason, now))


def _is_at_engine(family: Family) -> bool:
    """Return whether its object at an engine still exists."""
    return family.engine is not None and family.engine.is_there


def _at_sites(family: Family, intent: Intent) -> list[str]:
    """Return the sites whose endpoint or client does not yet have the state of an intent, or does not answer."""
    sites = family.sites or {}
    return [
        name
        for name, report in sites.items()
        if report is None
        or report.trouble is not None
        or report.settled is None
        or HALTS.index(report.settled) < HALTS.index(intent)
    ]


def _are_given_up(parent: AnyWorkload, family: Family, sites: Iterable[str], now: float) -> bool:
    """Return whether sites that do not answer were waited for as long as a wave, or a federation, waits for them."""
    reports = [(family.sites or {}).get(name) for name in sites]
    spec = cast("Federation | Serving", parent.spec)
    is_over = now >= parent.status.since + spec.away_s
    return is_over and all(report is not None and report.trouble is not None for report in reports)


def _at_each_site(parent: AnyWorkload) -> str:
    return "endpoint" if parent.spec.kind == Kind.SERVING else "client"


def _unsettled(family: Family, intent: Intent) -> list[AnyWorkload]:
    """Return the children that are not yet in the state of an intent."""
    return [child for child in family.children.values() if not _is_settled(child, intent)]


def _is_settled(child: AnyWorkload, intent: Intent) -> bool:
    phase = child.status.phase
    return phase.is_final or (intent is Intent.SUSPEND and phase is Phase.SUSPENDED and child.intent is not Intent.RUN)


def _order(parent: AnyWorkload, children: Iterable[AnyWorkload], intent: Intent) -> Change | None:
    """Return the change that sets the intent of children that lack it; None if all have it."""
    orders = _orders(children, intent)
    return Change(workload_uid=parent.uid, version=parent.version, children=orders) if orders else None


def _orders(children: Iterable[AnyWorkload], intent: Intent) -> tuple[ChildIntent, ...]:
    stronger = {Intent.SUSPEND: (Intent.STOP, Intent.DELETE), Intent.STOP: (Intent.DELETE,)}.get(intent, ())
    return tuple(
        ChildIntent(uid=child.uid, intent=intent)
        for child in children
        if child.intent is not intent and child.intent not in stronger
    )


def _awaited(parent: AnyWorkload, children: list[AnyWorkload], family: Family, intent: Intent) -> str:
    if not children and family.engine is not None:
        return f"waiting for its {family.engine.kind} to be deleted"
    if not children and (sites := _at_sites(family, intent)):
        return f"waiting for its {_at_each_site(parent)}s at {plural(len(sites), 'site')}: {listed(sites, MOST_NAMED)}"
    if len(children) == 1:
        return f"waiting for {children[0].spec.name}"
    return f"waiting for {plural(len(children), 'run')}"


def _unless_taken(
    parent: AnyWorkload, change: Change, names: Mapping[tuple[str, str], str | None], now: float
) -> Change | None:
    """Return the change, or one that makes the parent wait if another unfinished run has a child's name."""
    for order in change.submit:
        spec = order.spec
        if names.get((spec.team, spec.name), parent.uid) != parent.uid:
            message = f"its run {spec.name} cannot be submitted while another unfinished run is named {spec.name}"
            taken = Reason(code=Code.NAME_TAKEN, message=message, remedy="It continues when that one is over.")
            return advance(parent, taken, now)
    return change
