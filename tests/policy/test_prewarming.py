"""Nodes of pools that are there before runs wait for them: by a forecast, at peaks, and given back without harm."""

from dataclasses import replace

from fairlead.control.simulation import World, simulate
from fairlead.policy.capacity.prewarming import needed_nodes
from fairlead.policy.decide import decide
from fairlead.policy.next_decision import decision_times
from fairlead.specs.pool import Hardware, Peak, Pool, Prewarm
from fairlead.specs.resources import Resources
from fairlead.specs.simulation import Provisioning, Simulation
from fairlead.state.pool_demand import PoolDemand, Standby
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Snapshot, Workload
from fairlead.traces.arrivals import Arrival
from tests.builders import GIB, node, status, training

# Monday, 2020-01-06, 0 o'clock UTC.
MONDAY = 1_578_268_800.0
HOUR_S = 3600.0
POOL = Pool(name="p", nodes=8, hardware=Hardware(cpu_milli=4000, memory_bytes=8 * GIB))
MORNING = replace(POOL, peaks={"morning": Peak(at="0 8 * * 1-5", nodes=3, for_s=2 * HOUR_S)})


def decided(pool: Pool, now: float, **changes: object) -> tuple[Standby, ...] | None:
    demand = PoolDemand(pool=pool, **changes)  # type: ignore[arg-type]  # of several types
    return decide(Snapshot(nodes=(), workloads=(), pods=(), pools=(demand,)), now).standby


def test_nodes_of_a_peak_are_asked_for_as_long_before_as_they_take_to_come() -> None:
    at = MONDAY + 8 * HOUR_S
    held = (Standby(pool="p", nodes=3, why="the peak morning asks for 3 nodes"),)
    assert decided(MORNING, at - 301.0, lead_s=300.0) is None
    assert decided(MORNING, at - 299.0, lead_s=300.0) == held
    assert decided(MORNING, at + 2 * HOUR_S - 1.0) == held
    assert decided(MORNING, at + 2 * HOUR_S) is None
    assert decided(MORNING, at - 2 * 24 * HOUR_S) is None  # a Saturday


def test_a_loop_wakes_when_a_peak_comes() -> None:
    demand = PoolDemand(pool=MORNING, lead_s=300.0)
    snapshot = Snapshot(nodes=(), workloads=(), pods=(), pools=(demand,))
    times = [at for at in decision_times(snapshot, MONDAY) if at > MONDAY]
    assert min(times) == MONDAY + 8 * HOUR_S - 300.0


def test_what_a_forecast_asks_for_has_its_bounds() -> None:
    past = (6,) * 60
    found = decided(replace(POOL, prewarm=Prewarm()), MONDAY, needed=past)
    assert found is not None
    assert [each.nodes for each in found] == [6]
    found = decided(replace(POOL, prewarm=Prewarm(most_nodes=2)), MONDAY, needed=past)
    assert found is not None
    assert [each.nodes for each in found] == [2]


def test_a_run_that_asks_counts_as_the_nodes_that_it_lacks() -> None:
    spec = training(nodes=3, resources=Resources(cpu_milli=1500))
    asking = Workload(
        uid="r", spec=spec, intent=Intent.RUN, status=status(Phase.PENDING, asked_at=MONDAY), version=1,
        created_at=MONDAY,
    )  # fmt: skip
    pod = Pod(
        uid="o-0-0", workload_uid="o", attempt=0, index=0, node="p-0", grant=Grant(cpu_milli=1), created_at=MONDAY,
        phase=PodPhase.RUNNING,
    )  # fmt: skip
    demand = PoolDemand(pool=POOL, nodes=frozenset({"p-0", "p-1"}))
    snapshot = Snapshot(nodes=(node("p-0"),), workloads=(asking,), pods=(pod,))
    # Two of its members fit on one node.
    assert needed_nodes((demand,), snapshot) == (1 + 2,)


def simulated(pool: Pool, arrivals: list[Arrival]) -> tuple[list[float], float]:
    """Waits, and hours of nodes."""
    comes = Simulation(name="s", provisioning=Provisioning(delay_s=240.0, idle_s=60.0))
    outcome = simulate(arrivals, [pool], World(simulations=(comes,), seed=1))
    assert all(run.phase is Phase.SUCCEEDED and run.num_interruptions == 0 for run in outcome.runs)
    waits = [run.waited_s or 0.0 for run in outcome.runs]
    return waits, sum(each.until - each.since for each in outcome.nodes) / HOUR_S


def test_runs_that_come_each_morning_wait_for_no_node_once_that_is_known() -> None:
    spec = training(resources=Resources(cpu_milli=4000))
    arrivals = [
        Arrival(at_s=(24 * day + 8) * HOUR_S + 20.0 * n, duration_s=1800.0, spec=replace(spec, name=f"{day}-{n}"))
        for day in range(3)
        for n in range(3)
    ]
    reactive, _ = simulated(POOL, arrivals)
    assert min(reactive) > 200.0
    foreseen, hours = simulated(replace(POOL, prewarm=Prewarm(confidence=0.9)), arrivals)
    assert min(foreseen[:3]) > 200.0  # a morning is learnt from
    assert foreseen[3:] == [0.0] * 6
    # The nodes are given back: three days of three nodes that run half an hour each are 4.5 hours.
    assert hours < 12.0


def test_nodes_that_are_given_back_leave_whoever_runs_there() -> None:
    """A run that saves nothing is on the node of a peak that ends: it is not interrupted, and the others go."""
    # The simulated clock begins at 1:46 in the morning.
    pool = replace(POOL, peaks={"early": Peak(at="0 3 * * *", nodes=3, for_s=HOUR_S)})
    spec = training(resources=Resources(cpu_milli=4000))
    waits, hours = simulated(pool, [Arrival(at_s=1.5 * HOUR_S, duration_s=4 * HOUR_S, spec=spec)])
    assert waits == [0.0]
    assert hours < 3 * (1 + 300 / HOUR_S) + 3.6 + 0.2
