"""Simulates the events of pods and nodes on a cluster over time, with their costs."""

import heapq
import math
import signal as signals
from collections import Counter
from collections.abc import Iterable

from fairlead.cluster.simulated.accounts import PodTime, gpus_of
from fairlead.cluster.simulated.clock import Clock
from fairlead.cluster.simulated.faults import (
    AddNode,
    Fault,
    GiveBackNode,
    KillRank,
    KillRunsOnNode,
    LoseNode,
    LosePod,
    PartitionNode,
    RefusePod,
    RemoveNode,
    ReturnNode,
    WarnNode,
)
from fairlead.cluster.simulated.interference import pod_speed
from fairlead.cluster.simulated.mig_manager import carry_out_layout, note_partitions
from fairlead.cluster.simulated.programs import Behaviour, OnTerm, at_speed
from fairlead.cluster.simulated.runs import SimulatedPod, count
from fairlead.cluster.simulated.simulation_state import Due, SimulationState
from fairlead.frozen import replace
from fairlead.policy.health.node_risk import returned
from fairlead.specs.serving import Replica
from fairlead.specs.simulation import Interference
from fairlead.specs.training import Elastic
from fairlead.state.plan import CreatePod
from fairlead.state.pod_uids import pod_uid
from fairlead.state.snapshot import WHOLE_MILLI, Grant, Leaving, Pod, PodPhase, Progress, RankExit, Silence, Workload
from fairlead.state.transitions import Notice


