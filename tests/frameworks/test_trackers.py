"""Metrics and models get to the real trackers: an MLflow server, the packages of Weights & Biases and TensorBoard.

`pytest -m frameworks` runs these; the first time makes an environment for each.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.runtime.experiment_tracking.mlflow_rest import Mlflow
from fairlead.runtime.podfiles import read_json
from tests.frameworks.environments import interpreter_with
from tests.home import end_everything
from tests.ports import free_port
from tests.processes import Child
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.frameworks]
START_TIMEOUT_S = 240.0  # the first start makes the tables of its database
RUN_TIMEOUT_S = 240.0
PRINTS = """\
import os, time
first = 1 + 5 * int(os.environ["FAIRLEAD_ATTEMPT"])
for step in range(first, 11):
    print(f"step={step} loss={1 / step:.4f} val/accuracy={step / 10}", flush=True)
    if step == 5 and "HOLD" in os.environ:
        time.sleep(600)
"""
REPORTS = """\
import fairlead
with fairlead.run() as run:
    start = run.resume(load=lambda directory: None)
    for step in range(start + 1, start + 11):
        run.progress(step, loss=1 / step)
    run.checkpoint(start + 10, save=lambda directory: (directory / "weights.txt").write_text("w"), force=True)
"""


class Server:
    """A real MLflow server that can be away for a while."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._python = interpreter_with("mlflow")
        self._directory = directory
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self.client = Mlflow(self.uri, {})
        self._process: Child[bytes] | None = None

    def start(self) -> None:
        argv = [
            str(self._python), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port),
            "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self._directory}/db.sqlite",
            "--artifacts-destination", str(self._directory / "artifacts"),
        ]  # fmt: skip
        with (self._directory / "log").open("ab") as log:
            self._process = Child(argv, stdout=log, stderr=log, start_new_session=True, cwd=self._directory)
        until(self._answers, (self._directory / "log").read_text, timeout_s=START_TIMEOUT_S, every_s=0.5)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)
            self._process.__exit__(None, None, None)
            self._process = None

    def run_of(self, name: str) -> dict[str, Any]:
        """The one run of a name."""
        found = self.client.post("runs/search", {"experiment_ids": ["0"], "max_results": 100}).get("runs") or []
        (run,) = (each for each in found if each["info"]["run_name"] == name)
        return dict(run)

    def history(self, run: dict[str, Any], metric: str) -> list[tuple[int, float]]:
        found = self.client.get("metrics/get-history", run_id=run["info"]["run_id"], metric_key=metric)["metrics"]
        return sorted((each["step"], round(each["value"], 4)) for each in found)

    def _answers(self) -> bool:
        try:
            self.client.post("runs/search", {"experiment_ids": ["0"]})
        except OSError:
            return False
        return True


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("mlflow") / "server")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "prints.py").write_text(PRINTS)
    (tmp_path / "reports.py").write_text(REPORTS)
    yield tmp_path / "home"
    end_everything(tmp_path / "home")


