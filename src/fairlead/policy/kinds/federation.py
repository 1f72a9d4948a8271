"""Judges a federation: a server and a client at each site, all runs of their own, which end with the server.

Flower moves the model and aggregates; this judges which runs exist, which sites take part now, and how it ends. A run
that fails is restarted by its own retries; a site that has failed for good is missed only if a round then lacks
updates. A client in another cluster is a run of that cluster, of which visits report.

See decisions 237 and 278.
"""

from collections.abc import Mapping
from dataclasses import field, replace

from fairlead.frozen import dataclass
from fairlead.policy.kinds.parents import advance, failed, finish, submit
from fairlead.policy.kinds.privacy import epsilon_spent, noise_plan
from fairlead.policy.kinds.record import Family, ParentKind
from fairlead.specs.federation import CLIENT_OF, PROBLEMS, SERVER, Federation, federation_variables, map_runs
from fairlead.specs.training import Training
from fairlead.state.plan import Change, ChildIntent, Event, SubmitChild, child_uid
from fairlead.state.reasons import Code, Reason
from fairlead.state.site_clients import ClientReport
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Workload
from fairlead.text.quantities import plural

ATTEMPT = "federation-attempt"
"""The label of a client in another cluster with the attempt of its federation, which starts it anew."""
MOST_NAMED = 5
"""The number of sites that a sentence lists by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationDetail:
    """The state of a federation besides its runs.

    Attributes:
        submitted: Whether its runs were submitted.
        round: The last round of which the server has the model.
        loss: The loss after that round; None if none is reported.
        away: The sites that do not take part now.
        releases: Noisy models that were made, each of which spent some of the privacy budget.
        left_out: Numbers of updates that were left out of their rounds, by ``PROBLEM.SITE``.
    """

    submitted: bool = False
    round: int = 0
    loss: float | None = None
    away: tuple[str, ...] = ()
    releases: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)


def judge(federation: Workload[Federation], family: Family, now: float) -> Change | None:
    """Submit the runs, open and close the windows of sites, tell of rounds, and end with the server."""
    before, spec = detail_of(federation), federation.spec
    if not before.submitted:
        here = [name for name in spec.sites if name not in spec.elsewhere]
        new = (_submission(federation, SERVER), *(_submission(federation, name) for name in here))
        reason = Reason(code=Code.CHILDREN_RUNNING, message=f"its server and {plural(len(spec.sites), 'site')} start")
        return advance(federation, reason, now, detail=replace(before, submitted=True), submit=new)
    server = family.children.get(SERVER)
    detail = _observed(spec, family, before, server)
    if server is None:
        reason = Reason(code=Code.CHILD_FAILED, message="its server was deleted")
        return finish(federation, family, Phase.FAILED, reason, now, detail=detail)
    if server.status.phase is Phase.SUCCEEDED:
        # The server ends with its last round, before anybody has looked at the report of that.
        plan = noise_plan(spec)
        if plan is not None:
            wasted = detail.releases - detail.round
            last = max(detail.round, plan.rounds - wasted)
            detail = replace(detail, round=last, releases=last + wasted)
        elif spec.app is not None:
            detail = replace(detail, round=spec.rounds)
        spent = "" if plan is None or detail.round >= spec.rounds else "its privacy budget is spent, and "
        message = "; ".join((f"{spent}its server has finished", _say_round(spec, detail), *_say_privacy(spec, detail)))
        reason = Reason(code=Code.COMPLETED, message=message)
        return finish(federation, family, Phase.SUCCEEDED, reason, now, detail=detail)
    if server.status.phase.is_final:
        return finish(federation, family, Phase.FAILED, _at_whole(federation, server), now, detail=detail)
    over = [name for name in spec.sites if _is_over(family, name)]
    deleted = [name for name in spec.sites if name not in family.children and name not in spec.elsewhere]
    left = len(spec.sites) - len(over) - len(deleted)
    if over and left < spec.least_sites:
        lost = _why_over(federation, family, over[0])
        message = f"{plural(left, 'site')} left, and a round needs {spec.least_sites}; {lost.message}"
        return finish(federation, family, Phase.FAILED, replace(lost, message=message), now, detail=detail)
    message = "; ".join((_say_round(spec, detail), *_say_privacy(spec, detail), *_say_sites(spec, family, detail)))
    reason = Reason(code=Code.CHILDREN_RUNNING, message=message)
    return advance(
        federation,
        reason,
        now,
        detail=detail,
        children=_window_orders(spec, family, now),
        event=_news(spec, family, before, detail),
    )


def next_at(federation: Workload[Federation], _family: Family, now: float) -> float | None:
    """Return when the window of a site next opens or closes."""
    edges = [site.changes_at(now) for site in federation.spec.sites.values()]
    return min((edge for edge in edges if edge is not None), default=None)


def progress(federation: Workload[Federation]) -> str:
    """Return the number of rounds that are over."""
    return f"{detail_of(federation).round}/{federation.spec.rounds}"


def detail_of(federation: Workload[Federation]) -> FederationDetail:
    """Return the state of a federation besides its runs."""
    detail = federation.status.detail
    return detail if isinstance(detail, FederationDetail) else FederationDetail()


def _submission(federation: Workload[Federation], name: str) -> SubmitChild:
    spec = federation.spec
    run = spec.server_run or spec.described_server()
    if name != SERVER:
        run = spec.site_runs.get(name) or spec.described_site(name)
    site = None if name == SERVER else name
    variables = federation_variables(spec, child_uid(federation.uid, SERVER), site, _noise(spec))
    return submit(federation, name, replace(run, env={**run.env, **variables}))


def client_run(federation: Workload[Federation], name: str, superlink: tuple[str, str]) -> Training:
    """Return the run of the client of a site in another cluster, for that cluster to admit.

    Args:
        superlink: Address of the server and its CA certificate, as PEM.
    """
    spec = federation.spec
    run = spec.described_site(name)
    server = child_uid(federation.uid, SERVER)
    variables = federation_variables(spec, server, name, _noise(spec), superlink)
    labels = {**run.labels, CLIENT_OF: federation.uid, ATTEMPT: str(federation.status.attempt)}
    return replace(run, env={**run.env, **variables}, labels=labels)


def client_intent(federation: Workload[Federation], name: str, now: float) -> Intent:
    """Return what the client of a site in another cluster should do."""
    status = federation.status
    if federation.intent is Intent.DELETE:
        return Intent.DELETE
    is_suspended = status.phase is Phase.SUSPENDED or status.after_stop.phase is Phase.SUSPENDED
    if federation.intent is Intent.SUSPEND or is_suspended:
        return Intent.SUSPEND
    if federation.intent is not Intent.RUN or status.phase is Phase.STOPPING:
        return Intent.STOP
    return Intent.RUN if federation.spec.sites[name].is_open(now) else Intent.SUSPEND


def _noise(spec: Federation) -> Mapping[str, float] | None:
    plan = noise_plan(spec)
    if plan is None or spec.privacy is None:
        return None
    own = {"noise": plan.noise, "probability": plan.probability, "rounds": plan.rounds}
    return {"clip": spec.privacy.clip, **own}


def _observed(
    spec: Federation, family: Family, before: FederationDetail, server: AnyWorkload | None
) -> FederationDetail:
    reported = None if server is None else server.progress
    away = tuple(name for name in spec.sites if not _takes_part(family, name))
    if reported is None or reported.step is None or reported.step < before.round:
        return replace(before, away=away)
    figures = reported.metrics
    left_out = {
        name: int(figures[name])
        for name in (f"{problem}.{site}" for problem in PROBLEMS for site in spec.sites)
        if name in figures
    }
    return replace(
        before, round=reported.step, loss=reported.loss, away=away, left_out=left_out or before.left_out,
        releases=max(before.releases, int(figures.get("releases", 0))),
    )  # fmt: skip


def _client(family: Family, name: str) -> ClientReport | None:
    """Return the report of a site in another cluster; None without one."""
    report = (family.sites or {}).get(name)
    return report if isinstance(report, ClientReport) else None


def _takes_part(family: Family, name: str) -> bool:
    child, client = family.children.get(name), _client(family, name)
    if client is not None:
        return client.trouble is None and client.phase is Phase.RUNNING and not client.message
    return child is not None and child.status.phase is Phase.RUNNING


def _is_over(family: Family, name: str) -> bool:
    child, client = family.children.get(name), _client(family, name)
    if client is not None:
        return client.phase is not None and client.phase.is_final
    return child is not None and child.status.phase.is_final


def _why_over(federation: Workload[Federation], family: Family, name: str) -> Reason:
    client = _client(family, name)
    if client is None:
        return _at_whole(federation, family.children[name])
    return Reason(code=Code.CHILD_FAILED, message=f"{name} is {_state(family, name)}")


def _at_whole(federation: Workload[Federation], child: AnyWorkload) -> Reason:
    """Return the reason of a failure by a child; resuming the child alone would leave the others stopped."""
    reason = failed(child)
    if reason.remedy is None:
        return reason
    own, whole = f"resume {child.spec.name}`", f"resume {federation.spec.name}`"
    return replace(reason, remedy=reason.remedy.replace(own, whole))


def _window_orders(spec: Federation, family: Family, now: float) -> tuple[ChildIntent, ...]:
    """Return the orders that suspend sites outside of their windows, and resume them in these."""
    orders: list[ChildIntent] = []
    for name, site in spec.sites.items():
        child = family.children.get(name)
        if child is None or site.window is None or child.status.phase.is_final:
            continue
        wanted = Intent.RUN if site.is_open(now) else Intent.SUSPEND
        if child.intent in (Intent.RUN, Intent.SUSPEND) and child.intent is not wanted:
            orders.append(ChildIntent(uid=child.uid, intent=wanted))
    return tuple(orders)


def _say_round(spec: Federation, detail: FederationDetail) -> str:
    loss = "" if detail.loss is None else f", loss {detail.loss:.6g}"
    return f"{detail.round} of {plural(spec.rounds, 'round')} done{loss}"


def _say_privacy(spec: Federation, detail: FederationDetail) -> tuple[str, ...]:
    """Return the privacy spent, of which budget, as a clause if there is one."""
    plan = noise_plan(spec)
    if plan is None or spec.privacy is None:
        return ()
    spent = epsilon_spent(detail.releases, spec.privacy.delta, plan.noise, plan.probability)
    return (f"privacy spent: epsilon {spent:.4g} of {spec.privacy.epsilon:g} at delta {spec.privacy.delta:g}",)


def _say_sites(spec: Federation, family: Family, detail: FederationDetail) -> tuple[str, ...]:
    """Return the losses of the sites, and which of them do not take part and why, each as a clause."""
    known = ((name, _loss_at(family, name)) for name in spec.sites)
    losses = [f"{name} {loss:.4g}" for name, loss in known if loss is not None]
    clauses = [f"loss by site: {_some(losses)}"] if losses else []
    if not detail.away:
        return (*clauses, f"all {plural(len(spec.sites), 'site')} take part")
    states = [f"{name} is {_state(family, name)}" for name in detail.away]
    present = len(spec.sites) - len(detail.away)
    return (*clauses, f"{present} of {plural(len(spec.sites), 'site')} take part, {_some(states)}")


def _loss_at(family: Family, name: str) -> float | None:
    child, client = family.children.get(name), _client(family, name)
    if client is not None:
        return client.loss
    return None if child is None or child.progress is None else child.progress.loss


def _state(family: Family, name: str) -> str:
    """Return the state of a client as the end of a sentence about its site."""
    child, client = family.children.get(name), _client(family, name)
    if client is not None:
        if client.trouble is not None:
            return f"away ({client.trouble})"
        state = "without a client" if client.phase is None else client.phase.value
        return f"{state} ({client.message})" if client.message else state
    if name in (family.sites or {}):
        return "not visited yet"
    return "deleted" if child is None else child.status.phase.value


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return f"{', '.join(texts[:MOST_NAMED])}{more}"


def _news(spec: Federation, family: Family, before: FederationDetail, detail: FederationDetail) -> Event | None:
    """Return the event of sites that left or came, or of a round that is done."""
    left = [name for name in detail.away if name not in before.away]
    came = [name for name in before.away if name not in detail.away]
    is_started = before.round > 0 or detail.round > 0
    if left and is_started:
        states = [f"{name} is {_state(family, name)}" for name in left]
        message = f"round {detail.round + 1} goes on without it: {_some(states)}"
        if len(spec.sites) - len(detail.away) < spec.least_sites:
            message = f"round {detail.round + 1} waits, as it needs {plural(spec.least_sites, 'site')}: {_some(states)}"
        return Event(type="SiteLeft", reason=Reason(code=Code.CHILDREN_RUNNING, message=message))
    if came and is_started:
        message = f"{_some(came)} joins round {detail.round + 1} or the next one"
        return Event(type="SiteJoined", reason=Reason(code=Code.CHILDREN_RUNNING, message=message))
    if detail.round > before.round:
        worse = [name for name, number in detail.left_out.items() if number > before.left_out.get(name, 0)]
        if worse:
            causes = [f"{site}: {PROBLEMS[problem]}" for problem, _, site in (name.partition(".") for name in worse)]
            message = f"{_say_round(spec, detail)}; left out the update of {_some(causes)}"
            return Event(type="UpdateLeftOut", reason=Reason(code=Code.CHILDREN_RUNNING, message=message))
        return Event(type="RoundDone", reason=Reason(code=Code.CHILDREN_RUNNING, message=_say_round(spec, detail)))
    return None


KIND = ParentKind(
    spec=Federation, detail=FederationDetail, judge=judge, map_runs=map_runs, progress=progress, next_at=next_at
)