class PodSimulator:
    """Advances the clock together with all running pods."""

    def __init__(self, state: SimulationState, clock: Clock, behaviour: Behaviour) -> None:
        self._state = state
        self._clock = clock
        self._behaviour = behaviour

    def process_until(self, at: float) -> None:
        """Process all events up to a time, in order."""
        queue = self._state.queue
        while queue and queue[0][0] <= at:
            due_at, _, due, uid, fault = heapq.heappop(queue)
            self._clock.advance_to(due_at)
            run = self._state.runs.get(uid)
            if fault is not None:
                self.apply_fault(fault, due_at)
            elif due is Due.READ:
                self._advance_reads(due_at)
            elif run is not None:
                self._process(run, due, due_at)
        self._clock.advance_to(at)

    def create(self, workload: Workload, create: CreatePod) -> None:
        """Create a pod, unless it exists."""
        state, now = self._state, self._clock.now()
        uid = pod_uid(workload.uid, create.attempt, create.index, create.replacement)
        if uid in state.pods[workload.uid]:
            return
        state.pods[workload.uid][uid] = Pod(
            uid=uid,
            workload_uid=workload.uid,
            attempt=create.attempt,
            index=create.index,
            node=create.node,
            grant=create.grant,
            phase=PodPhase.CREATED,
            created_at=now,
            replacement=create.replacement,
        )
        program = self._behaviour(workload.spec, create.attempt)
        ratio = workload.gang.nodes / workload.spec.nodes
        program = program if ratio == 1 else at_speed(program, ratio)
        node = state.nodes.get(create.node)
        num_gpus = 0.0 if node is None else gpus_of(create.grant, node)
        run = SimulatedPod(
            workload_uid=workload.uid, pod_uid=uid, index=create.index, program=program, times=ratio, num_gpus=num_gpus,
            divided_at=now, in_place=create.attempt if workload.spec.elastic is Elastic.IN_PLACE else None,
        )  # fmt: skip
        state.num_created += 1
        state.runs[uid] = run
        state.live[workload.uid][uid] = None
        state.on_node.setdefault(create.node, {})[uid] = None
        state.changed(workload.uid)
        self._divide_gpus(create.node, create.grant, now)
        if node is None or not node.ready:
            self._end(run, now, PodPhase.LOST, message=f"node {create.node} is not there")
        else:
            if program.start_s < math.inf:
                state.push(now + program.start_s, Due.START, uid)
            else:
                self._update(run, silence=Silence(since=now, what="its simulated node does nothing with it"))

    def notify(self, notice: Notice) -> None:
        """Give a pod its stop notice, or shorten its grace period."""
        state, now = self._state, self._clock.now()
        run = state.runs[notice.pod_uid]
        if run.notice_at is None:
            run.notice_at = notice.since
            self._update(run, terminating_since=notice.since)
            if notice.kill_at > now and (run.started_at is None or run.program.on_term is not OnTerm.IGNORE):
                saves = run.started_at is not None and run.program.on_term is OnTerm.CHECKPOINT
                state.push(now + (run.program.save_s if saves else 0.0), Due.LEAVE, run.pod_uid)
        if notice.kill_at < run.kill_at:
            run.kill_at = notice.kill_at
            state.push(run.kill_at, Due.KILL, run.pod_uid)

    def apply_fault(self, fault: Fault, at: float) -> None:
        """Apply a fault."""
        state = self._state
        if isinstance(fault, KillRank):
            run = state.runs.get(fault.pod_uid)
            if run is not None and run.started_at is not None:
                self._kill_rank(run, fault, at)
        elif isinstance(fault, LosePod):
            run = state.runs.get(fault.pod_uid)
            if run is not None:
                self._end(run, at, PodPhase.LOST, message=fault.message)
        elif isinstance(fault, RefusePod):
            run = state.runs.get(fault.pod_uid)
            if run is not None and run.started_at is None:
                self._end(run, at, PodPhase.REFUSED, message=fault.message)
        elif isinstance(fault, AddNode):
            state.nodes[fault.node.name] = fault.node
            note_partitions(state, fault.node)
            state.node_since[fault.node.name] = at
            state.accounts.node_is(fault.node.name, True, at)
            state.touch()
        elif isinstance(fault, PartitionNode):
            carry_out_layout(state, fault)
        elif fault.node in state.nodes:
            self._apply_node_fault(fault, at)
        self.update_cache_nodes(at)

    def update_cache_nodes(self, at: float) -> None:
        """Let the caches be those of the nodes that are up, after these may have changed."""
        state, reads = self._state, self._state.reads
        if reads is not None and (num_up := sum(node.ready for node in state.nodes.values())) != reads.num_nodes:
            reads.nodes_are(num_up, at)
            self._update_reader_speeds(at)

    def time_of(self, run: SimulatedPod, at: float, *, saved: bool = False) -> PodTime:
        """Divide the time of a pod that ends at ``at`` by use."""
        pod = self._state.pods[run.workload_uid][run.pod_uid]
        pod_time = PodTime(
            workload_uid=pod.workload_uid,
            attempt=pod.attempt,
            node=pod.node,
            num_gpus=run.mean_gpus(pod.created_at, at),
            created_at=pod.created_at,
            ended_at=at,
        )
        if run.started_at is None:
            return replace(pod_time, start_up_s=at - pod.created_at)
        worked_until = run.worked_until(at)
        worked_s, saving_s = run.work_s(at) - run.held_s, run.saving_s(at)
        slowed_s = max(0.0, worked_until - run.started_at - run.effort_at(at))
        after_s = at - worked_until if saved else 0.0
        return replace(
            pod_time,
            start_up_s=run.started_at - pod.created_at,
            kept_s=worked_s,
            saving_s=saving_s + after_s,
            slowed_s=slowed_s,
            stopping_s=max(0.0, at - run.started_at - worked_s - saving_s - slowed_s - after_s),
        )

    def _process(self, run: SimulatedPod, due: Due, at: float) -> None:
        """Process one entry of the queue, unless it is obsolete."""
        program = run.program
        if due is Due.START:
            if run.notice_at is None:
                self._start(run, at)
        elif due is Due.END:
            leaving = run.notice_at is not None and program.on_term is OnTerm.CHECKPOINT
            if run.ends_at == at and not leaving:
                exits = self._exits(run, at, None if program.signal else program.exit_code, program.signal)
                self._end(
                    run, at, PodPhase.SUCCEEDED if all(rank_exit.ok for rank_exit in exits) else PodPhase.FAILED, exits
                )
        elif due is Due.LEAVE:
            saves = run.started_at is not None and program.on_term is OnTerm.CHECKPOINT
            if saves and self._is_gang_complete(run) and not self._leaves_alone(run):
                self._state.saved_s[run.workload_uid] = run.work_s(at) * run.times
                self._end(run, at, PodPhase.SUCCEEDED, self._exits(run, at, 0, None), saved=True)
            else:
                self._end(run, at, PodPhase.FAILED, self._exits(run, at, None, signals.SIGTERM))
        elif due is Due.KILL:
            self._end(run, at, PodPhase.FAILED, self._exits(run, at, None, signals.SIGKILL))

    def _start(self, run: SimulatedPod, at: float) -> None:
        state, program = self._state, run.program
        spec = state.run_of(run.workload_uid).spec
        if program.start_error is not None:
            self._end(run, at, PodPhase.FAILED, message=program.start_error)
            return
        state.num_starts[run.pod_uid] = state.num_starts.get(run.pod_uid, 0) + 1
        others = self._trained_with(run)
        held_s = others[0].work_s(at) if others else state.saved_s.get(run.workload_uid, 0.0) / run.times
        run.start(at, held_s)
        if program.step_s is not None or spec.stall_timeout_s is not None:
            state.reporting[run.pod_uid] = None
        # A server is ready as soon as it has started; pods of other kinds have no probe.
        self._update(run, phase=PodPhase.RUNNING, started_at=at, ready=isinstance(spec, Replica))
        pod = state.pods[run.workload_uid][run.pod_uid]
        if not others:
            state.accounts.started_from(run.workload_uid, pod.attempt, run.held_s)
        self._divide_work(run, at)
        self._begin_reading(run, at)
        if run.ends_at is not None:
            state.push(run.ends_at, Due.END, run.pod_uid)
        self._update_speeds(pod.node, at)

    def _begin_reading(self, run: SimulatedPod, at: float) -> None:
        """Let the gang of a pod whose ranks begin read, unless it does; one rank in each gang stands for all."""
        reads, demand = self._state.reads, run.program.reads
        if reads is None or demand is None:
            return
        if run.workload_uid not in reads.speeds():
            reads.begin(run.workload_uid, demand, run.held_s, run.program.duration_s - run.held_s, at)
        self._update_reader_speeds(at)

    def _end_reading(self, run: SimulatedPod, at: float) -> None:
        """Let a gang read no more once none of its pods works."""
        state, reads = self._state, self._state.reads
        if reads is None or run.program.reads is None:
            return
        if all(state.runs[uid].started_at is None for uid in state.live[run.workload_uid]):
            reads.end(run.workload_uid, at)
            self._update_reader_speeds(at)

    def _advance_reads(self, at: float) -> None:
        reads = self._state.reads
        if reads is not None and reads.next_at <= at:
            reads.proceed(at)
            self._update_reader_speeds(at)

    def _update_reader_speeds(self, at: float) -> None:
        """Give all pods that read the speed that the store and the caches allow from now on."""
        state, reads = self._state, self._state.reads
        if reads is None:
            return
        for uid, speed in reads.speeds().items():
            for run in [state.runs[member] for member in state.live[uid]]:
                if run.started_at is not None and run.data_speed != speed:
                    run.change_speed(at, run.speed / run.data_speed * speed)
                    run.data_speed = speed
                    if run.ends_at is not None:
                        state.push(run.ends_at, Due.END, run.pod_uid)
        if math.isfinite(reads.next_at):
            state.push(reads.next_at, Due.READ, "")

    def _end(
        self,
        run: SimulatedPod,
        at: float,
        phase: PodPhase,
        exits: tuple[RankExit, ...] = (),
        *,
        message: str | None = None,
        saved: bool = False,
    ) -> None:
        """End a pod, of which no process is alive any more."""
        state, uid = self._state, run.workload_uid
        pod = state.pods[uid][run.pod_uid]
        state.accounts.pods.append(self.time_of(run, at, saved=saved))
        if run.index == 0 and run.started_at is not None:
            if not saved:
                state.saved_s[uid] = max(state.saved_s.get(uid, 0.0), run.saved_s(at) * run.times)
            is_done = phase is PodPhase.SUCCEEDED and not saved
            state.accounts.left_behind(uid, pod.attempt, run.work_s(at) if is_done else state.saved_s[uid] / run.times)
            progress = self._final_progress(run, at, saved=saved)
            if progress is not None:
                state.workloads[uid] = replace(state.workloads[uid], progress=progress)
        del state.runs[run.pod_uid], state.live[uid][run.pod_uid]
        state.reporting.pop(run.pod_uid, None)
        del state.on_node[pod.node][run.pod_uid]
        state.pods[uid][run.pod_uid] = replace(
            pod, phase=phase, exits=exits, message=message, active_at=run.active_at(at), silence=None
        )
        state.changed(uid)
        if phase is not PodPhase.SUCCEEDED:
            self._divide_work(run, at)
        self._divide_gpus(pod.node, pod.grant, at)
        self._end_reading(run, at)
        self._update_speeds(pod.node, at)

    def _trained_with(self, run: SimulatedPod) -> list[SimulatedPod]:
        """Return the other pods of a gang that goes on in place, if a pod joins them; none for any other pod."""
        state, pods = self._state, self._state.pods[run.workload_uid]
        if run.in_place is None or not pods[run.pod_uid].replacement:
            return []
        others = (state.runs[uid] for uid in state.live[run.workload_uid] if uid != run.pod_uid)
        return [other for other in others if other.in_place == run.in_place and other.started_at is not None]

    def _divide_work(self, run: SimulatedPod, at: float) -> None:
        """Divide the work of a gang that goes on in place among the pods that it has now."""
        state = self._state
        if run.in_place is None or state.interference is not None:
            return
        live = [state.runs[uid] for uid in state.live[run.workload_uid]]
        gang = [member for member in live if member.in_place == run.in_place and member.started_at is not None]
        if not any(pod.replacement for pod in state.pods[run.workload_uid].values()) and run in gang:
            return  # the gang starts
        share = len(gang) / state.run_of(run.workload_uid).gang.nodes
        for member in gang:
            speed = share * member.data_speed
            if member.speed != speed:
                member.change_speed(at, speed)
                if member.ends_at is not None:
                    state.push(member.ends_at, Due.END, member.pod_uid)

    def _final_progress(self, run: SimulatedPod, at: float, *, saved: bool) -> Progress | None:
        progress, step_s = run.progress(at), run.program.step_s
        if not saved or progress is None or step_s is None:
            return progress
        step = count(run.work_s(at), step_s)
        return replace(progress, checkpoint_step=step, checkpoint_at=at, stopped_step=step, updated_at=at)

    def _is_gang_complete(self, run: SimulatedPod) -> bool:
        """Return whether no pod of its gang is gone, without which the others cannot save together."""
        if run.in_place is not None:
            return True  # the others have the whole state
        pods = self._state.pods[run.workload_uid]
        attempt = pods[run.pod_uid].attempt
        lost_phases = (PodPhase.FAILED, PodPhase.LOST, PodPhase.REFUSED)
        return all(pod.attempt != attempt or pod.phase not in lost_phases for pod in pods.values())

    def _leaves_alone(self, run: SimulatedPod) -> bool:
        """Return whether others of a gang that goes on in place have no stop notice."""
        gang = [self._state.runs[uid] for uid in self._state.live[run.workload_uid]]
        return run.in_place is not None and any(member.notice_at is None for member in gang)

    def _divide_gpus(self, name: str, changed: Grant, at: float) -> None:
        """Divide the GPUs of a node that several pods hold whole among them, after one has come or gone."""
        state, node = self._state, self._state.nodes.get(name)
        if node is None or changed.gpu_milli < WHOLE_MILLI or not changed.gpu_uuids:
            return
        runs = [state.runs[uid] for uid in state.on_node.get(name, ())]
        grants = [state.pods[run.workload_uid][run.pod_uid].grant for run in runs]
        sharing = [
            (run, grant)
            for run, grant in zip(runs, grants, strict=True)
            if set(grant.gpu_uuids) & set(changed.gpu_uuids)
        ]
        num_holders = Counter(uuid for grant in grants if grant.gpu_milli >= WHOLE_MILLI for uuid in grant.gpu_uuids)
        for run, grant in sharing:
            num_gpus = gpus_of(grant, node, num_holders)
            if num_gpus != run.num_gpus:
                run.hold(at, num_gpus)

    def _update_speeds(self, node: str, at: float) -> None:
        """Update the speed of all gangs with a pod on a node, after its working pods have changed."""
        state, interference = self._state, self._state.interference
        if interference is None:
            return
        for uid in dict.fromkeys(state.runs[member].workload_uid for member in state.on_node.get(node, ())):
            gang = [run for member in state.live[uid] if (run := state.runs[member]).started_at is not None]
            speed = min((self._speed(run, interference) for run in gang), default=1.0)
            for run in gang:
                if run.speed != speed:
                    run.change_speed(at, speed)
                    if run.ends_at is not None:
                        state.push(run.ends_at, Due.END, run.pod_uid)

    def _speed(self, run: SimulatedPod, interference: Interference) -> float:
        state = self._state
        on_node = state.on_node[state.pods[run.workload_uid][run.pod_uid].node]
        beside = [other for uid in on_node if (other := state.runs[uid]).started_at is not None]
        pods = {other.pod_uid: state.pods[other.workload_uid][other.pod_uid] for other in (run, *beside)}
        return pod_speed(run, beside, pods, interference)

    def _kill_rank(self, run: SimulatedPod, fault: KillRank, at: float) -> None:
        exits = self._exits(run, at, None, signals.SIGTERM)
        killed = [
            replace(exit_, signal=fault.signal, out_of_memory=fault.out_of_memory)
            for exit_ in exits
            if exit_.rank == fault.rank
        ]
        if killed:
            other_exits = (exit_ for exit_ in exits if exit_.rank != fault.rank)
            self._end(run, at, PodPhase.FAILED, (*killed, *other_exits))

    def _apply_node_fault(
        self, fault: LoseNode | ReturnNode | KillRunsOnNode | GiveBackNode | WarnNode | RemoveNode, at: float
    ) -> None:
        state, name = self._state, fault.node
        if isinstance(fault, KillRunsOnNode):
            for uid in dict.fromkeys(state.runs[pod].workload_uid for pod in state.on_node.get(name, ())):
                for run in [state.runs[pod] for pod in state.live[uid]]:
                    self._end(run, at, PodPhase.FAILED, self._exits(run, at, None, signals.SIGKILL))
            return
        if isinstance(fault, GiveBackNode):
            state.nodes[name] = replace(state.nodes[name], ready=True, closed=None)
            state.node_health = {**state.node_health, name: returned(state.node_health[name], at)}
            state.accounts.node_is(name, True, at)
        elif isinstance(fault, RemoveNode):
            del state.nodes[name]
            state.node_health = {node: history for node, history in state.node_health.items() if node != name}
            state.partitioned.pop(name, None)
            state.accounts.node_is(name, None, at)
        elif isinstance(fault, WarnNode):
            leaving = Leaving(why=fault.why, within_s=fault.within_s)
            state.nodes[name] = replace(state.nodes[name], leaving=leaving, closed=fault.why)
        else:
            is_back = isinstance(fault, ReturnNode)
            state.nodes[name] = replace(state.nodes[name], ready=is_back)
            state.accounts.node_is(name, is_back, at)
        state.touch()
        if isinstance(fault, LoseNode | RemoveNode):
            self._lose(tuple(state.on_node.get(name, ())), f"node {name} is gone", at)

    def _lose(self, pods: Iterable[str], message: str, at: float) -> None:
        for uid in pods:
            self._end(self._state.runs[uid], at, PodPhase.LOST, message=message)

    def _exits(self, run: SimulatedPod, at: float, exit_code: int | None, signal: int | None) -> tuple[RankExit, ...]:
        """Return the same exit for every rank of a pod."""
        ranks = self._state.run_of(run.workload_uid).spec.ranks_on_each_node
        first, tail = run.index * ranks, run.program.tail[-40:]
        return tuple(
            RankExit(rank=rank, exit_code=exit_code, signal=signal, at=at, tail=tail)
            for rank in range(first, first + ranks)
        )

    def _update(self, run: SimulatedPod, **changes: object) -> None:
        pods = self._state.pods[run.workload_uid]
        pods[run.pod_uid] = replace(pods[run.pod_uid], **changes)
        self._state.changed(run.workload_uid)
