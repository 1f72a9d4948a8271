"""What holds of the queue whatever happens: who may go first, who may be stopped for whom, and what teams are owed."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations

from fairlead.policy.placement.free_capacity import rooms
from fairlead.policy.placement.placement import place
from fairlead.policy.queue.dominant_shares import Amounts, ClusterCapacity, asked, capacity, dominant_share
from fairlead.policy.queue.durations import Durations
from fairlead.specs.team import Quota
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Pod, PodPhase, Snapshot, Status, Workload
from tests.policy.world import Decision, World

TEN_MINUTES_S = 600.0
RESTART_S = 60.0
LONGEST_GRACE_S = 10.0
MOMENT_S = 3.0
RESOURCES = ("gpu_milli", "cpu_milli", "memory_bytes")


def nobody_delays_the_first(world: World) -> Iterator[str]:
    """Whoever starts before its turn leaves the first that waits its earliest start, as far as ends are known.

    Of runs of one team that is guaranteed nothing. The turn is by priority, of which ten minutes of waiting are worth
    a point; then by age. A gang that only changes its size has had its turn: it takes the place of its own pods, and a
    run that precedes it may stop it there.
    """
    for decision in world.decisions:
        left = [w for w in decision.before.workloads if is_left_waiting(w, decision) and w.spec.priority >= 0]
        begun = [pair for pair in decision.done() if pair[1].create and not _had_its_turn(pair[0])]
        teams = {workload.spec.team for workload in left} | {workload.spec.team for workload, _ in begun}
        if not left or len(teams) > 1 or any(t.name in teams for t in decision.before.teams):
            continue
        first = min(left, key=lambda workload: _turn(workload, decision.now))
        late = [pair for pair in begun if _turn(pair[0], decision.now) > _turn(first, decision.now)]
        for workload, change in late:
            others = [pair for pair in begun if pair[0].uid != workload.uid]
            if _delays(first, workload, change, others, decision):
                yield f"{workload.spec.name} started before {first.spec.name}, and delays it"


def scavengers_take_only_what_is_idle(world: World) -> Iterator[str]:
    """No scavenger starts where a run with a turn of its own would fit that is left waiting, and does not beside it.

    One that fits beside all that start waits for its turn, not for room.
    """
    for decision in world.decisions:
        done = list(decision.done())
        found = [(workload, change) for workload, change in done if change.create and workload.spec.priority < 0]
        if not found:
            continue
        begun = [pair for pair in done if pair[1].create]
        others = [pair for pair in begun if pair[0].spec.priority >= 0]
        nodes, pods = decision.before.nodes, decision.before.pods
        for workload in decision.before.workloads:
            told = _reason_after(workload, decision)
            if workload.spec.priority >= 0 and is_left_waiting(workload, decision) and told is not Code.OVER_QUOTA:
                alone, beside = (rooms(nodes, [*pods, *created(of)]) for of in (others, begun))
                if place(workload.spec, alone) is not None and place(workload.spec, beside) is None:
                    yield f"{found[0][0].spec.name} took what {workload.spec.name} waits for"


def nobody_holds_more_than_its_quota(world: World) -> Iterator[str]:
    """No team ever holds more than its quota."""
    for at, snapshot in world.seen:
        whole = capacity(snapshot.nodes)
        for team in snapshot.teams:
            held = sum((asked(w.gang, whole) for w in _holders(snapshot) if w.spec.team == team.name), Amounts())
            for name in RESOURCES:
                most = getattr(team.quota, name)
                if most is not None and getattr(held, name) > most:
                    yield f"{team.name} holds {getattr(held, name)} of {name} at {at}"


def guarantees_are_honoured(world: World) -> Iterator[str]:
    """A run within its team's guarantee starts as soon as those that borrow have left, and they are told to at once."""
    since: dict[str, float] = {}
    later = [now for now, _ in world.quiet[1:]] + [math.inf]
    for (now, snapshot), until in zip(world.quiet, later, strict=True):
        demanding = {workload.uid: workload for workload in _demanding(snapshot)}
        for uid in since.keys() - demanding.keys():
            del since[uid]
        leaving = any(pod.terminating_since is not None and not pod.phase.is_final for pod in snapshot.pods)
        for uid, workload in demanding.items():
            waited_s = (now if leaving else until) - since.setdefault(uid, now)
            if waited_s > LONGEST_GRACE_S + MOMENT_S:
                yield f"{workload.spec.name} waits for {waited_s} s although others have borrowed its room, at {now}"


