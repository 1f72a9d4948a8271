"""Judges an endpoint: its serving revision, the number of replicas, and which of them to add and remove.

Each spec whose replicas would differ from the existing ones is a revision. A new one takes over replica by replica as
its own become ready. One that does not become ready in time is removed, and the previous one stays. With a canary it
first gets a slice of the requests, and takes over or is removed by comparison with an equal slice of the old one's; the
counts are kept here, so that the next pass continues with them. If no replica of the old one is ready, requests wait
for it while it starts; if it does not come, the new one answers alone, judged by its own failures.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from fairlead.errors import InvalidSpec
from fairlead.policy.kinds.parents import advance, child_name, submit
from fairlead.policy.kinds.record import Family, ParentKind
from fairlead.policy.serving.canary import CanaryVerdict, Judgement, fails_mostly, judge_canary, step_at
from fairlead.policy.serving.latency_scaling import out_of_reach, room_for, service_of, shares
from fairlead.policy.serving.metric_scaling import ASK_S, unmeasured
from fairlead.policy.serving.replica_count import asleep_at, wanted_replicas
from fairlead.policy.serving.rollout import DRAIN_S, ReplicaState, RolloutStep, canary_step, next_step
from fairlead.policy.serving.scheduled_replicas import next_change
from fairlead.policy.serving.site_waves import SitesSnapshot, decide_sites, describe_sites, next_wave_at
from fairlead.policy.serving.spot_return import spot_room
from fairlead.specs.endpoint_engines import TITLES, EndpointEngine
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.quantities import format_duration
from fairlead.specs.serving import AUTOSCALERS, Replica, Serving, map_runs
from fairlead.specs.serving_sites import divide
from fairlead.specs.training import Tier
from fairlead.state.endpoint_detail import (
    Answers,
    CanaryTrial,
    Comparison,
    GatewayCounts,
    Going,
    Revision,
    ServingDetail,
    detail_of,
    summed,
)
from fairlead.state.engine_endpoints import EngineEndpoint
from fairlead.state.plan import Change, ChildIntent, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.site_rollouts import SiteReport, SiteRollout
from fairlead.state.snapshot import AnyWorkload, Grant, Intent, Phase, Snapshot, Workload
from fairlead.text.quantities import plural

if TYPE_CHECKING:
    from fairlead.policy.serving.joint_scaling import EndpointState

MOST_REVISIONS = 10
# Used as a revision's number: no revision has it.
ANOTHER_TIER = -1
# A replica with this many consecutive failures explains why nothing is served.
MANY_FAILURES = 3
# The number of endpoints whose specs are compared with their revisions once, and not at each pass.
MOST_ENDPOINTS = 4096
# The number of gateways without current reports whose counts are kept separately.
MOST_GATEWAYS = 9
# The interval at which the counts of a trial are evaluated.
LOOK_S = 1.0
# The seconds for which requests wait for the old revision during a trial, beside twice its usual time to start.
FIRST_WAIT_S = 10.0
# The interval for endpoints that scale by latency, and its duration after a request.
SCALE_S, LOOK_BACK_S = 10.0, 900.0


def judge(serving: Workload[Serving], family: Family, now: float) -> Change | None:
    """Add replicas of the target revision and remove others; or have an engine serve it."""
    if serving.spec.engine is not None:
        return _judge_at_engine(serving, serving.spec.engine, family, now)
    if serving.spec.sites:
        return _judge_at_sites(serving, family, now)
    spec, before = serving.spec, detail_of(serving)
    detail = _with_requested_revision(spec, before, now)
    if serving.status.phase is Phase.PENDING:
        detail = _count_anew(detail, now)
    replicas = replicas_of(detail, family)
    detail = _note_ready(spec, detail, replicas, now)
    detail, gave_up = _give_up(serving, detail, family, now)
    detail, tried = _try(spec, detail, replicas, family, now)
    detail = _note_replaced(detail, replicas)
    detail, returns = _return_to_spot(spec, detail, replicas, family, now)
    target = detail.revision(detail.target)
    assert target is not None, "the revision that is asked for is kept"
    compared = detail.revision(_compared_with(spec, detail))
    # An endpoint whose new revision is on trial sleeps as it would without.
    shown = target if detail.canary is None else compared or target
    wanted = wanted_replicas(
        spec, family.demand, shown.ready_at, before.wanted, now, family.share, family.measurement
    )  # fmt: skip
    # A new revision needs one replica to show that it can serve.
    wanted_now = max(wanted, 1) if target.ready_at is None else wanted
    step = _step(spec, detail, _marked(spec, detail, replicas, wanted_now), wanted_now)
    if detail.canary is None and compared is not None:
        needs = wanted_replicas(spec, family.demand, compared.ready_at, before.wanted, now, family.share)
        step = _with_compared(step, replicas, compared.number, wanted_now + spec.rollout.max_surge, needs)
    going = tuple(replica for replica in detail.going if replica.name in family.children)
    going += tuple(Going(name=name, since=now) for name in step.go)
    gone = {replica.name for replica in going}
    old = compared or target
    stay = [replica for replica in replicas if replica.name not in step.go]
    to_come = [(target, tier) for tier in _tiers_to_come(spec, stay, target, wanted_now, step.come)]
    to_come += [(old, tier) for tier in _tiers_to_come(spec, stay, old, wanted_now, step.come_old)]
    new = tuple(
        submit(
            serving,
            f"{rev.name}-{number}",
            (spec if _is_of(rev, spec) else spec_of(rev)).replica(rev.name, tier),
        )
        for number, (rev, tier) in enumerate(to_come, detail.count + 1)
    )
    detail = replace(
        detail, wanted=wanted, going=going, count=detail.count + len(new),
        ready=sum(replica.ready and replica.name not in gone for replica in replicas),
    )  # fmt: skip
    missing = _unscaled(spec, family, now)
    reason = _say(serving, detail, replicas, family, missing)
    event = gave_up or tried or returns or _news(spec, before, detail)
    if event is None and detail.unmeasured != (missing is not None) and family.measurement is not None:
        # One event at a time: if there is another one now, this one follows at the next look.
        detail = replace(detail, unmeasured=missing is not None)
        event = _tell_metric(spec, detail, missing)
    if event is None and family.out_of_reach is not None and detail.late != bool(family.out_of_reach):
        detail = replace(detail, late=bool(family.out_of_reach))
        event = _tell_reach(spec, family.out_of_reach)
    if event is None and detail.unaddressed != family.unaddressed:
        detail = replace(detail, unaddressed=family.unaddressed)
        event = _tell_address(family.unaddressed)
    displaced = len(_displaced(replicas))
    if event is None and (displaced > 0) != (detail.displaced > 0) and _is_settled(replicas):
        detail = replace(detail, displaced=displaced)
        event = _tell_displaced(replicas, displaced)
    return advance(serving, reason, now, detail=detail, submit=new, children=_orders(detail, family, now), event=event)


def _judge_at_engine(serving: Workload[Serving], engine: EndpointEngine, family: Family, now: float) -> Change | None:
    """Set the revision that an engine should serve, and report the engine's state."""
    spec, before = serving.spec, detail_of(serving)
    detail = _with_requested_revision(spec, before, now)
    if serving.status.phase is Phase.PENDING:
        detail = _count_anew(detail, now)
    endpoint = family.engine
    target = detail.revision(detail.target)
    assert target is not None, "the revision that is asked for is kept"
    if endpoint is not None and endpoint.ready and endpoint.applied_revision == target.name and target.ready_at is None:
        detail = _show_ready(spec, detail, now)
    detail, gave_up = _give_up(serving, detail, family, now)
    detail, tried = _weigh(spec, detail, now)
    ready = 0 if endpoint is None else endpoint.replicas
    detail = replace(
        detail, ready=ready, wanted=max(spec.replicas, ready), url=None if endpoint is None else endpoint.url
    )
    event = gave_up or tried or _news(spec, before, replace(detail, wanted=before.wanted))
    return advance(serving, _say_at_engine(spec, engine, detail, endpoint), now, detail=detail, event=event)


