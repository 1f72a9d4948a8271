"""What the shim finds in the lines that a program prints."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.pod_files import read_events
from fairlead.runtime.metric_lines import SEARCH_S, MetricLines
from fairlead.runtime.series import POINTS_PER_E_FOLD, SeriesFile
from tests.launch.pods import PodDir

PATTERN = r"iter (?P<step>\d+): loss (?P<loss>\S+)"


def report(directory: Path, rank: int = 0) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((directory / f"rank-{rank}.json").read_text())
    return value


def points(directory: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (directory / "rank-0.series.jsonl").read_text().splitlines()]


def read(directory: Path, pattern: str | None, *lines: bytes) -> dict[str, Any]:
    found = MetricLines(pattern, str(directory), 0, 100.0)
    for place, line in enumerate(lines):
        found.feed([line], 100.0 + place)
    found.finish(200.0)
    return report(directory)


def test_named_groups_are_step_loss_and_metrics(tmp_path: Path) -> None:
    found = read(
        tmp_path, PATTERN + r"( acc (?P<acc>\S+))?", b"starting", b"iter 7: loss 0.5, acc", b"iter 8: loss 0.25 acc 90%"
    )
    assert (found["step"], found["loss"], found["metrics"]) == (8, 0.25, {"acc": 90.0})
    assert points(tmp_path) == [[101.0, 7, {"loss": 0.5}], [102.0, 8, {"loss": 0.25, "acc": 90.0}]]


def test_pairs_of_name_and_number_are_found_without_a_pattern(tmp_path: Path) -> None:
    found = read(tmp_path, None, b"epoch=2 val/acc=9.1e-1, lr = 3", b"version=1.2.3 path=/a seed=x", b"no pair")
    assert (found["epoch"], found["step"], found["metrics"]) == (2.0, 1, {"val/acc": 0.91, "lr": 3.0})


def number_of(directory: Path, pattern: str | None, line: str) -> float | None:
    """Return the value of `v` that a line of output has."""
    lines = MetricLines(pattern, str(directory), 0, 100.0)
    lines.feed([b"v=0 v 0", line.encode()], 100.0)  # a value, so that one that is not finite is seen to clear it
    lines.finish(200.0)
    value: float | None = report(directory)["metrics"].get("v")
    return value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234.56", 1234.56),
        ("124,439,808", 124439808.0),
        ("1_234_567", 1234567.0),
        ("1'234.5", 1234.5),
        ("1\u202f234.5", 1234.5),
        ("0.91.", 0.91),
        ("1e-3.", 0.001),
        ("5...", 5.0),
        ("1.5,", 1.5),
        ("1.5;", 1.5),
        ("93.5%", 93.5),
        ("'0.5'", 0.5),
        ('"0.5"', 0.5),
        ("-.5E+2)", -50.0),
        ("\u22120.25", -0.25),
        ("\x1b[1;32m0.75\x1b[0m", 0.75),
        ("0.\x1b[1m75\x1b[0m", 0.75),
        ("0.5 (0.48)", 0.5),
    ],
)
@pytest.mark.parametrize("pattern", [None, r"v[= ](?P<v>[^ ]+)", r"v[= ].*?(?P<v>[0-9.]+)"])
def test_a_number_is_read_as_printed_by_both_forms(
    tmp_path: Path, pattern: str | None, text: str, expected: float
) -> None:
    if pattern is not None and "[0-9.]" in pattern and text == "-.5E+2)":
        pattern = pattern.replace("[0-9.]+", r"\S+")
    assert number_of(tmp_path, pattern, f"now v={text} u=1") == expected
    assert number_of(tmp_path, pattern, f"now v={text}") == expected


@pytest.mark.parametrize(
    "text",
    ["0,25", "1.234,56", "12,34", "0.9,0.999", "1,2345", "1.2.3", "0..5", "1 234.56", "124 439 808", "1,234,56"],
)
@pytest.mark.parametrize("pattern", [None, r"v[= ](?P<v>[^ ]+)", r"v[= ](?P<v>[0-9.]+)", r"v[= ](?P<v>\d+)"])
def test_a_number_that_could_be_two_is_not_read(tmp_path: Path, pattern: str | None, text: str) -> None:
    assert number_of(tmp_path, pattern, f"now v={text} u=1") == 0.0
    assert number_of(tmp_path, pattern, f"now v={text}.") == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "1.5s",
        "3GB",
        "124M",
        "0x1f",
        "12:30:05",
        "2024-01-05",
        "9/10",
        "1e",
        "3x224",
        "3\u00d7224",
        "2^10",
        "info",
        "nano",
    ],
)
def test_a_number_with_a_unit_or_of_a_date_is_no_value_of_a_pair(tmp_path: Path, text: str) -> None:
    assert number_of(tmp_path, None, f"v={text} u=1") == 0.0


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan", "inf", "-Infinity", "1e999"])
@pytest.mark.parametrize("pattern", [None, r"v[= ](?P<v>\S+)"])
def test_a_value_that_is_not_finite_clears_the_one_before(tmp_path: Path, pattern: str | None, text: str) -> None:
    assert number_of(tmp_path, pattern, f"v={text}, u=1") is None


@pytest.mark.parametrize(
    ("pattern", "line", "expected"),
    [
        (r"(?P<a>\d+),(?P<b>[\d.]+)", "12,345", {"a": 12.0, "b": 345.0}),
        (r"(?P<a>\d+)\D(?P<b>\d+)", "12,345", {"a": 12.0, "b": 345.0}),
        (r"^(?P<a>\d+),[^,]*,(?P<b>[\d.]+)", "12,345,0.5", {"a": 12.0, "b": 0.5}),
        (r"v(?P<a>\d+)\.\d", "v12.5", {"a": 12.0}),
        (r"(?P<a>\d+)/(?P<b>\d+)", "3/10", {"a": 3.0, "b": 10.0}),
        (r"epoch (?P<a>\d+) (?P<b>\d+)", "epoch 1 250", {"a": 1.0, "b": 250.0}),
        (r"epoch (?P<a>\d+) \d+ done", "epoch 1 250 done", {"a": 1.0}),
        (r"v=(?P<a>\d\.\d+)", "v=0.5e-3", {"a": 0.0005}),
        (r"v.*(?P<a>[\d.]+)", "v 10.25", {"a": 10.25}),
        (r"v: .*?(?P<a>[\d.]+)", "v: -1.5", {"a": -1.5}),
        (r"pr\u00e9cision (?P<a>\S+)", "pr\u00e9cision 0.5", {"a": 0.5}),
    ],
)
def test_a_pattern_divides_a_number_only_on_purpose(
    tmp_path: Path, pattern: str, line: str, expected: dict[str, float]
) -> None:
    assert read(tmp_path, pattern, line.encode())["metrics"] == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("params=124,439,808 ppl=1,234.56", {"params": 124439808.0, "ppl": 1234.56}),
        ("mAP@0.5=0.7, top-5=0.9", {"mAP@0.5": 0.7, "top-5": 0.9}),
        ("pr\u00e9cision=0.5", {"pr\u00e9cision": 0.5}),
        ("a=1|b=2 c=3&d=4 GET /x?e=5", {"a": 1.0, "b": 2.0, "c": 3.0}),
        ("acc=0.5 250 samples", {"acc": 0.5}),
        ("acc=5 250 samples", {"acc": 5.0}),
        ("\x1b]0;title=9\x07acc\x1b[2K=\x1b[32m3\x1b[m", {"acc": 3.0}),
        ("x" * 4090 + " a=0.25", {}),
    ],
)
def test_every_pair_of_a_line_is_read(tmp_path: Path, line: str, expected: dict[str, float]) -> None:
    assert read(tmp_path, None, b"u=1", line.encode())["metrics"] == {"u": 1.0, **expected}


@pytest.mark.parametrize(("line", "step"), [("step=10/100", 10), ("step=1,200", 1200), ("step=1.5", 3), ("step=-1", 3)])
def test_a_step_is_a_whole_number(tmp_path: Path, line: str, step: int) -> None:
    assert read(tmp_path, None, b"step=3 a=1", f"{line} a=1".encode())["step"] == step


def test_lines_without_a_step_count_as_steps(tmp_path: Path) -> None:
    assert read(tmp_path, r"loss (?P<loss>\S+)", b"loss 3", b"else", b"loss 2")["step"] == 2


def test_a_loss_that_is_no_finite_number_is_not_kept(tmp_path: Path) -> None:
    found = read(tmp_path, PATTERN, b"iter 1: loss 0.5", b"iter 2: loss nan")
    assert (found["step"], found["loss"]) == (2, None)
    assert [step for _, step, _ in points(tmp_path)] == [1]


def test_a_program_that_reports_by_itself_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rank-0.json").write_text('{"step": 3}')
    assert read(tmp_path, PATTERN, b"iter 9: loss 1") == {"step": 3}


def test_a_long_series_becomes_rarer_and_ends_with_the_newest_point(tmp_path: Path) -> None:
    series = SeriesFile(str(tmp_path / "rank-0.series.jsonl"), 0.0)
    for second in range(100_000):
        series.add(float(second), second, {"loss": 1.0})
    series.finish()
    found = points(tmp_path)
    assert found[-1][1] == 99_999
    # A thousand, plus the logarithm of the rest: ln(100,000 / 1,000) is 4.6.
    assert POINTS_PER_E_FOLD < len(found) < 6 * POINTS_PER_E_FOLD


def test_the_last_state_of_a_progress_bar_is_read(tmp_path: Path) -> None:
    first, last = (
        f"{percent}%%|# | [00:01<00:09, loss={loss}, acc={percent}%%]" for percent, loss in ((10, 0.9), (90, 0.25))
    )
    program = rf"printf '\r\033[A {first}\r{last}\n'"
    pod = PodDir(tmp_path / "pod").write(program, metrics={"pattern": None})
    assert [rank["exit_code"] for rank in pod.run()["ranks"]] == [0]
    assert (report(pod.path)["loss"], report(pod.path)["metrics"]) == (0.25, {"acc": 90.0})


def test_a_pod_whose_program_only_prints_has_progress_and_a_series(tmp_path: Path) -> None:
    program = "for i in 1 2 3; do echo iter $i: loss 0.$i; done; echo iter 9: loss 9 >&2"
    pod = PodDir(tmp_path / "pod").write(program, ranks=2, metrics={"pattern": PATTERN})
    assert [rank["exit_code"] for rank in pod.run()["ranks"]] == [0, 0]
    assert {report(pod.path, rank)["step"] for rank in (0, 1)} <= {3, 9}
    assert sorted(step for _, step, _ in points(pod.path)) == [1, 2, 3, 9]
    assert ("0", "o", "iter 3: loss 0.3") in pod.lines()


@pytest.mark.parametrize("pattern", [r"(?:\w+\s*)+: loss=(?P<loss>\S+)", r"(?P<loss>(a+)+)$"])
def test_a_pattern_that_tries_all_ways_to_divide_a_line_is_given_up_and_says_so(tmp_path: Path, pattern: str) -> None:
    line = b"a" * 60 + b" word" * 400 + b" loss"
    lines = MetricLines(pattern, str(tmp_path), 0, 1.0)
    begun = time.process_time()
    lines.feed([line] * 1_000, 2.0)
    lines.feed([line] * 1_000, 3.0)
    assert time.process_time() - begun < 20 * SEARCH_S
    (event,) = read_events(tmp_path, "{}").events
    assert (event[0], event[1].type) == (2.0, "MetricsStopped")
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
