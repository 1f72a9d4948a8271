"""Decides when a run with ``capacity: {spot: auto}`` waits, uses spot or on-demand nodes, to meet its deadline.

``spot_schedule`` makes the decision; this module computes its inputs: the remaining work if unsaved work is lost, for
how long spot has had room for the run or had none, as recorded in the run's status, and the prices of nodes. A run that
never saw spot does not wait for it. Without known prices spot counts as a third of on-demand.

Assumes that on-demand nodes are available when needed. If they come only on request, ``LEAD_S`` is reserved for that; a
run that waits for occupied on-demand nodes may still be late.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fairlead.deferred import deferred
from fairlead.frozen import dataclass
from fairlead.policy.disruption.defragmentation import can_resume
from fairlead.policy.disruption.preemption import RESTART_S
from fairlead.policy.placement.node_eligibility import is_spot
from fairlead.policy.queue.remaining_work import ENOUGH_STEPS
from fairlead.specs.gang import GangSpec
from fairlead.state.reasons import Code, Reason
from fairlead.state.run_times import ran_until
from fairlead.state.scheduling_policy import SchedulingPolicy
from fairlead.state.snapshot import Node, Phase, Snapshot, Status, Workload

if TYPE_CHECKING:
    from fairlead.policy.capacity import spot_schedule
    from fairlead.policy.capacity.spot_schedule import SpotProblem, SpotSchedule
else:
    spot_schedule = deferred("fairlead.policy.capacity.spot_schedule")

# The time until a requested node comes; most clouds provide GPU nodes within it.
LEAD_S = 600.0
# Work lost at a reclaim if the save interval is unknown, as a part of the run's work.
LOST_PART = 0.05
SPOT_OF_ON_DEMAND = 1.0 / 3.0
# Ticks of a table, steps of slack per tick, and the maximum number of steps: solving takes a third of a second.
TICKS = 240
STEPS_OF_TICK = 4
MOST_STEPS = 480
MIN_TICK_S = 1.0
# As in spot_schedule, which is imported only when a run needs it, because it imports numpy.
NOTHING, SPOT, ON_DEMAND = 0, 1, 2

WAITS = Reason(
    code=Code.WAITING_FOR_SPOT,
    message="waits for room on spot nodes, which cost less; its deadline leaves time for that",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars per hour of the cheapest node of each kind; None if unknown."""

    spot: float | None
    on_demand: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expected cost of a run from now in dollars; None without known prices.

    Attributes:
        saved: The saved part of its cost on on-demand alone.
        done_by: The latest time at which its work is done.
    """

    cost: float | None
    saved: float | None
    done_by: float


def observed(workload: Workload, spot: bool, now: float) -> Status:
    """Return the run's status with the observation of spot."""
    status = workload.status
    if status.queue.spot_has_room is spot or (status.queue.spot_has_room is None and not spot):
        return status
    return replace(status, queue=replace(status.queue, spot_has_room=spot, spot_since=now))


def is_on_spot(names: Iterable[str], nodes: Sequence[Node]) -> bool:
    """Return whether one of these nodes is spot, so that a gang there would be lost with it."""
    marked = {node.name for node in nodes if is_spot(node)}
    return not marked.isdisjoint(names)


def may_change(workload: Workload, use: int, rules: SchedulingPolicy, now: float, *, on_spot: bool) -> bool:
    """Return whether a running run should change to the other kind of capacity; to save money, not too often."""
    if use == ON_DEMAND or on_spot:
        return on_spot and use == ON_DEMAND
    moved_at = workload.status.migration.decided_at
    return use == SPOT and can_resume(workload) and (moved_at is None or now - moved_at >= rules.moved_apart_s)


def why_change(*, on_spot: bool) -> str:
    """Return the rest of a sentence that begins with the destination."""
    return "on-demand, to meet its deadline" if on_spot else "which is spot and costs less"


def due_at(workload: Workload) -> float:
    """Return the deadline of the run's work."""
    assert workload.spec.deadline_s is not None
    return workload.created_at + workload.spec.deadline_s


def next_tick(workload: Workload, now: float) -> float:
    """Return when time alone may next change the decision on the run."""
    tick_s = _tick_s(workload.spec)
    passed = int((now - workload.created_at) / tick_s + 1e-6)
    return workload.created_at + (passed + 1) * tick_s