def _judge_at_sites(serving: Workload[Serving], family: Family, now: float) -> Change | None:
    """Set the revision that each site should have, and report how the sites do."""
    spec, before = serving.spec, detail_of(serving)
    if family.sites is None:
        message = "nothing here reaches its sites: a supervisor of a machine with their contexts does"
        remedy = "Delete it, and submit it by `fairlead run --cluster local`."
        return advance(serving, Reason(code=Code.NOT_READY, message=message, remedy=remedy), now)
    detail = _with_requested_revision(spec, before, now)
    seen = _sites_of(spec, detail, family)
    plan = decide_sites(seen, now)
    rollout, news = plan.rollout, plan.news
    if plan.failure is not None:
        detail, given_up = _give_up_at_sites(detail, plan.failure)
        news = (given_up, *news)
    elif plan.is_complete:
        detail = _take_over(detail, now)
        revisions = (
            replace(revision, ready_at=now) if revision.number == detail.target else revision
            for revision in detail.revisions
        )
        detail = replace(detail, revisions=tuple(revisions))
        news = (("RevisionReady", f"r{detail.target} has passed all waves"), *news)
    ready = sum(site.serves and site.release == rollout.release for site in rollout.sites)
    detail = replace(detail, rollout=rollout, ready=ready, wanted=len(spec.sites))
    newest = detail.revision(detail.asked)
    failed = None if newest is None or newest.failed is None else f"{newest.name} was rolled back: {newest.failed}"
    state = describe_sites(seen, rollout, failed)
    code = Code.REVISION_FAILED if failed is not None else Code.ROLLING_OUT
    if failed is None and rollout.wave >= len(divide(spec.waves.steps, spec.sites)):
        code = Code.SERVING
    reason = Reason(code=code, message=state, remedy=None if failed is None else "Correct the spec and run it again.")
    event = None
    if news:
        cause = Reason(code=code, message="; ".join(message for _, message in news))
        event = Event(type=news[0][0], reason=cause)
    return advance(serving, reason, now, detail=detail, event=event)


def _sites_of(spec: Serving, detail: ServingDetail, family: Family) -> SitesSnapshot:
    target = detail.revision(detail.target)
    return SitesSnapshot(
        sites=spec.sites, waves=spec.waves, target=detail.target, good=detail.serving,
        failed=target is not None and target.failed is not None, rollout=detail.rollout or SiteRollout(),
        reports={name: report for name, report in (family.sites or {}).items() if isinstance(report, SiteReport)},
    )  # fmt: skip


def _give_up_at_sites(detail: ServingDetail, why: str) -> tuple[ServingDetail, tuple[str, str]]:
    """Return to the revision that all sites had last; without one the first sites keep what they have."""
    failed = tuple(
        replace(revision, failed=why) if revision.number == detail.target else revision for revision in detail.revisions
    )
    message = f"r{detail.target} goes to no further site: {why}"
    if detail.serving is not None:
        message = f"all sites return to r{detail.serving} from r{detail.target}: {why}"
    target = detail.target if detail.serving is None else detail.serving
    return replace(detail, revisions=failed, target=target), (Code.REVISION_FAILED.value, message)


def _weigh(spec: Serving, detail: ServingDetail, now: float) -> tuple[ServingDetail, Event | None]:
    """Keep the weight of a revision that gets a part of the requests at an engine, or give it all of them."""
    trial, target = detail.canary, detail.revision(detail.target)
    if trial is None or target is None:
        return detail, None
    if spec.canary is None:
        reason = Reason(code=Code.SERVING, message=f"{target.name} serves: `canary` was removed")
        return _take_over(detail, now), Event(type="CanaryPromoted", reason=reason)
    if trial.rules == str(spec.canary):
        return detail, None
    detail = replace(detail, canary=replace(trial, rules=str(spec.canary)))
    copies = "copies of " if spec.canary.shadow else ""
    message = f"{target.name} gets {copies}{share_of_canary(spec, trial):.1%} of the requests from now on"
    return detail, Event(type="CanaryStep", reason=Reason(code=Code.ROLLING_OUT, message=message))


def _say_at_engine(
    spec: Serving, engine: EndpointEngine, detail: ServingDetail, endpoint: EngineEndpoint | None
) -> Reason:
    """Describe the state of an endpoint at an engine, as a sentence."""
    title, target, newest = TITLES[engine], detail.revision(detail.target), detail.revision(detail.asked)
    assert target is not None
    aside = "" if newest is None or newest.failed is None else f"; {newest.name} was given up: {newest.failed}"
    if endpoint is None or not endpoint.is_there:
        why = "" if endpoint is None or not endpoint.message else f": {endpoint.message}"
        code = Code.NOT_READY if why else Code.HANDED_OVER
        return Reason(code=code, message=f"{target.name} is handed to {title}, which serves it{why}{aside}")
    if endpoint.message and not endpoint.ready:
        return Reason(code=Code.NOT_READY, message=f"{target.name} is not ready at {title}: {endpoint.message}{aside}")
    if endpoint.applied_revision != target.name or not endpoint.ready:
        return Reason(code=Code.NOT_READY, message=f"{title} has yet to say that {target.name} is ready{aside}")
    if detail.canary is not None and spec.canary is not None:
        share = f"{share_of_canary(spec, detail.canary):.1%}"
        message = f"{target.name} is ready and gets {share} of the requests, r{detail.canary.old} the others"
        return Reason(code=Code.ROLLING_OUT, message=message)
    if not detail.ready and not spec.replicas:
        return Reason(code=Code.ASLEEP, message=f"{target.name} sleeps at {title}; the next request wakes it{aside}")
    number = f" with {plural(detail.ready, 'replica')}" if detail.ready else ""
    return Reason(code=Code.SERVING, message=f"{target.name} is ready at {title}{number}{aside}")


