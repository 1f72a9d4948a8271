"""The simulated cluster: the port over plain data, and a queue of scheduled events.

Time moves only in ``wait`` and ``advance``. Nothing is computed between two events: a pod adds two or three entries to
the queue over its lifetime, and progress is computed on request.
"""

import math
import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from fairlead.cluster.port import MOST_COMPLETED, EventRecord, Spec
from fairlead.cluster.simulated.accounts import NodeTime, PodTime
from fairlead.cluster.simulated.clock import Clock
from fairlead.cluster.simulated.data_reads import DataReads
from fairlead.cluster.simulated.faults import Fault
from fairlead.cluster.simulated.listing import ItemsByUid
from fairlead.cluster.simulated.mig_manager import carry_out_step, note_partitions
from fairlead.cluster.simulated.pod_simulation import PodSimulator
from fairlead.cluster.simulated.programs import Behaviour
from fairlead.cluster.simulated.simulation_state import Due, SimulationState
from fairlead.errors import Conflict, NameTaken, NotFound
from fairlead.frozen import replace
from fairlead.policy.health.node_risk import charged, taken_out
from fairlead.policy.kinds.spec_updates import changed, changed_meanwhile, check_update, updated_status
from fairlead.policy.queue.run_limits import limited
from fairlead.specs.pool import Pool
from fairlead.specs.simulation import Interference, Store
from fairlead.specs.team import Team
from fairlead.specs.training import Training
from fairlead.state.capacity_requests import CapacityRequest, Growth
from fairlead.state.node_health import NodeHistory, NodeWithdrawal
from fairlead.state.partitions import PartitionStep
from fairlead.state.plan import Change, Event, Plan
from fairlead.state.pool_demand import PoolDemand
from fairlead.state.reasons import JUST_SUBMITTED
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.snapshot import (
    AnyWorkload,
    Completed,
    Intent,
    Node,
    Phase,
    Pod,
    Snapshot,
    Status,
    Workload,
    is_leaf,
)
from fairlead.state.split_probing import in_force
from fairlead.state.transitions import Child, LivePod, Notice, Transition, transition

GB = 1e9


