"""Reads what each rank computed itself in each step from traces of PyTorch's profiler, a file for each rank.

The format is the Chrome trace that Kineto writes (https://github.com/pytorch/kineto), with the rank in
`distributedInfo` and a `ProfilerStep#N` for each step, as `torch.profiler.profile(schedule=...)` records with
`prof.step()`. A rank waits while a collective runs and it computes nothing: on GPUs no kernel but those of the
collective library, on processors no operator. The rest of a step is its own time.
"""

import gzip
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairlead.errors import InvalidSpec
from fairlead.policy.health.gang_times import OwnTimes
from fairlead.untrusted_json import fields, items, number, parse_object, whole

MOST_BYTES = 1 << 30
"""Of one rank's trace, unpacked; a step of a large model has some megabytes."""
MOST_RANKS = 4096
SUFFIXES = (".json", ".json.gz")
_STEP = re.compile(r"ProfilerStep#(\d{1,15})")
_COLLECTIVE = re.compile(r"(?:nccl|gloo|ucc|mpi|xccl)(?:Dev)?(?:Kernel|:)", re.IGNORECASE)
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})

Span = tuple[float, float]
"""Begin and end in microseconds."""


def own_times_of_traces(path: Path) -> dict[int, OwnTimes]:
    """Return the own times of all ranks whose traces are in a directory.

    Raises:
        InvalidSpec: A file is no trace of a rank, a rank is missing or there twice, or there are no steps.
    """
    files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES)) if path.is_dir() else [path]
    if not files:
        raise InvalidSpec((f"{path} has no traces; one file of each rank is needed, {' or '.join(SUFFIXES)}",))
    if len(files) > MOST_RANKS:
        raise InvalidSpec((f"{path} has {len(files):,} traces; at most {MOST_RANKS:,} are read",))
    times: dict[int, OwnTimes] = {}
    sizes: set[int] = set()
    for file in files:
        rank, size, own = _own_times(file)
        if rank in times:
            raise InvalidSpec((f"{path} has two traces of rank {rank}, one in {file.name}; leave one of them",))
        times[rank] = own
        sizes.add(size)
    missing = sorted(set(range(max(sizes))) - times.keys())
    if missing:
        names = ", ".join(map(str, missing[:8])) + (" and more" if len(missing) > 8 else "")
        raise InvalidSpec((f"{path} lacks the traces of ranks {names} of {max(sizes)}; every rank's is needed",))
    if len(times) < 2:
        raise InvalidSpec((f"{path} has one rank; stragglers are those of several",))
    return times


def _own_times(file: Path) -> tuple[int, int, OwnTimes]:
    """Return the rank of a trace, the number of ranks, and the rank's own times."""
    trace = _parsed(file)
    of_ranks = fields(trace.get("distributedInfo"))
    rank, size = whole(of_ranks.get("rank")), whole(of_ranks.get("world_size"))
    if rank is None or size is None or not 0 <= rank < size <= MOST_RANKS:
        raise InvalidSpec(
            (f"{file} names no rank in distributedInfo; profile after torch.distributed.init_process_group()",)
        )
    events = [event for event in map(fields, items(trace.get("traceEvents"))) if event.get("ph") == "X"]
    windows = _windows(events)
    if not windows:
        raise InvalidSpec(
            (f"{file} has no steps; give torch.profiler.profile a schedule, and call step() of it after each step",)
        )
    has_device = any(event.get("cat") in _DEVICE for event in events)
    category = _DEVICE if has_device else frozenset({"cpu_op"})
    collectives, work = [], []
    for event in events:
        span, name = _span(event), str(event.get("name"))
        if span is None:
            continue
        if _COLLECTIVE.match(name):
            if not has_device or event.get("cat") == "kernel":
                collectives.append(span)
        elif event.get("cat") in category and not name.startswith("c10d::"):
            work.append(span)
    collectives, work = _merged(collectives), _merged(work)
    own_us = []
    for begin, end in windows.values():
        busy = _clipped(work, begin, end)
        waits = _length(_merged([*_clipped(collectives, begin, end), *busy])) - _length(busy)
        own_us.append(max(1, round(end - begin - waits)))
    first, last = min(windows), max(windows)
    if last - first + 1 != len(windows):
        raise InvalidSpec(
            (f"{file} has the steps {first} to {last} with gaps; let the profiler record them in one go",)
        )
    step_s = (windows[last][1] - windows[first][0]) / len(windows) / 1e6
    return rank, size, OwnTimes(step=last, own_us=tuple(own_us), step_s=step_s, of_gpu=has_device)


def _parsed(file: Path) -> dict[str, Any]:
    try:
        with gzip.open(file) if file.name.endswith(".gz") else file.open("rb") as stream:
            return parse_object(stream.read(MOST_BYTES + 1), max_bytes=MOST_BYTES)
    except (OSError, EOFError, ValueError) as error:
        raise InvalidSpec((f"{file} cannot be read as a trace of PyTorch's profiler: {error}",)) from error


def _windows(events: Iterable[dict[str, Any]]) -> dict[int, Span]:
    """Return the span of each step by its number; that of the device where it has its own."""
    windows: dict[int, Span] = {}
    on_device: set[int] = set()
    for event in events:
        match, span = _STEP.fullmatch(str(event.get("name"))), _span(event)
        if match is None or span is None:
            continue
        of_device = event.get("cat") == "gpu_user_annotation"
        if of_device or int(match[1]) not in on_device:
            windows[int(match[1])] = span
        if of_device:
            on_device.add(int(match[1]))
    return dict(sorted(windows.items()))


def _span(event: dict[str, Any]) -> Span | None:
    begin, length = number(event.get("ts")), number(event.get("dur"))
    if begin is None or length is None or not 0 <= length < 1e15 or not abs(begin) < 1e18:
        return None
    return begin, begin + length


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans, in order."""
    union: list[Span] = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def _clipped(spans: Sequence[Span], begin: float, end: float) -> list[Span]:
    """Return the parts of disjoint spans in order that are between two moments."""
    first, last = max(bisect_left(spans, (begin,)) - 1, 0), bisect_left(spans, (end,))
    return [(max(start, begin), min(stop, end)) for start, stop in spans[first:last] if stop > begin]


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)