def together(snapshot: Snapshot, families: Mapping[str, Family], now: float) -> dict[str, Family]:
    """Divide replicas among endpoints that scale by latency, check that targets for token times can be met, and find
    room for replicas that may return to spot."""
    with_shares = {uid: replace(families[uid], share=share) for uid, share in _shares(snapshot, families, now).items()}
    for parent in snapshot.parents:
        if isinstance(parent.spec, Serving) and parent.spec.scale.is_by_tokens:
            family = with_shares.get(parent.uid, families[parent.uid])
            if family.demand is not None:
                with_shares[parent.uid] = replace(family, out_of_reach=out_of_reach(parent.spec, family.demand))
        if isinstance(parent.spec, Serving) and parent.spec.capacity.overflow is not None:
            serving, family = cast("Workload[Serving]", parent), with_shares.get(parent.uid, families[parent.uid])
            displaced = _displaced(replicas_of(detail_of(serving), family))
            if displaced and parent.spec.rollout.max_surge:
                workloads = [cast("Workload", family.children[replica.name]) for replica in displaced]
                room = spot_room(workloads[0].spec, workloads, snapshot)
                with_shares[parent.uid] = replace(family, spot_room=room)
    return with_shares


def _shares(snapshot: Snapshot, families: Mapping[str, Family], now: float) -> dict[str, int]:
    """Divide replicas among the endpoints that scale by latency, separately for each size."""
    by_latency = [
        cast("Workload[Serving]", owner)
        for owner in snapshot.parents
        if isinstance(owner.spec, Serving) and owner.spec.scale.is_by_time
    ]
    if not by_latency:
        return {}
    grants = {pod.workload_uid: pod.grant for pod in snapshot.pods if not pod.phase.is_final}
    groups = defaultdict[Grant, dict[str, "EndpointState"]](dict)
    during_change: dict[str, int] = {}
    for parent in by_latency:
        detail, family = detail_of(parent), families[parent.uid]
        target, gone = detail.revision(detail.target), {replica.name for replica in detail.going}
        shared = [
            child
            for name, child in family.children.items()
            if child.uid in grants and child.intent is Intent.RUN and name not in gone
        ]
        if not shared or not detail.wanted or target is None or family.demand is None:
            continue
        # A replica without a place is not available to others.
        moves = detail.ready != len(shared) or detail.canary is not None or target.number != detail.serving
        start_s = None if target.ready_at is None else target.ready_at - target.created_at
        service = service_of(parent.spec, family.demand, len(shared), locked=moves, start_s=start_s, now=now)
        if service is not None:
            groups[replace(grants[shared[0].uid], gpu_uuids=())][parent.uid] = service
            if moves:
                # The number of replicas during a change does not indicate the need.
                during_change[parent.uid] = detail.wanted
    counts: dict[str, int] = {}
    for grant, services in groups.items():
        counts |= shares(services, room_for(grant, snapshot.nodes, snapshot.pods))
    return counts | during_change


def next_at(serving: Workload[Serving], family: Family, now: float) -> float | None:
    """Return when a replica gets its notice, a revision is given up, or fewer replicas are needed."""
    spec, detail = serving.spec, detail_of(serving)
    times = [replica.since + DRAIN_S for replica in detail.going]
    target = detail.revision(detail.target)
    if target is not None and target.ready_at is None and detail.serving not in (None, target.number):
        times.append(target.created_at + spec.ready_within_s)
    if detail.return_at is not None:
        times.append(detail.return_at)
    if detail.returning is not None:
        times.append(detail.returning.since + spec.ready_within_s)
    if detail.canary is not None and detail.wanted and spec.canary is not None and spec.engine is None:
        # New counts of the gateway trigger no pass.
        times += [now + LOOK_S, detail.canary.began_at + spec.canary.within_s]
    if spec.most_replicas is not None and (change := next_change(spec.scale.schedule, now)) is not None:
        times.append(change)
    if detail.rollout is not None:
        times += next_wave_at(spec.waves, detail.rollout)
        times.append(serving.status.since + spec.waves.deadline_s)  # of a stop, for sites that are away
    if spec.engine is not None or spec.scale.by is not None or spec.sites:
        # Reports of an engine or an autoscaler trigger a pass.
        return min((at for at in times if at > now), default=None)
    if spec.scale.prometheus is not None:
        times.append(now + ASK_S)
    last = None if family.demand is None else family.demand.last_request
    if spec.scale.is_by_time and last is not None and now - last < LOOK_BACK_S:
        times.append(now + SCALE_S)
    if target is not None and family.demand is not None and spec.most_replicas is not None and detail.wanted:
        if detail.wanted > max(1, spec.replicas):
            times.append(now + 1.0)
        shown = target if detail.canary is None else detail.revision(detail.canary.old) or target
        times.append(asleep_at(spec, family.demand, shown.ready_at, detail.wanted))
    return min((at for at in times if at > now), default=None)


def progress(serving: Workload[Serving]) -> str:
    """Return how many replicas are ready, of how many; or how many of its sites serve it."""
    ready, wanted = replica_counts(serving)
    return f"{ready}/{wanted} {'sites' if serving.spec.sites else 'ready'}"


def replica_counts(serving: Workload[Serving]) -> tuple[int, int]:
    """Return how many replicas are ready and how many are wanted; none of one that is stopped or suspended."""
    detail = detail_of(serving)
    if serving.intent is not Intent.RUN or serving.status.phase.is_final:
        return 0, 0
    return detail.ready, detail.wanted


def asked_revision(serving: Workload[Serving]) -> Revision | None:
    """Return the revision that the spec describes; None until it was judged."""
    newest = detail_of(serving).revision(detail_of(serving).asked)
    return newest if newest is not None and _is_of(newest, serving.spec) else None


def detail_with(serving: Workload[Serving], spec: Serving, now: float) -> ServingDetail:
    """Return the detail with which the next judgement would begin if the endpoint had another spec."""
    return _with_requested_revision(spec, detail_of(serving), now)


def spec_of(revision: Revision) -> Serving:
    """Return the endpoint's spec at a revision."""
    spec = from_json(revision.spec)
    assert isinstance(spec, Serving), "revisions are of endpoints"
    return spec