def nobody_within_its_share_waits_for_more(world: World) -> Iterator[str]:
    """No run starts of a team that holds more than its share, where one of a team that asks for less would fit.

    A team's share is its weight over those of all teams that hold or want something. Runs within a guarantee go first.
    """
    for decision in world.decisions:
        before, whole = decision.before, capacity(decision.before.nodes)
        done = [pair for pair in planned(decision) if pair[1].create and not _had_its_turn(pair[0])]
        left = [w for w in before.workloads if is_left_waiting(w, decision) and w.spec.priority >= 0]
        if not left or not done or any(_within_guarantee(each, before, whole) for each in left):
            continue
        held = _held_by_team(before, whole)
        weights = {team.name: team.weight for team in before.teams}
        fair = _fair_shares({*held, *(w.spec.team for w in before.workloads if w.spec.priority >= 0)}, weights)
        after = dict(held)
        for workload, _ in done:
            if workload.spec.priority >= 0:
                after[workload.spec.team] = after.get(workload.spec.team, Amounts()) + asked(workload.spec, whole)
        shares = {team: dominant_share(after.get(team, Amounts()), whole) / weights.get(team, 1) for team in fair}
        poorest = min((w.spec.team for w in left), key=lambda team: (shares[team], team))
        first = min((w for w in left if w.spec.team == poorest), key=lambda w: _turn(w, decision.now))
        asks = dominant_share(after.get(poorest, Amounts()) + asked(first.spec, whole), whole)
        if asks > fair[poorest] or sum(shares[team] == shares[poorest] for team in {w.spec.team for w in left}) > 1:
            continue
        for number, (workload, _) in enumerate(done):
            team, rest = workload.spec.team, [pair for at, pair in enumerate(done) if at != number]
            has = held.get(team, Amounts())
            for other, _ in done[:number]:
                has = has + (asked(other.spec, whole) if other.spec.team == team else Amounts())
            if team == poorest or workload.spec.priority < 0 or _within_guarantee(workload, before, whole):
                continue
            alone, beside = (rooms(before.nodes, [*before.pods, *created(of)]) for of in (rest, done))
            if dominant_share(has, whole) > fair[team] and place(first.spec, alone) and not place(first.spec, beside):
                yield f"{workload.spec.name} of team {team} took what {first.spec.name} of team {poorest} waits for"


def nobody_keeps_room_by_replacing_its_own(world: World) -> Iterator[str]:
    """No team that holds more than its share stops a run for one of its own that another team's comes before."""
    for decision in world.decisions:
        before, whole = decision.before, capacity(decision.before.nodes)
        held = _held_by_team(before, whole)
        weights = {team.name: team.weight for team in before.teams}
        fair = _fair_shares({*held, *(w.spec.team for w in before.workloads if w.spec.priority >= 0)}, weights)
        left = [w for w in before.workloads if is_left_waiting(w, decision) and w.spec.priority >= 0]
        if any(team.guaranteed != Quota() for team in before.teams):
            continue
        for victim, status in stops(decision):
            team = victim.spec.team
            if f"; it has {victim.spec.priority}" not in status.reason.message or victim.spec.priority < 0:
                continue
            if dominant_share(held[team], whole) <= fair[team]:
                continue
            for other in left:
                has = held.get(other.spec.team, Amounts())
                if (
                    other.spec.team != team
                    and dominant_share(has + asked(other.spec, whole), whole) <= fair[other.spec.team]
                ):
                    yield f"{victim.spec.name} of team {team} is replaced while {other.spec.name} waits"


