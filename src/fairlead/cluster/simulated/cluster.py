"""The simulated cluster: the port over plain data, and a queue of what happens next.

Time moves only in ``wait`` and ``advance``. Between two instants nothing is looked at: a pod costs the queue two or
three entries over its whole life, and progress is worked out when somebody asks.
"""

import heapq
import math
import pickle
import signal as signals
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fairlead.cluster.port import MOST_COMPLETED, EventRecord
from fairlead.cluster.simulated.clock import Clock
from fairlead.cluster.simulated.faults import Fault, KillRank, LoseNode, LosePod, ReturnNode
from fairlead.cluster.simulated.programs import Behaviour, OnTerm
from fairlead.cluster.simulated.state import Due, Run, State, count
from fairlead.errors import NameTaken, NotFound
from fairlead.specs.team import Team
from fairlead.specs.training import Training
from fairlead.state.plan import Change, CreatePod, Event, Plan, TerminatePod
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import (
    Completed,
    Intent,
    Node,
    Phase,
    Pod,
    PodPhase,
    Progress,
    RankExit,
    Snapshot,
    Status,
    Workload,
)


class SimulatedCluster:
    """A ``Cluster`` of the given nodes, where the same calls always lead to the same end."""

    def __init__(
        self, nodes: Iterable[Node], behaviour: Behaviour, clock: Clock | None = None, *, teams: Iterable[Team] = ()
    ) -> None:
        self.clock = Clock() if clock is None else clock
        self._behaviour = behaviour
        self._state = State(now=self.clock.now(), nodes={node.name: node for node in nodes}, teams=tuple(teams))
        self._unseen = False
        self._shown: Snapshot | None = None

    @classmethod
    def load(cls, saved: bytes, behaviour: Behaviour) -> "SimulatedCluster":
        """The cluster that ``save`` wrote, which must have been one of ours: it is a pickle."""
        state: State = pickle.loads(saved)
        cluster = cls((), behaviour, Clock(state.now))
        cluster._state = state
        cluster._unseen = True
        return cluster

    def save(self) -> bytes:
        """Everything but the behaviour."""
        self._state.now = self.clock.now()
        return pickle.dumps(self._state)

    def num_starts(self, pod_uid: str) -> int:
        """How often the ranks of a pod began."""
        return self._state.num_starts.get(pod_uid, 0)

    @property
    def next_at(self) -> float:
        """When something happens next if nobody does anything; infinity when nothing does."""
        queue = self._state.queue
        return queue[0][0] if queue else math.inf

    def snapshot(self) -> Snapshot:
        state = self._state
        if self._shown is None or state.reporting:
            shown = sorted(state.active)
            self._shown = Snapshot(
                nodes=tuple(state.nodes.values()),
                workloads=tuple(self._seen(state.workloads[uid]) for uid in shown),
                pods=tuple(pod for uid in shown for pod in self._seen_pods(state.workloads[uid])),
                teams=state.teams,
                completed=state.completed,
            )
        return self._shown

    def apply(self, plan: Plan) -> tuple[bool, ...]:
        return tuple(self._carry_out(change) for change in plan.changes)

    def submit(self, spec: Training) -> Workload:
        state, now = self._state, self.clock.now()
        if state.names.get((spec.team, spec.name)):
            raise NameTaken(
                f"An unfinished run of team {spec.team} is named {spec.name}; delete it or take another name."
            )
        state.last_workload += 1
        reason = Reason(code=Code.SUBMITTED, message="submitted; waits to be placed")
        workload = Workload(
            uid=f"{state.last_workload:08x}",
            spec=spec,
            intent=Intent.RUN,
            status=Status(phase=Phase.PENDING, reason=reason, since=now),
            version=1,
            created_at=now,
        )
        state.pods[workload.uid] = {}
        state.live[workload.uid] = {}
        state.events_of[workload.uid] = []
        self._keep(workload)
        self._state.record(workload, Event(type="Submitted", reason=reason), self.clock.now())
        return workload

    def set_intent(self, uid: str, intent: Intent) -> Workload:
        workload = self._state.workloads.get(uid)
        if workload is None:
            raise NotFound(f"No run has the uid {uid}; it may have been deleted.")
        if intent is Intent.RUN and self._state.has_namesake(workload):
            raise NameTaken(f"Another run named {workload.spec.name} is not finished; wait for it, or stop it first.")
        if workload.intent is not intent:
            workload = replace(workload, intent=intent, version=workload.version + 1)
            self._keep(workload)
        return self._seen(workload)

    def workloads(self, *, limit: int | None = None) -> tuple[Workload, ...]:
        newest = list(reversed(self._state.workloads.values()))
        return tuple(self._seen(workload) for workload in newest[:limit])

    def events(self, uid: str | None = None, *, after: int = 0) -> tuple[EventRecord, ...]:
        state = self._state
        ids = range(after + 1, state.last_event + 1) if uid is None else state.events_of.get(uid, ())
        return tuple(state.events[number] for number in ids if number > after and number in state.events)

    def wait(self, timeout_s: float) -> None:
        """Move the clock to the next event or by the timeout; not at all when something changed since the last wait.

        With nothing to come and no end to the timeout the clock stays.
        """
        deadline, queue = self.clock.now() + timeout_s, self._state.queue
        while not self._unseen and queue and queue[0][0] <= deadline:
            self._happen_until(queue[0][0])
        if not self._unseen and math.isfinite(deadline):
            self.clock.advance_to(deadline)
        self._unseen = False

    def advance(self, seconds: float) -> None:
        """Move the clock and let everything happen that happens meanwhile."""
        self._happen_until(self.clock.now() + seconds)

    def inject(self, fault: Fault, *, at: float | None = None) -> None:
        """Let a fault happen at a time to come, or now."""
        if at is None or at <= self.clock.now():
            self._suffer(fault, self.clock.now())
        else:
            self._state.push(at, Due.FAULT, "", fault)

    def _carry_out(self, change: Change) -> bool:
        state = self._state
        workload = state.workloads.get(change.workload_uid)
        if workload is None or workload.version != change.version or (change.forget and state.live[workload.uid]):
            return False
        if change.forget:
            self._forget(workload)
            return True
        status = change.status or workload.status
        if not status.phase.is_final and self._state.has_namesake(workload):
            return False
        # Even a change of neither moves the version, or the same plan could do it twice.
        workload = replace(
            workload, status=status, intent=change.intent or workload.intent, version=workload.version + 1
        )
        self._keep(workload)
        if status.phase is Phase.SUCCEEDED and change.status is not None and status.started_at is not None:
            took_s = self.clock.now() - status.started_at
            ended = Completed(team=workload.spec.team, name=workload.spec.name, took_s=took_s)
            state.completed = (*state.completed[1 - MOST_COMPLETED :], ended)
        if change.event is not None:
            self._state.record(workload, change.event, self.clock.now())
        for create in change.create:
            self._create(workload, create)
        for terminate in change.terminate:
            self._terminate(terminate)
        return True

    def _create(self, workload: Workload, create: CreatePod) -> None:
        state, now = self._state, self.clock.now()
        uid = f"{workload.uid}-{create.attempt}-{create.index}"
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
        )
        program = self._behaviour(workload.spec, create.attempt)
        run = Run(workload_uid=workload.uid, pod_uid=uid, index=create.index, program=program)
        state.runs[uid] = run
        state.live[workload.uid][uid] = None
        state.on_node.setdefault(create.node, {})[uid] = None
        self._changed(workload.uid)
        node = state.nodes.get(create.node)
        if node is None or not node.ready:
            self._end(run, now, PodPhase.LOST, message=f"node {create.node} is not there")
        else:
            self._state.push(now + program.start_s, Due.START, uid)

    def _terminate(self, terminate: TerminatePod) -> None:
        run, now = self._state.runs.get(terminate.pod_uid), self.clock.now()
        if run is None:
            return
        if run.notice_at is None:
            run.notice_at = now
            self._update(run, terminating_since=now)
            if terminate.grace_s > 0 and (run.started_at is None or run.program.on_term is not OnTerm.IGNORE):
                saves = run.started_at is not None and run.program.on_term is OnTerm.CHECKPOINT
                self._state.push(now + (run.program.save_s if saves else 0.0), Due.LEAVE, run.pod_uid)
        if now + terminate.grace_s < run.kill_at:
            run.kill_at = now + max(0.0, terminate.grace_s)
            self._state.push(run.kill_at, Due.KILL, run.pod_uid)

    def _forget(self, workload: Workload) -> None:
        state, uid = self._state, workload.uid
        self._state.release_name(workload)
        for number in state.events_of.pop(uid):
            del state.events[number]
        del state.workloads[uid], state.pods[uid], state.live[uid]
        state.active.pop(uid, None)
        state.saved_s.pop(uid, None)
        self._shown, self._unseen = None, True

    def _happen_until(self, at: float) -> None:
        """Let everything up to a time happen, in order."""
        queue = self._state.queue
        while queue and queue[0][0] <= at:
            due_at, _, due, uid, fault = heapq.heappop(queue)
            self.clock.advance_to(due_at)
            run = self._state.runs.get(uid)
            if fault is not None:
                self._suffer(fault, due_at)
            elif run is not None:
                self._happen(run, due, due_at)
        self.clock.advance_to(at)

    def _happen(self, run: Run, due: Due, at: float) -> None:
        """One entry of the queue, unless what has happened since made it void."""
        program = run.program
        if due is Due.START:
            if run.notice_at is None:
                self._start(run, at)
        elif due is Due.END:
            leaving = run.notice_at is not None and program.on_term is OnTerm.CHECKPOINT
            if run.ends_at == at and not leaving:
                ended = self._exits(run, at, None if program.signal else program.exit_code, program.signal)
                self._end(run, at, PodPhase.SUCCEEDED if all(x.ok for x in ended) else PodPhase.FAILED, ended)
        elif due is Due.LEAVE:
            if run.started_at is not None and program.on_term is OnTerm.CHECKPOINT:
                self._state.saved_s[run.workload_uid] = run.work_s(at)
                self._end(run, at, PodPhase.SUCCEEDED, self._exits(run, at, 0, None), saved=True)
            else:
                self._end(run, at, PodPhase.FAILED, self._exits(run, at, None, signals.SIGTERM))
        elif due is Due.KILL:
            self._end(run, at, PodPhase.FAILED, self._exits(run, at, None, signals.SIGKILL))

    def _start(self, run: Run, at: float) -> None:
        state, program = self._state, run.program
        spec = state.workloads[run.workload_uid].spec
        if program.start_error is not None:
            self._end(run, at, PodPhase.FAILED, message=program.start_error)
            return
        state.num_starts[run.pod_uid] = state.num_starts.get(run.pod_uid, 0) + 1
        run.started_at = at
        run.held_s = min(state.saved_s.get(run.workload_uid, 0.0), program.duration_s)
        if program.step_s is not None or spec.stall_timeout_s is not None:
            state.reporting[run.pod_uid] = None
        self._update(run, phase=PodPhase.RUNNING, started_at=at)
        if not program.hangs and math.isfinite(program.duration_s):
            run.ends_at = at + program.duration_s - run.held_s
            self._state.push(run.ends_at, Due.END, run.pod_uid)

    def _end(
        self,
        run: Run,
        at: float,
        phase: PodPhase,
        exits: tuple[RankExit, ...] = (),
        *,
        message: str | None = None,
        saved: bool = False,
    ) -> None:
        """No process of the pod is alive any more."""
        state, uid = self._state, run.workload_uid
        if run.index == 0 and run.started_at is not None:
            if not saved:
                state.saved_s[uid] = max(state.saved_s.get(uid, 0.0), run.saved_s(at))
            progress = self._final_progress(run, at, saved=saved)
            if progress is not None:
                state.workloads[uid] = replace(state.workloads[uid], progress=progress)
        del state.runs[run.pod_uid], state.live[uid][run.pod_uid]
        state.reporting.pop(run.pod_uid, None)
        pod = state.pods[uid][run.pod_uid]
        del state.on_node[pod.node][run.pod_uid]
        state.pods[uid][run.pod_uid] = replace(
            pod, phase=phase, exits=exits, message=message, active_at=run.active_at(at)
        )
        self._changed(uid)

    def _final_progress(self, run: Run, at: float, *, saved: bool) -> Progress | None:
        progress, step_s = run.progress(at), run.program.step_s
        if not saved or progress is None or step_s is None:
            return progress
        step = count(run.work_s(at), step_s)
        return replace(progress, checkpoint_step=step, checkpoint_at=at, stopped_step=step, updated_at=at)

    def _suffer(self, fault: Fault, at: float) -> None:
        state = self._state
        if isinstance(fault, KillRank):
            run = state.runs.get(fault.pod_uid)
            if run is not None and run.started_at is not None:
                others = self._exits(run, at, None, signals.SIGTERM)
                killed = [
                    replace(exit_, signal=fault.signal, out_of_memory=fault.out_of_memory)
                    for exit_ in others
                    if exit_.rank == fault.rank
                ]
                if killed:
                    rest = (exit_ for exit_ in others if exit_.rank != fault.rank)
                    self._end(run, at, PodPhase.FAILED, (*killed, *rest))
        elif isinstance(fault, LosePod):
            run = state.runs.get(fault.pod_uid)
            if run is not None:
                self._end(run, at, PodPhase.LOST, message=fault.message)
        elif fault.node in state.nodes:
            state.nodes[fault.node] = replace(state.nodes[fault.node], ready=isinstance(fault, ReturnNode))
            self._shown, self._unseen = None, True
            if isinstance(fault, LoseNode):
                for uid in tuple(state.on_node.get(fault.node, ())):
                    self._end(state.runs[uid], at, PodPhase.LOST, message=f"node {fault.node} is gone")

    def _exits(self, run: Run, at: float, exit_code: int | None, signal: int | None) -> tuple[RankExit, ...]:
        """The same end for every rank of a pod."""
        ranks = self._state.workloads[run.workload_uid].spec.ranks_on_each_node
        first, tail = run.index * ranks, run.program.tail[-40:]
        return tuple(
            RankExit(rank=rank, exit_code=exit_code, signal=signal, at=at, tail=tail)
            for rank in range(first, first + ranks)
        )

    def _keep(self, workload: Workload) -> None:
        """Store a workload at its new version and mend the indexes."""
        state = self._state
        state.workloads[workload.uid] = workload
        if workload.status.phase.is_final:
            self._state.release_name(workload)
        else:
            state.take_name(workload)
        self._changed(workload.uid)

    def _update(self, run: Run, **changes: object) -> None:
        pods = self._state.pods[run.workload_uid]
        pods[run.pod_uid] = replace(pods[run.pod_uid], **changes)  # type: ignore[arg-type]  # names of Pod's fields
        self._shown, self._unseen = None, True

    def _changed(self, uid: str) -> None:
        state = self._state
        workload = state.workloads[uid]
        asked = workload.intent in (Intent.RUN, Intent.DELETE)
        if asked or state.live[uid] or not workload.status.phase.is_final:
            state.active[uid] = None
        else:
            state.active.pop(uid, None)
        self._shown, self._unseen = None, True

    def _seen(self, workload: Workload) -> Workload:
        """The workload with what its rank 0 says just now."""
        if not self._state.reporting:
            return workload
        for uid in self._state.live[workload.uid]:
            run = self._state.runs[uid]
            if run.index == 0:
                progress = run.progress(self.clock.now())
                return workload if progress is None else replace(workload, progress=progress)
        return workload

    def _seen_pods(self, workload: Workload) -> Iterator[Pod]:
        """Pods of the current attempt, and live ones of any."""
        state = self._state
        for pod in state.pods[workload.uid].values():
            if pod.uid in state.reporting:
                yield replace(pod, active_at=state.runs[pod.uid].active_at(self.clock.now()))
            elif pod.attempt == workload.status.attempt or not pod.phase.is_final:
                yield pod