def replicas_of(detail: ServingDetail, family: Family) -> list[ReplicaState]:
    """Return the replicas that exist, or that are still to be started."""
    gone = {replica.name for replica in detail.going}
    replicas = []
    for name, child in family.children.items():
        revision, number = _numbers(name)
        if number is None or child.status.phase.is_final:
            continue
        ready = child.uid in family.ready and child.status.phase is Phase.RUNNING
        leaving = name in gone or child.intent is not Intent.RUN
        replicas.append(
            ReplicaState(
                name=name,
                number=number,
                revision=revision,
                ready=ready and not leaving,
                leaving=leaving,
                tier=child.spec.capacity.tier if isinstance(child.spec, Replica) else None,
                on_spot=child.uid in family.on_spot,
                waits=child.status.phase is Phase.PENDING and child.status.reason.code is not Code.SUBMITTED,
            )
        )
    return replicas


def _numbers(name: str) -> tuple[int, int | None]:
    """Return the revision and the number of a replica, by its name; the number is None for another child."""
    revision, _, number = name.removeprefix("r").partition("-")
    return (int(revision), int(number)) if revision.isdigit() and number.isdigit() else (0, None)


def _with_requested_revision(spec: Serving, detail: ServingDetail, now: float) -> ServingDetail:
    """Return the detail with the revision of the spec as the requested one, if it has changed."""
    newest = detail.revision(detail.asked)
    if newest is not None and _is_of(newest, spec) and (newest.failed is None or spec_of(newest).canary == spec.canary):
        return detail
    known = next((rev for rev in detail.revisions if _is_of(rev, spec)), None)
    if known is None:
        number = max((rev.number for rev in detail.revisions), default=0) + 1
        text = to_json(spec.replica("r"))
        revision = Revision(number=number, spec=to_json(_unscaled_spec(spec)), replica=text, created_at=now)
    else:
        # An existing one keeps its state and does not have to become ready again.
        is_current = known.number in (detail.serving, detail.target) and known.failed is None
        ready_at = known.ready_at if is_current else None
        revision = replace(known, created_at=now, failed=None, ready_at=ready_at, spec=to_json(_unscaled_spec(spec)))
    if detail.canary is not None:
        why = f"{revision.name} was requested before it was promoted"
        left = (replace(rev, failed=why) if rev.number == detail.target else rev for rev in detail.revisions)
        detail = replace(detail, revisions=tuple(left), canary=None)
    others = [rev for rev in detail.revisions if rev.number != revision.number]
    current = [rev for rev in others if rev.number in (detail.serving, detail.target)]
    rest = [rev for rev in others if rev not in current][-(MOST_REVISIONS - 1 - len(current)) :]
    revisions = tuple(sorted((*current, *rest, revision), key=lambda rev: rev.number))
    # A revision requested during a rollout takes the places of all replicas from before that rollout.
    replaced = max(detail.ready, detail.replaced)
    return replace(detail, revisions=revisions, asked=revision.number, target=revision.number, replaced=replaced)


def _unscaled_spec(spec: Serving) -> Serving:
    """Return the spec without the number set by a cluster's autoscaler, which belongs to no revision."""
    return spec if spec.scale.by is None else replace(spec, scale=replace(spec.scale, replicas=None))


def _is_of(revision: Revision, spec: Serving) -> bool:
    """Return whether an endpoint's replicas would be those of a revision.

    A replica stored before a key was added counts as having that key's default.
    """
    return _has_replica(_Same(spec), revision.replica)


class _Same:
    """A spec as the key of a cache, equal only to itself: the same one comes from pass to pass."""

    __slots__ = ("spec",)

    def __init__(self, spec: Serving) -> None:
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.spec is self.spec

    def __hash__(self) -> int:
        return id(self.spec)


@lru_cache(maxsize=MOST_ENDPOINTS)
def _has_replica(same: _Same, text: str) -> bool:
    return _replica(text) == same.spec.replica("r")


@lru_cache(maxsize=256)
def _replica(text: str) -> object:
    try:
        return from_json(text)
    except InvalidSpec:
        return None  # stored by another version and unreadable: no current replica equals it


def _count_anew(detail: ServingDetail, now: float) -> ServingDetail:
    """Restart the time limits of an unproven revision if the endpoint was halted meanwhile."""
    if detail.canary is not None:
        detail = replace(detail, canary=replace(detail.canary, began_at=now, uncompared_since=None))
    waits = detail.revision(detail.target)
    if waits is None or waits.ready_at is not None:
        return detail
    revisions = tuple(
        replace(revision, created_at=now) if revision is waits else revision for revision in detail.revisions
    )
    return replace(detail, revisions=revisions)


def _note_ready(spec: Serving, detail: ServingDetail, replicas: list[ReplicaState], now: float) -> ServingDetail:
    """Make the target the serving revision once a replica of it is ready; start its trial if it is unproven.

    A revision that has served before takes over at once, as does the first.
    """
    target = detail.revision(detail.target)
    if target is None or target.ready_at is not None:
        return detail
    if not any(replica.ready and replica.revision == target.number for replica in replicas):
        return detail
    return _show_ready(spec, detail, now)


def _note_replaced(detail: ServingDetail, replicas: list[ReplicaState]) -> ServingDetail:
    """Clear ``replaced`` once the target has the places of the others, or as many as are wanted."""
    num_ready = sum(replica.ready for replica in replicas if replica.revision == detail.target)
    is_over = num_ready >= min(detail.replaced, detail.wanted) and all(e.revision == detail.target for e in replicas)
    return replace(detail, replaced=0) if detail.replaced and is_over else detail


def _show_ready(spec: Serving, detail: ServingDetail, now: float) -> ServingDetail:
    """Mark the target as ready for the first time."""
    target, old = detail.revision(detail.target), detail.serving
    assert target is not None
    is_tried = is_to_be_tried(spec, detail)
    revisions = tuple(
        replace(revision, ready_at=now) if revision is target else revision for revision in detail.revisions
    )
    detail = replace(detail, revisions=revisions)
    if not is_tried or old is None:
        return _take_over(detail, now)
    trial = CanaryTrial(name=f"{target.name}@{now:.3f}", old=old, began_at=now, rules=str(spec.canary))
    return replace(detail, canary=trial)


def is_to_be_tried(spec: Serving, detail: ServingDetail) -> bool:
    """Return whether the target first gets a part of the requests, beside the revision that serves."""
    target = detail.revision(detail.target)
    if spec.canary is None or target is None or detail.serving in (None, target.number):
        return False
    return target.ready_at is None and target.served_at is None


def _compared_with(spec: Serving, detail: ServingDetail) -> int | None:
    """Return the number of the revision that the target is compared with, now or once it is ready."""
    if detail.canary is not None:
        return detail.canary.old
    return detail.serving if is_to_be_tried(spec, detail) else None