def fairlead(home: Path, *words: str, code: int = 0, **env: str) -> str:
    argv = [sys.executable, "-m", "fairlead.cli.main", *words]
    ended = subprocess.run(
        argv, cwd=home.parent, env={**os.environ, "FAIRLEAD_HOME": str(home), **env}, capture_output=True, text=True,
        timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def messages(home: Path, run: str) -> list[str]:
    found = map(json.loads, fairlead(home, "events", run, "--json").splitlines())
    return [each["reason"]["message"] for each in found if each["event"] == "MetricsExport"]


def write_run(home: Path, name: str, python: str = "python", **more: object) -> str:
    path = home.parent / f"{name}.json"
    given = {"name": name, "run": f"{python} prints.py", "metrics": "name=value", "resources": {"cpu": 0.1}, **more}
    path.write_text(json.dumps(given))
    return path.name


def test_a_run_that_prints_its_metrics_and_was_killed_is_one_run_of_mlflow(server: Server, home: Path) -> None:
    file = write_run(home, "printed", env={"HOLD": "1", "MLFLOW_TRACKING_URI": server.uri})
    fairlead(home, "run", file, "--detach")
    cluster = LocalCluster.open(home)
    run = cluster.find("printed")
    until(lambda: messages(home, "printed"), timeout_s=RUN_TIMEOUT_S)
    until(lambda: len(server.history(server.run_of("printed"), "loss")) == 5, timeout_s=RUN_TIMEOUT_S)
    assert server.run_of("printed")["info"]["status"] == "RUNNING"
    path = cluster.home.pod(run.uid, cluster.pods(run.uid)[-1].uid)
    os.kill((read_json(path / "started.json") or {})["pids"]["0"], signal.SIGKILL)
    until(lambda: cluster.get(run.uid).status.phase.is_final, timeout_s=RUN_TIMEOUT_S)
    cluster.close()
    found = server.run_of("printed")
    assert found["info"]["status"] == "FINISHED"
    assert server.history(found, "loss") == [(step, round(1 / step, 4)) for step in range(1, 11)]
    assert len(server.history(found, "val/accuracy")) == 10
    assert messages(home, "printed") == [
        f"Metrics are sent to MLflow: {server.uri}/#/experiments/0/runs/{found['info']['run_id']}"
    ]


def test_trials_of_a_sweep_have_their_parameters_there(server: Server, home: Path) -> None:
    trial = {"run": "python prints.py", "metrics": "name=value", "resources": {"cpu": 0.1}}
    spec = {"kind": "Sweep", "name": "rates", "parameters": {"rate": "1 | 2"}, "sampler": "grid"}
    spec |= {"objective": "loss", "trial": trial}
    (home.parent / "rates.json").write_text(json.dumps(spec))
    fairlead(home, "run", "rates.json", MLFLOW_TRACKING_URI=server.uri, MLFLOW_EXPERIMENT_NAME="rates")
    experiment = server.client.get("experiments/get-by-name", experiment_name="rates")["experiment"]["experiment_id"]
    found = server.client.post("runs/search", {"experiment_ids": [experiment]})["runs"]
    assert sorted((run["info"]["run_name"], run["data"]["params"]) for run in found) == [
        ("rates-0", [{"key": "rate", "value": "1"}]),
        ("rates-1", [{"key": "rate", "value": "2"}]),
    ]


def test_a_server_that_is_away_costs_the_run_nothing_and_gets_all_once_it_is_back(home: Path, tmp_path: Path) -> None:
    server = Server(tmp_path / "server")
    file = write_run(home, "away", env={"HOLD": "1", "MLFLOW_TRACKING_URI": server.uri})
    fairlead(home, "run", file, "--detach")
    cluster = LocalCluster.open(home)
    run = cluster.find("away")
    until(lambda: messages(home, "away"), timeout_s=RUN_TIMEOUT_S)
    assert cluster.get(run.uid).progress is not None
    try:
        server.start()
        until(lambda: len(messages(home, "away")) == 3, timeout_s=RUN_TIMEOUT_S)
        assert len(server.history(server.run_of("away"), "loss")) == 5
        fairlead(home, "stop", "away")
        until(lambda: cluster.get(run.uid).status.phase.is_final, timeout_s=RUN_TIMEOUT_S)
        assert server.run_of("away")["info"]["status"] == "KILLED"
    finally:
        server.stop()
        cluster.close()
    first, *rest = messages(home, "away")
    assert first.startswith("MLflow does not answer: ")
    assert sorted(message.split(":")[0] for message in rest) == ["MLflow answers again.", "Metrics are sent to MLflow"]


def test_a_model_is_registered_once_and_its_stage_is_an_alias(server: Server, home: Path) -> None:
    fairlead(home, "run", "--name", "fit", "--", sys.executable, "reports.py", MLFLOW_TRACKING_URI=server.uri)
    pushed = json.loads(fairlead(home, "model", "push", "churn", "fit", "--json", MLFLOW_TRACKING_URI=server.uri))
    again = json.loads(fairlead(home, "model", "push", "churn", "fit", "--json", MLFLOW_TRACKING_URI=server.uri))
    assert pushed["registered"] == again["registered"] == {
        "name": "churn", "version": "1", "address": f"{server.uri}/#/models/churn/versions/1",
    }  # fmt: skip
    fairlead(home, "model", "promote", "churn@1", "--to", "production", MLFLOW_TRACKING_URI=server.uri)
    found = server.client.get("registered-models/alias", name="churn", alias="production")["model_version"]
    assert found["run_id"] == server.run_of("fit")["info"]["run_id"]
    # What MLflow's own client gets is what was pushed.
    script = (
        "import mlflow, pathlib, sys\n"
        "place = pathlib.Path(mlflow.artifacts.download_artifacts('models:/churn@production', dst_path=sys.argv[1]))\n"
        "print([path.read_text() for path in place.rglob('weights.txt')])\n"
    )
    (home.parent / "got").mkdir()
    ended = subprocess.run(
        [str(interpreter_with("mlflow")), "-c", script, str(home.parent / "got")], capture_output=True, text=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": server.uri}, timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert ended.stdout.splitlines()[-1:] == ["['w']"], ended.stderr


def test_a_registry_that_is_away_leaves_the_version_here_and_says_so(home: Path) -> None:
    (home.parent / "model.bin").write_bytes(b"m")
    gone = f"http://127.0.0.1:{free_port()}"
    said = fairlead(home, "model", "push", "gone", "./model.bin", code=7, MLFLOW_TRACKING_URI=gone)
    assert "gone@1 is not registered: MLflow does not answer" in said
    assert "push it once more to register it" in said
    assert "gone@1" in fairlead(home, "model", "list")


def test_weights_and_biases_keeps_a_run_offline(home: Path) -> None:
    python = interpreter_with("wandb")
    file = write_run(home, "offline", str(python), env={"WANDB_MODE": "offline", "WANDB_PROJECT": "p"})
    fairlead(home, "run", file)
    (said,) = messages(home, "offline")
    assert said.startswith("Metrics are sent to Weights & Biases: ")
    (kept,) = (home.parent / "wandb").glob("offline-run-*/*.wandb")
    script = (
        "import struct, sys\n"
        "from wandb.proto import wandb_internal_pb2 as pb\n"
        "data, at, whole = open(sys.argv[1], 'rb').read(), 7, b''\n"
        "while at + 7 <= len(data):\n"
        "    left = 32768 - at % 32768\n"  # records of LevelDB's log, in blocks
        "    if left < 7: at += left; continue\n"
        "    length, kind = struct.unpack('<HB', data[at + 4 : at + 7])\n"
        "    whole += data[at + 7 : at + 7 + length]; at += 7 + length\n"
        "    if kind not in (1, 4): continue\n"
        "    record, whole = pb.Record.FromString(whole), b''\n"
        "    for item in record.history.item:\n"
        "        if 'loss' in (item.key, *item.nested_key): print('loss', item.value_json)\n"
    )
    ended = subprocess.run(
        [str(python), "-c", script, str(kept)], capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
    )
    assert [float(line.split()[1]) for line in ended.stdout.splitlines()] == [
        round(1 / step, 4) for step in range(1, 11)
    ], ended.stderr


def test_tensorboard_reads_the_metrics(home: Path) -> None:
    python = interpreter_with("tensorboard")
    fairlead(home, "run", write_run(home, "board"), TENSORBOARD_LOGGING_DIR="boards")
    (directory,) = (home.parent / "boards").iterdir()
    script = (
        "import sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "found = EventAccumulator(sys.argv[1]); found.Reload()\n"
        "points = [(each.step, round(each.value, 4)) for each in found.Scalars('loss')]\n"
        "print(sorted(found.Tags()['scalars']), points)\n"
    )
    ended = subprocess.run(
        [str(python), "-c", script, str(directory)], capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
    )
    wanted = [(step, round(1 / step, 4)) for step in range(1, 11)]
    assert ended.stdout == f"['loss', 'val/accuracy'] {wanted}\n", ended.stderr
