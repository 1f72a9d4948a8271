"""Counts the replicas that an endpoint needs by the requests that are in flight at once.

What a moment needs is the mean of the most requests that were in flight or waiting in each of its last seconds, over
the number that one replica is to have, with `queue` those that may wait for it included; so a sustained load is met
within seconds and a lone burst of one is not. There are never fewer replicas than any moment of the last window needed,
so that the number does not follow every dip, nor than the calendar says. With a query of a Prometheus its number takes
the place of the requests in flight. A cluster's own autoscaler sets the number itself. The last replica goes after an
idle time without any request, and comes back with the next one.
"""

import math

from fairlead.policy.serving.metric_scaling import needed_by_metric
from fairlead.policy.serving.scheduled_replicas import scheduled_replicas
from fairlead.specs.serving import Serving
from fairlead.state.demand import Demand
from fairlead.state.measurements import Measurement

# A moment is so many seconds.
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
    """Return how many replicas there are to be.

    Args:
        demand: None where nobody counts requests: as many as there are, within the bounds.
        ready_at: Since when the revision can serve, from which its idle time counts too; None while it cannot.
        current: How many were wanted before.
        share: How many it may have beside others that scale by latency; None where it goes by requests in flight.
        measurement: Answers to its query where it goes by one; None where nobody has asked yet.
    """
    if spec.most_replicas is None:
        return spec.replicas
    if spec.scale.by is not None:
        # Where it has said nothing yet, as few as can be asked.
        asked = max(1, spec.replicas) if spec.scale.replicas is None else spec.scale.replicas
        return min(max(asked, spec.replicas), spec.most)
    least = max(spec.replicas, scheduled_replicas(spec.scale.schedule, now))
    if spec.scale.prometheus is not None:
        needed = needed_by_metric(spec.scale.prometheus, measurement, spec.scale.window_s, current, now)
        # Where nothing is known now, what is there stays.
        found = current if needed is None else needed
        if found == 0 and (demand is None or now < asleep_at(spec, demand, ready_at, current)):
            found = 1
        return min(max(found, least), spec.most)
    if demand is None:
        return min(max(current, least, 1 if ready_at is None else 0), spec.most)
    needed = _needed(spec, demand, now) if share is None else share
    if share is None and now - demand.since < spec.scale.window_s:
        # What was needed before it was counted is not known.
        needed = max(needed, min(current, spec.most))
    if needed <= 1 and least == 0:
        needed = 0 if now >= asleep_at(spec, demand, ready_at, current) else 1
    return min(max(needed, least), spec.most)


def asleep_at(spec: Serving, demand: Demand, ready_at: float | None, current: int) -> float:
    """Return when its last replica goes, if no request comes before; infinity while one is there."""
    if ready_at is None or demand.in_flight or demand.wake is not None:
        return math.inf
    # Of requests before a gateway that has just started nothing is known; but an endpoint that sleeps goes on sleeping.
    known = demand.since if current else 0.0
    return max(ready_at, demand.last_request or 0.0, known) + spec.scale.idle_s


def _needed(spec: Serving, demand: Demand, now: float) -> int:
    last = int(now)
    first = last - math.ceil(spec.scale.window_s)
    in_flight = {each.at: each.in_flight for each in demand.seconds}
    in_flight[last] = max(in_flight.get(last, 0), demand.in_flight)
    counts = [in_flight.get(at, 0) for at in range(first - MOMENT_S + 1, last + 1)]
    total = sum(counts[:MOMENT_S])
    most = total
    for place in range(MOMENT_S, len(counts)):
        total += counts[place] - counts[place - MOMENT_S]
        most = max(most, total)
    return math.ceil(most / MOMENT_S / spec.in_flight_target - 1e-9)