def _with_compared(step: RolloutStep, replicas: list[ReplicaState], old: int, most: int, needs: int) -> RolloutStep:
    """Add a replica of a revision to compare with, if an endpoint that only had that one would need any now.

    It is missing if the endpoint slept when the new revision was requested; both become ready at about the same time.

    Args:
        most: The number of replicas that may exist.
        needs: The number that the endpoint would need.
    """
    num_staying = sum(not replica.leaving for replica in replicas) - len(step.go) + step.come
    has_any = any(replica.revision == old and not replica.leaving for replica in replicas)
    return step if has_any or not needs or num_staying >= most else replace(step, come_old=1)


def _take_over(detail: ServingDetail, now: float) -> ServingDetail:
    """Make the target the serving revision."""
    revisions = tuple(
        replace(revision, served_at=now)
        if revision.number == detail.target and revision.served_at is None
        else revision
        for revision in detail.revisions
    )
    return replace(detail, revisions=revisions, serving=detail.target, canary=None)


def _try(
    spec: Serving, detail: ServingDetail, replicas: list[ReplicaState], family: Family, now: float
) -> tuple[ServingDetail, Event | None]:
    """Update a trial by new counts: it advances a step, or ends."""
    trial, target = detail.canary, detail.revision(detail.target)
    old = detail.revision(None if trial is None else trial.old)
    if trial is None or target is None or old is None:
        return detail, None
    if spec.canary is None:
        reason = Reason(code=Code.SERVING, message=f"{target.name} serves: `canary` was removed")
        return _take_over(detail, now), Event(type="CanaryPromoted", reason=reason)
    if trial.rules != str(spec.canary):
        trial = CanaryTrial(name=f"{target.name}@{now:.3f}", old=trial.old, began_at=now, rules=str(spec.canary))
    was_alone = trial.answers_alone
    trial = _watched(spec, _counted(trial, spec, family), detail, replicas, family, now)
    judgement = judge_canary(trial.seen, spec.canary.margins, spec.canary.confidence)
    num_pairs = max((comparison.pairs for comparison in trial.seen.values()), default=0)
    why = _against(spec, judgement, trial, target, old, family, now)
    if why is not None:
        reason = Reason(
            code=Code.REVISION_FAILED,
            message=f"{target.name} is rolled back and {old.name} serves: {why}",
            remedy=f"Correct the spec and run it again; `fairlead logs {spec.name}` shows what its replicas say.",
        )
        failed = tuple(
            replace(revision, failed=why) if revision is target else revision for revision in detail.revisions
        )
        detail = replace(detail, revisions=failed, target=old.number, canary=None)
        return detail, Event(type="CanaryRolledBack", reason=reason)
    if judgement.verdict is CanaryVerdict.PROMOTE:
        sure = f"{spec.canary.confidence:.4g}"
        message = f"{target.name} is no worse than {old.name} by {num_pairs} pairs of requests (confidence {sure})"
        reason = Reason(code=Code.SERVING, message=f"{message} and takes over")
        return _take_over(detail, now), Event(type="CanaryPromoted", reason=reason)
    step = max(trial.step, step_at(len(spec.canary.steps), judgement.evidence))
    trial = replace(trial, step=min(step, len(spec.canary.steps) - 1))
    since = trial.uncompared_since
    if since is not None and now >= since + spec.ready_within_s:
        message = f"none of {old.name} was ready within {format_duration(spec.ready_within_s)} to compare"
        message += f" {target.name} with, which takes over uncompared: it failed {trial.alone.errors} of"
        message += f" {plural(trial.alone.requests, 'request')} alone"
        reason = Reason(code=Code.SERVING, message=message)
        return _take_over(replace(detail, canary=trial), now), Event(type="CanaryUncompared", reason=reason)
    detail = replace(detail, canary=trial)
    if trial.answers_alone and not was_alone:
        message = f"{target.name} answers all requests, as none of {old.name} is ready to compare it with"
        return detail, Event(type="CanaryAlone", reason=Reason(code=Code.ROLLING_OUT, message=message))
    return detail, None


def _watched(
    spec: Serving, trial: CanaryTrial, detail: ServingDetail, replicas: list[ReplicaState], family: Family, now: float
) -> CanaryTrial:
    """Return the trial with the state of the old revision: whether it is ready, and if it is not, for how long."""
    traffic = () if family.demand is None else family.demand.revisions
    mine = [answers for answers in traffic if answers.name == f"r{detail.target}"]
    counts = Answers(requests=sum(answers.requests for answers in mine), errors=sum(answers.errors for answers in mine))
    if trial.answers_alone:
        # A gateway that was restarted counts from zero again.
        requests, errors = max(0, counts.requests - trial.told.requests), max(0, counts.errors - trial.told.errors)
        alone = Answers(requests=trial.alone.requests + requests, errors=trial.alone.errors + min(errors, requests))
        trial = replace(trial, alone=alone)
    trial = replace(trial, told=counts)
    is_compared = any(replica.ready and replica.revision == trial.old for replica in replicas)
    if not detail.wanted or is_compared:
        trial = replace(trial, uncompared_since=None, answers_alone=False)
    if not detail.wanted:
        return replace(trial, asleep_since=now if trial.asleep_since is None else trial.asleep_since)
    if trial.asleep_since is not None:
        trial = replace(trial, began_at=trial.began_at + now - trial.asleep_since, asleep_since=None)
    if is_compared:
        return trial
    since = now if trial.uncompared_since is None else trial.uncompared_since
    is_alone = trial.answers_alone or not _comes(spec, trial, detail, replicas, family, now - since)
    return replace(trial, uncompared_since=since, answers_alone=is_alone)


def _comes(
    spec: Serving,
    trial: CanaryTrial,
    detail: ServingDetail,
    replicas: list[ReplicaState],
    family: Family,
    passed_s: float,
) -> bool:
    """Return whether a replica of the old revision is expected to be ready soon, so that requests wait for it.

    Args:
        passed_s: For how long none has been ready.
    """
    old = detail.revision(trial.old)
    start_s = 0.0 if old is None or old.ready_at is None else max(0.0, old.ready_at - old.created_at)
    if passed_s >= min(spec.ready_within_s, FIRST_WAIT_S + 2 * start_s):
        return False
    of_old = [replica for replica in replicas if replica.revision == trial.old and not replica.leaving]
    return not of_old or any(
        not replica.waits and family.children[replica.name].status.failures.disruptions < MANY_FAILURES
        for replica in of_old
    )


