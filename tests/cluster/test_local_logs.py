"""Reading the logs of pods on this machine: from both ends, through rotation, and nothing vanishes without a word."""

import json
import os
import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from fairlead.cluster.local import logs
from fairlead.cluster.local.logs import dropped_output, read_logs
from fairlead.cluster.output import EVERYTHING, LogQuery, Watermark
from fairlead.cluster.port import LogLine
from fairlead.runtime.podlog import Log, RankOutput

MIB = 1024 * 1024


class Pods:
    """Logs of pods as shims write them, and what a reader makes of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logs: dict[tuple[int, int], Log] = {}
        self._streams: dict[tuple[int, int], RankOutput] = {}
        self.is_over = False

    def write(self, text: str, *, at: float, rank: int = 0, attempt: int = 0, max_bytes: int = MIB) -> None:
        """Lines of a rank, which has a pod to itself."""
        place = attempt, rank
        if place not in self._streams:
            directory = self._path / f"{attempt}-{rank}"
            directory.mkdir()
            self._logs[place] = Log(str(directory / "output.log"), max_bytes=max_bytes // 4, num_files=4)
            self._streams[place] = RankOutput(self._logs[place], str(rank), "o")
        self._streams[place].feed(text.encode(), at)

    def directories(self) -> list[tuple[int, Path]]:
        return [(attempt, self._path / f"{attempt}-{rank}") for attempt, rank in sorted(self._streams)]

    def read(self, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
        return read_logs(
            self.directories, query, max_bytes=MIB, follow=follow, over=lambda: self.is_over, watermark=Watermark()
        )

    def texts(self, query: LogQuery = EVERYTHING) -> list[str]:
        return [line.text for line in self.read(query)]


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    return Pods(tmp_path)


def a_gang(pods: Pods) -> None:
    """Four ranks, two starts, a line a second from each."""
    for attempt in range(2):
        for second in range(50):
            for rank in range(4):
                pods.write(f"{attempt} {rank} {second}\n", at=1000.0 + 100 * attempt + second + rank / 10, rank=rank, attempt=attempt)  # fmt: skip # noqa: E501


def test_lines_come_by_starts_and_time_from_both_ends(pods: Pods) -> None:
    a_gang(pods)
    expected = [f"{a} {r} {s}" for a in range(2) for s in range(50) for r in range(4)]
    assert pods.texts() == expected
    for tail in (1, 3, 200, 203, 1000):
        assert pods.texts(LogQuery(tail=tail)) == expected[-tail:]


def test_filters_combine(pods: Pods) -> None:
    a_gang(pods)
    query = LogQuery(ranks=frozenset({1, 3}), attempt=1, since=1110.0, until=1130.0, pattern=re.compile("5$"))
    assert pods.texts(query) == ["1 1 15", "1 3 15", "1 1 25", "1 3 25"]
    assert pods.texts(LogQuery(ranks=frozenset({3}), pattern=re.compile("7$"), tail=2)) == ["1 3 37", "1 3 47"]
    assert pods.texts(LogQuery(since=1148.0, tail=100)) == [f"1 {r} {s}" for s in (48, 49) for r in range(4)]
    assert pods.texts(LogQuery(until=1001.0)) == ["0 0 0", "0 1 0", "0 2 0", "0 3 0", "0 0 1"]


@pytest.mark.parametrize("since", [0.0, 1000.0, 1499.5, 1500.0, 2999.0, 3000.0])
def test_a_point_in_time_is_found_wherever_it_is(pods: Pods, since: float) -> None:
    for second in range(2000):
        pods.write(f"{second} {'x' * 200}\n", at=1000.0 + second)
    expected = [str(second) for second in range(2000) if 1000.0 + second >= since]
    assert [text.split()[0] for text in pods.texts(LogQuery(since=since))] == expected


def test_only_the_ends_of_a_long_log_are_read(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    for second in range(100):
        pods.write("".join(f"{second} {n} {'x' * 100}\n" for n in range(100)), at=1000.0 + second, max_bytes=64 * MIB)
    num_read = 0

    def pread(fd: int, size: int, offset: int) -> bytes:
        nonlocal num_read
        found = original(fd, size, offset)
        num_read += len(found)
        return found

    original = os.pread
    monkeypatch.setattr(os, "pread", pread)
    assert pods.texts(LogQuery(tail=2))[-1].startswith("99 99 ")
    assert [line.text[:3] for line in islice(pods.read(), 3)] == ["0 0", "0 1", "0 2"]
    assert num_read <= 6 * logs.CHUNK


def test_what_rotation_dropped_is_told_where_it_was(pods: Pods) -> None:
    for n in range(20_000):
        pods.write(f"{n:06d} {'x' * 93}\n", at=1000.0 + n)
    note, first, *_ = lines = list(pods.read())
    num = int(first.text.split()[0])
    assert num > 0
    assert [int(line.text.split()[0]) for line in lines[1:]] == list(range(num, 20_000))
    assert (note.rank, note.stream, note.at <= first.at) == (0, "f", True)
    assert re.fullmatch(
        rf"\.\.\. {num:,} lines \([\d.]+ MiB\) of rank 0 were dropped here: the limit is 1 MiB; "
        r"`logs: \{max: 4Mi\}` raises it",
        note.text,
    )
    assert [(each.rank, each.lines, each.num_bytes) for each in dropped_output(pods.directories(), MIB)] == [
        (0, num, 101 * num)
    ]
    # From the end it is told when the beginning is reached, and with a pattern that it does not match too.
    assert pods.texts(LogQuery(tail=2))[-1].startswith("019999")
    assert next(pods.read(LogQuery(pattern=re.compile("^019999 ")))).text == note.text
    assert pods.texts(LogQuery(tail=1_000_000))[0] == note.text
    assert pods.texts(LogQuery(since=1000.0 + num + 1))[0].startswith(f"{num + 1:06d}")


def test_a_follower_that_is_overtaken_says_what_it_missed(pods: Pods) -> None:
    pods.write("".join(f"{n:06d}\n" for n in range(100)), at=1000.0)
    lines = pods.read(follow=True)
    seen = [next(lines).text for _ in range(100)]
    for n in range(100, 30_000):
        pods.write(f"{n:06d} {'x' * 93}\n", at=1000.0 + n)
    pods.is_over = True
    rest = list(lines)
    (place,) = (place for place, line in enumerate(rest) if line.stream == "f")
    seen += [line.text.split()[0] for line in rest[:place]]
    after = [line.text.split()[0] for line in rest[place + 1 :]]
    missed = int(after[0]) - len(seen)
    assert seen == [f"{n:06d}" for n in range(len(seen))]
    assert after == [f"{n:06d}" for n in range(len(seen) + missed, 30_000)]
    assert rest[place].text.startswith(f"... {missed:,} lines ")


def test_a_follower_loses_and_repeats_nothing_through_rotation(pods: Pods) -> None:
    texts = []
    lines = pods.read(follow=True)
    for n in range(12_000):
        pods.write(f"{n} {'x' * 90}\n", at=1000.0 + n)
        if n % 100 == 99:
            texts += [next(lines).text.split()[0] for _ in range(100)]
    pods.is_over = True
    assert [line.text for line in lines] == []
    assert texts == [str(n) for n in range(12_000)]


def test_the_last_lines_and_then_those_to_come(pods: Pods) -> None:
    a_gang(pods)
    lines = pods.read(LogQuery(tail=3, ranks=frozenset({0})), follow=True)
    assert [next(lines).text for _ in range(3)] == ["1 0 47", "1 0 48", "1 0 49"]
    pods.write("more of 0\n", at=1200.0, attempt=1)
    pods.write("more of 1\n", at=1200.0, attempt=1, rank=1)
    pods.write("again\n", at=1300.0, attempt=2)
    pods.is_over = True
    assert [line.text for line in lines] == ["more of 0", "again"]


def test_following_ends_at_a_point_in_time(pods: Pods) -> None:
    pods.write("now\n", at=time.time())
    assert [line.text for line in pods.read(LogQuery(until=time.time() + 0.3), follow=True)] == ["now"]


def test_no_file_stays_open(pods: Pods) -> None:
    a_gang(pods)
    before = len(os.listdir("/proc/self/fd"))
    pods.texts()
    pods.texts(LogQuery(tail=3))
    lines = pods.read(follow=True)
    next(lines)
    lines.close()  # type: ignore[attr-defined] # of a generator
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("query", [EVERYTHING, LogQuery(tail=2)])
def test_output_that_a_full_disk_took_is_told_at_the_end_and_counted(pods: Pods, query: LogQuery) -> None:
    pods.write("first\nsecond\n", at=1000.0)
    ((_, directory),) = pods.directories()
    lost = {"lines": 36_330, "bytes": 2048, "why": "No space left on device"}
    (directory / "exit.json").write_text(json.dumps({"at": 1001.0, "lost_output": lost}))
    pods.is_over = True
    assert pods.texts(query)[-2:] == [
        "second",
        "... in all 36,330 lines (2 KiB) were dropped: No space left on device",
    ]
    (dropped,) = dropped_output(pods.directories(), MIB)
    assert (dropped.lines, dropped.why) == (36_330, "No space left on device")


def test_a_program_that_writes_nonsense_about_lost_output_is_not_believed(pods: Pods) -> None:
    pods.write("first\n", at=1000.0)
    ((_, directory),) = pods.directories()
    for lost in ("x", {"lines": -1}, {"lines": "many", "bytes": []}, {"lines": 10**400}):
        (directory / "exit.json").write_text(json.dumps({"at": 1001.0, "lost_output": lost}))
        assert pods.texts() == ["first"]
        assert dropped_output(pods.directories(), MIB) == ()
