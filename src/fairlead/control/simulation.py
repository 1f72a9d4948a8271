"""Replays a trace through the production loop on a simulated cluster.

The loop is the same as on any cluster: load, decide, apply. Only the clock, the arrivals and the events of nodes are
simulated.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace

from fairlead.cluster.simulated.accounts import PodTime
from fairlead.cluster.simulated.clock import Clock
from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.environment import SimulatedEnvironment, first_nodes
from fairlead.cluster.simulated.groups import groups_of, interference_of, programs_of, store_of
from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram
from fairlead.control.loop import make_pass
from fairlead.control.outcomes import Outcome, Simulated
from fairlead.control.spending import prices_of, spent_by
from fairlead.frozen import dataclass
from fairlead.policy.gpu.device_inventory import in_layout
from fairlead.policy.kinds.defaults import complete
from fairlead.policy.next_decision import next_decision_at
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.placement.placement import why_never
from fairlead.policy.queue.team_debts import TeamDebts
from fairlead.runtime.save_interval import SaveInterval
from fairlead.specs.pool import Pool
from fairlead.specs.simulation import Programs, Simulation
from fairlead.specs.team import Team
from fairlead.specs.training import Training
from fairlead.state.reasons import Reason
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.snapshot import Node, Phase, Workload
from fairlead.traces.arrivals import Arrival

HOLDING = frozenset((Phase.STARTING, Phase.RUNNING, Phase.STOPPING))
MOST_PASSES = 1_000
"""Maximum passes at one instant; more mean that decisions do not converge."""
STEP_S = 1.0
HOPELESS = 20.0
"""A simulation stops after this many times the longest run without an end: the rest fails before it saves anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Assumptions of a simulation besides the trace and the pools.

    Attributes:
        seed: Seed of random events; the same seed, trace and pools give the same outcome.
    """

    simulations: tuple[Simulation, ...] = ()
    seed: int = 0


@dataclass(slots=True)
class _Watched:
    arrival: Arrival
    holding_since: float | None = None
    held: list[tuple[float, float]] = field(default_factory=list)
    num_failures: int = 0


def simulate(
    arrivals: Sequence[Arrival],
    pools: Sequence[Pool],
    world: World | None = None,
    *,
    teams: Sequence[Team] = (),
    rules: SchedulingPolicy = DEFAULT,
    report: Callable[[int, float], None] | None = None,
) -> Outcome:
    """Replay arrivals on the pools' nodes until nothing changes any more.

    Args:
        teams: Teams with guarantees or limits; other teams have neither.
        rules: Scheduling policy; the default one if omitted.
        report: Called after each instant with the number of ended runs and the simulated seconds.

    Raises:
        InvalidSpec: The assumptions do not match the pools.
    """
    world = World() if world is None else world
    groups = groups_of(pools, world.simulations)
    every_node = tuple(node for group in groups for node in group.nodes())
    programs = programs_of(world.simulations)
    by_name: dict[tuple[str, str], Arrival] = {(a.spec.team, a.spec.name): a for a in arrivals}

    def behave(spec: Training, attempt: int) -> SimulatedProgram:
        return _program(by_name[spec.team, spec.name], programs)

    clock = Clock()
    began = clock.now()
    cluster = SimulatedCluster(
        first_nodes(groups),
        behave,
        clock,
        teams=teams,
        interference=interference_of(world.simulations),
        store=store_of(world.simulations),
        rules=rules,
    )
    if any(pool.partitions is not None for pool in pools):
        cluster.partition(
            {node.name: group.pool for group in groups if group.pool.partitions for node in group.nodes()}
        )  # fmt: skip
    surroundings = SimulatedEnvironment(cluster, groups, seed=world.seed)
    cache, debts = PassCache(), TeamDebts()
    pending = deque(sorted(arrivals, key=lambda arrival: arrival.at_s))
    patience_s = HOPELESS * (max((a.duration_s for a in arrivals), default=0.0) + programs.start_up_s + 3600.0)
    watched: dict[str, _Watched] = {}
    seen_event = num_decisions = num_ended = 0
    moved_at = began
    while True:
        now = clock.now()
        while pending and began + pending[0].at_s <= now:
            arrival = pending.popleft()
            watched[cluster.submit(complete(arrival.spec, every_node).spec).uid] = _Watched(arrival)
            moved_at = now
        num_decisions += _settle(cluster, surroundings, cache, debts, now)
        for event in cluster.events(after=seen_event):
            seen_event = event.id
            if _follow(watched[event.workload_uid], event.type, _after(began, event.at)):
                num_ended += 1
                moved_at = now
        if report is not None:
            report(num_ended, now - began)
        snapshot = cluster.snapshot()
        if not pending and not snapshot.workloads:
            break
        cache.look(snapshot)
        next_at = next_decision_at(snapshot, now, cache.timed.values())
        until = min((began + pending[0].at_s if pending else math.inf), next_at)
        if until == cluster.next_at == math.inf and not surroundings.may_help:
            break  # the remaining runs wait for an event that cannot occur
        until = min(until, surroundings.next_at)
        if not pending and now - moved_at > patience_s:
            break
        cluster.go_on(until)
    return _outcome(cluster, surroundings, watched, pools, began, num_decisions)


def declared(arrivals: Sequence[Arrival], factor: float, world: World) -> tuple[Arrival, ...]:
    """Return the runs, with ``max_duration`` set to ``factor`` times their duration where a spec has none."""
    start_up_s = programs_of(world.simulations).start_up_s
    return tuple(
        arrival
        if arrival.spec.max_duration_s is not None
        else replace(
            arrival, spec=replace(arrival.spec, max_duration_s=factor * (arrival.duration_s + start_up_s) + 1.0)
        )
        for arrival in arrivals
    )


def expected(arrivals: Sequence[Arrival], factor: float) -> tuple[Arrival, ...]:
    """Return the runs, with ``expected_duration`` set to ``factor`` times their duration where a spec has none."""
    return tuple(
        arrival
        if arrival.spec.expected_duration_s is not None or not arrival.duration_s
        else replace(arrival, spec=replace(arrival.spec, expected_duration_s=factor * arrival.duration_s))
        for arrival in arrivals
    )


def never_fits(arrivals: Sequence[Arrival], pools: Sequence[Pool]) -> tuple[Reason, ...]:
    """Return why some runs could not run even on the empty cluster; one reason per shape."""
    nodes = _nodes_of(pools)
    shapes = {(a.spec.nodes, a.spec.resources, a.spec.capacity): a.spec for a in arrivals}
    reasons = (why_never(complete(spec, nodes).spec, nodes) for spec in shapes.values())
    return tuple(reason for reason in reasons if reason is not None)


def _nodes_of(pools: Iterable[Pool]) -> tuple[Node, ...]:
    """Return every node, and a copy of it in each of its possible layouts."""
    nodes = tuple((group.pool, node) for group in groups_of(tuple(pools)) for node in group.nodes())
    others = (
        replace(node, gpus=in_layout(pool, layout, node.name))
        for pool, node in nodes
        for layout in (pool.partitions.layouts if pool.partitions else ())
    )
    return (*(node for _, node in nodes), *others)


def _program(arrival: Arrival, programs: Programs) -> SimulatedProgram:
    """Return the simulated program of a run: its own line of the trace takes precedence over common assumptions."""
    start_up_s, save_s = arrival.start_up_s, arrival.save_s
    cost_s = programs.checkpoint_s if arrival.checkpoint_s is None else arrival.checkpoint_s
    return SimulatedProgram(
        duration_s=arrival.duration_s,
        start_s=programs.start_up_s if start_up_s is None else start_up_s,
        # An elastic gang grows only after a checkpoint.
        step_s=programs.step_s if arrival.spec.most_nodes is None else programs.step_s or STEP_S,
        checkpoint_s=_interval_s(arrival.spec, programs, cost_s),
        checkpoint_cost_s=cost_s,
        on_term=OnTerm.CHECKPOINT,
        save_s=programs.save_s if save_s is None else save_s,
        profile=arrival.profile,
        reads=arrival.reads,
    )


def _interval_s(spec: Training, programs: Programs, cost_s: float) -> float:
    """Return the seconds of work between checkpoints; for `every: auto` the initial interval, before any failure."""
    if spec.checkpoint.every_auto:
        return SaveInterval(ranks=spec.world_size, blocked_s=cost_s).seconds
    return spec.checkpoint.every_s or programs.checkpoint_every_s


def _settle(
    cluster: SimulatedCluster, surroundings: SimulatedEnvironment, cache: PassCache, debts: TeamDebts, now: float
) -> int:
    """Process all events and decisions of one instant; return the number of passes."""
    happened = surroundings.step(now)
    for number in range(1, MOST_PASSES + 1):
        result = make_pass(cluster, now, cache=cache, debts=debts)
        if not result.has_changed and not happened:
            return number
        happened = surroundings.step(now)
        if result.is_last and not happened:
            return number
    raise RuntimeError(f"decisions at one instant, {now:.0f} s, came to no end")


def _follow(watched: _Watched, type_: str, at_s: float) -> bool:
    """Record a change of phase; return whether it ends the run."""
    phase = next((phase for phase in Phase if phase.value == type_), None)
    if phase is None:
        return False
    watched.num_failures += phase is Phase.RESTARTING
    if phase in HOLDING and watched.holding_since is None:
        watched.holding_since = at_s
    elif phase not in HOLDING and watched.holding_since is not None:
        watched.held.append((watched.holding_since, at_s))
        watched.holding_since = None
    return phase.is_final


def _outcome(
    cluster: SimulatedCluster,
    surroundings: SimulatedEnvironment,
    watched: dict[str, _Watched],
    pools: Sequence[Pool],
    began: float,
    num_decisions: int,
) -> Outcome:
    ended_s = _after(began, cluster.clock.now())
    last = {workload.uid: workload for workload in cluster.workloads()}
    pods, nodes = cluster.accounts()
    pods_of: defaultdict[str, list[PodTime]] = defaultdict(list)
    for pod in pods:
        pods_of[pod.workload_uid].append(pod)
    prices = prices_of(pools)
    return Outcome(
        runs=tuple(_simulated(w, last[uid], pods_of[uid], prices, began, ended_s) for uid, w in watched.items()),
        pods=tuple(replace(pod, created_at=pod.created_at - began, ended_at=pod.ended_at - began) for pod in pods),
        nodes=tuple(node._replace(since=node.since - began, until=node.until - began) for node in nodes),
        pools=tuple(pools),
        ended_s=ended_s,
        num_decisions=num_decisions,
        taken_out=tuple(
            replace(out, since=out.since - began, until=None if out.until is None else out.until - began)
            for out in surroundings.taken_out
        ),
        store_gb=cluster.store_gb,
    )


def _after(began: float, at: float) -> float:
    """Return the seconds from the clock's first time to another.

    The clock counts from 1970, where a float is exact only to a tenth of a microsecond. Rounding to microseconds makes
    the wait of a run that starts on arrival 0 s instead of -1e-08 s.
    """
    return round(at - began, 6)


def _simulated(
    watched: _Watched,
    workload: Workload,
    pods: Iterable[PodTime],
    prices: dict[str, float],
    began: float,
    ended_s: float,
) -> Simulated:
    held = list(watched.held)
    if watched.holding_since is not None:
        held.append((watched.holding_since, ended_s))
    finished = workload.status.finished_at
    return Simulated(
        name=workload.spec.name,
        team=workload.spec.team,
        num_gpus=watched.arrival.num_gpus,
        arrived_s=_after(0.0, watched.arrival.at_s),
        duration_s=watched.arrival.duration_s,
        phase=workload.status.phase,
        reason=workload.status.reason,
        held=tuple(held),
        ended_s=None if finished is None else _after(began, finished),
        spent=spent_by(pods, prices),
        num_failures=watched.num_failures,
    )