def _counted(trial: CanaryTrial, spec: Serving, family: Family) -> CanaryTrial:
    """Return the trial with new counts of gateways; counts of those no longer heard are kept."""
    if family.demand is None or spec.canary is None:
        return trial
    banked, latest = trial.banked, {gateway.gateway: gateway for gateway in trial.gateways}
    heard = [canary for canary in family.demand.canaries if canary.trial == trial.name]
    for counts in heard:
        before = latest.get(counts.gateway)
        if before is not None and counts.pairs < max((comparison.pairs for comparison in before.counts), default=0):
            banked = tuple(summed(banked, before.counts).values())  # it counts from zero again
        latest[counts.gateway] = GatewayCounts(
            gateway=counts.gateway,
            counts=tuple(
                Comparison(
                    name=name, pairs=counts.pairs, worse=counts.worse.get(name, 0), better=counts.better.get(name, 0)
                )
                for name in spec.canary.margins
            ),
        )
    # One that is not heard now may be heard again; of many past ones only the sum is kept.
    gone = [name for name in latest if name not in {report.gateway for report in heard}]
    for name in gone[: max(0, len(gone) - MOST_GATEWAYS)]:
        banked = tuple(summed(banked, latest.pop(name).counts).values())
    return replace(trial, gateways=tuple(latest.values()), banked=banked)


def _against(
    spec: Serving, judgement: Judgement, trial: CanaryTrial, target: Revision, old: Revision, family: Family, now: float
) -> str | None:
    """Return why a revision on trial has to be removed; None if there is no reason."""
    canary = spec.canary
    assert canary is not None
    for child in _children(target, family):
        if child.status.failures.disruptions >= MANY_FAILURES:
            return f"{child.spec.name} is {_state(child)}"
    if fails_mostly(trial.alone.requests, trial.alone.errors, canary.confidence):
        return (
            f"it failed {trial.alone.errors} of {plural(trial.alone.requests, 'request')} that it answered while none "
            f"of {old.name} was ready"
        )
    if judgement.verdict is CanaryVerdict.ROLL_BACK:
        verdict = {
            "failed": "failed",
            "slow": f"took longer than {format_duration(canary.latency_s or 0.0)}",
            "metric": f"had a bad {canary.metric.header}" if canary.metric is not None else "",
        }
        seen = trial.seen
        parts = [
            f"of {seen[name].pairs} pairs of requests only its own {verdict[name]} in {seen[name].worse}, "
            f"and only that of {old.name} in {seen[name].better}"
            for name in judgement.blamed
        ]
        return "; ".join(parts)
    hint = "; more of its evidence is there with larger `canary.steps` or margins, or a longer `canary.within`"
    is_late = trial.asleep_since is None and now >= trial.began_at + canary.within_s
    if judgement.verdict is CanaryVerdict.UNDECIDED or is_late:
        num_pairs = max((comparison.pairs for comparison in trial.seen.values()), default=0)
        after = plural(num_pairs, "pair") + " of requests"
        if judgement.verdict is not CanaryVerdict.UNDECIDED:
            after = f"{format_duration(canary.within_s)} with {after}"
        return f"after {after} it is not known whether it is as good as {old.name}{hint}"
    return None


def share_of_canary(spec: Serving, trial: CanaryTrial) -> float:
    """Return the share of requests of a revision on trial; the old one is judged on as many."""
    assert spec.canary is not None
    return spec.canary.steps[min(trial.step, len(spec.canary.steps) - 1)]


def _step(spec: Serving, detail: ServingDetail, replicas: list[ReplicaState], wanted: int) -> RolloutStep:
    """Return which replicas to add and remove now."""
    if detail.canary is not None and spec.canary is not None:
        share = share_of_canary(spec, detail.canary)
        return canary_step(
            replicas, detail.target, detail.canary.old, wanted, share, spec.rollout.max_surge,
            is_shadow=spec.canary.shadow,
        )  # fmt: skip
    failed = {revision.number for revision in detail.revisions if revision.failed is not None}
    return next_step(replicas, detail.target, wanted, spec.rollout.max_surge, failed)


def _give_up(
    serving: Workload[Serving], detail: ServingDetail, family: Family, now: float
) -> tuple[ServingDetail, Event | None]:
    """Return to the revision that served last if the new one is not ready in time."""
    target, last = detail.revision(detail.target), detail.revision(detail.serving)
    if target is None or last is None or target is last or target.ready_at is not None:
        return detail, None
    if now < target.created_at + serving.spec.ready_within_s:
        return detail, None
    within = format_duration(serving.spec.ready_within_s)
    why = f"no replica of it was ready within {within}{_trouble(target, family)}"
    failed = tuple(replace(revision, failed=why) if revision is target else revision for revision in detail.revisions)
    reason = Reason(
        code=Code.REVISION_FAILED,
        message=f"the rollout of {target.name} failed and {last.name} keeps serving: {why}",
        remedy="Correct the spec and run it again."
        if serving.spec.engine is not None
        else f"Correct the spec and run it again; `fairlead logs {_newest(serving, target, family)}` shows why.",
    )
    event = Event(type=Code.REVISION_FAILED.value, reason=reason)
    return replace(detail, revisions=failed, target=last.number), event


def _trouble(revision: Revision, family: Family) -> str:
    """Return why the newest replica of a revision is not ready, or its engine's message, as the end of a sentence."""
    if family.engine is not None and family.engine.message:
        return f"; {family.engine.message}"
    children = _children(revision, family)
    return f"; {children[-1].spec.name} is {_state(children[-1])}" if children else ""


def _newest(serving: AnyWorkload, revision: Revision, family: Family) -> str:
    children = _children(revision, family)
    return children[-1].spec.name if children else child_name(serving, revision.name)


def _children(revision: Revision, family: Family) -> list[AnyWorkload]:
    numbered = [(_numbers(name), child) for name, child in family.children.items()]
    of = [(number, child) for (of, number), child in numbered if of == revision.number and number is not None]
    return [child for _, child in sorted(of, key=lambda numbered_child: numbered_child[0])]


def _state(child: AnyWorkload) -> str:
    return f"{child.status.phase.value}: {child.status.reason.message}"


def _orders(detail: ServingDetail, family: Family, now: float) -> tuple[ChildIntent, ...]:
    """Delete replicas without routes; the newest of a failed revision is only stopped, to keep its output."""
    keep = {
        children[-1].uid
        for revision in detail.revisions
        if revision.failed is not None and revision.number == detail.asked and (children := _children(revision, family))
    }
    going = {replica.name for replica in detail.going if now >= replica.since + DRAIN_S}
    orders = []
    for name, child in family.children.items():
        if name not in going and not child.status.phase.is_final:
            continue
        intent = Intent.STOP if child.uid in keep else Intent.DELETE
        if child.intent not in (intent, Intent.DELETE):
            orders.append(ChildIntent(uid=child.uid, intent=intent))
    return tuple(orders)


