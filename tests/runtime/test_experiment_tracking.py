"""The rules by which metrics are sent on, with trackers that a test has in its hands."""

import json
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.experiment_tracking import choice, exporter
from fairlead.runtime.experiment_tracking.exporter import EVENTS, SENT, SERIES, Exporter
from fairlead.runtime.experiment_tracking.mlflow_rest import Mlflow
from fairlead.runtime.experiment_tracking.target import About, MetricPoint, Refused
from fairlead.runtime.experiment_tracking.tensorboard_target import TensorBoardTarget, _crc32c
from fairlead.specs import training
from tests.waiting import until

ABOUT = About(name="run", uid="uid", team="default", attempt=0, command="python train.py", parameters={"lr": 0.1})


class FakeTarget:
    """A tracker that answers or does not, as the test says.

    Attributes:
        problem: Raised by everything while it is set.
    """

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.tries = 0
        self.sent: list[MetricPoint] = []
        self.ended: list[str | None] = []
        self.answers = threading.Event()
        self.answers.set()

    def hurry(self, timeout_s: float) -> None:
        pass

    def begin(self) -> str:
        self._answer()
        return "there"

    def send(self, points: Sequence[MetricPoint]) -> None:
        self._answer()
        self.sent.extend(points)

    def end(self, status: str | None) -> None:
        self._answer()
        self.ended.append(status)

    def _answer(self) -> None:
        self.tries += 1
        self.answers.wait(60)
        if self.problem is not None:
            raise self.problem


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> FakeTarget:
    target = FakeTarget()
    monkeypatch.setattr(exporter, "_target", lambda *_: target)
    monkeypatch.setattr(exporter, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(exporter, "LONGEST_WAIT_S", 0.02)
    return target


def exporter_of(pod: Path, **env: str) -> Exporter:
    return Exporter(str(pod), {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1", **env}, ABOUT)


def write_points(pod: Path, *steps: int) -> None:
    with (pod / SERIES).open("a") as file:
        file.writelines(json.dumps([1.0, step, {"loss": 1.0 / step}]) + "\n" for step in steps)


def events(pod: Path) -> list[str]:
    path = pod / EVENTS
    return [json.loads(line)["message"] for line in path.read_text().splitlines()] if path.exists() else []


def steps(target: FakeTarget) -> list[int | None]:
    return [point.step for point in target.sent]


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ({}, []),
        ({"MLFLOW_TRACKING_URI": ""}, []),
        ({"MLFLOW_TRACKING_URI": "http://h"}, ["mlflow"]),
        ({"WANDB_API_KEY": "k"}, ["wandb"]),
        ({"WANDB_MODE": "offline"}, ["wandb"]),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "disabled"}, []),
        ({"WANDB_PROJECT": "p", "WANDB_DISABLED": "true"}, []),
        ({"TENSORBOARD_LOGGING_DIR": "d", "WANDB_PROJECT": "p"}, ["wandb", "tensorboard"]),
        ({"MLFLOW_TRACKING_URI": "http://h", "WANDB_PROJECT": "p", "FAIRLEAD_TRACKERS": "wandb"}, ["wandb"]),
        ({"MLFLOW_TRACKING_URI": "http://h", "FAIRLEAD_TRACKERS": "none"}, []),
    ],
)
def test_the_usual_variables_say_where_metrics_go(env: dict[str, str], names: list[str]) -> None:
    assert choice.chosen(env) == names


def test_specs_and_runtime_know_the_same_trackers() -> None:
    assert training.TRACKERS == choice.NAMES


def test_a_choice_of_no_tracker_is_refused() -> None:
    assert list(training.env_problems({"FAIRLEAD_TRACKERS": "mlflow, wandb"})) == []
    assert list(training.env_problems({"FAIRLEAD_TRACKERS": "none"})) == []
    ((key, problem),) = training.env_problems({"FAIRLEAD_TRACKERS": "mlflow,wandbb"})
    assert key == "env"
    assert problem == ('FAIRLEAD_TRACKERS: "wandbb" is not a tracker; give some of mlflow, wandb, tensorboard, or none')


def test_every_point_is_sent_and_the_end_is_told(tmp_path: Path, target: FakeTarget) -> None:
    own = exporter_of(tmp_path)
    own.look()
    write_points(tmp_path, 1, 2)
    own.look()
    write_points(tmp_path, 3)
    own.look()
    own.end("FINISHED")
    assert steps(target) == [1, 2, 3]
    assert target.ended == ["FINISHED"]
    assert events(tmp_path) == ["Metrics are sent to MLflow: there"]


