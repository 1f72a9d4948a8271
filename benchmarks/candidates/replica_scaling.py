"""Replicas for several services under one budget, by what each replica adds to the share of requests in time.

Demand is forecast as equally likely samples: half lognormal around a level that forgets quickly, half quantiles of the
last quarter of an hour, for it may be again as it was. The attainment of n replicas is in closed form, with a gate that
refuses what would be late, or with an endless queue. A further replica counts only from the second at which it serves,
one fewer counts at once, and each replica moved costs a small toll, so that nothing flaps and no cooldown is needed.
The split with the greatest sum within the budget is exact (a knapsack over services).

Assumes that the time of a request and the time a replica takes to start are known, and that a request occupies a
replica alone. The mean over services may starve a large service for several small ones where the budget is short. What
nobody needs stays where it is: to give back what the budget holds, as a service that sleeps does, is for another rule.

The loop that steps the replicas of all Servings would call ``allocate`` every ten seconds with what the gateway was
offered, served or not; the gateway would ask ``queue_limit`` how many requests it may hold for each replica.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

HORIZON_MIN = 5
WINDOW_MIN = 15
# Share of the level that is left after a minute, and the error of a forecast for a minute ahead (it grows as the root).
MEMORY = 0.3
ERROR = 0.12
SAMPLES = 10
TOLL = 0.005

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service as it is now.

    Attributes:
        rates: Requests a second that were offered, refused ones too, in each interval; oldest first, not empty.
        service_s: Mean seconds of a request on a replica.
        service_cv2: Squared coefficient of variation of these.
        slo_s: Seconds within which a request is in time.
        replicas: Replicas that serve or were ordered, at least one.
        idle: Replicas given up that are still warm.
        locked: An order is under way: it keeps its number now.
    """

    rates: Sequence[float]
    service_s: float
    service_cv2: float
    slo_s: float
    replicas: int
    idle: int = 0
    locked: bool = False

    def __post_init__(self) -> None:
        if not self.rates or min(self.rates) < 0.0:
            raise ValueError("rates must hold an interval at least, and none below 0")
        if not 0.0 < self.service_s < self.slo_s:
            raise ValueError(f"service_s ({self.service_s}) must be above 0 and below slo_s ({self.slo_s})")
        if self.replicas < 1 or self.idle < 0 or self.service_cv2 < 0.0:
            raise ValueError("replicas must be 1 or more; idle and service_cv2 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Seconds until a further replica serves: a warm one, one with room in the budget, one that another must leave."""

    warm_s: float = 3.0
    start_s: float = 35.0
    move_s: float = 70.0


def queue_limit(service_s: float, slo_s: float) -> int:
    """Requests that the gate holds for each replica, running and waiting; the rest would be late. At least 1."""
    return max(1, math.floor(slo_s / service_s - 0.5))


def allocate(
    services: Sequence[Service],
    budget: int,
    *,
    gate: bool,
    interval_s: float = 10.0,
    delays: Delays | None = None,
) -> list[int]:
    """Replicas for each service, in their order: one at least each, never more than ``budget`` together.

    Raises ValueError where the budget is below what one each and the locked ones take.
    """
    delays = delays or Delays()
    held = [each.replicas if each.locked else 1 for each in services]
    spare = budget - sum(held)
    if spare < 0:
        raise ValueError(f"a budget of {budget} is below the {sum(held)} replicas that cannot be given up")
    room = max(0, budget - sum(each.replicas for each in services))
    free = [place for place, each in enumerate(services) if not each.locked]
    worths = [_worths(services[place], spare + 1, room, gate, interval_s, delays) for place in free]
    chosen = list(held)
    for place, more in zip(free, _knapsack(worths, spare), strict=True):
        chosen[place] += more
    return chosen


def forecast(rates: Sequence[float], interval_s: float) -> Floats:
    """Equally likely rates (requests a second) for each of the minutes ahead: samples x minutes."""
    per_minute = max(1, round(60.0 / interval_s))
    recent = np.asarray(rates[-WINDOW_MIN * per_minute :], dtype=np.float64)
    weights = MEMORY ** (np.arange(len(recent))[::-1] / per_minute)
    level = float(recent @ weights / weights.sum())
    normal = NormalDist()
    points = (np.arange(SAMPLES) + 0.5) / SAMPLES
    deviates = np.array([normal.inv_cdf(float(point)) for point in points])
    sigma = ERROR * np.sqrt(np.arange(HORIZON_MIN) + 1.0)
    drifting = level * np.exp(deviates[:, None] * sigma - 0.5 * sigma**2)
    whole = len(recent) // per_minute * per_minute
    minutes = (
        recent[len(recent) - whole :].reshape(-1, per_minute).mean(axis=1) if whole else recent.mean(keepdims=True)
    )
    again = np.repeat(np.quantile(minutes, points)[:, None], HORIZON_MIN, axis=1)
    return np.concatenate([drifting, again])


def attainment(load: Floats, num_replicas: Floats, service: Service, *, gate: bool) -> Floats:
    """Share of requests in time, 0 to 1, under ``load`` (replicas' worth of work) for each number of replicas.

    With the gate 1 less the loss of a queue of m places, M/M/1/m with m scaled for several servers and for the spread
    of service times. Else the tail of an endless queue: Sakasegawa's probability of waiting and an exponential wait.
    """
    ratio = np.maximum(load / num_replicas, 1e-9)
    spread = 1.0 + service.service_cv2
    if gate:
        places = 2.0 * num_replicas * (queue_limit(service.service_s, service.slo_s) - 1) / spread
        below = np.minimum(ratio, 1.0 - 1e-6)
        above = np.maximum(ratio, 1.0 + 1e-6)
        lost_below = (1.0 - below) * below**places / (1.0 - below ** (places + 1.0))
        lost_above = (above - 1.0) / (above - above**-places)
        return np.asarray(1.0 - np.where(ratio < 1.0, lost_below, lost_above))
    below = np.minimum(ratio, 1.0)
    waiting = below ** (np.sqrt(2.0 * num_replicas + 2.0) - 1.0)
    patience = 0.85 * (service.slo_s / service.service_s - 1.0)
    late = waiting * np.exp(-2.0 * (1.0 - below) * num_replicas * patience / spread)
    return np.where(ratio < 1.0, 1.0 - late, 0.0)


def _worths(service: Service, most: int, room: int, gate: bool, interval_s: float, delays: Delays) -> Floats:
    """Mean attainment over the minutes ahead with 1, 2, ... ``most`` replicas, less the toll of getting there."""
    load = forecast(service.rates, interval_s) * service.service_s
    # Beyond twice the greatest load a further replica adds nothing that a forecast could tell.
    most = min(most, max(service.replicas, math.ceil(2.0 * float(load.max())) + 2))
    counts = np.arange(1, max(most, service.replicas) + 1, dtype=np.float64)
    by_minute = attainment(load[:, :, None], counts[None, None, :], service, gate=gate).mean(axis=0)
    worths = by_minute.mean(axis=0)
    serving = by_minute[:, service.replicas - 1]
    begins = 60.0 * np.arange(HORIZON_MIN)
    total = float(worths[service.replicas - 1])
    for more in range(1, most - service.replicas + 1):
        # Each further replica adds what it adds from the second at which it serves.
        after = by_minute[:, service.replicas + more - 1]
        delay = (
            delays.warm_s if more <= service.idle else delays.start_s if more <= service.idle + room else delays.move_s
        )
        share = np.clip((begins + 60.0 - delay) / 60.0, 0.0, 1.0)
        total += float(((after - serving) * share).mean())
        worths[service.replicas + more - 1] = total
        serving = after
    return np.asarray(worths - TOLL * np.abs(counts - service.replicas))[:most]


def _knapsack(worths: Sequence[Floats], spare: int) -> list[int]:
    """Replicas beyond the first for each service, of the greatest sum of worths, at most ``spare`` together."""
    best = np.zeros(spare + 1)
    choices = []
    for worth in worths:
        table = np.full((len(worth), spare + 1), -np.inf)
        for more, value in enumerate(worth):
            table[more, more:] = best[: spare + 1 - more] + value
        choice = table.argmax(axis=0)
        choices.append(choice)
        best = table[choice, np.arange(spare + 1)]
    chosen = []
    for choice in reversed(choices):
        chosen.append(int(choice[spare]))
        spare -= chosen[-1]
    return chosen[::-1]
