"""What a program wrote into the files of its pod is read as what it is, or not at all."""

import json
from pathlib import Path

from fairlead.cluster.local.pod_files import SERIES, progress_of, read_series
from fairlead.state.snapshot import Progress


def test_values_of_a_wrong_type_are_left_out() -> None:
    report = {"step": True, "loss": False, "epoch": "3"}
    assert progress_of(report) == Progress(updated_at=0.0)
    assert progress_of({"step": 3, "loss": 1}) == Progress(step=3, loss=1.0, updated_at=0.0)


def test_a_point_whose_step_is_no_number_is_left_out(tmp_path: Path) -> None:
    lines = [[1.0, True, {"loss": 1.0}], [2.0, 7, {"loss": 0.5}]]
    (tmp_path / SERIES).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = read_series(tmp_path, 0, "{}", is_over=True).points
    assert [(name, point.step, point.value) for name, point in found] == [("loss", 7, 0.5)]
