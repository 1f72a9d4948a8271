"""Estimates the start, the end and the cost of runs, if possible."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from fairlead.cli.show import describe_time, message
from fairlead.cluster.client import ClusterClient
from fairlead.deferred import deferred
from fairlead.errors import FairleadError, NotAllowed
from fairlead.policy.kinds.internal_failures import describe
from fairlead.specs.gang import GangSpec
from fairlead.state.reasons import JUST_SUBMITTED
from fairlead.state.snapshot import Intent, Phase, Status, Workload
from fairlead.text.money import describe_microusd
from fairlead.text.quantities import describe_duration

if TYPE_CHECKING:
    from fairlead.policy.capacity import spot_deadline
    from fairlead.policy.capacity.spot_deadline import Expectation
    from fairlead.policy.queue import cost_forecast as cost_forecasting
    from fairlead.policy.queue import run_forecast as run_forecasting
    from fairlead.policy.queue import start_forecast
    from fairlead.policy.queue.cost_forecast import CostForecast
    from fairlead.policy.queue.run_forecast import RunForecast
    from fairlead.specs.training import Training
else:
    spot_deadline = deferred("fairlead.policy.capacity.spot_deadline")
    cost_forecasting = deferred("fairlead.policy.queue.cost_forecast")
    run_forecasting = deferred("fairlead.policy.queue.run_forecast")
    start_forecast = deferred("fairlead.policy.queue.start_forecast")

Result = TypeVar("Result")


def estimated(what: str, estimate: Callable[[], Result], otherwise: Result) -> Result:
    """Return an estimate, or the other value if Fairlead itself fails at it, which is told on stderr.

    Args:
        what: The subject of the sentence that tells it.
    """
    try:
        return estimate()
    except FairleadError:
        raise  # of the cluster or the user, which concerns more than this line
    except Exception as error:  # noqa: BLE001
        message(f"{what} cannot be estimated, as Fairlead failed at it, an error to report: {describe(error)}.")
        return otherwise


def latest_start(cluster: ClusterClient, workload: Workload) -> float | None:
    """Return its latest start as Unix time; None if it is not pending or the start is unknown."""
    if workload.intent is not Intent.RUN or workload.status.phase not in (Phase.PENDING, Phase.RESTARTING):
        return None

    try:
        snapshot = cluster.snapshot()
    except NotAllowed:
        return None
    return estimated("The start", lambda: start_forecast.expected_starts(snapshot, time.time()).get(workload.uid), None)


def expectation(cluster: ClusterClient, spec: GangSpec) -> Expectation | None:
    """Estimate the cost of a run with `spot: auto` that is submitted now; None for other runs or unknown nodes."""
    if not spec.capacity.auto:
        return None
    try:
        snapshot = cluster.snapshot()
    except NotAllowed:
        return None
    return estimated("The cost with spot nodes", lambda: spot_deadline.expect(spec, snapshot, time.time()), None)


def describe_expectation(expectation: Expectation) -> str:
    """Describe its cost, compared with on-demand nodes alone, and its completion."""
    done = f"done by {describe_time(expectation.done_by)} at the latest"
    if expectation.cost is None or expectation.saved is None:
        return f"{done}; its cost is unknown, since spot and on-demand nodes have no price here"
    less = (
        "as much as on-demand" if expectation.saved < 0.005 else f"{100 * expectation.saved:.0f} % less than on-demand"
    )
    cost = f"${expectation.cost:.0f}" if expectation.cost >= 10 else f"${expectation.cost:.2f}"
    return f"about {cost}, {less}; {done}"


def cost_forecasts(cluster: ClusterClient, spec: Training) -> tuple[CostForecast, ...]:
    """Estimate the cost of a run that is submitted now, by kinds of nodes; empty if no price is known."""
    try:
        snapshot = cluster.snapshot()
    except NotAllowed:
        return ()
    now = time.time()
    status = Status(phase=Phase.PENDING, reason=JUST_SUBMITTED, since=now)
    run = Workload(uid="planned", spec=spec, intent=Intent.RUN, status=status, version=1, created_at=now)
    return estimated("The cost", lambda: cost_forecasting.forecasts(run, snapshot, now), ())


def describe_forecast(forecast: CostForecast) -> str:
    """Describe the hourly and the total cost."""
    where = forecast.node if forecast.num_nodes == 1 else f"{forecast.num_nodes} nodes such as {forecast.node}"
    hourly = f"{describe_microusd(forecast.microusd_per_hour)} an hour on {where}"
    between = ""
    if forecast.low_microusd is not None and forecast.high_microusd is not None:
        low, high = describe_microusd(forecast.low_microusd), describe_microusd(forecast.high_microusd)
        between = f"{low} to {high} in 9 of 10 cases"
    if forecast.microusd is None and between:
        return f"{hourly}, {between}"
    if forecast.microusd is None:
        return f"{hourly}; its total cost is unknown, since its duration is"
    total = f"{hourly}, {'at most' if forecast.is_limit else 'about'} {describe_microusd(forecast.microusd)} in all"
    return f"{total}, {between}" if between else total


def run_forecast(cluster: ClusterClient, run: Workload, spent_microusd: int | None = None) -> RunForecast | None:
    """Estimate the end and the total cost of a run; None if that is impossible."""
    if run.status.phase.is_final:
        return None

    try:
        snapshot = cluster.snapshot()
    except NotAllowed:
        return None
    return estimated("The end", lambda: run_forecasting.forecast(run, snapshot, time.time(), spent_microusd), None)


def new_run_forecast(cluster: ClusterClient, spec: Training) -> RunForecast | None:
    """Estimate the duration, from its start, of a run that is submitted now."""
    now = time.time()
    status = Status(phase=Phase.PENDING, reason=JUST_SUBMITTED, since=now)
    run = Workload(uid="planned", spec=spec, intent=Intent.RUN, status=status, version=1, created_at=now)
    return run_forecast(cluster, run)


def describe_end(forecast: RunForecast, now: float) -> str:
    """Describe the end of a run that holds something, with bounds."""
    low, high = describe_time(now + forecast.low_s), describe_time(now + forecast.high_s)
    return f"{describe_time(now + forecast.likely_s)} likely, {low} to {high}{_sure(forecast)}, {forecast.basis}"


def describe_length(forecast: RunForecast) -> str:
    """Describe the duration of a run from its start, with bounds."""
    bounds = f"{describe_duration(forecast.low_s)} to {describe_duration(forecast.high_s)}{_sure(forecast)}"
    return f"{describe_duration(forecast.likely_s)} likely, {bounds}, {forecast.basis}"


def describe_start(at: float) -> str:
    """Describe the latest start as a time and a wait."""
    left_s = at - time.time()
    return f"{describe_time(at)} at the latest, in {describe_duration(left_s)}" if left_s > 1 else "at once"


def _sure(forecast: RunForecast) -> str:
    return "" if forecast.by_steps else " in 9 of 10 cases"
