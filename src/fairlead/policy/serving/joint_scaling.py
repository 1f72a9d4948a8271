"""Allocates replicas to several endpoints under one budget, by what each replica adds to the share of requests in time.

Demand is forecast as equally likely samples: half lognormal around a level with a short memory, half quantiles of the
last 15 minutes, since past rates may recur. The attainment of n replicas is in closed form, with a gate that refuses
requests that would be late, or with an unbounded queue. An additional replica counts only from the second at which it
serves, a removed one counts at once, and each replica moved costs a small toll, which prevents oscillation without a
cooldown. The split with the greatest sum within the budget is exact (a knapsack), or greedy for very many endpoints.

A replica has a number of places that each serve one request at a time. The mean over endpoints may starve a large one
for several small ones if the budget is short. Surplus replicas stay where they are, unless ``enough`` bounds their
number.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import field
from functools import cache, lru_cache
from heapq import heappop, heappush

from fairlead.frozen import dataclass

HORIZON_MIN = 5
WINDOW_MIN = 15
# The share of the level left after a minute, and the error of a forecast one minute ahead (it grows with the square
# root).
MEMORY = 0.3
ERROR = 0.12
SAMPLES = 10
TOLL = 0.005
# With this share of requests in time no more replicas are needed; beyond the second, surplus ones may be removed.
ENOUGH, TO_SPARE = 0.995, 0.9985
# Erlang's loss formula is computed for at most this many places.
MOST_LOSS_PLACES = 64
# Beyond this many steps the greedy split replaces the exact one.
MOST_STEPS = 3_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Seconds until another replica serves: a warm one, one within the budget, one that has to replace another."""

    warm_s: float = 3.0
    start_s: float = 35.0
    move_s: float = 70.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointState:
    """The present state of an endpoint.

    Attributes:
        rates: Offered requests per second, including refused ones, in each interval; oldest first, not empty.
        service_s: Mean seconds for which a request occupies a place.
        service_cv2: Squared coefficient of variation of these.
        slo_s: Seconds within which a request is in time.
        replicas: Replicas that serve or were ordered, at least one.
        idle: Removed replicas that are still warm.
        locked: Whether an order is in progress: the number then stays.
        gate: Whether requests that would be late are refused at once.
        places: Requests that a replica serves at once.
        least: The minimum number of replicas.
        most: The maximum number of replicas; None for no bound.
        shares: Share of requests in time, 0 to 1, by the load of a replica as a part of its maximum, in ascending order
            of load; ``service_s`` is then the part of a second of the replica that a request takes, with one place.
            Empty if a place serves one request at a time.
    """

    rates: Sequence[float]
    service_s: float
    service_cv2: float
    slo_s: float
    replicas: int
    idle: int = 0
    locked: bool = False
    gate: bool = False
    places: float = 1.0
    least: int = 1
    most: int | None = None
    shares: tuple[tuple[float, float], ...] = ()
    delays: Delays = field(default_factory=Delays)

    def __post_init__(self) -> None:
        if not self.rates or min(self.rates) < 0.0:
            raise ValueError("rates must hold an interval at least, and none below 0")
        if not self.service_s > 0.0 or not (self.shares or self.service_s < self.slo_s):
            raise ValueError(f"service_s ({self.service_s}) must be above 0 and below slo_s ({self.slo_s})")
        if self.replicas < 1 or self.idle < 0 or self.service_cv2 < 0.0 or self.least < 1:
            raise ValueError("replicas and least must be 1 or more; idle and service_cv2 0 or more")
        if not self.places > 0.0:
            raise ValueError(f"places ({self.places}) must be above 0")


def queue_limit(service_s: float, slo_s: float) -> int:
    """Return the requests that the gate admits per place, running and waiting; more would be late. At least 1."""
    return max(1, math.floor(slo_s / service_s - 0.5))


def allocate(services: Sequence[EndpointState], budget: int, *, interval_s: float = 10.0) -> list[int]:
    """Return the replicas of each service, in order: at least its minimum, at most ``budget`` in total.

    Raises ValueError if the budget is below the sum of the minimums and the locked ones.
    """
    held = [service.replicas if service.locked else service.least for service in services]
    spare = budget - sum(held)
    if spare < 0:
        raise ValueError(f"a budget of {budget} is below the {sum(held)} replicas that cannot be given up")
    room = max(0, budget - sum(service.replicas for service in services))
    free = [place for place, service in enumerate(services) if not service.locked]
    worths = [_worths(services[place], spare, room, interval_s) for place in free]
    split = _knapsack if sum(map(len, worths)) * (spare + 1) <= MOST_STEPS else _greedy
    chosen = list(held)
    for place, more in zip(free, split(worths, spare), strict=True):
        chosen[place] += more
    return chosen


