"""Reads timings of the requests to a text server from JSON lines.

How its engine is inferred from them is decision 200.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import UnknownModel
from fairlead.frozen import dataclass
from fairlead.policy.serving.text_calibration import blocks_at_once
from fairlead.policy.serving.text_engine import EngineLimits, EngineRequest, Served

COLUMNS = ("input_toks", "output_toks", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
FEWEST = 20
# The number of times of different engines that fell into one step, for these to be believed.
FEWEST_PAIRS = 3
CONCURRENCY_ERROR = 1.1
# Memory may be short if a request waited to be scheduled for this many usual steps.
LONG_WAIT = 15.0
# Shares of the experts that a token uses, of usual models: 8 of 128, 2 of 8.
EXPERT_SHARES = (0.0625, 0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequests:
    """Requests in order of arrival; times are seconds since the first arrival.

    Attributes:
        begins_s: Time at which each was scheduled.
    """

    requests: Sequence[EngineRequest]
    served: Served
    begins_s: NDArray[np.float64]

    def first(self, num: int) -> "ServedRequests":
        """Return the state of knowledge after a number of arrivals: of later requests only the load is known."""
        later = np.arange(len(self.requests)) >= num
        seen = Served(
            first_s=np.where(later, np.nan, self.served.first_s), last_s=np.where(later, np.nan, self.served.last_s)
        )
        return replace(self, served=seen, begins_s=np.where(later, np.nan, self.begins_s))

    def engines(
        self, limits: EngineLimits, *, num_ranks: int | None = None, is_mixture: bool | None = None
    ) -> list[EngineLimits]:
        """Return the engines that may have served the requests, the simplest first.

        Memory may have been short only if a request waited longer than a few steps while fewer ran than allowed.

        Args:
            limits: The limits that are known; ``blocks`` if the memory is, ``expert_share`` if the experts are.
            num_ranks: The number of data-parallel engines; None to infer it.
            is_mixture: Whether the model has experts; None if that is unknown.
        """
        seen = ~np.isnan(self.begins_s)
        requests = [request for request, is_seen in zip(self.requests, seen, strict=True) if is_seen]
        served = Served(first_s=self.served.first_s[seen], last_s=self.served.last_s[seen])
        begins_s = self.begins_s[seen]
        running = np.array([int(np.sum((begins_s <= at) & (at < served.last_s))) for at in begins_s])
        further = np.array([max(1, request.output - 1) for request in requests])
        paces = (served.last_s - served.first_s) / further
        ranks, is_lockstep = _engines_by_steps(served, float(np.min(paces[further > 8], initial=np.inf)))
        # One that ended as another began may count twice.
        ranks = num_ranks or max(ranks, -(-int(max(running) / CONCURRENCY_ERROR) // limits.max_seqs))
        shares = [limits.expert_share]
        if is_mixture is None and not limits.expert_share:
            shares += EXPERT_SHARES
        limits = replace(limits, ranks=ranks, is_lockstep=is_lockstep)
        memories = [limits.blocks]
        waits = begins_s - np.array([request.arrived_s for request in requests])
        has_waited = np.max(waits) > LONG_WAIT * float(np.median(paces))
        if limits.blocks is None and has_waited and max(running) < ranks * (limits.max_seqs - 1):
            # One that waits for a free place has it at the limit.
            memories.append(blocks_at_once(requests, served, begins_s) // ranks)
        return [replace(limits, blocks=blocks, expert_share=share) for blocks in memories for share in shares]


def _engines_by_steps(served: Served, shortest_s: float) -> tuple[int, bool]:
    """Return how many engines served requests, and whether they stepped together.

    All tokens of a step have the same time, and steps of one engine do not overlap. So different times within half of
    the shortest step are of several engines; they are close to each other if these step together.
    """
    times = np.unique(np.concatenate([served.first_s, served.last_s]))
    within = np.searchsorted(times, times + 0.5 * shortest_s, side="right") - np.arange(len(times))
    num, most = 1, int(within.max())
    for candidate in range(2, most + 1):
        if np.sum(within >= candidate) >= FEWEST_PAIRS:
            num = candidate
    gaps = np.diff(times)
    close = gaps[gaps < 0.5 * shortest_s]
    return num, len(close) == 0 or float(np.mean(close < 0.2 * shortest_s)) > 0.6


def read_served(path: Path) -> ServedRequests:
    """Read requests with input tokens, output tokens and four timestamps in seconds (``COLUMNS``).

    Raises:
        UnknownModel: A line is not such a request, or there are too few requests.
    """
    rows = list[dict[str, float]]()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UnknownModel(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows.append({name: float(row[name]) for name in COLUMNS})
        except (ValueError, TypeError, KeyError) as error:
            raise UnknownModel(
                f"{path}, line {number}: an object with numbers {', '.join(COLUMNS)} is needed"
            ) from error
    if len(rows) < FEWEST:
        raise UnknownModel(f"{path} has {len(rows)} requests; at least {FEWEST} are needed")
    rows.sort(key=lambda row: row["queued_ts"])
    begin = rows[0]["queued_ts"]
    first_s, last_s, begins_s = (
        np.array([row[name] - begin for row in rows]) for name in ("first_token_ts", "last_token_ts", "scheduled_ts")
    )
    requests = [
        EngineRequest(arrived_s=row["queued_ts"] - begin, prompt=int(row["input_toks"]), output=int(row["output_toks"]))
        for row in rows
    ]
    return ServedRequests(requests=requests, served=Served(first_s=first_s, last_s=last_s), begins_s=begins_s)
