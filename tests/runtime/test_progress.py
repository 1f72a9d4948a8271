"""What a rank reports, and how seldom it costs anything."""

import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.progress import Counted, Reporter
from tests.runtime.gang import read_events, read_report


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Scalar:
    """A loss on a device: reading it is counted."""

    def __init__(self, value: float, reads: list[float]) -> None:
        self._value = value
        self._reads = reads

    def detach(self) -> "Scalar":
        return self

    def __float__(self) -> float:
        self._reads.append(self._value)
        return self._value


def reporter(directory: Path | None, clock: Callable[[], float], *, rank: int = 0, world_size: int = 1) -> Reporter:
    return Reporter(rank=rank, world_size=world_size, directory=directory, clock=clock, wall=lambda: 1.5)


def step(to: Reporter, number: int, **given: Any) -> None:
    names = ("total", "loss", "epoch", "samples", "tokens")
    defaults: dict[str, Any] = {**dict.fromkeys(names), "metrics": {}}
    to.progress(number, **{**defaults, **given})


@pytest.mark.parametrize("loss", [None, 0.5])
@pytest.mark.parametrize("stall_timeout_s", [None, 4.0])
@pytest.mark.parametrize("write_s", [0.0001, 0.003, 0.5])
def test_on_a_slow_disk_it_writes_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_s: float, loss: float | None, stall_timeout_s: float | None
) -> None:
    (tmp_path / "pod.json").write_text(json.dumps({"stall_timeout_s": stall_timeout_s}))
    clock, replace, opened, written = Clock(), Path.replace, os.open, list[float]()

    def slowly(self: Path, target: Path) -> Path:
        written.append(clock.now)
        clock.now += write_s
        return replace(self, target)

    def opens_slowly(*given: Any, **more: Any) -> int:
        clock.now += write_s  # the series of a loss, which is a file of its own
        return opened(*given, **more)

    monkeypatch.setattr(Path, "replace", slowly)
    monkeypatch.setattr(os, "open", opens_slowly)
    report = reporter(tmp_path, clock)
    spent = 0.0
    for number in range(1500):
        before = clock.now
        step(report, number, loss=loss)
        spent += clock.now - before
        clock.now += 0.01
    pauses = [later - earlier for earlier, later in pairwise(written)]
    both_s = write_s if loss is None else 2 * write_s
    most_s = 5.0 if stall_timeout_s is None else stall_timeout_s / 4
    assert min(pauses) == pytest.approx(min(most_s, max(0.2, 400 * both_s)), abs=0.011 + both_s)
    assert 400 * both_s > most_s or spent / (clock.now - 100.0) < 0.004, "the first write had no pause before it"


def test_report_holds_what_the_contract_names(tmp_path: Path) -> None:
    clock = Clock()
    report = reporter(tmp_path, clock, rank=3, world_size=4)
    step(report, 1, total=10, loss=2.0, epoch=0.5, tokens=100, metrics={"accuracy": 0.25})
    clock.now += 1.0
    step(report, 2, loss=1.5, tokens=100)
    assert read_report(tmp_path, 3) == {
        "updated_at": 1.5,
        "step": 2,
        "total_steps": 10,
        "first_step_at": 1.5,
        "epoch": 0.5,
        "loss": 1.5,
        "throughput": 400.0,
        "throughput_unit": "tokens/s",
        "metrics": {"accuracy": 0.25},
    }
    assert [path.name for path in tmp_path.iterdir()] == ["rank-3.json"]


def test_report_is_written_five_times_a_second_and_the_loss_read_only_then(tmp_path: Path) -> None:
    clock, reads = Clock(), list[float]()
    report = reporter(tmp_path, clock)
    for number in range(1, 1001):
        step(report, number, loss=Scalar(float(number), reads))
        clock.now += 0.001
    assert 5 <= len(reads) <= 6
    report.flush()
    assert read_report(tmp_path)["step"] == 1000
    assert read_report(tmp_path)["loss"] == 1000


def test_loss_that_is_no_number_is_null(tmp_path: Path) -> None:
    report = reporter(tmp_path, Clock())
    step(report, 1, loss=float("nan"), metrics={"bad": float("inf"), "good": 1})
    assert read_report(tmp_path)["loss"] is None
    assert read_report(tmp_path)["metrics"] == {"good": 1.0}


def test_throughput_forgets_what_is_long_past() -> None:
    counted = Counted()
    for second in range(100):
        counted.add(second, samples=1 if second < 50 else 10, tokens=None, now=float(second))
    assert counted.rate(99.0, 2) == (20.0, "samples/s")


def test_steps_are_the_unit_when_nothing_is_counted() -> None:
    counted = Counted()
    counted.add(7, samples=None, tokens=None, now=0.0)
    counted.add(9, samples=None, tokens=None, now=4.0)
    assert counted.rate(4.0, 8) == (0.5, "steps/s")


def test_a_program_that_counts_anew_has_no_negative_throughput() -> None:
    counted = Counted()
    for step, now in ((100, 0.0), (200, 1.0), (1, 2.0)):
        counted.add(step, samples=None, tokens=None, now=now)
    assert counted.rate(2.0, 1) == (None, None)
    counted.add(5, samples=None, tokens=None, now=4.0)
    assert counted.rate(4.0, 1) == (2.0, "steps/s")


def test_events_are_lines_that_are_added(tmp_path: Path) -> None:
    report = reporter(tmp_path, Clock())
    report.event("Resumed", "Resumed after step 3.")
    report.event("CheckpointSaved", "Saved step 5.")
    assert read_events(tmp_path) == [("Resumed", "Resumed after step 3."), ("CheckpointSaved", "Saved step 5.")]


def test_facts_are_written_at_once(tmp_path: Path) -> None:
    report = reporter(tmp_path, Clock())
    step(report, 4)
    report.fact(stopped_step=4)
    assert read_report(tmp_path)["stopped_step"] == 4


def test_a_directory_that_is_gone_costs_one_sentence_and_not_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    report = reporter(tmp_path / "gone", clock)
    step(report, 1)
    clock.now += 1
    step(report, 2)
    assert capsys.readouterr().err.count("progress cannot be written") == 1


def test_without_fairlead_one_line_a_second_is_printed_by_the_first_rank(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    for rank in (0, 1):
        report = reporter(None, clock, rank=rank, world_size=2)
        for number in range(1, 21):
            step(report, number, total=20, loss=0.5, samples=8)
            clock.now += 0.125
        report.flush()
    assert capsys.readouterr().err.splitlines() == [
        "step 1/20  loss 0.5",
        "step 9/20  loss 0.5  128 samples/s",
        "step 17/20  loss 0.5  128 samples/s",
        "step 20/20  loss 0.5  128 samples/s",
    ]


def test_events_that_cannot_be_written_wait_until_they_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(rank=0, world_size=1, directory=tmp_path / "gone")
    reporter.event("CheckpointFailed", "first")
    reporter.event("CheckpointFailed", "second")
    (tmp_path / "gone").mkdir()
    reporter.fact(checkpoint_step=3)
    lines = (tmp_path / "gone" / "rank-0.events.jsonl").read_text().splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["first", "second"]
    assert capsys.readouterr().err.count("progress cannot be written") == 1


def test_a_report_goes_over_the_last_one_when_there_is_no_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = Reporter(rank=0, world_size=1, directory=tmp_path)
    reporter.fact(checkpoint_step=1, stopped_step=1)

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    reporter.fact(checkpoint_step=20)
    assert json.loads((tmp_path / "rank-0.json").read_text())["checkpoint_step"] == 20
