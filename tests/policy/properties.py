"""What holds of the decisions whatever happens: each a named function from a world's record to what breaks it."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

from fairlead.policy import decide as deciding
from fairlead.policy.placement.placement import why_never
from fairlead.specs.training import Elastic
from fairlead.state.phase_transitions import MOVES
from fairlead.state.plan import Change, Event
from fairlead.state.pod_uids import pod_uid
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Pod, PodPhase, Snapshot, Status, Workload
from tests.policy.elastic_properties import ELASTIC_PROPERTIES
from tests.policy.move_properties import MOVE_PROPERTIES
from tests.policy.queue_properties import QUEUE_PROPERTIES
from tests.policy.world import World

Property = Callable[[World], Iterator[str]]

WAITING = (Code.WAITING_FOR_RESOURCES, Code.WAITING_FOR_TURN, Code.OVER_QUOTA)
OF_PROGRAM = (Code.PROGRAM_FAILED, Code.GPU_OUT_OF_MEMORY, Code.LOSS_NOT_FINITE, Code.START_FAILED)
PRODUCTIVE_S = 60.0
REFUSED_MOST_S = 60.0
MOMENT_S = 1e-6
# Where a run may be that is wanted suspended, once its pods have their notice.
HELD = (Phase.SUSPENDED, Phase.STOPPING, Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED)


def gangs_are_whole(world: World) -> Iterator[str]:
    """A gang is created with all its members in one change, and none runs on when another has failed."""
    for decision in world.decisions:
        for workload, change in decision.done():
            if change.create:
                indexes = [create.index for create in change.create]
                attempts = {create.attempt for create in change.create}
                attempt = workload.status.attempt if change.status is None else change.status.attempt
                if any(create.replacement for create in change.create):
                    continue  # see ``lost_pods_alone_are_replaced``
                asked = (
                    workload.spec.nodes if change.status is None else change.status.size.nodes or workload.spec.nodes
                )
                if indexes != list(range(asked)) or attempts != {attempt}:
                    yield f"{workload.spec.name} was given members {indexes} of starts {attempts}"
    for _, snapshot in world.quiet:
        for workload in snapshot.workloads:
            own = [pod for pod in snapshot.pods if pod.workload_uid == workload.uid]
            own = [pod for pod in own if pod.replacement == workload.status.replacement(pod.index)]
            failed = any(pod.phase in (PodPhase.FAILED, PodPhase.LOST) for pod in own)
            for pod in own:
                runs_on = not pod.phase.is_final and pod.terminating_since is None
                if runs_on and (failed or pod.attempt != workload.status.attempt):
                    yield f"{pod.uid} runs on without its peers"


def lost_pods_alone_are_replaced(world: World) -> Iterator[str]:
    """A gang that goes on in place gets back each pod that it lost once, when that is over, and never the first.

    The others stay as they are, and all of it is one attempt.
    """
    created = Counter[str]()
    for decision in world.decisions:
        for workload, change in decision.done():
            status, after = workload.status, change.status
            alive = {pod.index for pod in decision.before.pods if pod.workload_uid == workload.uid and is_live(pod)}
            for create in change.create:
                uid = pod_uid(workload.uid, create.attempt, create.index, create.replacement)
                created[uid] += 1
                if created[uid] > 1:
                    yield f"{uid} was created again"
                if not create.replacement:
                    continue
                if workload.spec.elastic is not Elastic.IN_PLACE or status.phase is not Phase.RUNNING:
                    yield f"{uid} was created for a gang that is {status.phase}"
                if create.index == 0 or create.index in alive or create.attempt != status.attempt:
                    yield f"{uid} was created beside pods {sorted(alive)}"
                lost = next((each for each in status.missing if each.index == create.index), None)
                if lost is None or lost.times != create.replacement or decision.now < lost.retry_at:
                    yield f"{uid} was created for {lost}"
                if after is None or create.index in {each.index for each in after.missing}:
                    yield f"{uid} was created, and it is not recorded"
            if after is not None and after.phase is Phase.RUNNING and len(after.missing) > len(status.missing):
                first = [pod for pod in decision.before.pods if pod.workload_uid == workload.uid and pod.index == 0]
                if not any(pod.phase is PodPhase.RUNNING and pod.attempt == status.attempt for pod in first):
                    yield f"{workload.spec.name} goes on without its first pod"
                if workload.progress is None or workload.progress.in_place_attempt != status.attempt:
                    yield f"{workload.spec.name} goes on although its ranks have not met"


def is_live(pod: Pod) -> bool:
    return not pod.phase.is_final


def no_rank_lives_twice(world: World) -> Iterator[str]:
    """At no time do two live pods have the same place in a gang, and no pod ever starts twice."""
    for at, snapshot in world.seen:
        places = Counter((pod.workload_uid, pod.index) for pod in snapshot.pods if not pod.phase.is_final)
        yield from (f"{place} lives {number} times at {at}" for place, number in places.items() if number > 1)
        yield from (f"{pod.uid} started twice" for pod in snapshot.pods if world.cluster.num_starts(pod.uid) > 1)


def nothing_is_over_committed(world: World) -> Iterator[str]:
    """Live pods never hold more of a node, or of a device, than there is; and no pod goes to a node that is away."""
    nodes = {node.name: node for node in world.scenario.nodes}
    for at, snapshot in world.seen:
        live = [pod for pod in snapshot.pods if not pod.phase.is_final]
        held: dict[str, list[Pod]] = defaultdict(list)
        for pod in live:
            held[pod.node].append(pod)
        for name, own in held.items():
            if sum(pod.grant.cpu_milli for pod in own) > nodes[name].cpu_milli:
                yield f"CPU of {name} at {at}"
            if sum(pod.grant.memory_bytes for pod in own) > nodes[name].memory_bytes:
                yield f"memory of {name} at {at}"
            devices = Counter[str]()
            for pod in own:
                devices.update(dict.fromkeys(pod.grant.gpu_uuids, pod.grant.gpu_milli))
            there = {gpu.uuid for gpu in nodes[name].gpus}
            yield from (f"device {gpu} at {at}" for gpu, milli in devices.items() if milli > 1000 or gpu not in there)
    for decision in world.decisions:
        ready = {node.name for node in decision.before.nodes if node.ready}
        for workload, change in decision.done():
            gpu = workload.spec.resources.gpu
            wanted = 0 if gpu is None else gpu.num_devices
            for create in change.create:
                if create.node not in ready:
                    yield f"{workload.spec.name} was sent to {create.node}, which is away"
                if len(set(create.grant.gpu_uuids)) != wanted:
                    yield f"{workload.spec.name} was granted {create.grant}"


def nothing_is_lost(world: World) -> Iterator[str]:
    """In the end every run is over, or runs, or says why it waits; only one that was to be deleted is gone."""
    kept = {workload.uid: workload for workload in world.cluster.workloads()}
    for uid in world.submitted:
        if uid not in kept:
            if uid not in world.deleted:
                yield f"{uid} is gone"
            continue
        yield from _unexplained(world, kept[uid])
    for _, snapshot in world.quiet:
        for workload in snapshot.workloads:
            if workload.status.phase is Phase.PENDING and workload.intent is Intent.RUN:
                reason = workload.status.reason
                if reason.code not in WAITING or not reason.message:
                    yield f"{workload.spec.name} waits and says {reason}"
            elif workload.intent is Intent.SUSPEND and workload.status.phase not in HELD:
                yield f"{workload.spec.name} is to be suspended and is {workload.status.phase}"


def moves_are_legal_and_told(world: World) -> Iterator[str]:
    """Every change of phase is in the table, dated, and told as an event with the reason that the run then has."""
    for decision in world.decisions:
        for workload, change in decision.done():
            before, after = workload.status, change.status
            if after is None or after == before:
                continue
            if after.phase is not before.phase:
                if (before.phase, after.phase) not in MOVES:
                    yield f"{workload.spec.name} went from {before.phase} to {after.phase}"
                if after.since != decision.now:
                    yield f"{workload.spec.name} is {after.phase} since {after.since}, decided at {decision.now}"
            told = change.event
            if after.failures.lost_pods != before.failures.lost_pods or (
                after.failures.lost_pods and after.phase is before.phase
            ):
                if told is not None and told.reason == after.reason and after.reason.message:
                    continue
                if told is None and after.reason.code is before.reason.code:
                    continue  # what is free changes while a lost pod waits
            if after.phase is before.phase and is_of_an_unconfirmed_end(before, after, told):
                continue
            if (
                told is None
                or told.type != after.phase.value
                or told.reason != after.reason
                or not after.reason.message
            ):
                yield f"{workload.spec.name} is {after.phase} for {after.reason} and told {told}"
            if after.phase.is_final is not (after.finished_at is not None):
                yield f"{workload.spec.name} is {after.phase} and finished at {after.finished_at}"


def is_of_an_unconfirmed_end(before: Status, after: Status, told: Event | None) -> bool:
    """Recognise a reason that only tells of a pod whose end nobody confirms, with its event, or no longer does."""
    if told is None:
        return before.reason.message.endswith(f"its gang waits; {after.reason.message}")
    is_said = after.reason.message == f"{told.reason.message}; {before.reason.message}"
    return told.type == Code.END_UNCONFIRMED.value and is_said


def retries_are_bounded(world: World) -> Iterator[str]:
    """A run restarts as often as its spec says and no sooner than it was told."""
    program, platform = Counter[str](), Counter[str]()
    best: dict[str, int | None] = {}
    for decision in world.decisions:
        for workload, change in decision.done():
            status, after, spec = workload.status, change.status, workload.spec
            if change.create and status.failures.retry_at is not None and decision.now < status.failures.retry_at:
                yield f"{spec.name} started {status.failures.retry_at - decision.now} s early"
            if after is None:
                continue
            if after.failures.refusals > status.failures.refusals:
                yield from _not_waited_for(workload, after, decision.now)
            if status.phase.is_final and after.phase is Phase.PENDING:
                program[workload.uid] = platform[workload.uid] = 0
                best.pop(workload.uid, None)
            if after.phase is not Phase.RESTARTING or after.failures.last is None:
                continue
            if status.phase is Phase.RESTARTING:
                continue  # its reason changes while it waits, such as for a pod whose end nobody confirms
            if after.failures.retry_at is None or after.failures.retry_at > decision.now + spec.retry.max_backoff_s:
                yield f"{spec.name} restarts at {after.failures.retry_at}, decided at {decision.now}"
            step = None if workload.progress is None else workload.progress.step
            productive = _is_productive(workload, after.failures.last.code, best, decision.now)
            best[workload.uid] = max((s for s in (step, best.get(workload.uid)) if s is not None), default=None)
            if after.failures.last.code in OF_PROGRAM:
                program[workload.uid] += 1
            else:
                platform[workload.uid] = 1 if productive else platform[workload.uid] + 1
            if program[workload.uid] > spec.retry.program:
                yield f"{spec.name} restarted after {program[workload.uid]} failures of its own"
            if platform[workload.uid] > spec.retry.infrastructure:
                yield f"{spec.name} restarted after {platform[workload.uid]} failures of the platform in a row"


def a_stop_is_obeyed_within_its_grace(world: World) -> Iterator[str]:
    """From the first look at the wish on, no pod of the run lives longer than its grace, and none is created."""
    since: dict[str, float] = {}
    looks = [(each.num_seen, 0, each.at, each.before, True) for each in world.decisions if each.whole]
    sights = [(number, 1, at, snapshot, False) for number, (at, snapshot) in enumerate(world.seen)]
    for _, _, at, snapshot, is_look in sorted(looks + sights, key=lambda entry: entry[:2]):
        for workload in snapshot.workloads:
            if workload.intent is Intent.RUN:
                since.pop(workload.uid, None)
                continue
            if is_look:
                since.setdefault(workload.uid, at)
            latest = since.get(workload.uid, math.inf) + workload.spec.grace_s + MOMENT_S
            for pod in snapshot.pods:
                alive_at = max((exit_.at for exit_ in pod.exits), default=-math.inf) if pod.phase.is_final else at
                if pod.workload_uid == workload.uid and alive_at > latest:
                    yield f"{pod.uid} lives at {alive_at}, to be stopped since {since[workload.uid]}"
    for decision in world.decisions:
        for workload, change in decision.done():
            if change.create and workload.intent is not Intent.RUN:
                yield f"{workload.spec.name} was started although {workload.intent} is wanted"


def decisions_are_deterministic(world: World) -> Iterator[str]:
    """The same snapshot and time give the same plan, in whatever order pods are listed."""
    for decision in world.decisions:
        reordered = replace(decision.before, pods=decision.before.pods[::-1])
        for snapshot in (decision.before, reordered):
            if decision.whole and deciding.decide(snapshot, decision.now) != decision.plan:
                yield f"another plan at {decision.now}"


def decisions_settle(world: World) -> Iterator[str]:
    """At any one instant the passes come to an end: then the same truth gives an empty plan, and again."""
    yield from (f"no end of passes at {at}" for at in world.unsettled)
    for now, snapshot in world.quiet:
        left = [change for change in deciding.decide(snapshot, now).changes if not _resumes(change, snapshot)]
        if left:
            yield f"something is left to do at {now}: {left}"


def plans_say_all_once(world: World) -> Iterator[str]:
    """A plan has at most one change for each workload, at the version that was seen, and applying it again is void."""
    for decision in world.decisions:
        uids = Counter(change.workload_uid for change in decision.plan.changes)
        yield from (f"{number} changes of {uid} in one plan" for uid, number in uids.items() if number > 1)
        versions = {workload.uid: workload.version for workload in decision.before.workloads}
        if any(versions[change.workload_uid] != change.version for change in decision.plan.changes):
            yield f"a change at a version that nobody saw, at {decision.at}"
        for change, applied in zip(decision.plan.changes, decision.applied, strict=True):
            if decision.whole and not applied and not _resumes(change, decision.before):
                yield f"a change of {change.workload_uid} was refused although nothing came between, at {decision.at}"


PROPERTIES: tuple[Property, ...] = (
    gangs_are_whole,
    lost_pods_alone_are_replaced,
    no_rank_lives_twice,
    nothing_is_over_committed,
    nothing_is_lost,
    moves_are_legal_and_told,
    retries_are_bounded,
    a_stop_is_obeyed_within_its_grace,
    *QUEUE_PROPERTIES,
    *MOVE_PROPERTIES,
    *ELASTIC_PROPERTIES,
    decisions_are_deterministic,
    decisions_settle,
    plans_say_all_once,
)


def _unexplained(world: World, workload: Workload) -> Iterator[str]:
    """What is wrong with how the run stands when nothing moves any more."""
    status, spec = workload.status, workload.spec
    if status.phase.is_final or (status.phase is Phase.SUSPENDED and workload.intent is Intent.SUSPEND):
        return
    endless = spec.stall_timeout_s is None and spec.max_duration_s is None
    if status.phase is Phase.RUNNING and endless and any(p.hangs for p in world.programs_of(spec)):
        return
    held = any(w.status.phase is Phase.RUNNING for w in world.cluster.workloads())
    if status.phase is Phase.PENDING and status.reason.code in WAITING and held:
        return
    if status.phase is Phase.PENDING and status.reason.code is Code.OVER_QUOTA:
        return
    if status.phase is Phase.PENDING and why_never(spec, world.scenario.nodes) is not None and spec.nodes > 1:
        return  # it waits for more nodes than there are
    yield f"{spec.name} is {status.phase} for {status.reason} at the end"


def _resumes(change: Change, before: Snapshot) -> bool:
    """Whether it brings back a finished run, whose name another may have taken since that was wished."""
    return any(w.uid == change.workload_uid and w.status.phase.is_final for w in before.workloads)


def _not_waited_for(workload: Workload, after: Status, now: float) -> Iterator[str]:
    """What is wrong with how the run stands that a quota has refused."""
    spec, before = workload.spec, workload.status
    longest_s = max(spec.retry.max_backoff_s, REFUSED_MOST_S)
    if after.failures.retry_at is None or not now < after.failures.retry_at <= now + longest_s:
        yield f"{spec.name} was refused at {now} and is tried again at {after.failures.retry_at}"
    if (after.failures.program, after.failures.disruptions) != (before.failures.program, before.failures.disruptions):
        yield f"{spec.name} was refused, and that was counted as a failure"
    if (after.phase, after.after_stop.phase) != (Phase.STOPPING, Phase.PENDING):
        yield f"{spec.name} was refused and is {after.phase}, then {after.after_stop.phase}"


def _is_productive(workload: Workload, code: Code, best: dict[str, int | None], now: float) -> bool:
    status, progress = workload.status, workload.progress
    if workload.uid not in best:
        return True
    is_loss = code in (Code.POD_LOST, Code.NODE_LOST)
    if is_loss and status.phase is Phase.RUNNING and now - status.since >= PRODUCTIVE_S:
        return True
    if progress is None or progress.step is None:
        return False
    kept = progress.step if progress.checkpoint_step is None else progress.checkpoint_step
    known = best[workload.uid]
    return known is None or kept > known
