"""Kinds of fault, each with the alerts that it is to fire and no others. It begins after ``BEFORE_MIN`` minutes."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

from fairlead.cluster.simulated.faults import AddNode, LoseNode, LosePod, RemoveNode, ReturnNode, WarnNode
from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.control.health import METRICS
from fairlead.control.metrics.readings import Readings
from fairlead.gateway.routes import read_routes
from fairlead.gateway.services import ServiceTable
from fairlead.specs.resources import Resources
from fairlead.specs.serving import Serving
from fairlead.specs.team import Budget, Team
from fairlead.specs.training import Retry
from tests.builders import node
from tests.gateway.parts import service
from tests.metrics.world import FOREVER, World, gpus, with_gpus

BEFORE_MIN = 60.0
Fault = Callable[[World], None]


def served() -> Serving:
    return Serving(name="web", team="research", run="serve", replicas=2, resources=Resources(cpu_milli=200))


def nothing(world: World) -> None:
    world.go_on(240)


def busy_but_well(world: World) -> None:
    """Runs come and go, one fails once, one node is gone for two minutes: no reason to wake anybody."""
    for number in range(8):
        world.submit(gpus(1, name=f"short-{number}"), replace(FOREVER, duration_s=1200.0))
        world.go_on(10)
    world.submit(gpus(1, name="fails", retry=Retry(program=0)), SimulatedProgram(duration_s=60.0, exit_code=1))
    world.cluster.inject(LoseNode(node="node-0"))
    world.go_on(2)
    world.cluster.inject(ReturnNode(node="node-0"))
    world.go_on(120)


def a_node_breaks(world: World) -> None:
    world.cluster.inject(LoseNode(node="node-0"))
    world.go_on(30)
    world.cluster.inject(ReturnNode(node="node-0"))
    world.go_on(60)


def a_node_hangs_before_anything_is_on_it(world: World) -> None:
    used = {pod.node for pod in world.cluster.snapshot().pods if not pod.phase.is_final}
    (other,) = {"node-0", "node-1"} - used
    world.cluster.inject(LoseNode(node=other))
    world.go_on(30)


def nodes_break_again_and_again(world: World) -> None:
    for _ in range(3):
        for pod in world.cluster.snapshot().pods:
            if not pod.phase.is_final:
                world.cluster.inject(LoseNode(node=pod.node))
        world.go_on(2)
        for number in range(2):
            world.cluster.inject(ReturnNode(node=f"node-{number}"))
        world.go_on(8)


def pods_vanish(world: World) -> None:
    """Of three runs each once: none restarts often, but the nodes are not well."""
    for number in range(3):
        world.submit(gpus(1, name=f"other-{number}"))
    world.go_on(10)
    for pod in world.cluster.snapshot().pods:
        if not pod.phase.is_final:
            world.cluster.inject(LosePod(pod_uid=pod.uid))
    world.go_on(60)


def spot_nodes_are_taken_away_with_notice(world: World) -> None:
    """Two runs, each of which is warned twice, saves, loses its node and goes on when it is back: that is no fault."""
    world.submit(gpus(4, name="second"))
    world.go_on(6)
    for _ in range(2):
        for name in ("node-0", "node-1"):
            world.cluster.inject(WarnNode(node=name, why="spot reclaim", within_s=60.0))
        world.go_on(2)
        for name in ("node-0", "node-1"):
            world.cluster.inject(RemoveNode(node=name))
        world.go_on(2)
        for name in ("node-0", "node-1"):
            world.cluster.inject(AddNode(node=node(name, gpus=4, price_per_hour=8.0)))
        world.go_on(10)


def the_loop_is_gone(world: World) -> None:
    world.is_looked_after = False
    world.go_on(20)
    world.is_looked_after = True
    world.go_on(20)


def nobody_scrapes(world: World) -> None:
    world.is_scraped = False
    world.go_on(30)
    world.is_scraped = True
    world.go_on(20)


def decisions_take_long(world: World) -> None:
    for _ in range(20):
        world.counts.decisions.add(30_000.0)
        world.go_on(2)


def a_run_waits_for_room(world: World) -> None:
    for number in range(2):
        world.submit(gpus(4, name=f"large-{number}"))
    world.go_on(300)


def a_run_waits_for_money(world: World) -> None:
    world.submit(gpus(1, name="poor", max_cost=5.0))
    world.go_on(60)


def a_run_does_not_start(world: World) -> None:
    world.submit(gpus(1, name="slow"), replace(FOREVER, start_s=1200.0))
    world.go_on(180)


def a_start_takes_most_of_the_time(world: World) -> None:
    """Two pods that start for 880 s each: when they have held an hour together, little more than half was useful."""
    world.submit(gpus(1, name="slow", nodes=2), replace(FOREVER, start_s=880.0))
    world.go_on(120)


def a_run_hangs(world: World) -> None:
    world.submit(gpus(1, name="hung"), replace(FOREVER, duration_s=1e6, hangs_after_s=600.0))
    world.go_on(14)
    world.busy["hung"] = 0.0
    world.go_on(90)


def a_run_never_saves(world: World) -> None:
    world.submit(gpus(1, name="careless"), replace(FOREVER, checkpoint_s=None))
    world.go_on(120)


def saves_fail(world: World) -> None:
    def change(readings: Readings) -> Readings:
        runs = tuple(
            replace(run, progress=replace(run.progress, saves_failed=3, save_failed_step=7, save_problem="disk full"))
            if run.progress is not None
            else run
            for run in readings.seen.workloads
        )
        return replace(readings, seen=replace(readings.seen, workloads=runs))

    world.change = change
    world.go_on(30)


def a_program_crashes_again_and_again(world: World) -> None:
    world.submit(
        gpus(1, name="crashes", retry=Retry(program=5)), replace(FOREVER, duration_s=120.0, step_s=None, exit_code=1)
    )
    world.go_on(90)


def several_runs_fail(world: World) -> None:
    for number in range(4):
        world.submit(
            gpus(1, name=f"bad-{number}", retry=Retry(program=0)), SimulatedProgram(duration_s=30.0, exit_code=1)
        )
        world.go_on(6)
    world.go_on(30)


def gpus_are_half_idle(world: World) -> None:
    world.busy["steady"] = 0.3
    world.go_on(40)


def a_gpu_is_hot(world: World) -> None:
    world.change = lambda readings: with_gpus(readings, temperature_celsius=95.0)
    world.go_on(30)


def _with_budget(world: World, share: float) -> None:
    """Give the team a budget of which so much is spent by now."""
    spent = sum(amount for (team, _), amount in world.readings().month.items() if team == "research") / 1e6
    team = Team(name="research", budget=Budget(monthly=spent / share))
    world.change = lambda readings: replace(readings, seen=replace(readings.seen, teams=(team,)))


def a_budget_is_nearly_spent(world: World) -> None:
    _with_budget(world, 0.79)
    world.go_on(4)


def a_budget_is_spent(world: World) -> None:
    _with_budget(world, 0.9)
    world.go_on(40)


def a_run_nears_its_max_cost(world: World) -> None:
    def change(readings: Readings) -> Readings:
        runs = tuple(replace(run, spec=replace(run.spec, max_cost=6.0)) for run in readings.seen.workloads)
        return replace(readings, seen=replace(readings.seen, workloads=runs))

    world.change = change
    world.go_on(30)


def more_runs_than_series(world: World) -> None:
    world.most_runs = 1
    world.submit(gpus(1, name="second"))
    world.go_on(30)


def others_come_first_again_and_again(world: World) -> None:
    """Five runs that fill the cluster give way to one of a higher priority."""
    for number in range(6):
        world.submit(gpus(1, name=f"low-{number}", priority=-1))
    world.go_on(10)
    for number in range(2):
        world.submit(gpus(3, name=f"high-{number}", priority=100), replace(FOREVER, duration_s=900.0))
    world.go_on(40)


def an_endpoint_has_no_replica(world: World) -> None:
    """Both fail at their start, again and again."""
    crash = SimulatedProgram(duration_s=10.0, exit_code=1)
    for number in (1, 2):
        world.programs[f"web-r1-{number}"] = crash
    world.submit(served())
    world.go_on(60)


def an_endpoint_wakes_and_sleeps(world: World) -> None:
    world.submit(replace(served(), replicas=0, most_replicas=2))
    world.go_on(60)


def answered(world: World, *counts: tuple[int, int], minutes: int = 30) -> None:
    """Answers of a gateway for an endpoint, every two minutes so many with a status."""
    table: ServiceTable[object] = ServiceTable()
    routes = {"research/web": service(("web-1", 1))}
    table.update(read_routes(json.dumps({"version": 2, "services": routes}).encode()).services)
    world.gateway = SimpleNamespace(
        table=table,
        unrouted=Counter(),
        connections=(),
        refused_connections=0,
        defects=0,
        log_lines_lost=0,
        routes_problem=None,
    )
    tally = table.services["research/web"].metrics
    for status, _ in counts:
        tally.codes["r1", status] = 0
    for _ in range(minutes // 2):
        world.go_on(2)
        for status, count in counts:
            tally.codes["r1", status] += count


def an_endpoint_fails(world: World) -> None:
    answered(world, (200, 90), (500, 10))


def an_endpoint_is_full(world: World) -> None:
    answered(world, (200, 90), (429, 10))


def few_requests_fail(world: World) -> None:
    answered(world, (200, 300), (502, 3), (429, 3))
    answered(world, (500, 2))


def a_gateway_cannot_read_its_routes(world: World) -> None:
    answered(world, (200, 90), minutes=10)
    world.gateway.routes_problem = "it is of version 7"
    world.go_on(20)


def an_operator_sees_everything(world: World) -> None:
    """A quiet API server sends a bookmark a minute."""
    for minute in range(60):
        world.own = OWN | {"fairlead_watch_silent_seconds": float(minute % 3 * 30)}
        world.go_on(2)


def a_list_cannot_be_followed(world: World) -> None:
    for minute in range(10):
        world.own = OWN | {"fairlead_watch_stale_seconds": 120.0 * minute}
        world.go_on(2)


def a_watch_falls_silent(world: World) -> None:
    for minute in range(10):
        world.own = OWN | {"fairlead_watch_silent_seconds": 120.0 * minute}
        world.go_on(2)


def an_object_cannot_be_read(world: World) -> None:
    world.own = OWN | {"fairlead_unreadable_objects": 1.0}
    world.go_on(10)


def a_node_is_taken_out(world: World) -> None:
    world.own = OWN | {"fairlead_nodes_taken_out": 1.0}
    world.go_on(10)


def more_nodes_are_faulty_than_may_be_left(world: World) -> None:
    world.own = OWN | {"fairlead_nodes_faulty": 5.0, "fairlead_nodes_faulty_in_use": 4.0}
    world.go_on(20)


def the_operator_fails_at_a_run(world: World) -> None:
    for number in range(10):
        world.own = OWN | {"fairlead_internal_errors_total": float(number)}
        world.go_on(2)


OWN = dict.fromkeys(METRICS, 0.0)
FAULTS: dict[Fault, set[str]] = {
    nothing: set(),
    busy_but_well: set(),
    a_node_breaks: {"FairleadNodeNotReady"},
    a_node_hangs_before_anything_is_on_it: {"FairleadNodeNotReady"},
    nodes_break_again_and_again: {"FairleadNodesFail", "FairleadRunRestartsOften"},
    pods_vanish: {"FairleadNodesFail"},
    spot_nodes_are_taken_away_with_notice: set(),
    the_loop_is_gone: {"FairleadNoLoop"},
    nobody_scrapes: {"FairleadMetricsAbsent"},
    decisions_take_long: {"FairleadDecisionsSlow"},
    a_run_waits_for_room: {"FairleadQueueWaitsLong"},
    a_run_waits_for_money: {"FairleadWaitsForMoney"},
    a_run_does_not_start: {"FairleadRunStuckStarting"},
    a_start_takes_most_of_the_time: {"FairleadGoodputLow"},
    a_run_hangs: {"FairleadRunSilent", "FairleadCheckpointLate", "FairleadGpusIdle"},
    a_run_never_saves: {"FairleadCheckpointLate"},
    saves_fail: {"FairleadSavesFail"},
    a_program_crashes_again_and_again: {"FairleadRunRestartsOften"},
    several_runs_fail: {"FairleadRunsFail"},
    gpus_are_half_idle: {"FairleadGpusIdle"},
    a_gpu_is_hot: {"FairleadGpuHot"},
    a_budget_is_nearly_spent: {"FairleadBudgetNearlySpent"},
    a_budget_is_spent: {"FairleadBudgetNearlySpent", "FairleadBudgetSpent"},
    a_run_nears_its_max_cost: {"FairleadRunCostNearLimit"},
    others_come_first_again_and_again: {"FairleadPreemptionsMany"},
    more_runs_than_series: {"FairleadRunsLeftOut"},
    an_endpoint_has_no_replica: {"FairleadEndpointDown", "FairleadRunRestartsOften"},
    an_endpoint_wakes_and_sleeps: set(),
    an_endpoint_fails: {"FairleadEndpointErrors"},
    an_endpoint_is_full: {"FairleadEndpointRefuses"},
    few_requests_fail: set(),
    a_gateway_cannot_read_its_routes: {"FairleadGatewayRoutesInvalid"},
    an_operator_sees_everything: set(),
    a_list_cannot_be_followed: {"FairleadWatchStale"},
    a_watch_falls_silent: {"FairleadWatchStale"},
    an_object_cannot_be_read: {"FairleadUnreadableObjects"},
    a_node_is_taken_out: {"FairleadNodeTakenOut"},
    more_nodes_are_faulty_than_may_be_left: {"FairleadFaultyNodesInUse"},
    the_operator_fails_at_a_run: {"FairleadInternalErrors"},
}


def world_with(fault: Fault) -> World:
    """A world in which all was well for an hour, and then something happened."""
    world = World()
    world.go_on(BEFORE_MIN)
    fault(world)
    return world