def _held_by_team(snapshot: Snapshot, whole: ClusterCapacity) -> dict[str, Amounts]:
    held = defaultdict[str, Amounts](Amounts)
    for each in _holders(snapshot):
        if each.spec.priority >= 0:
            held[each.spec.team] = held[each.spec.team] + asked(each.gang, whole)
    return dict(held)


def _fair_shares(teams: set[str], weights: dict[str, int]) -> dict[str, float]:
    total = sum(weights.get(team, 1) for team in teams)
    return {team: weights.get(team, 1) / total for team in teams}


def _within_guarantee(workload: Workload, snapshot: Snapshot, whole: ClusterCapacity) -> bool:
    for team in snapshot.teams:
        if team.name == workload.spec.team and team.guaranteed != Quota():
            held = _held_by_team(snapshot, whole).get(team.name, Amounts())
            pending = replace(workload, status=replace(workload.status, phase=Phase.PENDING))
            return _is_within(held, pending, team.guaranteed, whole)
    return False


def preemption_pays(world: World) -> Iterator[str]:
    """Runs are stopped only for one that then fits, none of them for nothing, and for no more than it gains.

    Within a team only a lower priority gives way, and what is lost since the checkpoints is less than the wait saved.
    """
    for decision in world.decisions:
        groups: dict[str, list[Workload]] = defaultdict(list)
        by_name = {workload.spec.name: workload for workload in decision.before.workloads}
        for victim, status in stops(decision):
            if status.reason.code is Code.PREEMPTED:
                groups[_named_in(status, 2)].append(victim)
        stopped = {victim.uid for group in groups.values() for victim in group}
        smaller = {uid for uids in made_smaller(decision).values() for uid in uids}
        for name, group in groups.items():
            yield from _unpaid(by_name[name], group, stopped, smaller, decision)


QUEUE_PROPERTIES = (
    nobody_delays_the_first,
    scavengers_take_only_what_is_idle,
    nobody_holds_more_than_its_quota,
    guarantees_are_honoured,
    nobody_within_its_share_waits_for_more,
    nobody_keeps_room_by_replacing_its_own,
    preemption_pays,
)


def stops(decision: Decision) -> Iterator[tuple[Workload, Status]]:
    """Runs that the plan begins to stop, and how they stand then; the reason of a stopping run may change again."""
    for workload, change in planned(decision):
        if begins_to_stop(workload, change):
            assert change.status is not None
            yield workload, change.status


def begins_to_stop(workload: Workload, change: Change) -> bool:
    status = change.status
    return status is not None and status.phase is Phase.STOPPING and workload.status.phase is not Phase.STOPPING


def made_smaller(decision: Decision) -> dict[str, set[str]]:
    """Uids of elastic gangs that give nodes up, by the name of the run that they do it for."""
    found: dict[str, set[str]] = defaultdict(set)
    for workload, status in stops(decision):
        if status.reason.message.startswith("makes room for"):
            found[_named_in(status, 3)].add(workload.uid)
    return found


def _named_in(status: Status, place: int) -> str:
    """The name of the run, without its team, at a place among the words of a reason."""
    return status.reason.message.split()[place].rstrip(",:").rpartition("/")[2]