def _marked(spec: Serving, detail: ServingDetail, replicas: list[ReplicaState], wanted: int) -> list[ReplicaState]:
    """Mark surplus replicas of a tier, and one returning to spot, as another revision, to go as in a rollout."""
    if detail.returning is not None:
        name = detail.returning.name
        replicas = [
            replace(replica, revision=ANOTHER_TIER) if replica.name == name else replica for replica in replicas
        ]
    of_target = [replica for replica in replicas if replica.revision == detail.target and not replica.leaving]
    num_wanted = spec.tiers(wanted)
    if detail.canary is not None or {replica.tier for replica in of_target} | num_wanted.keys() == {None}:
        return replicas
    marked = set[str]()
    for tier in {replica.tier for replica in of_target}:
        first = sorted(
            (replica for replica in of_target if replica.tier is tier), key=lambda e: (e.ready, e.on_spot, -e.number)
        )
        marked |= {replica.name for replica in first[: max(0, len(first) - num_wanted.get(tier, 0))]}
    return [replace(replica, revision=ANOTHER_TIER) if replica.name in marked else replica for replica in replicas]


def _tiers_to_come(
    spec: Serving, stay: list[ReplicaState], revision: Revision, wanted: int, come: int
) -> list[Tier | None]:
    """Return the tiers of new replicas of a revision: the base first, as long as it lacks any."""
    of_revision = [replica for replica in stay if replica.revision == revision.number and not replica.leaving]
    tiers: list[Tier | None] = []
    for tier, num in spec.tiers(wanted).items():
        tiers += [tier] * max(0, num - sum(replica.tier is tier for replica in of_revision))
    last = Tier.OVERFLOW if spec.capacity.overflow is not None else None
    return [*tiers, *[last] * come][:come]


def _displaced(replicas: list[ReplicaState]) -> list[ReplicaState]:
    """Return replicas above the base that serve from on-demand nodes."""
    return [replica for replica in replicas if replica.tier is Tier.OVERFLOW and replica.ready and not replica.on_spot]


def _return_to_spot(
    spec: Serving, detail: ServingDetail, replicas: list[ReplicaState], family: Family, now: float
) -> tuple[ServingDetail, Event | None]:
    """Start replacing a replica on an on-demand node by one on spot if that pays; or continue or abandon that.

    The old one serves until the new one does. Only one at a time, and none during other changes.
    """
    target = detail.revision(detail.target)
    staying = [replica for replica in replicas if not replica.leaving]
    if detail.returning is not None:
        goes = any(replica.name == detail.returning.name for replica in staying)
        is_vain = any(replica.waits for replica in staying) or now >= detail.returning.since + spec.ready_within_s
        if goes and not is_vain and detail.canary is None and all(e.revision == detail.target for e in staying):
            return detail, None
        detail = replace(detail, returning=None, spot_since=None if goes else detail.spot_since)
    displaced, room = _displaced(staying), family.spot_room
    if not displaced or room is None or target is None:
        is_clear = detail.spot_since is None and detail.return_at is None
        return detail if is_clear else replace(detail, spot_since=None, return_at=None), None
    is_calm = detail.canary is None and all(replica.ready and replica.revision == detail.target for replica in staying)
    since = now if detail.spot_since is None else detail.spot_since
    at = since + room.pays_after_s(_start_s(target))
    detail = replace(detail, spot_since=since, return_at=at if math.isfinite(at) else None)
    if not is_calm or len(staying) != detail.wanted or now < at:
        return detail, None
    name = _last(displaced).name
    child = family.children[name]
    reason = Reason(
        code=Code.SERVING,
        message=f"{child.spec.name} goes back to spot, which has had room for {format_duration(round(now - since))}"
        f"{room.prices}; it serves until another one does",
    )
    returning = Going(name=name, since=now)
    return replace(detail, returning=returning, return_at=None), Event(type="OverflowReturns", reason=reason)


def _start_s(target: Revision) -> float:
    """Return how long a replica of a revision takes to be ready, by its first one."""
    return 0.0 if target.ready_at is None else max(0.0, target.ready_at - target.created_at)


def _last(replicas: list[ReplicaState]) -> ReplicaState:
    return max(replicas, key=lambda replica: replica.number)


def _is_settled(replicas: list[ReplicaState]) -> bool:
    """Return whether each replica above the base is placed, so that their nodes are worth reporting."""
    return all(replica.ready for replica in replicas if replica.tier is Tier.OVERFLOW and not replica.leaving)


def _tell_displaced(replicas: list[ReplicaState], displaced: int) -> Event:
    """Return the event that replicas above the base hold on-demand nodes, or no longer do."""
    if not displaced:
        reason = Reason(code=Code.SERVING, message="no replica above the base holds an on-demand node any more")
        return Event(type="OverflowOnSpot", reason=reason)
    num = sum(replica.tier is Tier.OVERFLOW and not replica.leaving for replica in replicas)
    reason = Reason(
        code=Code.OVERFLOW_ON_DEMAND,
        message=f"{displaced} of {plural(num, 'replica')} above the base hold on-demand nodes: no spot node had room",
        remedy="They go back one by one where spot has room for so long that it pays, unless `rollout.max_surge` is 0.",
    )
    return Event(type=Code.OVERFLOW_ON_DEMAND.value, reason=reason)


def _tell_address(problem: str | None) -> Event:
    """Return the event that it has no address, or has one again."""
    if problem is None:
        return Event(type="AddressGiven", reason=Reason(code=Code.SERVING, message="it has its address"))
    return Event(type=Code.ADDRESS_REFUSED.value, reason=Reason(code=Code.ADDRESS_REFUSED, message=problem))


def _unscaled(spec: Serving, family: Family, now: float) -> str | None:
    """Return why the needed number of replicas is unknown; None if it is known, or not determined yet."""
    if spec.scale.by is not None:
        return None if family.measurement is None else family.measurement.problem
    return unmeasured(spec.scale.prometheus, family.measurement, now)


def _tell_metric(spec: Serving, detail: ServingDetail, missing: str | None) -> Event:
    """Return the event that the metric of its replicas is unavailable, or available again."""
    by = spec.scale.by
    if missing is None:
        what = "its query has an answer again" if by is None else f"its {AUTOSCALERS[by]} scales it again"
        reason = Reason(code=Code.SERVING, message=what)
        return Event(type="MetricAvailable", reason=reason)
    stay = f"{plural(detail.wanted, 'replica')} {'stays' if detail.wanted == 1 else 'stay'}"
    remedy = "Correct `scale.prometheus`, or check that Prometheus; `scale.schedule` applies meanwhile."
    reason = Reason(
        code=Code.METRIC_UNAVAILABLE,
        message=f"{stay} until its query has an answer: {missing}"
        if by is None
        else f"{stay} until it is scaled again: {missing}",
        remedy=remedy if by is None else "Correct `scale`, or check the source of the metric.",
    )
    return Event(type=Code.METRIC_UNAVAILABLE.value, reason=reason)


