"""Output becomes lines in a bounded log, and the log never holds the program up."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.podlog import COUNT_EVERY_BYTES, COUNT_PER_LINE_BYTES, GOES_ON, MAX_LINE_BYTES, Log, RankOutput
from tests.launch.pods import PodDir


class Sink:
    """A stream into a log, and what the log holds."""

    def __init__(self, path: Path, *, max_bytes: int = 1 << 24, num_files: int = 3) -> None:
        self.path = path / "output.log"
        self.stream = RankOutput(Log(str(self.path), max_bytes=max_bytes, num_files=num_files), "0", "o")

    def texts(self) -> list[str]:
        return [line.split(" ", 3)[3] for line in self.path.read_text().split("\n")[:-1]]


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


def test_a_line_carries_time_rank_and_stream(sink: Sink) -> None:
    sink.stream.feed(b"loss 0.5\n", 12.5)
    assert sink.path.read_text() == "12.500000 0 o loss 0.5\n"


def test_lines_are_whole_however_they_arrive(sink: Sink) -> None:
    for part in (b"on", b"e\ntw", b"o\n\nthr", b"ee"):
        sink.stream.feed(part, 1.0)
    sink.stream.finish(1.0)
    assert sink.texts() == ["one", "two", "", "three"]


def test_what_is_no_text_is_replaced(sink: Sink) -> None:
    sink.stream.feed("caf\u00e9 ".encode() + b"\xff\n", 1.0)
    assert sink.texts() == ["caf\u00e9 \ufffd"]


@pytest.mark.parametrize("step", [1 << 22, 65_536, 1000])
def test_a_line_that_is_too_long_is_told_to_go_on_and_nothing_of_it_is_lost(sink: Sink, step: int) -> None:
    data = b"x" * (MAX_LINE_BYTES * 2 + 5) + b"\nnext\n"
    for at in range(0, len(data), step):
        sink.stream.feed(data[at : at + step], 1.0)
    *pieces, last = sink.texts()
    assert last == "next"
    mark = GOES_ON.decode()
    assert [piece.endswith(mark) for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert all(len(piece) <= MAX_LINE_BYTES + len(mark) for piece in pieces)
    assert "".join(piece.removesuffix(mark) for piece in pieces) == "x" * (MAX_LINE_BYTES * 2 + 5)


def test_a_line_of_three_hundred_thousand_characters_is_whole(sink: Sink) -> None:
    sink.stream.feed(b"y" * 300_000 + b"\n", 1.0)
    assert sink.texts() == ["y" * 300_000]


def test_no_character_is_cut_in_two(sink: Sink) -> None:
    line = "x" + "\u20ac" * (MAX_LINE_BYTES // 3 + 1)
    sink.stream.feed(line.encode() + b"\n", 1.0)
    assert "".join(text.removesuffix(GOES_ON.decode()) for text in sink.texts()) == line


def test_output_without_a_newline_comes_before_it_ends(sink: Sink) -> None:
    for _ in range(40):
        sink.stream.feed(b"z" * 65_536, 1.0)
    assert len(sink.texts()) == 2
    sink.stream.finish(1.0)
    assert sum(len(text.removesuffix(GOES_ON.decode())) for text in sink.texts()) == 40 * 65_536


def test_a_program_that_writes_byte_after_byte_costs_little(sink: Sink) -> None:
    began = time.process_time()
    for _ in range(200_000):
        sink.stream.feed(b"b", 1.0)
    sink.stream.feed(b"\n", 1.0)
    assert sink.texts() == ["b" * 200_000]
    assert time.process_time() - began < 2.0


def test_nul_and_escape_codes_are_kept_as_they_are(sink: Sink) -> None:
    sink.stream.feed(b"a\0b \x1b[31mred\x1b[0m \x0b\x0c \xc2\x85 \xe2\x80\xa8 end\n", 1.0)
    assert sink.texts() == ["a\0b \x1b[31mred\x1b[0m \x0b\x0c \x85 \u2028 end"]


def test_binary_garbage_keeps_its_lines_apart(sink: Sink) -> None:
    sink.stream.feed(b"good\n\xff\xfe\xe2\n\x80bad\nfine\n", 1.0)
    assert sink.texts() == ["good", "\ufffd\ufffd\ufffd", "\ufffdbad", "fine"]


def test_of_a_progress_bar_the_newest_is_kept_five_times_a_second(sink: Sink) -> None:
    for i in range(100):
        sink.stream.feed(f"\rstep {i}".encode(), 1.0 + i / 100)
    sink.stream.feed(b"\rstep 100\n", 2.0)
    sink.stream.finish(2.0)
    assert 4 <= len(sink.texts()) <= 7
    assert sink.texts()[-1] == "step 100"


def test_a_progress_line_that_stays_is_shown_in_time(sink: Sink) -> None:
    sink.stream.feed(b"a\rb\rc\rd", 1.0)
    sink.stream.feed(b"\re", 1.05)
    assert sink.texts() == ["c"]
    assert sink.stream.is_waiting
    sink.stream.tick(1.3)
    assert sink.texts() == ["c", "d"]


def test_windows_line_ends_are_line_ends(sink: Sink) -> None:
    sink.stream.feed(b"one\r", 1.0)
    sink.stream.feed(b"\ntwo\r\n\r\nthree\r\n", 1.0)
    assert sink.texts() == ["one", "two", "", "three"]


def test_the_tail_is_the_last_forty_lines(sink: Sink) -> None:
    sink.stream.feed(b"".join(b"%d\n" % i for i in range(100)), 1.0)
    assert sink.stream.tail() == [str(i) for i in range(60, 100)]


@pytest.mark.parametrize("num_files", [1, 2, 3])
def test_the_log_is_bounded_and_keeps_the_newest(tmp_path: Path, num_files: int) -> None:
    sink = Sink(tmp_path, max_bytes=1000, num_files=num_files)
    for i in range(500):
        sink.stream.feed(b"%04d\n" % i, 1.0)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["output.log", "output.log.1", "output.log.2"][:num_files]
    assert all(file.stat().st_size <= 1000 for file in files)
    lines = [line.split(" ", 3) for file in reversed(files) for line in file.read_text().splitlines()]
    kept = [text for _, _, stream, text in lines if stream == "o"]
    assert kept == [f"{i:04d}" for i in range(500 - len(kept), 500)]
    # The oldest file says what was before it.
    _, who, stream, counts = lines[0]
    assert (who, stream, json.loads(counts)) == ("-", "c", {"0": [500 - len(kept), 5 * (500 - len(kept))]})


def test_a_burst_is_rotated_too(tmp_path: Path) -> None:
    sink = Sink(tmp_path, max_bytes=1000, num_files=2)
    sink.stream.feed(b"".join(b"%04d\n" % i for i in range(500)), 1.0)
    assert all(file.stat().st_size <= 1000 for file in tmp_path.iterdir())
    assert sink.texts()[-1] == "0499"
    older = (tmp_path / "output.log.1").read_text().splitlines()
    newer = (tmp_path / "output.log").read_text().splitlines()
    before = [json.loads(lines[0].split(" ", 3)[3])["0"][0] for lines in (older, newer)]
    assert before == [500 - len(newer) - len(older) + 2, 500 - len(newer) + 1]


def test_what_is_echoed_is_counted_now_and_then_and_at_the_end(tmp_path: Path, capfdbinary: Any) -> None:
    log = Log(str(tmp_path / "output.log"), max_bytes=1 << 20, num_files=1, echo=True)
    streams = [RankOutput(log, "0", "o"), RankOutput(log, "1", "e")]
    for i in range(2000):
        streams[i % 2].feed(b"%04d\n" % i, 1.0)
    log.close()
    said = capfdbinary.readouterr().out.decode().splitlines()
    counts = [(place, json.loads(line[3:])) for place, line in enumerate(said) if line.startswith("-# ")]
    assert len(counts) == (5 + COUNT_PER_LINE_BYTES) * 2000 // COUNT_EVERY_BYTES + 1
    for place, told in counts:
        before = [line for line in said[:place] if not line.startswith("-# ")]
        lines = {rank: sum(line.startswith(rank) for line in before) for rank in ("0", "1")}
        assert told == {rank: [num, 5 * num] for rank, num in lines.items()}
    assert counts[-1] == (len(said) - 1, {"0": [1000, 5000], "1": [1000, 5000]})


def test_what_is_echoed_goes_to_another_output_too(tmp_path: Path, capfdbinary: Any) -> None:
    also = tmp_path / "also"
    also.write_bytes(b"ray start\n")
    log = Log(str(tmp_path / "output.log"), max_bytes=1 << 20, num_files=1, echo=True, also=str(also))
    RankOutput(log, "0", "e").feed(b"no such file\n", 1.0)
    log.close()
    assert capfdbinary.readouterr().out == b"0! no such file\n"
    assert also.read_bytes() == b"ray start\n0! no such file\n"


def test_counts_come_again_when_silence_follows_much_output(tmp_path: Path, capfdbinary: Any) -> None:
    log = Log(str(tmp_path / "output.log"), max_bytes=1 << 20, num_files=1, echo=True)
    stream = RankOutput(log, "0", "o")
    stream.feed(b"".join(b"%04d\n" % i for i in range(2000)), 1.0)
    capfdbinary.readouterr()

    def told(now: float) -> list[str]:
        log.tick(now)
        return [str(line) for line in capfdbinary.readouterr().out.decode().splitlines()]

    counts = ['-# {"0":[2000,10000]}']
    assert [told(now) for now in (10.0, 17.0, 18.0, 62.0, 90.0)] == [[], counts, [], counts, []]
    stream.feed(b"more\n", 100.0)
    assert told(101.0) == ["0| more"]
    assert told(116.0) == ['-# {"0":[2001,10005]}']


def test_silence_after_little_output_is_left_alone(tmp_path: Path, capfdbinary: Any) -> None:
    log = Log(str(tmp_path / "output.log"), max_bytes=1 << 20, num_files=1, echo=True)
    RankOutput(log, "3", "e").feed(b"one\n", 1.0)
    log.tick(1000.0)
    assert capfdbinary.readouterr().out == b"3! one\n"


def test_little_output_is_echoed_as_it_is(tmp_path: Path, capfdbinary: Any) -> None:
    log = Log(str(tmp_path / "output.log"), max_bytes=1 << 20, num_files=1, echo=True)
    RankOutput(log, "3", "e").feed(b"one\ntwo\n", 1.0)
    log.close()
    assert capfdbinary.readouterr().out == b"3! one\n3! two\n"


def test_a_hundred_thousand_lines_arrive_quickly(pod: PodDir) -> None:
    began = time.monotonic()
    pod.write('python -c "for i in range(100000): print(i)"').run()
    assert [text for _, _, text in pod.lines()] == [str(i) for i in range(100_000)]
    assert time.monotonic() - began < 5.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(path)], timeout=60).returncode
    ):
        pytest.skip("a small file system cannot be mounted")
    yield path
    subprocess.run(["umount", str(path)], check=True, timeout=60)


def test_a_full_disk_costs_lines_and_not_the_program(small_disk: Path) -> None:
    pod = PodDir(small_disk / "pod")
    filler, go_on = small_disk / "pod" / "filler", small_disk / "go-on"
    program = small_disk / "program.py"
    program.write_text(
        "import os, time\n"
        "print('before', flush=True)\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        "for i in range(20000): print('lost', i)\n"
        f"while os.path.exists({str(filler)!r}): time.sleep(0.01)\n"
        "time.sleep(0.2)\nprint('after', flush=True)\n"
    )
    pod.write(f"{sys.executable} {program}").start()
    try:
        pod.wait_for_output("before")
        go_on.touch()
        fill(filler)
        time.sleep(1.0)
        filler.unlink()
        record = pod.end()
    finally:
        pod.clean_up()
    assert record["ranks"][0]["exit_code"] == 0
    texts = pod.lines()
    assert texts[-1] == ("0", "o", "after")
    notes = [text for rank, _, text in texts if rank == "-" and "lines of output were lost: No space left" in text]
    assert notes
    assert record["lost_output"]["lines"] == sum(int(note.split()[0]) for note in notes)
    assert record["lost_output"]["lines"] == 20_002 - sum(rank == "0" for rank, _, _ in texts)


def test_lines_lost_until_the_end_are_counted_in_the_record(small_disk: Path) -> None:
    pod = PodDir(small_disk / "pod")
    go_on, program = small_disk / "go-on", small_disk / "program.py"
    program.write_text(
        "import os, time\nprint('before', flush=True)\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        "for i in range(20000): print('lost', i)\n"
    )
    pod.write(f"{sys.executable} {program}").start()
    try:
        pod.wait_for_output("before")
        go_on.touch()
        fill(small_disk / "pod" / "filler")
        record = pod.end()
    finally:
        pod.clean_up()
    num_kept = sum(rank == "0" for rank, _, _ in pod.lines())
    assert record["lost_output"]["lines"] == 20_001 - num_kept > 0
    assert record["lost_output"]["why"] == "No space left on device"


def fill(path: Path) -> None:
    """Takes all room of a file system."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