def _unpaid(
    wanting: Workload, group: list[Workload], stopped: set[str], smaller: set[str], decision: Decision
) -> Iterator[str]:
    before, now = decision.before, decision.now
    begun = created([pair for pair in planned(decision) if pair[1].create])
    ends = ends_of(before, now)
    present = [pod for pod in (*before.pods, *begun) if not pod.phase.is_final]
    soon = [pod for pod in present if ends.get(pod.workload_uid, math.inf) > now + LONGEST_GRACE_S]
    if place(wanting.spec, rooms(before.nodes, without(soon, stopped | smaller))) is None:
        yield f"stopping {[victim.spec.name for victim in group]} frees too little for {wanting.spec.name}"
    if len(stopped) == len(group) and not smaller:
        for victim in group:
            others = stopped - {victim.uid}
            if place(wanting.spec, rooms(before.nodes, without(present, others))) is not None:
                yield f"{victim.spec.name} is stopped for nothing"
    lower = [v for v in group if v.spec.team == wanting.spec.team and v.spec.priority >= 0]
    if any(victim.spec.priority >= wanting.spec.priority for victim in lower):
        yield f"{[victim.spec.name for victim in lower]} give way to {wanting.spec.name}"
    alone = all(w.uid == wanting.uid for w in before.workloads if is_left_waiting(w, decision))
    if lower and alone:
        whole = capacity(before.nodes)
        cost = sum(dominant_share(asked(v.gang, whole), whole) * (_lost_s(v, before, now) + RESTART_S) for v in lower)
        grace_s = max(victim.spec.grace_s for victim in group)
        spared_s = _earliest(wanting, [*before.pods, *begun], before, ends, now) - now - grace_s
        if cost >= dominant_share(asked(wanting.spec, whole), whole) * spared_s:
            yield f"{wanting.spec.name} is spared {spared_s} s for {cost}"


def without(pods: Iterable[Pod], uids: set[str]) -> list[Pod]:
    return [pod for pod in pods if pod.workload_uid not in uids]


def _lost_s(workload: Workload, snapshot: Snapshot, now: float) -> float:
    began = min(p.created_at for p in snapshot.pods if p.workload_uid == workload.uid and not p.phase.is_final)
    saved = None if workload.progress is None else workload.progress.checkpoint_at
    return max(0.0, now - max(began, saved or began))


def _delays(
    first: Workload, late: Workload, change: Change, others: list[tuple[Workload, Change]], decision: Decision
) -> bool:
    """Whether the first could start sooner without the late one, in any order of ends that may come."""
    before, now = decision.before, decision.now
    durations = Durations(before.completed)
    ends = ends_of(before, now) | {w.uid: now + durations.length_s(w, now) for w, _ in others}
    pods = [*before.pods, *created(others)]
    without = _earliest(first, pods, before, ends, now)
    end = now + durations.length_s(late, now)
    if without < math.inf:
        return (
            end > without
            and _earliest(first, [*pods, *created([(late, change)])], before, ends | {late.uid: end}, now) > without
        )
    uids = sorted({pod.workload_uid for pod in pods if not pod.phase.is_final})
    for number in range(len(uids) + 1):
        for staying in combinations(uids, number):
            rest = [pod for pod in pods if pod.workload_uid in staying]
            fits = place(first.spec, rooms(before.nodes, rest)) is not None
            if fits and place(first.spec, rooms(before.nodes, [*rest, *created([(late, change)])])) is None:
                return True
    return False


def _earliest(workload: Workload, pods: Iterable[Pod], snapshot: Snapshot, ends: dict[str, float], now: float) -> float:
    """When the run fits first if everybody leaves at its end; infinity for never."""
    live = [pod for pod in pods if not pod.phase.is_final]
    for at in sorted({now, *(end for end in ends.values() if now < end < math.inf)}):
        staying = [pod for pod in live if ends.get(pod.workload_uid, math.inf) > at]
        if place(workload.spec, rooms(snapshot.nodes, staying)) is not None:
            return at
    return math.inf


def ends_of(snapshot: Snapshot, now: float) -> dict[str, float]:
    durations, own = Durations(snapshot.completed), defaultdict[str, list[Pod]](list)
    for pod in snapshot.pods:
        own[pod.workload_uid].append(pod)
    return {w.uid: durations.ends_at(w, own[w.uid], now) for w in _holders(snapshot)}