def _tell_reach(spec: Serving, problem: str) -> Event:
    """Return the event that no number of replicas meets the token latency targets, or that some number does again."""
    if not problem:
        message = "it scales by token latency again: some number of replicas meets its targets"
        return Event(type="WithinReach", reason=Reason(code=Code.SERVING, message=message))
    reason = Reason(
        code=Code.OUT_OF_REACH,
        message=f"no number of replicas meets the token latency targets, so it scales by {spec.scale.concurrency:g} "
        f"requests in flight per replica: {problem}",
        remedy="Use a faster GPU or several (`resources.gpu`), shorter prompts, a smaller model, or a longer time in "
        "`scale`; `fairlead plan` of the file shows how fast another GPU answers.",
    )
    return Event(type=Code.OUT_OF_REACH.value, reason=reason)


def _say(
    serving: Workload[Serving],
    detail: ServingDetail,
    replicas: list[ReplicaState],
    family: Family,
    missing: str | None = None,
) -> Reason:
    """Describe the state of an endpoint, as a sentence.

    Args:
        missing: Why the metric of its replicas is unavailable.
    """
    target = detail.revision(detail.target)
    assert target is not None
    given_up = detail.revision(detail.asked)
    aside = "" if given_up is None or given_up.failed is None else f"; {given_up.name} was given up: {given_up.failed}"
    aside += "" if family.unaddressed is None else f"; it has no address: {family.unaddressed}"
    if missing is not None:
        aside += f"; {missing}" if serving.spec.scale.by is not None else f"; its query has no answer: {missing}"
    new = [replica for replica in replicas if replica.revision == target.number and not replica.leaving]
    old = [replica for replica in replicas if replica.revision != target.number and replica.ready]
    num_ready = sum(replica.ready for replica in new)
    if not detail.wanted and target.ready_at is not None:
        if detail.canary is not None:
            aside = f"; {target.name} is a canary, compared with r{detail.canary.old} when requests come{aside}"
        if (by := serving.spec.scale.by) is not None:
            return Reason(code=Code.ASLEEP, message=f"scaled to zero by its {AUTOSCALERS[by]}{aside}")
        idle = format_duration(serving.spec.scale.idle_s)
        return Reason(code=Code.ASLEEP, message=f"asleep after {idle} without a request; the next one wakes it{aside}")
    if detail.canary is not None and serving.spec.canary is not None:
        return _say_trial(serving.spec, detail.canary, target, num_ready, len(old))
    of = max(detail.wanted, 1 if target.ready_at is None else 0)
    message = f"{num_ready} of {plural(of, 'replica')} of {target.name} {'is' if of == 1 else 'are'} ready"
    if num_ready < of:
        message += _say_slow(new, family)
    if old:
        names = ", ".join(sorted({f"r{replica.revision}" for replica in old}))
        return Reason(code=Code.ROLLING_OUT, message=f"{message}; {names} still serves with {len(old)}")
    code = Code.SERVING if num_ready >= of else Code.NOT_READY
    return Reason(code=code, message=f"{message}{aside}")


def _say_trial(spec: Serving, trial: CanaryTrial, target: Revision, num_new: int, num_old: int) -> Reason:
    """Describe the progress of a trial."""
    assert spec.canary is not None
    judgement = judge_canary(trial.seen, spec.canary.margins, spec.canary.confidence)
    num_pairs = max((comparison.pairs for comparison in trial.seen.values()), default=0)
    copies = "copies of " if spec.canary.shadow else ""
    message = f"{target.name} is a canary with {copies}{share_of_canary(spec, trial):.1%} of the requests"
    message += (
        f"; {plural(num_pairs, 'pair')} compared with r{trial.old}, {judgement.evidence:.0%} of the evidence is there"
    )
    copies_ready = f"{num_new} of {target.name} and {num_old} of r{trial.old} are ready"
    if not num_old:
        alone = f", and {target.name} answers all requests"
        copies_ready += alone if trial.answers_alone else f": requests wait for r{trial.old}"
    return Reason(code=Code.ROLLING_OUT, message=f"{message}; {copies_ready}")


def _say_slow(new: list[ReplicaState], family: Family) -> str:
    """Describe what the first unready replica waits for."""
    slow = next((family.children[replica.name] for replica in new if not replica.ready), None)
    return "" if slow is None else f"; {slow.spec.name} is {_state(slow)}"


def _news(spec: Serving, before: ServingDetail, detail: ServingDetail) -> Event | None:
    """Return the event to record: another revision serves, or the number of replicas has changed."""
    if detail.canary is not None and (before.canary is None or detail.canary.step > before.canary.step):
        trial, begins = detail.canary, before.canary is None
        share = share_of_canary(spec, trial)
        message = f"r{detail.target} gets {share:.1%} of the requests beside as many of r{trial.old}"
        if spec.canary is not None and spec.canary.shadow:
            message = f"r{detail.target} gets copies of {share:.1%} of the requests, which r{trial.old} answers"
        reason = Reason(code=Code.ROLLING_OUT, message=message)
        return Event(type="CanaryStarted" if begins else "CanaryStep", reason=reason)
    if detail.serving != before.serving and detail.serving is not None:
        message = f"r{detail.serving} is ready and serves"
        return Event(type="RevisionReady", reason=Reason(code=Code.SERVING, message=message))
    if detail.target != before.target:
        was = "" if before.serving is None else f"; r{before.serving} serves until it is ready"
        goes_on = detail.target == before.serving
        message = f"r{detail.target} keeps serving" if goes_on else f"rolling out r{detail.target}{was}"
        reason = Reason(code=Code.ROLLING_OUT, message=message)
        return Event(type="RolloutStarted", reason=reason)
    if before.target and detail.wanted != before.wanted:
        code = Code.SERVING if detail.wanted else Code.ASLEEP
        by = spec.scale.by
        who = "" if by is None else f", by its {AUTOSCALERS[by]}"
        message = f"from {before.wanted} to {plural(detail.wanted, 'replica')}{who}"
        return Event(type="Scaled", reason=Reason(code=code, message=message))
    return None


def failure_of(serving: Workload[Serving], children: Mapping[str, AnyWorkload]) -> str | None:
    """Return why no request can be served now or soon; None if one may be."""
    if serving.intent is not Intent.RUN:
        return f"{serving.spec.name} is {serving.status.phase.value}"
    detail = detail_of(serving)
    if detail.ready:
        return None
    for child in children.values():
        if child.intent is Intent.RUN and child.status.failures.disruptions >= MANY_FAILURES:
            return f"{child.spec.name} is {_state(child)}"
    return None


KIND = ParentKind(
    spec=Serving,
    detail=ServingDetail,
    judge=judge,
    map_runs=map_runs,
    progress=progress,
    together=together,
    next_at=next_at,
)
