"""What the shim finds in the lines that a program prints."""

import json
from pathlib import Path
from typing import Any

from fairlead.runtime.metric_lines import MetricLines
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


def test_a_pod_whose_program_only_prints_has_progress_and_a_series(tmp_path: Path) -> None:
    program = "for i in 1 2 3; do echo iter $i: loss 0.$i; done; echo iter 9: loss 9 >&2"
    pod = PodDir(tmp_path / "pod").write(program, ranks=2, metrics={"pattern": PATTERN})
    assert [rank["exit_code"] for rank in pod.run()["ranks"]] == [0, 0]
    assert {report(pod.path, rank)["step"] for rank in (0, 1)} <= {3, 9}
    assert sorted(step for _, step, _ in points(pod.path)) == [1, 2, 3, 9]
    assert ("0", "o", "iter 3: loss 0.3") in pod.lines()
