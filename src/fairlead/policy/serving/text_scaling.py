"""Computes the share of requests that a replica of a text server serves in time under a load, from served requests.

The busiest reported requests of a replica determine its step times (``text_calibration``), the latest ones the current
lengths of prompts and answers. A simulation of such requests under loads up to beyond the maximum gives the share whose
first token and whose further ones come in time. Requests that even an almost idle replica does not serve in time cannot
be helped by more replicas: shares are relative to what it serves in time.

Calibrations and simulations are cached by their inputs, because gateways report other requests only now and then.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fairlead.frozen import dataclass
from fairlead.policy.serving.text_calibration import Calibration, blocks_at_once, calibrate
from fairlead.policy.serving.text_capacity import most_per_s
from fairlead.policy.serving.text_engine import EngineLimits, EngineRequest, Served, simulate
from fairlead.state.demand import TextRequest

# Minimum number of requests for a calibration, and the number of the last ones used.
FEWEST, MOST = 20, 128
# Concurrent requests if not limited: vLLM's default.
MAX_SEQS = 256
# Simulated loads as parts of the maximum, with the number of requests, the first of which fill the replica.
LOADS = (0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.6, 2.4)
NUM_REQUESTS, FILLING = 450, 50
# Each search evaluates only its initial point: that, and least squares, are some 25 simulations of a busy replica and
# 50 of another one, 0.1 to 1 s of CPU time.
SIMULATIONS = 8
# Memory may be short if the first token has taken this many times a further one.
LONG_WAIT = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """The performance of a replica under load.

    Attributes:
        most_per_s: The maximum of requests per second.
        shares: Share of requests in time, 0 to 1, by load as a part of the maximum; non-increasing. Empty if no
            request is in time under any load.
        first_token_s: The median time to the first token under the least load.
        per_token_s: The median time per further token under the least load.
    """

    most_per_s: float
    shares: tuple[tuple[float, float], ...]
    first_token_s: float
    per_token_s: float


@lru_cache(maxsize=256)
def answering(
    busiest: tuple[TextRequest, ...],
    latest: tuple[TextRequest, ...],
    first_token_s: float | None,
    per_token_s: float | None,
    max_seqs: int | None,
) -> Answering | None:
    """Return the performance of a replica; None if too little is known.

    Args:
        busiest: Requests of a replica from its busiest time.
        latest: The latest requests, whose lengths count.
        first_token_s: The limit until the first token; None for no limit.
        per_token_s: The limit for the mean time per further token; None for no limit.
        max_seqs: Concurrent requests sent to a replica; None for no limit.
    """
    calibrated = calibration(busiest, max_seqs)
    lengths = [(request.prompt, request.output) for request in latest if request.last is not None]
    if calibrated is None or len(lengths) < FEWEST:
        return None
    rng = np.random.default_rng(0)
    drawn = [lengths[place] for place in rng.integers(len(lengths), size=NUM_REQUESTS)]
    gaps = np.cumsum(rng.exponential(1.0, NUM_REQUESTS))

    def under(rate: float | None) -> list[EngineRequest]:
        times = np.zeros(NUM_REQUESTS) if rate is None else gaps / rate
        return [
            EngineRequest(arrived_s=float(at), prompt=prompt, output=output)
            for at, (prompt, output) in zip(times, drawn, strict=True)
        ]

    try:
        most = most_per_s(under(None), calibrated.times, calibrated.engine)
        shares = []
        for load in LOADS:
            requests = under(load * most)
            served = simulate(requests, calibrated.times, calibrated.engine)
            shares.append(share_in_time(requests, served, first_token_s, per_token_s))
            if load == LOADS[0]:
                waits, paces = _waits(requests, served)
                usual = float(np.median(waits)), float(np.median(paces))
                if shares[0] <= 0.0:
                    return Answering(most_per_s=most, shares=(), first_token_s=usual[0], per_token_s=usual[1])
    except ValueError:
        # A request is longer than all memory that was ever in use.
        return None
    falling = np.minimum.accumulate(np.minimum(np.array(shares) / shares[0], 1.0))
    return Answering(
        most_per_s=most, shares=tuple(zip(LOADS, (float(entry) for entry in falling), strict=True)),
        first_token_s=usual[0], per_token_s=usual[1],
    )  # fmt: skip


def share_in_time(
    requests: Sequence[EngineRequest], served: Served, first_token_s: float | None, per_token_s: float | None
) -> float:
    """Return the share of requests in time, without the first ones, which fill the replica."""
    waits, paces = _waits(requests, served)
    in_time = np.ones(len(waits), dtype=bool)
    if first_token_s is not None:
        in_time &= waits <= first_token_s
    if per_token_s is not None:
        in_time &= paces <= per_token_s
    return float(np.mean(in_time))


def _waits(requests: Sequence[EngineRequest], served: Served) -> tuple[np.ndarray, np.ndarray]:
    """Return times to the first token and per further token, without those of the first requests."""
    arrived = np.array([request.arrived_s for request in requests])
    further = np.array([max(1, request.output - 1) for request in requests])
    begin = min(FILLING, len(requests) // 2)
    return (served.first_s - arrived)[begin:], ((served.last_s - served.first_s) / further)[begin:]


@lru_cache(maxsize=256)
def calibration(reported: tuple[TextRequest, ...], max_seqs: int | None) -> Calibration | None:
    """Return the step times of the replica with the most reported requests; None if these are too few."""
    if not reported:
        return None
    replica, _ = Counter(request.replica for request in reported).most_common(1)[0]
    of_replica = sorted(
        (request for request in reported if request.replica == replica), key=lambda request: request.sent
    )[-MOST:]
    ended = [request.is_timed for request in of_replica]
    if sum(ended) < FEWEST:
        return None
    begin = of_replica[0].sent
    # Unfinished requests are assumed to have the usual output length.
    usual = round(float(np.median([request.output for request in of_replica if request.is_timed])))
    requests = [
        EngineRequest(
            arrived_s=request.sent - begin,
            prompt=max(1, request.prompt),
            output=max(1, request.output if request.last is not None else max(request.output, usual)),
        )
        for request in of_replica
    ]
    times = (((request.first or 0.0) - begin, (request.last or 0.0) - begin) for request in of_replica)
    columns = np.array([pair if is_known else (np.nan, np.nan) for pair, is_known in zip(times, ended, strict=True)])
    observed = Served(first_s=columns[:, 0], last_s=columns[:, 1])
    engine = EngineLimits(max_seqs=min(MAX_SEQS, max_seqs or MAX_SEQS))
    fitted = calibrate(requests, observed, engine, simulations=SIMULATIONS)[0]
    seen = np.flatnonzero(ended)
    of_seen = [requests[place] for place in seen]
    first_s, last_s = observed.first_s[seen], observed.last_s[seen]
    waits = first_s - np.array([request.arrived_s for request in of_seen])
    pace_s = np.median((last_s - first_s) / np.array([request.output - 1 for request in of_seen]))
    if np.max(waits) < LONG_WAIT * pace_s:
        return fitted
    blocks = blocks_at_once(of_seen, Served(first_s=first_s, last_s=last_s), first_s)
    bounded = EngineLimits(max_seqs=engine.max_seqs, blocks=blocks)
    return min(
        fitted,
        calibrate(requests, observed, bounded, simulations=SIMULATIONS)[0],
        key=lambda calibrated: calibrated.error,
    )