def decide_use(workload: Workload, snapshot: Snapshot, now: float, *, on_spot: bool | None, spot: bool) -> int:
    """Return what the run should use now: ``NOTHING``, ``SPOT`` or ``ON_DEMAND``.

    Args:
        on_spot: Whether it runs on spot; None if it does not run.
        spot: Whether spot has room for it, or it is on spot.
    """
    status = observed(workload, spot, now)
    if status.queue.spot_since is None:
        return ON_DEMAND
    schedule = _schedule(workload.spec, _prices(workload.spec, snapshot), snapshot.growth is not None)
    tick_s = schedule.problem.tick_s
    left_s = due_at(workload) - now
    use = NOTHING if on_spot is None else SPOT if on_spot else ON_DEMAND
    starting_s = max(0.0, RESTART_S - (now - status.since)) if status.phase is Phase.STARTING else 0.0
    return schedule.use(
        ticks_left=max(1, int(left_s / tick_s)),
        slack_s=left_s - work_left_s(workload, now, at_risk=on_spot is not False),
        now=spot_schedule.CapacityUse(use),
        pending_s=starting_s,
        spot=spot,
        age=1 + int((now - status.queue.spot_since) / tick_s),
    )


def work_left_s(workload: Workload, now: float, *, at_risk: bool) -> float:
    """Return the seconds of work left: the maximum of the declared rest and of that by its steps at their pace.

    Args:
        at_risk: Whether unsaved work counts as not done.
    """
    spec, status, progress = workload.spec, workload.status, workload.progress
    assert spec.expected_duration_s is not None
    ran_s = until_s = ran_until(status, now)
    if at_risk and status.phase is Phase.RUNNING:
        saved_at = None if progress is None else progress.checkpoint_at
        until_s = (
            status.run_time.saved_s if saved_at is None else ran_until(status, max(status.since, min(now, saved_at)))
        )
    left_s = spec.expected_duration_s - until_s
    if progress is not None and progress.total_steps and progress.step:
        saved = progress.checkpoint_step or 0
        part = min(1.0, (saved if at_risk else progress.step) / progress.total_steps)
        reached = min(1.0, progress.step / progress.total_steps)
        whole_s = ran_s / reached if reached >= ENOUGH_STEPS else 0.0
        left_s = max(whole_s, spec.expected_duration_s) * (1.0 - part)
    # An unfinished run has some work left, whatever was declared.
    return max(left_s, LOST_PART * spec.expected_duration_s)


def expect(spec: GangSpec, snapshot: Snapshot, now: float) -> Expectation:
    """Return the expected cost of a run that is submitted now."""
    assert spec.expected_duration_s is not None
    assert spec.deadline_s is not None
    prices = _prices(spec, snapshot)
    done_by = now + spec.deadline_s
    if prices.spot is None or prices.on_demand is None:
        return Expectation(cost=None, saved=None, done_by=done_by)
    schedule = _schedule(spec, prices, snapshot.growth is not None)
    has_spot = any(is_spot(node) and node.ready and node.leaving is None for node in snapshot.nodes)
    cost = spec.nodes * schedule.expected_cost(spot=has_spot, age=1)
    whole = spec.nodes * prices.on_demand * (spec.expected_duration_s + RESTART_S) / 3600.0
    return Expectation(cost=cost, saved=1.0 - cost / whole, done_by=done_by)


def _prices(spec: GangSpec, snapshot: Snapshot) -> Prices:
    """Return the prices of nodes that could take a pod by their hardware."""
    prices: dict[bool, list[float]] = {True: [], False: []}
    for node in snapshot.nodes:
        if node.price_per_hour is not None and (spec.resources.gpu is None or node.gpus):
            prices[is_spot(node)].append(node.price_per_hour)
    return Prices(spot=min(prices[True], default=None), on_demand=min(prices[False], default=None))


def _tick_s(spec: GangSpec) -> float:
    assert spec.deadline_s is not None
    return max(MIN_TICK_S, spec.deadline_s / TICKS)


def _problem(spec: GangSpec, prices: Prices, grows: bool) -> "SpotProblem":
    assert spec.expected_duration_s is not None
    assert spec.deadline_s is not None
    on_demand = prices.on_demand or 1.0
    spot = prices.spot if prices.spot is not None and prices.on_demand else on_demand * SPOT_OF_ON_DEMAND
    tick_s = _tick_s(spec)
    lost_s = spec.checkpoint.every_s or LOST_PART * spec.expected_duration_s
    return spot_schedule.SpotProblem(
        tick_s=tick_s,
        step_s=tick_s / STEPS_OF_TICK,
        changeover_s=RESTART_S + spec.grace_s,
        spot_price=spot,
        on_demand_price=on_demand,
        num_ticks=int(spec.deadline_s / tick_s),
        slack_s=min(spec.deadline_s - spec.expected_duration_s, MOST_STEPS * tick_s / STEPS_OF_TICK),
        # Decisions come with events or at the end of a tick, so one may be missed.
        reserve_s=lost_s + tick_s + (LEAD_S if grows else 0.0),
    )


def _schedule(spec: GangSpec, prices: Prices, grows: bool) -> "SpotSchedule":
    return spot_schedule.solve(_problem(spec, prices, grows))
