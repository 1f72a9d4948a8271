"""What a program wrote into the files of its pod is read as what it is, or not at all."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.local.pod_files import (
    SERIES,
    progress_of,
    read_events,
    read_exits,
    read_progress,
    read_series,
    read_usage,
)
from fairlead.cluster.records import dump, load
from fairlead.runtime.podfiles import MOST_JSON_BYTES, read_json
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
KEYS = st.sampled_from(
    ("ranks", "rank", "exit_code", "signal", "at", "tail", "hang", "usage", "memory_bytes", "cpu_milli", "message",
     "type", "step", "loss", "metrics", "asks", "drift", "run", "looked", "updated_at", "place", "throughput_unit")
)  # fmt: skip
RECORD = st.recursive(
    JSON, lambda inner: st.dictionaries(KEYS, inner, max_size=6) | st.lists(inner, max_size=3), max_leaves=10
)
FILES = ("rank-0.json", "rank-1.json", "rank-0.events.jsonl", SERIES, "exit.json", "output.log")


@given(RECORD)
def test_whatever_a_program_writes_into_its_pod_s_files_gives_values_that_a_database_takes(record: Any) -> None:
    with TemporaryDirectory() as place:
        directory = Path(place)
        for name in FILES:
            (directory / name).write_text(json.dumps(record) + "\n")
        ended = read_json(directory / "exit.json") or {}
        progress, active_at = read_progress(directory)
        events = read_events(directory, "{}").events
        points = read_series(directory, 0, "{}", is_over=True).points
    for each in (*read_exits(ended), read_usage(ended), progress, *(event for _, event in events)):
        if each is not None:
            assert load(type(each), dump(each)) is not None
    for at in (active_at, *(at for at, _ in events), *(point.at for _, point in points)):
        assert at is None or datetime.fromtimestamp(at, UTC)


@pytest.mark.parametrize("name", FILES[:-1])
@pytest.mark.parametrize("put", ["fifo", "directory", "loop", "unreadable", "nested", "endless"])
def test_a_pod_s_file_that_is_no_file_counts_as_none_and_keeps_nobody_waiting(
    tmp_path: Path, name: str, put: str
) -> None:
    path = tmp_path / name
    if put == "fifo":
        os.mkfifo(path)
    elif put == "directory":
        path.mkdir()
    elif put == "loop":
        path.symlink_to(path)
    elif put == "nested":
        path.write_text("[" * 100_000)
    else:
        path.write_bytes(b'"' + b"x" * (MOST_JSON_BYTES if put == "endless" else 1))
    if put == "unreadable":
        path.chmod(0)
    assert read_json(path) is None
    assert read_progress(tmp_path) == (None, None)
    assert read_events(tmp_path, "{}").events == ()
    assert read_series(tmp_path, 0, "{}", is_over=True).points == ()


def test_a_line_of_events_without_an_end_is_passed_over_in_parts(tmp_path: Path) -> None:
    event = json.dumps({"at": 5.0, "type": "Saved", "message": "m"})
    (tmp_path / "rank-0.events.jsonl").write_text("x" * 2_500_000 + f"\n{event}\n")
    offsets, found = "{}", []
    for _ in range(4):
        new = read_events(tmp_path, offsets)
        offsets = new.offsets
        found += [event.type for _, event in new.events]
    assert found == ["Saved"]
