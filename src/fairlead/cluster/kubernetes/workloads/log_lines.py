"""Parses the lines of a container's log, which kubelet returns with times, into lines of ranks. Pure."""

import re
from datetime import datetime
from functools import lru_cache

from fairlead.cluster.output import COUNTS
from fairlead.cluster.port import LogLine

_LINE = re.compile(r"(\S+?)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) (?:(\d{1,6}|-)([|!]) ?|(?:-)(#) (?=\{))?(.*)", re.DOTALL)
_STREAMS = {"|": "o", "!": "e", "#": COUNTS}


def parse(raw: str, attempt: int) -> tuple[int, LogLine] | None:
    """Return the nanoseconds and the line that kubelet returned; None if it has no time.

    Output that the shim did not write, such as of an interpreter that cannot start, is the pod's own: rank -1. The
    shim's own report of how much it has written has the stream ``c``.
    """
    match = _LINE.fullmatch(raw)
    if match is None:
        return None
    base, fraction, zone, rank, mark, counts, text = match.groups()
    try:
        second, part_ns = _second(base, zone), int((fraction or "").ljust(9, "0"))
    except ValueError:
        return None
    number = int(rank) if rank is not None and rank.isdigit() else -1
    stream = _STREAMS.get(mark or counts or "", "o")
    at = second + part_ns / 1e9
    return second * 10**9 + part_ns, LogLine(at=at, attempt=attempt, rank=number, stream=stream, text=text)


@lru_cache(maxsize=256)
def _second(base: str, zone: str) -> int:
    return int(datetime.fromisoformat(f"{base}{zone}").timestamp())
