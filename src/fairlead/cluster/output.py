"""The output of runs: selection of lines, progress of a reader, and dropped output. No I/O."""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from fairlead.cluster.port import LogLine
from fairlead.frozen import dataclass
from fairlead.specs.quantities import format_size, parse_duration
from fairlead.text.quantities import describe_memory, plural
from fairlead.untrusted_json import parse_object

MOST_COUNTS_BYTES = 1 << 20
NOTE = "f"
"""The stream of lines that Fairlead itself writes about output, such as the amount that was dropped."""

COUNTS = "c"
"""The stream of lines in which a shim counts what was written before them; they are never shown."""

Counts = Mapping[int, tuple[int, int]]
"""Lines and bytes of each rank; -1 is the set-up step."""

_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d{1,6})?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """A selection of lines of output. Notes about dropped output are included whatever the pattern.

    Attributes:
        ranks: Only these; None for all.
        attempt: Only this attempt of the run, from 0; None for all.
        since: Only lines from this Unix time on; None for the beginning.
        until: Only lines up to this Unix time; None for the end.
        prefix: Only lines that it matches at the beginning; None for all.
        pattern: Only lines that it matches anywhere after ``prefix``; None for all.
        tail: Only the last so many of them; None for all.
    """

    ranks: frozenset[int] | None = None
    attempt: int | None = None
    since: float | None = None
    until: float | None = None
    prefix: re.Pattern[str] | None = None
    pattern: re.Pattern[str] | None = None
    tail: int | None = None

    def is_wanted(self, line: LogLine) -> bool:
        """Return whether a line of the attempt is selected, apart from ``tail``."""
        if self.ranks is not None and line.rank not in self.ranks and not (line.rank < 0 and line.stream == NOTE):
            return False
        if self.since is not None and line.at < self.since:
            return False
        if self.until is not None and line.at > self.until:
            return False
        if line.stream == NOTE:
            return True
        prefix = None if self.prefix is None else self.prefix.match(line.text)
        if self.prefix is not None and prefix is None:
            return False
        text = line.text if prefix is None else line.text[prefix.end() :]
        return self.pattern is None or self.pattern.search(text) is not None


EVERYTHING = LogQuery()


class Watermark:
    """A time up to which a thread that follows output has read, for another thread that waits for it.

    Attributes:
        wanted: The Unix time up to which output is awaited.
        reached: The Unix time up to which all output has been delivered; set by the reader.
    """

    def __init__(self) -> None:
        self.wanted = 0.0
        self.reached = 0.0
        self._awaited = threading.Event()

    def want(self, until: float) -> None:
        """Wake the reader, since output up to a Unix time is awaited."""
        self.wanted = until
        self._awaited.set()

    def pause(self, most_s: float) -> None:
        """Pause the reader for at most so many seconds, or until it is woken."""
        if self._awaited.wait(most_s):
            self._awaited.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Output that is no longer available.

    Attributes:
        rank: Rank that wrote it; -1 for the set-up step, None where unknown.
        lines: Number of lines; None where unknown.
        num_bytes: Size of the text, line ends included; None where unknown.
        why: The limit that dropped it, and the setting that raises the limit.
    """

    attempt: int
    rank: int | None
    lines: int | None
    num_bytes: int | None
    why: str

    def line(self, at: float) -> LogLine:
        """Return the note that stands in the place of the output."""
        rank = -1 if self.rank is None else self.rank
        text = f"... {describe_dropped((self,), here=True)}"
        return LogLine(at=at, attempt=self.attempt, rank=rank, stream=NOTE, text=text)


def describe_dropped(dropped: Iterable[Dropped], *, here: bool = False) -> str:
    """Describe dropped output in one sentence for each cause; ``dropped`` is not empty.

    Args:
        here: The sentence stands in the place of the output.
    """
    causes: dict[str, list[Dropped]] = {}
    for one in dropped:
        causes.setdefault(one.why, []).append(one)
    return "; ".join(_describe_cause(group, here=here) for group in causes.values())


def _describe_cause(group: list[Dropped], *, here: bool) -> str:
    ranks = sorted({one.rank for one in group if one.rank is not None})
    whose = ""
    if len(ranks) == 1:
        whose = " of the set-up step" if ranks[0] < 0 else f" of rank {ranks[0]}"
    elif ranks:
        whose = f" of {plural(len(ranks), 'rank')}"
    known = [one for one in group if one.lines is not None]
    place, why = " here" if here else "", group[0].why
    if not known:
        return f"the beginning of the output{whose} was dropped{place}: {why}"
    num_lines = sum(one.lines or 0 for one in known)
    size = describe_memory(sum(one.num_bytes or 0 for one in known))
    least = "" if len(known) == len(group) else "at least "
    what = "1 line" if num_lines == 1 else f"{num_lines:,} lines"
    return f"{least}{what} ({size}){whose} {'was' if num_lines == 1 else 'were'} dropped{place}: {why}"


def local_limit(max_bytes: int) -> str:
    """Describe the limit of a pod's log on this machine, with the setting that raises it."""
    return f"the limit is {describe_memory(max_bytes)}; `logs: {{max: {format_size(4 * max_bytes)}}}` raises it"


