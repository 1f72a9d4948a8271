"""The output of runs: which lines are asked for, how far reading has come, and what was dropped. No I/O."""

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from fairlead.cluster.port import LogLine
from fairlead.frozen import dataclass
from fairlead.specs.quantities import format_size, parse_duration
from fairlead.text.quantities import describe_memory, plural

NOTE = "f"
"""The stream of lines that Fairlead itself writes about output, such as how much of it was dropped."""

COUNTS = "c"
"""The stream of lines in which a shim says how much was written before them; nobody else sees them."""

Counts = Mapping[int, tuple[int, int]]
"""Lines and bytes of each rank; -1 is the set-up step."""

_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d{1,6})?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """A choice of lines of output. Notes about missing output come with them, whatever the pattern.

    Attributes:
        ranks: Only these; None for all.
        attempt: Only this start of the run, from 0; None for all.
        since: Only lines from this Unix time on; None for the beginning.
        until: Only lines up to this Unix time; None for the end.
        pattern: Only lines in which it is found; None for all.
        tail: Only the last so many of them; None for all.
    """

    ranks: frozenset[int] | None = None
    attempt: int | None = None
    since: float | None = None
    until: float | None = None
    pattern: re.Pattern[str] | None = None
    tail: int | None = None

    def is_wanted(self, line: LogLine) -> bool:
        """Return whether a line of the attempt is asked for, but for ``tail``."""
        if self.ranks is not None and line.rank not in self.ranks and not (line.rank < 0 and line.stream == NOTE):
            return False
        if self.since is not None and line.at < self.since:
            return False
        if self.until is not None and line.at > self.until:
            return False
        return self.pattern is None or line.stream == NOTE or self.pattern.search(line.text) is not None


EVERYTHING = LogQuery()


class Watermark:
    """A time up to which one thread that follows output has come, for another that waits for it.

    Attributes:
        wanted: The Unix time up to which output is waited for.
        reached: All output that was there at this Unix time has been handed out; set by the one that reads.
    """

    def __init__(self) -> None:
        self.wanted = 0.0
        self.reached = 0.0
        self._asked = threading.Event()

    def want(self, until: float) -> None:
        """Have the one that reads look now, as output up to a Unix time is waited for."""
        self.wanted = until
        self._asked.set()

    def pause(self, most_s: float) -> None:
        """Let the one that reads pause for so long at most, until it is to look again."""
        if self._asked.wait(most_s):
            self._asked.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Output that is not there any more.

    Attributes:
        rank: Whose it was; -1 for the set-up step, None where it cannot be told.
        lines: How many lines; None where it cannot be told.
        num_bytes: How much text, line ends included; None where it cannot be told.
        why: By which limit, and what raises it.
    """

    attempt: int
    rank: int | None
    lines: int | None
    num_bytes: int | None
    why: str

    def line(self, at: float) -> LogLine:
        """The note that stands where the output was."""
        rank = -1 if self.rank is None else self.rank
        text = f"... {describe_dropped((self,), here=True)}"
        return LogLine(at=at, attempt=self.attempt, rank=rank, stream=NOTE, text=text)


def describe_dropped(dropped: Iterable[Dropped], *, here: bool = False) -> str:
    """One sentence about output that was dropped; ``dropped`` is not empty.

    Args:
        here: It is said in the place where the output was.
    """
    each = list(dropped)
    ranks = sorted({one.rank for one in each if one.rank is not None})
    whose = ""
    if len(ranks) == 1:
        whose = " of the set-up step" if ranks[0] < 0 else f" of rank {ranks[0]}"
    elif ranks:
        whose = f" of {plural(len(ranks), 'rank')}"
    known = [one for one in each if one.lines is not None]
    place, why = " here" if here else "", each[0].why
    if not known:
        return f"the beginning of the output{whose} was dropped{place}: {why}"
    num_lines = sum(one.lines or 0 for one in known)
    size = describe_memory(sum(one.num_bytes or 0 for one in known))
    least = "" if len(known) == len(each) else "at least "
    what = "1 line" if num_lines == 1 else f"{num_lines:,} lines"
    return f"{least}{what} ({size}){whose} {'was' if num_lines == 1 else 'were'} dropped{place}: {why}"


def local_limit(max_bytes: int) -> str:
    """The limit of a pod's log on this machine, and what raises it."""
    return f"the limit is {describe_memory(max_bytes)}; `logs: {{max: {format_size(4 * max_bytes)}}}` raises it"


