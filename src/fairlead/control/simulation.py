"""A trace through the production loop on a simulated cluster.

The loop is the one of every cluster: load, decide, apply. Only the clock, the arrivals and what happens to nodes are
made up here.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace

from fairlead.cluster.simulated.accounts import PodTime
from fairlead.cluster.simulated.clock import Clock
from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.environment import SimulatedEnvironment, first_nodes
from fairlead.cluster.simulated.groups import groups_of, interference_of, programs_of
from fairlead.cluster.simulated.programs import OnTerm, Program
from fairlead.control.loop import run_pass
from fairlead.control.outcomes import Outcome, Simulated
from fairlead.control.spending import prices_of, spent_by
from fairlead.frozen import dataclass
from fairlead.policy.gpu.device_inventory import in_layout
from fairlead.policy.kinds.defaults import complete
from fairlead.policy.next_decision import next_decision_at
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.placement.placement import why_never
from fairlead.runtime.save_interval import Interval
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
"""More at one instant than any sound decision needs."""
STEP_S = 1.0
HOPELESS = 20.0
"""Where for so many times the longest run nothing has ended, what is left fails again before it saves anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Assumptions of a simulation beside the trace and the pools.

    Attributes:
        seed: The same seed, trace and pools give the same outcome.
    """

    simulations: tuple[Simulation, ...] = ()
    seed: int = 0


@dataclass(slots=True)
class _Watched:
    arrival: Arrival
    holding_since: float | None = None
    held: list[tuple[float, float]] = field(default_factory=list)


def simulate(
    arrivals: Sequence[Arrival],
    pools: Sequence[Pool],
    world: World | None = None,
    *,
    teams: Sequence[Team] = (),
    rules: SchedulingPolicy = DEFAULT,
    told: Callable[[int, float], None] | None = None,
) -> Outcome:
    """Replay arrivals on the pools' nodes until nothing moves any more.

    Args:
        teams: Those that are guaranteed or allowed something; others have nothing of the kind.
        rules: Which queue; the one that runs get by default when left out.
        told: Called now and then with the number of runs that have ended and the seconds simulated.

    Raises:
        InvalidSpec: What the world says does not suit the pools.
    """
    world = World() if world is None else world
    groups = groups_of(pools, world.simulations)
    every_node = tuple(node for group in groups for node in group.nodes())
    programs = programs_of(world.simulations)
    by_name: dict[tuple[str, str], Arrival] = {(a.spec.team, a.spec.name): a for a in arrivals}

    def behave(spec: Training, attempt: int) -> Program:
        return _program(by_name[spec.team, spec.name], programs)

    clock = Clock()
    began = clock.now()
    cluster = SimulatedCluster(
        first_nodes(groups), behave, clock, teams=teams, interference=interference_of(world.simulations), rules=rules
    )
    if any(pool.partitions is not None for pool in pools):
        cluster.partition(
            {node.name: group.pool for group in groups if group.pool.partitions for node in group.nodes()}
        )  # fmt: skip
    surroundings = SimulatedEnvironment(cluster, groups, seed=world.seed)
    cache = PassCache()
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
        num_decisions += _settle(cluster, surroundings, cache, now)
        for event in cluster.events(after=seen_event):
            seen_event = event.id
            if _follow(watched[event.workload_uid], event.type, _after(began, event.at)):
                num_ended += 1
                moved_at = now
        if told is not None:
            told(num_ended, now - began)
        snapshot = cluster.snapshot()
        if not pending and not snapshot.workloads:
            break
        cache.look(snapshot)
        next_at = next_decision_at(snapshot, now, cache.timed.values())
        until = min((began + pending[0].at_s if pending else math.inf), next_at)
        if until == cluster.next_at == math.inf and not surroundings.may_help:
            break  # what is left waits for something that never comes
        until = min(until, surroundings.next_at)
        if not pending and now - moved_at > patience_s:
            break
        cluster.go_on(until)
    return _outcome(cluster, watched, pools, began, num_decisions)


def declared(arrivals: Sequence[Arrival], factor: float, world: World) -> tuple[Arrival, ...]:
    """The runs, each with a ``max_duration`` of so many times what it takes, where its spec says none."""
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
    """The runs, each with an ``expected_duration`` of so many times what it takes, where its spec says none."""
    return tuple(
        arrival
        if arrival.spec.expected_duration_s is not None or not arrival.duration_s
        else replace(arrival, spec=replace(arrival.spec, expected_duration_s=factor * arrival.duration_s))
        for arrival in arrivals
    )


def never_fits(arrivals: Sequence[Arrival], pools: Sequence[Pool]) -> tuple[Reason, ...]:
    """Tell why some runs could not run even on the empty cluster; one reason for each shape."""
    nodes = _nodes_of(pools)
    shapes = {(a.spec.nodes, a.spec.resources, a.spec.capacity): a.spec for a in arrivals}
    reasons = (why_never(complete(spec, nodes).spec, nodes) for spec in shapes.values())
    return tuple(reason for reason in reasons if reason is not None)


def _nodes_of(pools: Iterable[Pool]) -> tuple[Node, ...]:
    """Every node, and again in each of the layouts that it may have."""
    nodes = tuple((group.pool, node) for group in groups_of(tuple(pools)) for node in group.nodes())
    others = (
        replace(node, gpus=in_layout(pool, layout, node.name))
        for pool, node in nodes
        for layout in (pool.partitions.layouts if pool.partitions else ())
    )
    return (*(node for _, node in nodes), *others)


def _program(arrival: Arrival, programs: Programs) -> Program:
    """Tell how a run goes: its own line of the trace outweighs what is assumed of all."""
    start_up_s, save_s = arrival.start_up_s, arrival.save_s
    cost_s = programs.checkpoint_s if arrival.checkpoint_s is None else arrival.checkpoint_s
    return Program(
        duration_s=arrival.duration_s,
        start_s=programs.start_up_s if start_up_s is None else start_up_s,
        # An elastic gang grows only when it has shown that it saves.
        step_s=programs.step_s if arrival.spec.most_nodes is None else programs.step_s or STEP_S,
        checkpoint_s=_interval_s(arrival.spec, programs, cost_s),
        checkpoint_cost_s=cost_s,
        on_term=OnTerm.CHECKPOINT,
        save_s=programs.save_s if save_s is None else save_s,
        profile=arrival.profile,
    )


def _interval_s(spec: Training, programs: Programs, cost_s: float) -> float:
    """Seconds of work between checkpoints; of `every: auto` as the run itself begins, before it has seen a failure."""
    if spec.checkpoint.every_auto:
        return Interval(ranks=spec.world_size, blocked_s=cost_s).seconds
    return spec.checkpoint.every_s or programs.checkpoint_every_s


def _settle(cluster: SimulatedCluster, surroundings: SimulatedEnvironment, cache: PassCache, now: float) -> int:
    """Let happen and decide all that is to be at one instant; how many decisions it took."""
    for number in range(1, MOST_PASSES + 1):
        happened = surroundings.step(now)
        if not run_pass(cluster, now, cache=cache) and not happened:
            return number
    raise RuntimeError(f"decisions at one instant, {now:.0f} s, came to no end")


def _follow(watched: _Watched, type_: str, at_s: float) -> bool:
    """Note a change of phase; whether it is the end of the run."""
    phase = next((phase for phase in Phase if phase.value == type_), None)
    if phase is None:
        return False
    if phase in HOLDING and watched.holding_since is None:
        watched.holding_since = at_s
    elif phase not in HOLDING and watched.holding_since is not None:
        watched.held.append((watched.holding_since, at_s))
        watched.holding_since = None
    return phase.is_final


def _outcome(
    cluster: SimulatedCluster, watched: dict[str, _Watched], pools: Sequence[Pool], began: float, num_decisions: int
) -> Outcome:
    ended_s = _after(began, cluster.clock.now())
    last = {workload.uid: workload for workload in cluster.workloads()}
    pods, nodes = cluster.accounts()
    pods_of: defaultdict[str, list[PodTime]] = defaultdict(list)
    for pod in pods:
        pods_of[pod.workload_uid].append(pod)
    prices = prices_of(pools)
    return Outcome(
        runs=tuple(_told(w, last[uid], pods_of[uid], prices, began, ended_s) for uid, w in watched.items()),
        pods=tuple(replace(pod, created_at=pod.created_at - began, ended_at=pod.ended_at - began) for pod in pods),
        nodes=tuple(node._replace(since=node.since - began, until=node.until - began) for node in nodes),
        pools=tuple(pools),
        ended_s=ended_s,
        num_decisions=num_decisions,
    )


def _after(began: float, at: float) -> float:
    """Seconds from the clock's first time to another.

    The clock counts from 1970, where a float is exact to a tenth of a microsecond only: what lies below a microsecond
    is left away, so that one who starts when it arrives has waited 0 s and not -1e-08 s.
    """
    return round(at - began, 6)


def _told(
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
    )