def test_a_run_without_metrics_begins_nothing(tmp_path: Path, target: FakeTarget) -> None:
    own = exporter_of(tmp_path)
    own.look()
    own.end("FINISHED")
    assert (target.tries, events(tmp_path)) == (0, [])


def test_a_tracker_that_is_away_is_told_once_and_gets_everything_later(tmp_path: Path, target: FakeTarget) -> None:
    target.problem = ConnectionError("refused")
    own = exporter_of(tmp_path)
    write_points(tmp_path, 1)
    own.look()
    until(lambda: target.tries >= 3)
    write_points(tmp_path, 2)
    own.look()
    target.problem = None
    until(lambda: len(target.sent) == 2)
    own.end("FAILED")
    assert steps(target) == [1, 2]
    assert target.ended == ["FAILED"]
    away = "MLflow does not answer: refused; up to 10,000 points wait for it, and the run continues."
    assert sorted(events(tmp_path)) == sorted([away, "Metrics are sent to MLflow: there", "MLflow answers again."])


def test_looking_never_waits_for_a_tracker_and_its_queue_is_bounded(
    tmp_path: Path, target: FakeTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "MOST_WAITING", 5)
    monkeypatch.setattr(exporter, "END_S", 0.05)
    target.answers.clear()
    own = exporter_of(tmp_path)
    write_points(tmp_path, 1)
    own.look()
    until(lambda: target.tries == 1)
    write_points(tmp_path, *range(2, 12))
    own.look()
    own.end("FINISHED")
    assert target.sent == []
    assert events(tmp_path)[-1] == "11 points of the metrics did not get to MLflow; `fairlead compare` has them."
    (lane,) = own._lanes
    assert lane._num_lost == 5
    target.answers.set()
    lane.join(60)


def test_a_tracker_that_refuses_is_told_once_and_left_alone(tmp_path: Path, target: FakeTarget) -> None:
    target.problem = Refused("the key is wrong")
    own = exporter_of(tmp_path)
    for step in (1, 2, 3):
        write_points(tmp_path, step)
        own.look()
        own._lanes[0].join(60)
    own.end("FINISHED")
    assert target.tries == 1
    assert events(tmp_path) == ["Metrics are not sent to MLflow: the key is wrong."]


def test_another_process_goes_on_where_one_was_killed(tmp_path: Path, target: FakeTarget) -> None:
    first = exporter_of(tmp_path)
    write_points(tmp_path, 1, 2)
    first.look()
    until(lambda: (tmp_path / SENT).exists())
    second = exporter_of(tmp_path)
    write_points(tmp_path, 3)
    second.look()
    second.end("FINISHED")
    assert steps(target) == [1, 2, 3]


def test_a_program_that_reports_by_itself_is_not_sent_twice(tmp_path: Path, target: FakeTarget) -> None:
    (tmp_path / "rank-0.json").write_text(json.dumps({"trackers": ["mlflow"]}))
    own = exporter_of(tmp_path)
    write_points(tmp_path, 1)
    own.look()
    own.end("FINISHED")
    assert target.tries == 0
    assert events(tmp_path) == ["The program sends its metrics to MLflow by itself; they are not sent twice."]


@pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "databricks", "http://", "https://user:secret@"])
def test_an_address_of_no_server_is_refused_without_its_secrets(uri: str) -> None:
    with pytest.raises(Refused, match="is not an address of an MLflow server") as refused:
        Mlflow(uri, {})
    assert "secret" not in str(refused.value)


def test_the_checksum_is_castagnolis() -> None:
    assert _crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4 names the polynomial; the usual check value


def test_what_tensorboard_gets_are_whole_records(tmp_path: Path) -> None:
    target = TensorBoardTarget({"TENSORBOARD_LOGGING_DIR": str(tmp_path)}, ABOUT)
    directory = Path(target.begin())
    target.send([MetricPoint(1.0, 3, {"loss": 0.5, "huge": 1e300}), MetricPoint(2.0, None, {"loss": 0.25})])
    (path,) = directory.iterdir()
    assert (directory.name, path.name.startswith("events.out.tfevents.")) == ("run-uid", True)
    data, records = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        records.append(data[12 : 12 + length])
        data = data[16 + length :]
    assert [b"brain.Event:2" in records[0], len(records)] == [True, 3]
    assert struct.pack("<f", 0.5) in records[1]
    assert b"\x10\x03" in records[1]


def test_a_program_with_a_run_of_its_own_at_a_tracker_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    from fairlead.runtime.progress import own_trackers

    assert own_trackers() == []
    wandb: Any = types.ModuleType("wandb")
    mlflow: Any = types.ModuleType("mlflow")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    assert own_trackers() == []
    wandb.run, mlflow.active_run = object(), lambda: object()
    assert own_trackers() == ["wandb", "mlflow"]