def read_counts(text: str | bytes) -> dict[int, tuple[int, int]] | None:
    """The counts that a shim wrote; None when it is something else."""
    try:
        content = json.loads(text)
        return {
            int(rank) if rank != "-" else -1: (int(lines), int(num_bytes))
            for rank, (lines, num_bytes) in content.items()
        }
    except (ValueError, TypeError, AttributeError):
        return None


def missing(counted: Counts, seen: Counts, attempt: int, why: str) -> Iterator[Dropped]:
    """Count what was dropped of each rank between what was seen and what the shim has counted."""
    for rank, (lines, num_bytes) in sorted(counted.items()):
        seen_lines, seen_bytes = seen.get(rank, (0, 0))
        if lines > seen_lines:
            left = max(0, num_bytes - seen_bytes)
            yield Dropped(attempt=attempt, rank=rank, lines=lines - seen_lines, num_bytes=left, why=why)


class Gaps:
    """Finds what is missing in the lines of one pod, by the counts among them.

    Args:
        why: By which limit lines go.
        whole: Whether the lines begin with the pod's first ones, or with a note of what is missing before.
    """

    def __init__(self, attempt: int, why: str, *, whole: bool) -> None:
        self._attempt = attempt
        self._why = why
        self._is_known = whole
        self._seen: dict[int, tuple[int, int]] = {}

    @property
    def seen(self) -> Counts:
        """Count what was written so far, as far as it is known."""
        return self._seen

    def take(self, line: LogLine) -> tuple[Dropped, ...]:
        """Note a line; what is missing before it, if it is one of counts."""
        if line.stream != COUNTS:
            lines, num_bytes = self._seen.get(line.rank, (0, 0))
            self._seen[line.rank] = lines + 1, num_bytes + len(line.text.encode(errors="replace")) + 1
            return ()
        counted = read_counts(line.text) or {}
        dropped = tuple(missing(counted, self._seen, self._attempt, self._why)) if self._is_known else ()
        self._is_known, self._seen = True, counted
        return dropped

    def told(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """The lines without counts, with notes of what is missing; of the beginning, at the beginning."""
        waiting: list[LogLine] | None = []
        for line in lines:
            dropped = self.take(line)
            if line.stream == COUNTS:
                at = waiting[0].at if waiting else line.at
                yield from (each.line(at) for each in dropped)
                yield from waiting or ()
                waiting = None
            elif waiting is None:
                yield line
            else:
                waiting.append(line)
        yield from waiting or ()


def parse_moment(text: str, now: float) -> float:
    """A Unix time, from how long ago it is (``10m``), a date and time, a time of today, or ``@`` and a Unix time.

    Raises:
        ValueError: It is none of them.
    """
    text = text.strip()
    try:
        moment = _moment(text, now)
        datetime.fromtimestamp(moment, UTC)
    except (ValueError, OverflowError, OSError):  # the last two: of no year that there is
        raise ValueError(_MOMENTS.format(text)) from None
    return moment


def _moment(text: str, now: float) -> float:
    if text.startswith("@"):
        return float(text[1:])
    if _CLOCK.fullmatch(text):
        today = datetime.fromtimestamp(now).strftime("%Y-%m-%d")
        return datetime.fromisoformat(f"{today}T{text:0>5}" if len(text) < 6 else f"{today}T{text:0>8}").timestamp()
    if re.match(r"\d{4}-?\d\d-?\d\d", text):
        return datetime.fromisoformat(text).timestamp()
    return now - parse_duration(text)


_MOMENTS = (
    "{!r} is no point in time; give how long ago, such as 10m or 1h30m, a time, such as 2026-01-31T14:05 or 14:05:30, "
    "or a Unix time, such as @1769860800"
)
