"""Tells which share of requests a replica of a text server has in time under a load, by what replicas have served.

The busiest requests of a replica that a gateway has told of say what its steps take (``text_calibration``), the latest
ones how long prompts and answers are now. A simulation of such requests under loads up to more than it can do gives the
share whose first token, and whose further ones, come in time. What not even a replica with next to nothing to do has in
time no number of replicas brings in time: shares are of what it has.

Calibrations and simulations are kept by what they were made of, for gateways tell of other requests now and then only.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fairlead.frozen import dataclass
from fairlead.policy.serving.text_calibration import Calibration, blocks_at_once, calibrate
from fairlead.policy.serving.text_capacity import most_per_s
from fairlead.policy.serving.text_engine import Engine, Request, Served, simulate
from fairlead.state.demand import TextRequest

# So few say nothing, and so many of the last ones are enough.
FEWEST, MOST = 20, 128
# Requests that run at once, where nothing bounds them before: vLLM's default.
MAX_SEQS = 256
# Of the most that it can do: loads under which it is simulated, with so many requests, the first of which fill it.
LOADS = (0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.6, 2.4)
NUM_REQUESTS, FILLING = 450, 50
# Each search looks at its begin only: that, and least squares, take .1 to .5 s of a processor.
SIMULATIONS = 8
# Memory may be short where the first token has taken so many times a further one.
LONG_WAIT = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """Answers of a replica under load.

    Attributes:
        most_per_s: Requests a second that it can answer at most.
        shares: Of requests in time, 0 to 1, by the load as a part of the most; none greater under a greater load.
    """

    most_per_s: float
    shares: tuple[tuple[float, float], ...]


@lru_cache(maxsize=256)
def answering(
    busiest: tuple[TextRequest, ...],
    latest: tuple[TextRequest, ...],
    first_token_s: float | None,
    per_token_s: float | None,
    max_seqs: int | None,
) -> Answering | None:
    """Return how a replica answers; None where too little is known, or where no request would be in time.

    Args:
        busiest: Requests of a replica from when there were most of them.
        latest: Those that came last, whose lengths count.
        first_token_s: Until the first token, at most; None for any time.
        per_token_s: For each further one on average, at most; None for any time.
        max_seqs: Requests that a replica is given at once; None for as many as come.
    """
    found = calibration(busiest, max_seqs)
    lengths = [(each.prompt, each.output) for each in latest if each.last is not None]
    if found is None or len(lengths) < FEWEST:
        return None
    rng = np.random.default_rng(0)
    drawn = [lengths[place] for place in rng.integers(len(lengths), size=NUM_REQUESTS)]
    gaps = np.cumsum(rng.exponential(1.0, NUM_REQUESTS))

    def under(rate: float | None) -> list[Request]:
        times = np.zeros(NUM_REQUESTS) if rate is None else gaps / rate
        return [
            Request(arrived_s=float(at), prompt=prompt, output=output)
            for at, (prompt, output) in zip(times, drawn, strict=True)
        ]

    try:
        most = most_per_s(under(None), found.times, found.engine)
        shares = []
        for load in LOADS:
            requests = under(load * most)
            served = simulate(requests, found.times, found.engine)
            shares.append(share_in_time(requests, served, first_token_s, per_token_s))
    except ValueError:
        # A request is longer than all memory that was ever seen in use.
        return None
    if shares[0] <= 0.0:
        return None
    falling = np.minimum.accumulate(np.minimum(np.array(shares) / shares[0], 1.0))
    return Answering(most_per_s=most, shares=tuple(zip(LOADS, (float(each) for each in falling), strict=True)))


def share_in_time(
    requests: Sequence[Request], served: Served, first_token_s: float | None, per_token_s: float | None
) -> float:
    """Return the share of requests in time, but for the first ones, which find it empty."""
    arrived = np.array([each.arrived_s for each in requests])
    further = np.array([max(1, each.output - 1) for each in requests])
    in_time = np.ones(len(requests), dtype=bool)
    if first_token_s is not None:
        in_time &= served.first_s - arrived <= first_token_s
    if per_token_s is not None:
        in_time &= (served.last_s - served.first_s) / further <= per_token_s
    return float(np.mean(in_time[min(FILLING, len(requests) // 2) :]))


@lru_cache(maxsize=256)
def calibration(told: tuple[TextRequest, ...], max_seqs: int | None) -> Calibration | None:
    """Return what the steps of the replica take of which most is told; None where that is too little."""
    if not told:
        return None
    replica, _ = Counter(each.replica for each in told).most_common(1)[0]
    there = sorted((each for each in told if each.replica == replica), key=lambda each: each.sent)[-MOST:]
    ended = [each.is_timed for each in there]
    if sum(ended) < FEWEST:
        return None
    begin = there[0].sent
    # Of those that are under way no more is known than that they are usual.
    usual = round(float(np.median([each.output for each in there if each.is_timed])))
    requests = [
        Request(
            arrived_s=each.sent - begin,
            prompt=max(1, each.prompt),
            output=max(1, each.output if each.last is not None else max(each.output, usual)),
        )
        for each in there
    ]
    times = (((each.first or 0.0) - begin, (each.last or 0.0) - begin) for each in there)
    columns = np.array([pair if is_known else (np.nan, np.nan) for pair, is_known in zip(times, ended, strict=True)])
    observed = Served(first_s=columns[:, 0], last_s=columns[:, 1])
    engine = Engine(max_seqs=min(MAX_SEQS, max_seqs or MAX_SEQS))
    found = calibrate(requests, observed, engine, simulations=SIMULATIONS)[0]
    seen = np.flatnonzero(ended)
    of_seen = [requests[place] for place in seen]
    first_s, last_s = observed.first_s[seen], observed.last_s[seen]
    waits = first_s - np.array([each.arrived_s for each in of_seen])
    pace_s = np.median((last_s - first_s) / np.array([each.output - 1 for each in of_seen]))
    if np.max(waits) < LONG_WAIT * pace_s:
        return found
    blocks = blocks_at_once(of_seen, Served(first_s=first_s, last_s=last_s), first_s)
    bounded = Engine(max_seqs=engine.max_seqs, blocks=blocks)
    return min(found, calibrate(requests, observed, bounded, simulations=SIMULATIONS)[0], key=lambda each: each.error)