def enough(service: EndpointState, *, interval_s: float = 10.0) -> int:
    """Return how many replicas serve nearly all requests in time; fewer than now only with a margin."""
    loads = _loads(tuple(service.rates), service.service_s, interval_s)
    most = service.replicas + math.ceil(2.0 * max(map(max, loads)) / service.places) + 2

    def share(num_replicas: int) -> float:
        return _mean(_by_minute(service, num_replicas, interval_s))

    count = service.replicas
    if share(count) < ENOUGH:
        while count < most and share(count) < ENOUGH:
            count += 1
    else:
        while count > 1 and share(count - 1) >= TO_SPARE:
            count -= 1
    return count


def forecast(rates: Sequence[float], interval_s: float) -> list[list[float]]:
    """Return equally likely rates (requests per second) for each of the minutes ahead: samples x minutes."""
    per_minute = max(1, round(60.0 / interval_s))
    recent = list(rates[-WINDOW_MIN * per_minute :])
    weights = [MEMORY ** (age / per_minute) for age in range(len(recent) - 1, -1, -1)]
    level = sum(rate * weight for rate, weight in zip(recent, weights, strict=True)) / sum(weights)
    whole = len(recent) // per_minute
    recent = recent[len(recent) - whole * per_minute :] if whole else recent
    step = per_minute if whole else len(recent)
    minutes = sorted(sum(recent[at : at + step]) / step for at in range(0, len(recent), step))
    again = [_quantile(minutes, (sample + 0.5) / SAMPLES) for sample in range(SAMPLES)]
    return [[level * factor for factor in row] for row in _drifts()] + [[rate] * HORIZON_MIN for rate in again]


def attainment(load: float, num_places: float, service: EndpointState) -> float:
    """Return the share of requests in time, 0 to 1, under ``load`` (in units of places) with this many places.

    With the gate it is 1 minus the loss of a queue of m places, M/M/1/m with m scaled for several servers and for the
    variation of service times; if almost nothing may wait, 1 minus Erlang's loss of the places alone. Otherwise it
    follows from the tail of an unbounded queue: Sakasegawa's probability of waiting and an exponential wait. With
    ``shares`` it is interpolated from them.
    """
    ratio = max(load / num_places, 1e-9)
    if service.shares:
        return _between(service.shares, ratio)
    spread = 1.0 + service.service_cv2
    if service.gate:
        held = 2.0 * num_places * (queue_limit(service.service_s, service.slo_s) - 1) / spread
        return max(_with_queue(ratio, held), 1.0 - _erlang_loss(ratio, num_places) if held < num_places else 0.0)
    if ratio >= 1.0:
        return 0.0
    waiting = ratio ** (math.sqrt(2.0 * num_places + 2.0) - 1.0)
    patience = 0.85 * (service.slo_s / service.service_s - 1.0)
    return float(1.0 - waiting * math.exp(-2.0 * (1.0 - ratio) * num_places * patience / spread))


def _between(shares: Sequence[tuple[float, float]], load: float) -> float:
    """Return the share under a load, by linear interpolation, constant beyond the ends."""
    place = bisect_left(shares, (load,))
    if place in (0, len(shares)):
        return shares[min(place, len(shares) - 1)][1]
    (low, before), (high, after) = shares[place - 1], shares[place]
    return before + (after - before) * (load - low) / (high - low)


def _with_queue(ratio: float, held: float) -> float:
    """Return the share that finds room in M/M/1/m, 0 to 1."""
    if ratio < 1.0:
        ratio = min(ratio, 1.0 - 1e-6)
        power = ratio**held
        return float(1.0 - (1.0 - ratio) * power / (1.0 - power * ratio))
    ratio = max(ratio, 1.0 + 1e-6)
    return float(1.0 - (ratio - 1.0) / (ratio - ratio**-held))


def _erlang_loss(ratio: float, num_places: float) -> float:
    """Return the share of arrivals lost without a queue, 0 to 1 (Erlang's B, for any distribution of service times).

    For more places it is that of ``MOST_LOSS_PLACES`` at the same utilisation, which is slightly higher.
    """
    num_places = min(num_places, MOST_LOSS_PLACES)
    load, part = ratio * num_places, num_places % 1.0
    # Between zero and one place; each further one follows by the recursion.
    loss = 1.0 - part + part * load / (1.0 + load)
    for count in range(1, int(num_places) + 1):
        loss = load * loss / (count + part + load * loss)
    return loss


@lru_cache(maxsize=64)
def _loads(rates: tuple[float, ...], service_s: float, interval_s: float) -> list[list[float]]:
    """Return loads in units of places: samples x minutes."""
    return [[rate * service_s for rate in row] for row in forecast(rates, interval_s)]