def _demanding(snapshot: Snapshot) -> Iterator[Workload]:
    """For each team with a guarantee the first that lies within it and waits for room that others have borrowed."""
    nodes, holders = snapshot.nodes, _holders(snapshot)
    whole = capacity(nodes)
    generous = {team.name for team in snapshot.teams if team.guaranteed != Quota()}
    borrowers = {w.uid for w in holders if w.spec.team not in generous or w.spec.priority < 0}
    for team in snapshot.teams:
        own = [w for w in holders if w.spec.team == team.name and w.spec.priority >= 0]
        held = sum((asked(w.gang, whole) for w in own), Amounts())
        mine = [w for w in snapshot.workloads if w.spec.team == team.name]
        waiting = [w for w in mine if _is_within(held, w, team.guaranteed, whole)]
        for workload in sorted(waiting, key=lambda w: (-w.spec.priority, w.created_at))[:1]:
            rest = [pod for pod in snapshot.pods if pod.workload_uid not in borrowers]
            if workload.status.reason.code is not Code.OVER_QUOTA and place(workload.spec, rooms(nodes, rest)):
                yield workload


def _is_within(held: Amounts, workload: Workload, guaranteed: Quota, whole: ClusterCapacity) -> bool:
    status, spec = workload.status, workload.spec
    if workload.intent is not Intent.RUN or status.phase is not Phase.PENDING or spec.priority < 0:
        return False
    more, asks = asked(spec, whole), False
    for name in RESOURCES:
        amount = getattr(guaranteed, name)
        if amount is not None and getattr(more, name):
            asks = True
            if getattr(held, name) + getattr(more, name) > amount:
                return False
    return asks


def _holders(snapshot: Snapshot) -> list[Workload]:
    live = {pod.workload_uid for pod in snapshot.pods if not pod.phase.is_final}
    return [workload for workload in snapshot.workloads if workload.uid in live]


def planned(decision: Decision) -> list[tuple[Workload, Change]]:
    by_uid = {workload.uid: workload for workload in decision.before.workloads}
    return [(by_uid[change.workload_uid], change) for change in decision.plan.changes]


def created(begun: Iterable[tuple[Workload, Change]]) -> list[Pod]:
    """The pods that the changes create."""
    return [
        Pod(
            uid=f"{workload.uid}-{order.attempt}-{order.index}",
            workload_uid=workload.uid,
            attempt=order.attempt,
            index=order.index,
            node=order.node,
            grant=order.grant,
            phase=PodPhase.CREATED,
            created_at=0.0,
        )
        for workload, change in begun
        for order in change.create
    ]


def _reason_after(workload: Workload, decision: Decision) -> Code:
    changes = (change for change in decision.plan.changes if change.workload_uid == workload.uid)
    change = next(changes, None)
    return (workload.status if change is None or change.status is None else change.status).reason.code


def is_left_waiting(workload: Workload, decision: Decision) -> bool:
    """Whether the run could have been started by the decision as far as it itself goes, and was left waiting."""
    status = workload.status
    live = any(pod.workload_uid == workload.uid and not pod.phase.is_final for pod in decision.before.pods)
    if workload.intent is not Intent.RUN or live or _reason_after(workload, decision) is Code.OVER_QUOTA:
        return False
    change = next((change for change in decision.plan.changes if change.workload_uid == workload.uid), None)
    if change is not None and (change.status is None or change.status.phase is not Phase.PENDING):
        return False
    if status.phase is Phase.PENDING:
        return True
    return status.phase is Phase.RESTARTING and (
        status.failures.retry_at is None or status.failures.retry_at <= decision.now
    )


def _had_its_turn(workload: Workload) -> bool:
    """Whether new pods only take the place of those that the run had: of lost ones, or in another number."""
    status = workload.status
    is_resizing = status.after_stop.reason is not None and status.after_stop.reason.code is Code.RESIZED
    return status.phase is Phase.RUNNING or (status.phase is Phase.STOPPING and is_resizing)


def _turn(workload: Workload, now: float) -> tuple[int, float, str]:
    status = workload.status
    waited_s = max(0.0, now - status.since) if status.phase is Phase.PENDING else 0.0
    points = workload.spec.priority + status.queue.raised + int(waited_s / TEN_MINUTES_S)
    return (-points if workload.spec.priority >= 0 else 1), workload.created_at, workload.uid