class SimulatedCluster:
    """A ``Cluster`` of the given nodes, which is deterministic: the same calls always have the same outcome."""

    def __init__(
        self,
        nodes: Iterable[Node],
        behaviour: Behaviour,
        clock: Clock | None = None,
        *,
        teams: Iterable[Team] = (),
        interference: Interference | None = None,
        store: Store | None = None,
        rules: SchedulingPolicy = DEFAULT,
    ) -> None:
        clock = Clock() if clock is None else clock
        here = {node.name: node for node in nodes}
        state = SimulationState(now=clock.now(), nodes=here, teams=tuple(teams), interference=interference, rules=rules)
        if store is not None:
            num_up = sum(node.ready for node in here.values())
            state.reads = DataReads(store.rate / GB, store.cache / GB, num_up, at=state.now)
        for name in here:
            state.node_since[name] = state.now
            state.accounts.node_is(name, True, state.now)
        self._take(state, clock, behaviour)
        self._seen_version = state.version

    def _take(self, state: SimulationState, clock: Clock, behaviour: Behaviour) -> None:
        self.clock = clock
        self._state = state
        self._pod_simulator = PodSimulator(state, clock, behaviour)
        self._shown: Snapshot | None = None
        self._shown_runs = ItemsByUid[Workload]()
        self._shown_pods = ItemsByUid[Pod]()
        self._shown_parents = ItemsByUid[AnyWorkload]()
        state.stale.update(state.active)
        self._shown_version = self._seen_version = -1
        self._shown_at = clock.now()

    @classmethod
    def load(cls, saved: bytes, behaviour: Behaviour) -> "SimulatedCluster":
        """Return the cluster that ``save`` wrote. The data must be trusted: it is a pickle."""
        state: SimulationState = pickle.loads(saved)
        cluster = cls((), behaviour)
        cluster._take(state, Clock(state.now), behaviour)
        return cluster

    def save(self) -> bytes:
        """Serialize everything but the behaviour."""
        self._state.now = self.clock.now()
        return pickle.dumps(self._state)

    def num_starts(self, pod_uid: str) -> int:
        """Return how often the ranks of a pod began."""
        return self._state.num_starts.get(pod_uid, 0)

    @property
    def num_created(self) -> int:
        """Return the number of pods created so far."""
        return self._state.num_created

    @property
    def store_gb(self) -> float | None:
        """Return what has left the store so far; None where reading is not simulated."""
        return None if self._state.reads is None else self._state.reads.store_gb

    @property
    def taken_out(self) -> tuple[str, ...]:
        """Return the nodes that are taken out."""
        return tuple(name for name, history in self._state.node_health.items() if history.out is not None)

    def is_empty(self, node: str) -> bool:
        """Return whether no live pod is on a node."""
        return not self._state.on_node.get(node)

    def accounts(self) -> tuple[tuple[PodTime, ...], tuple[NodeTime, ...]]:
        """Return the time of pods and nodes up to now; live pods as if they ended now and lost nothing."""
        state, now = self._state, self.clock.now()
        live = [self._pod_simulator.time_of(run, now) for run in state.runs.values()]
        return state.accounts.settled(now, live)

    def grow_by(self, growth: Growth | None, requests: tuple[CapacityRequest, ...]) -> None:
        """Set the possible growth of the cluster, and the state of requests for capacity."""
        state = self._state
        if (growth, requests) != (state.growth, state.capacity_requests):
            state.growth, state.capacity_requests = growth, requests
            state.touch()

    @property
    def next_at(self) -> float:
        """Return the time of the next scheduled event; infinity without one."""
        queue = self._state.queue
        return queue[0][0] if queue else math.inf

    def snapshot(self) -> Snapshot:
        state = self._state
        now = self.clock.now()
        is_told_more = bool(state.reporting) and self._shown_at != now
        if self._shown is None or self._shown_version != state.version or is_told_more:
            self._look_again()
            parents = self._shown_parents.items()
            children = (uid for parent in parents for uid in state.children.get(parent.uid, ()))
            self._shown = Snapshot(
                nodes=tuple(state.nodes.values()),
                workloads=self._shown_runs.items(),
                pods=self._shown_pods.items(),
                parents=parents,
                ended=tuple(state.workloads[uid] for uid in children if uid not in state.active),
                growth=state.growth,
                capacity_requests=state.capacity_requests,
                teams=state.teams,
                completed=state.completed,
                rules=state.rules,
                pools=state.pools,
                standby=state.standby,
                partitioned=tuple(state.partitioned.values()),
                node_health=state.node_health,
                withdraws_nodes=True,
            )
            self._shown_version, self._shown_at = state.version, now
        return self._shown

    def _look_again(self) -> None:
        """Update the entries of the snapshot, in order of uids, that have changed since the last one."""
        state = self._state
        stale = state.stale | {state.runs[pod_uid].workload_uid for pod_uid in state.reporting}
        state.stale.clear()
        for uid in stale:
            workload = state.workloads.get(uid) if uid in state.active else None
            runs, pods, parents = tuple[Workload, ...](), tuple[Pod, ...](), tuple[AnyWorkload, ...]()
            if workload is not None and is_leaf(workload):
                runs, pods = (self._seen(workload),), tuple(self._seen_pods(workload))
            elif workload is not None:
                parents = (workload,)
            self._shown_runs.put(uid, runs)
            self._shown_pods.put(uid, pods)
            self._shown_parents.put(uid, parents)

    def prepare_ahead(self, pools: tuple[PoolDemand, ...]) -> None:
        """Set the demand for the pools with standby nodes."""
        if pools != self._state.pools:
            self._state.pools = pools
            self._state.touch()

    def partition(self, pool_of: Mapping[str, Pool]) -> None:
        """Allow the GPUs of these nodes, existing or future, to be repartitioned as their pools specify."""
        self._state.pool_of.update(pool_of)
        for node in self._state.nodes.values():
            note_partitions(self._state, node)
        self._state.touch()

    @property
    def partition_steps(self) -> tuple[tuple[float, PartitionStep], ...]:
        """Return the steps of repartitioned nodes so far, with their times."""
        return tuple(self._state.partition_steps)

    @property
    def standby(self) -> dict[str, int]:
        """Return the standby nodes of each pool."""
        return {group.pool: group.nodes for group in self._state.standby}

    def apply(self, plan: Plan) -> tuple[bool, ...]:
        if plan.standby is not None:
            self._state.standby = plan.standby
            self._state.touch()
        for step in plan.partitioning:
            carry_out_step(self._state, step, self.clock.now())
        for withdrawal in plan.withdrawn:
            self._take_out(withdrawal)
        return tuple(self._carry_out(change) for change in plan.changes)

    def submit(self, spec: Spec) -> Workload[Spec]:
        state = self._state
        if state.names.get((spec.team, spec.name)):
            raise NameTaken(
                f"An unfinished run of team {spec.team} is named {spec.name}; delete it or take another name."
            )
        state.last_workload += 1
        return self._submit(f"{state.last_workload:08x}", spec, None)

    def _submit(self, uid: str, spec: Spec, parent: str | None) -> Workload[Spec]:
        state, now = self._state, self.clock.now()
        parallel = getattr(spec, "parallel", None)
        if isinstance(spec, Training) and parallel is not None and parallel.candidates:
            # Simulated programs know no splits, so that all candidates would be ruled out one after another.
            spec = replace(spec, parallel=in_force(spec, None))
        if isinstance(spec, Training):
            team = next((team for team in state.teams if team.name == spec.team), None)
            spec = cast("Spec", limited(spec, team))
        workload: Workload[Spec] = Workload(
            uid=uid,
            spec=spec,
            intent=Intent.RUN,
            status=Status(phase=Phase.PENDING, reason=JUST_SUBMITTED, since=now),
            version=1,
            created_at=now,
            parent=parent,
        )
        if parent is not None:
            state.children.setdefault(parent, {})[uid] = None
        state.pods[workload.uid] = {}
        state.live[workload.uid] = {}
        state.events_of[workload.uid] = []
        self._state.keep(workload)
        self._state.record(workload, Event(type="Submitted", reason=JUST_SUBMITTED), self.clock.now())
        return workload

    def set_intent(self, uid: str, intent: Intent) -> Workload[Any]:
        workload = self._state.workloads.get(uid)
        if workload is None:
            raise NotFound(f"No run has the uid {uid}; it may have been deleted.")
        if intent is Intent.RUN and self._state.has_namesake(workload):
            raise NameTaken(f"Another run named {workload.spec.name} is not finished; wait for it, or stop it first.")
        if workload.intent is not intent:
            workload = replace(workload, intent=intent, version=workload.version + 1)
            self._state.keep(workload)
        return self._shown_as(workload)

    def update(self, uid: str, spec: Spec, *, version: int) -> Workload[Spec]:
        workload = self._state.workloads.get(uid)
        if workload is None:
            raise NotFound(f"No run has the uid {uid}; it may have been deleted.")
        if workload.version != version:
            raise Conflict(changed_meanwhile(workload.spec.name))
        differences = check_update(workload, spec)
        if differences:
            status = updated_status(workload.status)
            workload = replace(workload, spec=spec, status=status, version=version + 1)
            self._state.keep(workload)
            self._state.record(workload, changed(differences), self.clock.now())
        return self._shown_as(workload)

    def workloads(self, *, limit: int | None = None) -> tuple[Workload[Any], ...]:
        newest = list(reversed(self._state.workloads.values()))
        return tuple(self._shown_as(workload) for workload in newest[:limit])

    def children(self, uid: str) -> tuple[Workload[Any], ...]:
        state = self._state
        return tuple(self._shown_as(state.workloads[child]) for child in state.children.get(uid, ()))

    def events(self, uid: str | None = None, *, after: int = 0) -> tuple[EventRecord, ...]:
        state = self._state
        ids = range(after + 1, state.last_event + 1) if uid is None else state.events_of.get(uid, ())
        return tuple(state.events[number] for number in ids if number > after and number in state.events)

    def wait(self, timeout_s: float) -> None:
        """Move the clock to the next event or by the timeout; not at all after a change since the last wait.

        Without scheduled events and with an infinite timeout the clock does not move.
        """
        if self._state.version == self._seen_version:
            self.go_on(self.clock.now() + timeout_s)
        self._seen_version = self._state.version

    def go_on(self, deadline: float) -> None:
        """Move the clock until something changes, or to the deadline, for a caller that has seen the current state."""
        state, seen = self._state, self._state.version
        while state.version == seen and state.queue and state.queue[0][0] <= deadline:
            self._pod_simulator.process_until(state.queue[0][0])
        if state.version == seen and math.isfinite(deadline):
            self.clock.advance_to(deadline)

    def advance(self, seconds: float) -> None:
        """Move the clock, and process all events meanwhile."""
        self._pod_simulator.process_until(self.clock.now() + seconds)

    def inject(self, fault: Fault, *, at: float | None = None) -> None:
        """Apply a fault at a future time, or now."""
        if at is None or at <= self.clock.now():
            self._pod_simulator.apply_fault(fault, self.clock.now())
        else:
            self._state.push(at, Due.FAULT, "", fault)

    def _carry_out(self, change: Change) -> bool:
        state, now = self._state, self.clock.now()
        before = state.workloads.get(change.workload_uid)
        effect = None if before is None else self._transition(before, change, now)
        if before is None or effect is None:
            return False
        workload = effect.after
        if workload is None:
            self._forget(before)
            return True
        status = workload.status
        if not status.phase.is_final and state.has_namesake(workload):
            return False
        if any(state.names.get((child.spec.team, child.spec.name)) for child in effect.submitted):
            return False
        state.keep(workload)
        if status.phase is Phase.SUCCEEDED and status is not before.status and status.started_at is not None:
            ended = Completed(
                team=workload.spec.team,
                name=workload.spec.name,
                took_s=now - status.started_at,
                at=now,
                paces=status.measured.paces,
            )
            state.completed = (*state.completed[1 - MOST_COMPLETED :], ended)
        if effect.event is not None:
            state.record(workload, effect.event, now)
        if change.incident is not None:
            state.node_health = charged(state.node_health, change.incident, state.node_since)
        for create in effect.created:
            self._pod_simulator.create(state.run_of(workload.uid), create)
        for notice in effect.notices:
            self._pod_simulator.notify(notice)
        for new in effect.submitted:
            self._submit(new.uid, new.spec, workload.uid)
        for wanted in effect.requested:
            child = state.workloads[wanted.uid]
            state.keep(replace(child, intent=wanted.intent, version=child.version + 1))
        return True

    def _transition(self, workload: AnyWorkload, change: Change, now: float) -> Transition[Any] | None:
        """Return the effect of a change; None if it is stale."""
        state, pods, children = self._state, list[LivePod](), list[Child]()
        for uid in state.live[workload.uid] if change.needs_pods else ():
            run = state.runs[uid]
            since = run.notice_at
            notice = None if since is None else Notice(pod_uid=uid, since=since, kill_at=run.kill_at)
            pods.append(LivePod(uid=uid, notice=notice))
        if change.needs_children:
            known = (state.workloads[uid] for uid in state.children.get(workload.uid, ()))
            children = [Child(uid=child.uid, name=child.spec.name, intent=child.intent) for child in known]
        return transition(workload, change, now, pods=pods, children=children)

    def _take_out(self, withdrawal: NodeWithdrawal) -> None:
        """Accept no more pods on a node; those that are there stay."""
        state, now, name = self._state, self.clock.now(), withdrawal.node
        history = state.node_health.get(name) or NodeHistory(node=name, since=now, at=now)
        history = taken_out(history, withdrawal.why, now)
        state.node_health = {**state.node_health, name: history}
        state.nodes[name] = replace(state.nodes[name], closed=f"taken out: {withdrawal.why}")
        state.accounts.node_is(name, False, now)
        state.touch()

    def _forget(self, workload: AnyWorkload) -> None:
        state, uid = self._state, workload.uid
        self._state.release_name(workload)
        for number in state.events_of.pop(uid):
            del state.events[number]
        del state.workloads[uid], state.pods[uid], state.live[uid]
        state.active.pop(uid, None)
        state.stale.add(uid)
        if workload.parent is not None:
            del state.children[workload.parent][uid]
        state.children.pop(uid, None)
        state.saved_s.pop(uid, None)
        state.touch()

    def _shown_as(self, workload: AnyWorkload) -> Workload[Any]:
        return self._seen(workload) if is_leaf(workload) else workload

    def _seen(self, workload: Workload) -> Workload:
        """Return the workload with the current report of its rank 0."""
        if not self._state.reporting:
            return workload
        for uid in self._state.live[workload.uid]:
            run = self._state.runs[uid]
            if run.index == 0:
                progress = run.progress(self.clock.now())
                return workload if progress is None else replace(workload, progress=progress)
        return workload

    def _seen_pods(self, workload: Workload) -> Iterator[Pod]:
        """Yield the pods that belong in a snapshot."""
        state = self._state
        for pod in state.pods[workload.uid].values():
            if pod.uid in state.reporting:
                yield replace(pod, active_at=state.runs[pod.uid].active_at(self.clock.now()))
            elif workload.is_told_by(pod):
                yield pod