def read_counts(text: str | bytes) -> dict[int, tuple[int, int]] | None:
    """Parse the counts that a shim wrote; None when the text is something else."""
    try:
        content = parse_object(text, max_bytes=MOST_COUNTS_BYTES)
        return {
            int(rank) if rank != "-" else -1: (int(lines), int(num_bytes))
            for rank, (lines, num_bytes) in content.items()
        }
    except (ValueError, TypeError, OverflowError):
        return None


def missing(counted: Counts, seen: Counts, attempt: int, why: str) -> Iterator[Dropped]:
    """Yield what was dropped of each rank between the lines seen and the counts of the shim."""
    for rank, (lines, num_bytes) in sorted(counted.items()):
        seen_lines, seen_bytes = seen.get(rank, (0, 0))
        if lines > seen_lines:
            left = max(0, num_bytes - seen_bytes)
            yield Dropped(attempt=attempt, rank=rank, lines=lines - seen_lines, num_bytes=left, why=why)


class Gaps:
    """Finds the gaps in the lines of one pod, by the counts among them.

    Args:
        why: The limit that drops lines.
        whole: Whether the lines begin with the pod's first ones, or with a note of what was dropped before.
    """

    def __init__(self, attempt: int, why: str, *, whole: bool) -> None:
        self._attempt = attempt
        self._why = why
        self._is_known = whole
        self._seen: dict[int, tuple[int, int]] = {}

    @property
    def seen(self) -> Counts:
        """Return the lines and bytes written so far, as far as known."""
        return self._seen

    def take(self, line: LogLine) -> tuple[Dropped, ...]:
        """Record a line; if it is one of counts, return what was dropped before it."""
        if line.stream != COUNTS:
            lines, num_bytes = self._seen.get(line.rank, (0, 0))
            self._seen[line.rank] = lines + 1, num_bytes + len(line.text.encode(errors="replace")) + 1
            return ()
        counted = read_counts(line.text) or {}
        dropped = tuple(missing(counted, self._seen, self._attempt, self._why)) if self._is_known else ()
        self._is_known, self._seen = True, counted
        return dropped

    def noted(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yield the lines without counts, with notes of dropped output; a gap at the beginning is noted first."""
        waiting: list[LogLine] | None = []
        for line in lines:
            dropped = self.take(line)
            if line.stream == COUNTS:
                at = waiting[0].at if waiting else line.at
                yield from (loss.line(at) for loss in dropped)
                yield from waiting or ()
                waiting = None
            elif waiting is None:
                yield line
            else:
                waiting.append(line)
        yield from waiting or ()


def parse_moment(text: str, now: float) -> float:
    """Parse a moment into a Unix time: an age (``10m``), a date and time, a time of today, or ``@`` and a Unix time.

    Raises:
        ValueError: The text is none of these.
    """
    text = text.strip()
    try:
        moment = _moment(text, now)
        datetime.fromtimestamp(moment, UTC)
    except (ValueError, OverflowError, OSError):  # the last two: a year out of range
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
    "{!r} is not a point in time; give how long ago, such as 10m or 1h30m, a time, such as 2026-01-31T14:05 or "
    "14:05:30, or a Unix time, such as @1769860800"
)