def _by_minute(service: EndpointState, num_replicas: int, interval_s: float) -> tuple[float, ...]:
    """Return the mean attainment of so many replicas in each of the minutes ahead."""
    # A key with only what matters: several passes come between two counts of requests, and each evaluates this twice.
    alike = EndpointState(
        rates=tuple(service.rates),
        service_s=service.service_s,
        service_cv2=service.service_cv2,
        slo_s=service.slo_s,
        gate=service.gate,
        replicas=1,
        shares=service.shares,
    )
    return _of_places(alike, num_replicas * service.places, interval_s)


@lru_cache(maxsize=2048)
def _of_places(service: EndpointState, places: float, interval_s: float) -> tuple[float, ...]:
    loads = _loads(tuple(service.rates), service.service_s, interval_s)
    drifting, again = loads[:SAMPLES], loads[SAMPLES:]
    # The second half is the same in every minute.
    constant = sum(attainment(row[0], places, service) for row in again)
    return tuple(
        (constant + sum(attainment(row[minute], places, service) for row in drifting)) / len(loads)
        for minute in range(HORIZON_MIN)
    )


def _worths(service: EndpointState, spare: int, room: int, interval_s: float) -> list[float]:
    """Return the mean attainment over the minutes ahead by number of replicas, less the toll of moves."""
    loads = _loads(tuple(service.rates), service.service_s, interval_s)
    least, has = service.least, service.replicas
    # Beyond twice the greatest load, another replica adds nothing that a forecast could resolve.
    most = min(least + spare, max(has, math.ceil(2.0 * max(map(max, loads)) / service.places) + 2))
    if service.most is not None:
        most = max(least, min(most, service.most))
    minutes = {count: _by_minute(service, count, interval_s) for count in range(min(least, has), max(most, has) + 1)}
    worths = {count: _mean(minute_worths) for count, minute_worths in minutes.items()}
    total, serving = worths[has], minutes[has]
    for count in range(has + 1, most + 1):
        # Each additional replica counts from the second at which it serves.
        after, more = minutes[count], count - has
        delays = service.delays
        delay = (
            delays.warm_s if more <= service.idle else delays.start_s if more <= service.idle + room else delays.move_s
        )
        shares = (min(1.0, max(0.0, (60.0 * minute + 60.0 - delay) / 60.0)) for minute in range(HORIZON_MIN))
        total += _mean([(new - old) * share for new, old, share in zip(after, serving, shares, strict=True)])
        worths[count], serving = total, after
    return [worths[count] - TOLL * abs(count - has) for count in range(least, most + 1)]


def _knapsack(worths: Sequence[Sequence[float]], spare: int) -> list[int]:
    """Return replicas beyond the least for each service, with the greatest sum of worths, at most ``spare``."""
    best = [0.0] * (spare + 1)
    choices = []
    for worth in worths:
        best_worths, choice = [0.0] * (spare + 1), [0] * (spare + 1)
        for room in range(spare + 1):
            most, chosen = -math.inf, 0
            for more in range(min(len(worth), room + 1)):
                value = best[room - more] + worth[more]
                if value > most:
                    most, chosen = value, more
            best_worths[room], choice[room] = most, chosen
        choices.append(choice)
        best = best_worths
    result = []
    for choice in reversed(choices):
        result.append(choice[spare])
        spare -= result[-1]
    return result[::-1]


def _greedy(worths: Sequence[Sequence[float]], spare: int) -> list[int]:
    """Return a split as ``_knapsack`` does, by the greatest gain per replica, service by service."""
    chosen = [0] * len(worths)
    queue: list[tuple[float, int, int]] = []

    def offer(place: int) -> None:
        worth, has = worths[place], chosen[place]
        most = min(len(worth) - 1, has + spare)
        gains = [((worth[count] - worth[has]) / (count - has), has - count) for count in range(has + 1, most + 1)]
        if gains and max(gains)[0] > 0.0:
            gain, fewer = max(gains)
            heappush(queue, (-gain, place, -fewer))

    for place in range(len(worths)):
        offer(place)
    while queue and spare > 0:
        _, place, more = heappop(queue)
        if more <= spare:
            chosen[place] += more
            spare -= more
        # Offer again even without room for this step: a smaller one may fit.
        offer(place)
    return chosen


@cache
def _drifts() -> tuple[tuple[float, ...], ...]:
    """Return factors of the level, samples x minutes, with mean 1."""
    from statistics import NormalDist  # here and not above: it is slow to import, and few endpoints need it

    normal = NormalDist()
    sigmas = [ERROR * math.sqrt(minute + 1.0) for minute in range(HORIZON_MIN)]
    deviates = (normal.inv_cdf((sample + 0.5) / SAMPLES) for sample in range(SAMPLES))
    return tuple(tuple(math.exp(z * sigma - 0.5 * sigma**2) for sigma in sigmas) for z in deviates)


def _quantile(ordered: Sequence[float], part: float) -> float:
    """Interpolate between the two nearest values, as numpy's default."""
    at = part * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
