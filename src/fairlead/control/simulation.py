"""A trace through the production loop on a simulated cluster, and what came of it.

The loop is the one of every cluster: load, decide, apply. Only the clock and the arrivals are made up here.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from fairlead.cluster.simulated.clock import Clock
from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import LoseNode, ReturnNode
from fairlead.cluster.simulated.programs import OnTerm, Program
from fairlead.control.loop import run_pass
from fairlead.policy.defaults import complete
from fairlead.policy.handing import handed_out
from fairlead.policy.placement import why_never
from fairlead.policy.rules import DEFAULT, Rules
from fairlead.specs.pool import Pool
from fairlead.specs.team import Team
from fairlead.specs.training import Training
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Node, Phase, Workload
from fairlead.traces.arrivals import Arrival

HOLDING = frozenset((Phase.STARTING, Phase.RUNNING, Phase.STOPPING))
MOST_PASSES = 1_000
"""More at one instant than any sound decision needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a simulation assumes beside the trace.

    Attributes:
        start_s: Seconds from the placement of a gang until its ranks work.
        checkpoint_s: Seconds of work between checkpoints of runs whose spec says nothing about it in seconds.
        save_s: Seconds that a checkpoint at a stop notice takes; None where programs save nothing then.
        node_mtbf_s: Mean time between failures of one node, exponentially distributed; None for no failures.
        repair_s: How long a failed node stays away.
        seed: The same seed and trace give the same outcome.
    """

    start_s: float = 0.0
    checkpoint_s: float = 600.0
    save_s: float | None = 10.0
    node_mtbf_s: float | None = None
    repair_s: float = 3600.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What became of one run. Times are seconds after the beginning of the trace.

    Attributes:
        held: When it held its nodes, as (from, to).
        ended_s: When it came to a final phase; None when it never did.
    """

    name: str
    team: str
    num_gpus: float
    arrived_s: float
    duration_s: float
    phase: Phase
    reason: Reason
    held: tuple[tuple[float, float], ...]
    ended_s: float | None

    @property
    def started_s(self) -> float | None:
        """When it was first placed."""
        return self.held[0][0] if self.held else None

    @property
    def waited_s(self) -> float | None:
        """From its arrival to its first placement."""
        return self.held[0][0] - self.arrived_s if self.held else None

    @property
    def completion_s(self) -> float | None:
        """From its arrival to its end."""
        return None if self.ended_s is None else self.ended_s - self.arrived_s

    @property
    def num_interruptions(self) -> int:
        """How often it lost its nodes and got some again."""
        return max(0, len(self.held) - 1)

    @property
    def gpu_s(self) -> float:
        """GPU-seconds that it held."""
        return self.num_gpus * sum(end - start for start, end in self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A whole simulation.

    Attributes:
        runs: In order of arrival.
        num_gpus: GPUs of the cluster.
        price_per_hour: Of all nodes together; None when some pool has no price.
        ended_s: When the last run ended, or the trace stopped moving.
    """

    runs: tuple[Simulated, ...]
    num_nodes: int
    num_gpus: int
    price_per_hour: float | None
    ended_s: float
    num_decisions: int


@dataclass(slots=True)
class _Watched:
    arrival: Arrival
    holding_since: float | None = None
    held: list[tuple[float, float]] = field(default_factory=list)


def nodes_of(pools: Iterable[Pool]) -> tuple[Node, ...]:
    """Every node that the pools may have, named ``<pool>-<number>``."""
    nodes = []
    for pool in pools:
        gpu = pool.hardware.gpu
        for number in range(pool.nodes):
            name = f"{pool.name}-{number}"
            gpus = () if gpu is None else handed_out(gpu, name)
            hardware = pool.hardware
            nodes.append(
                Node(
                    name=name,
                    cpu_milli=hardware.cpu_milli,
                    memory_bytes=hardware.memory_bytes,
                    gpus=gpus,
                    labels=pool.labels,
                )
            )
    return tuple(nodes)


def simulate(
    arrivals: Sequence[Arrival],
    pools: Sequence[Pool],
    world: World | None = None,
    *,
    teams: Sequence[Team] = (),
    rules: Rules = DEFAULT,
    told: Callable[[int, float], None] | None = None,
) -> Outcome:
    """Replay arrivals on the pools' nodes until nothing moves any more.

    Args:
        teams: Those that are guaranteed or allowed something; others have nothing of the kind.
        rules: Which queue; the one that runs get for real when left out.
        told: Called now and then with the number of runs that have ended and the seconds simulated.
    """
    world = World() if world is None else world
    nodes = nodes_of(pools)
    by_name: dict[tuple[str, str], Arrival] = {(a.spec.team, a.spec.name): a for a in arrivals}

    def behave(spec: Training, attempt: int) -> Program:
        every_s = spec.checkpoint.every_s or world.checkpoint_s
        return Program(
            duration_s=by_name[spec.team, spec.name].duration_s,
            start_s=world.start_s,
            checkpoint_s=every_s,
            on_term=OnTerm.EXIT if world.save_s is None else OnTerm.CHECKPOINT,
            save_s=world.save_s or 0.0,
        )

    clock = Clock()
    began = clock.now()
    cluster = SimulatedCluster(nodes, behave, clock, teams=teams)
    _schedule_failures(cluster, nodes, arrivals, world, began)
    pending = deque(sorted(arrivals, key=lambda arrival: arrival.at_s))
    watched: dict[str, _Watched] = {}
    seen_event = num_decisions = num_ended = 0
    while True:
        now = clock.now()
        while pending and began + pending[0].at_s <= now:
            arrival = pending.popleft()
            watched[cluster.submit(complete(arrival.spec, nodes).spec).uid] = _Watched(arrival)
        for _ in range(MOST_PASSES):
            num_decisions += 1
            if not run_pass(cluster, now, rules):
                break
        else:
            raise RuntimeError(f"decisions at one instant, {now - began:.0f} s, came to no end")
        for event in cluster.events(after=seen_event):
            seen_event = event.id
            num_ended += _follow(watched[event.workload_uid], event.type, event.at - began)
        if told is not None:
            told(num_ended, now - began)
        active = cluster.snapshot().workloads
        if not pending and not active:
            break
        until = min((began + pending[0].at_s if pending else math.inf), _next_deadline(active, now))
        if until == cluster.next_at == math.inf:
            break  # what is left waits for something that never comes
        cluster.wait(until - now)
    ended_s = clock.now() - began
    last = {workload.uid: workload for workload in cluster.workloads()}
    return Outcome(
        runs=tuple(_told(w, last[uid], began, ended_s) for uid, w in watched.items()),
        num_nodes=len(nodes),
        num_gpus=sum(pool.nodes * pool.hardware.gpu.count for pool in pools if pool.hardware.gpu is not None),
        price_per_hour=_price(pools),
        ended_s=ended_s,
        num_decisions=num_decisions,
    )


def declared(arrivals: Sequence[Arrival], factor: float, world: World) -> tuple[Arrival, ...]:
    """The runs, each with a ``max_duration`` of so many times what it takes, where its spec says none."""
    return tuple(
        arrival
        if arrival.spec.max_duration_s is not None
        else replace(
            arrival, spec=replace(arrival.spec, max_duration_s=factor * (arrival.duration_s + world.start_s) + 1.0)
        )
        for arrival in arrivals
    )


def never_fits(arrivals: Sequence[Arrival], pools: Sequence[Pool]) -> tuple[Reason, ...]:
    """Why some runs could not run even on the empty cluster; one reason for each shape."""
    nodes = nodes_of(pools)
    shapes = {(a.spec.nodes, a.spec.resources): a.spec for a in arrivals}
    reasons = (why_never(complete(spec, nodes).spec, nodes) for spec in shapes.values())
    return tuple(reason for reason in reasons if reason is not None)


def _follow(watched: _Watched, type_: str, at_s: float) -> int:
    """Note a change of phase; 1 when it is the end of the run."""
    phase = next((phase for phase in Phase if phase.value == type_), None)
    if phase is None:
        return 0
    if phase in HOLDING and watched.holding_since is None:
        watched.holding_since = at_s
    elif phase not in HOLDING and watched.holding_since is not None:
        watched.held.append((watched.holding_since, at_s))
        watched.holding_since = None
    return int(phase.is_final)


def _told(watched: _Watched, workload: Workload, began: float, ended_s: float) -> Simulated:
    held = list(watched.held)
    if watched.holding_since is not None:
        held.append((watched.holding_since, ended_s))
    finished = workload.status.finished_at
    return Simulated(
        name=workload.spec.name,
        team=workload.spec.team,
        num_gpus=watched.arrival.num_gpus,
        arrived_s=watched.arrival.at_s,
        duration_s=watched.arrival.duration_s,
        phase=workload.status.phase,
        reason=workload.status.reason,
        held=tuple(held),
        ended_s=None if finished is None else finished - began,
    )


def _next_deadline(workloads: Iterable[Workload], now: float) -> float:
    """When a decision may next change without anything happening: a backoff ends, or a run has had its time."""
    times = [math.inf]
    for workload in workloads:
        status, limit = workload.status, workload.spec.max_duration_s
        if status.phase is Phase.RESTARTING and status.retry_at is not None:
            times.append(status.retry_at)
        if limit is not None and status.started_at is not None and not status.phase.is_final:
            times.append(status.started_at + limit)
    return min(time for time in times if time > now)


def _schedule_failures(
    cluster: SimulatedCluster, nodes: Sequence[Node], arrivals: Sequence[Arrival], world: World, began: float
) -> None:
    """Failures of every node up to the last arrival and as long again, each node with a stream of its own."""
    if world.node_mtbf_s is None or not arrivals:
        return
    horizon_s = 2 * max(arrival.at_s + arrival.duration_s for arrival in arrivals)
    for node in nodes:
        stream = random.Random(f"{world.seed}/{node.name}")
        at_s = stream.expovariate(1 / world.node_mtbf_s)
        while at_s < horizon_s:
            cluster.inject(LoseNode(node=node.name), at=began + at_s)
            cluster.inject(ReturnNode(node=node.name), at=began + at_s + world.repair_s)
            at_s += world.repair_s + stream.expovariate(1 / world.node_mtbf_s)


def _price(pools: Sequence[Pool]) -> float | None:
    prices = [None if pool.price_per_hour is None else pool.nodes * pool.price_per_hour for pool in pools]
    return None if None in prices else sum(price for price in prices if price is not None)
