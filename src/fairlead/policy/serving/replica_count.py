"""Computes the replicas that an endpoint needs from the requests in flight.

The need of a moment is the mean, over its seconds, of the maximum number of requests in flight or waiting, divided by
the target per replica (with `queue`, including requests that may wait for it); so a sustained load is met within
seconds and a burst of one second is not. The number is never below the need of any moment of the last window, so that
it does not follow every dip, nor below the schedule. With a Prometheus query its value replaces the requests in flight.
With the cluster's own autoscaler that sets the number. The last replica is removed after an idle time without any
request, and comes back with the next one.
"""

import math

from fairlead.policy.serving.metric_scaling import needed_by_metric
from fairlead.policy.serving.scheduled_replicas import scheduled_replicas
from fairlead.specs.serving import Serving
from fairlead.state.demand import Demand
from fairlead.state.measurements import Measurement

# The seconds of a moment.
MOMENT_S = 3


def wanted_replicas(
    spec: Serving,
    demand: Demand | None,
    ready_at: float | None,
    current: int,
    now: float,
    share: int | None = None,
    measurement: Measurement | None = None,
) -> int:
    """Return the number of replicas wanted.

    Args:
        demand: None if no gateway counts requests: the current number stays, within the bounds.
        ready_at: Since when the revision can serve, which also starts its idle time; None while it cannot.
        current: The previously wanted number.
        share: Its share beside others that scale by latency; None if it scales by requests in flight.
        measurement: Answers to its query if it scales by one; None before the first.
    """
    if spec.most_replicas is None:
        return spec.replicas
    if spec.scale.by is not None:
        # As few as possible until the autoscaler has set a number.
        requested = max(1, spec.replicas) if spec.scale.replicas is None else spec.scale.replicas
        return min(max(requested, spec.replicas), spec.most)
    least = max(spec.replicas, scheduled_replicas(spec.scale.schedule, now))
    if spec.scale.prometheus is not None:
        needed = needed_by_metric(spec.scale.prometheus, measurement, spec.scale.window_s, current, now)
        # If the need is unknown now, the number stays.
        needed_now = current if needed is None else needed
        if needed_now == 0 and (demand is None or now < asleep_at(spec, demand, ready_at, current)):
            needed_now = 1
        return min(max(needed_now, least), spec.most)
    if demand is None:
        return min(max(current, least, 1 if ready_at is None else 0), spec.most)
    needed = _needed(spec, demand, now) if share is None else share
    if share is None and now - demand.since < spec.scale.window_s:
        # The need before counting started is unknown.
        needed = max(needed, min(current, spec.most))
    if needed <= 1 and least == 0:
        needed = 0 if now >= asleep_at(spec, demand, ready_at, current) else 1
    return min(max(needed, least), spec.most)


def asleep_at(spec: Serving, demand: Demand, ready_at: float | None, current: int) -> float:
    """Return when its last replica is removed if no request comes; infinity while one is in flight or waits."""
    if ready_at is None or demand.in_flight or demand.wake is not None:
        return math.inf
    # Requests before a gateway's start are unknown; but an endpoint that is scaled to zero stays so.
    known = demand.since if current else 0.0
    return max(ready_at, demand.last_request or 0.0, known) + spec.scale.idle_s


def _needed(spec: Serving, demand: Demand, now: float) -> int:
    if not demand.in_flight and not any(second.in_flight for second in demand.seconds):
        return 0
    last = int(now)
    first = last - math.ceil(spec.scale.window_s)
    in_flight = {second.at: second.in_flight for second in demand.seconds}
    in_flight[last] = max(in_flight.get(last, 0), demand.in_flight)
    counts = [in_flight.get(at, 0) for at in range(first - MOMENT_S + 1, last + 1)]
    total = sum(counts[:MOMENT_S])
    most = total
    for place in range(MOMENT_S, len(counts)):
        total += counts[place] - counts[place - MOMENT_S]
        most = max(most, total)
    return math.ceil(most / MOMENT_S / spec.in_flight_target - 1e-9)
