"""Reads timings of the requests to a text server from JSON lines."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import UnknownModel
from fairlead.frozen import dataclass
from fairlead.policy.serving.text_calibration import blocks_at_once
from fairlead.policy.serving.text_engine import Engine, Request, Served

COLUMNS = ("input_toks", "output_toks", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
FEWEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequests:
    """Requests in order of arrival; times are seconds since the first arrival.

    Attributes:
        begins_s: Time at which each was scheduled.
    """

    requests: Sequence[Request]
    served: Served
    begins_s: NDArray[np.float64]

    def first(self, num: int) -> "ServedRequests":
        """Return the state of knowledge after a number of arrivals: of later requests only the load is known."""
        later = np.arange(len(self.requests)) >= num
        seen = Served(
            first_s=np.where(later, np.nan, self.served.first_s), last_s=np.where(later, np.nan, self.served.last_s)
        )
        return replace(self, served=seen, begins_s=np.where(later, np.nan, self.begins_s))

    def engine(self, limits: Engine) -> Engine:
        """Return the limits with the engines inferred from concurrency, and the blocks if memory limits it."""
        seen = ~np.isnan(self.begins_s)
        begins_s, ends_s = self.begins_s[seen], self.served.last_s[seen]
        running = max(int(np.sum((begins_s <= at) & (at < ends_s))) for at in begins_s)
        ranks = -(-running // limits.max_seqs)
        if running >= ranks * (limits.max_seqs - 1):
            return replace(limits, ranks=ranks)
        requests = [each for each, is_seen in zip(self.requests, seen, strict=True) if is_seen]
        served = Served(first_s=self.served.first_s[seen], last_s=ends_s)
        return replace(limits, ranks=ranks, blocks=blocks_at_once(requests, served, begins_s) // ranks)


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
        Request(arrived_s=row["queued_ts"] - begin, prompt=int(row["input_toks"]), output=int(row["output_toks"]))
        for row in rows
    ]
    return ServedRequests(requests=requests, served=Served(first_s=first_s, last_s=last_s), begins_s=begins_s)
