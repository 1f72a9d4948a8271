"""The life of a replica: not ready before it is warm, drained on TERM, and clear when it cannot serve."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.serving.settings import Settings, read_settings
from tests.serving.predictors import Gate, SlowToLoad
from tests.serving.replica import Answer, Replica, x
from tests.waiting import until

TIMEOUT_S = 60.0
PROGRAM = """
import time
class Model:
    inputs = {"x": ("FP32", (-1, 1))}
    def load(self, model):
        self.model = model
    def warm_up(self):
        print("warm", flush=True)
    def predict(self, inputs):
        print("predicting", flush=True)
        time.sleep(float(inputs["x"][0, 0]))
        return {"y": inputs["x"]}
"""


@pytest.fixture
def gate() -> Iterator[type[Gate]]:
    Gate.opened.clear()
    yield Gate
    Gate.opened.set()


def started(directory: Path, env: dict[str, str]) -> "subprocess.Popen[str]":
    (directory / "model.py").write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, "-m", "fairlead.runtime.serving"],
        cwd=directory, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def line(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stderr is not None
    found: dict[str, Any] = json.loads(process.stderr.readline())
    return found


def test_a_replica_is_live_but_not_ready_while_it_loads() -> None:
    SlowToLoad.let.clear()
    with Replica("SlowToLoad", wait=False) as replica:
        try:
            assert replica.get("/v2/health/live").status == 200
            for path in ("/v2/health/ready", "/v2/models/model/ready", "/v2/models/model", "/v1/models"):
                answer = replica.get(path)
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1"), path
            assert replica.infer(x([1, 2], [1, 2])).json() == {"error": "the model is being loaded"}
        finally:
            SlowToLoad.let.set()
        until(lambda: replica.get("/v2/health/ready").status == 200, "readiness")
        assert replica.infer(x([1, 2], [1, 2])).status == 200


def test_a_replica_that_is_told_to_end_while_it_loads_ends_at_once() -> None:
    SlowToLoad.let.clear()
    try:
        with Replica("SlowToLoad", wait=False) as replica:
            replica.stop()
            until(lambda: replica.code is not None, "exit code")
            assert replica.code == 0
    finally:
        SlowToLoad.let.set()


@pytest.mark.parametrize(
    ("predictor", "says"),
    [
        ("Broken", "FileNotFoundError: no weights in ''"),
        ("Neither", "Neither has neither predict() nor generate()"),
        ("BadShape", "give -1 for the batch first"),
        ("tests.serving.predictors:Doubled", "has no class 'Doubled'; it has Doubler"),
        ("tests.serving.nowhere:Model", "there is no module 'tests.serving.nowhere'"),
    ],
)
def test_a_predictor_that_cannot_be_served_says_why(
    predictor: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Replica(predictor, wait=False) as replica:
        until(lambda: replica.code is not None, "exit code")
        assert replica.code == 1
    assert says in json.loads(capfd.readouterr().err.splitlines()[-1])["failed"]


def test_a_port_that_is_taken_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with Replica("Doubler") as replica, Replica("Doubler", port=replica.port, wait=False) as other:
        assert other.end() == 1
    assert f"cannot listen on 127.0.0.1:{replica.port}" in capfd.readouterr().err


def test_a_replica_that_ends_answers_what_it_has(gate: type[Gate]) -> None:
    answers: list[Answer] = []
    with Replica("Gate", grace_s=20.0) as replica:
        asking = threading.Thread(target=lambda: answers.append(replica.numbers(1)))
        asking.start()
        assert gate.entered.acquire(timeout=TIMEOUT_S)
        replica.stop()
        until(lambda: replica.get("/v2/health/ready").status == 503, "end of readiness")
        # Whoever does not know yet is served, and told to connect elsewhere.
        late: list[Answer] = []
        asking_late = threading.Thread(target=lambda: late.append(replica.numbers(2)))
        asking_late.start()
        until(lambda: replica.metric('fairlead:num_requests_waiting{model_name="model"}') == 1, "late request")
        gate.opened.set()
        for thread in (asking, asking_late):
            thread.join(TIMEOUT_S)
        assert [each.status for each in answers + late] == [200, 200]
        assert late[0].headers["Connection"] == "close"
        assert replica.end() == 0


def test_what_outlasts_the_grace_is_lost_and_said(gate: type[Gate], capfd: pytest.CaptureFixture[str]) -> None:
    def ask() -> None:
        with pytest.raises(ConnectionError):
            replica.numbers(1)

    with Replica("Gate", grace_s=0.6) as replica:
        asking = threading.Thread(target=ask)
        asking.start()
        assert gate.entered.acquire(timeout=TIMEOUT_S)
        replica.stop()
        assert replica.end() == 1
        gate.opened.set()
        asking.join(TIMEOUT_S)
    assert "1 requests lost" in capfd.readouterr().err


def test_a_process_serves_what_its_environment_says_and_ends_by_term(tmp_path: Path) -> None:
    env = {"FAIRLEAD_PREDICTOR": "model:Model", "PORT": "0", "FAIRLEAD_SERVICE": "sleeper", "FAIRLEAD_GRACE": "20"}
    process = started(tmp_path, env)
    try:
        ready = line(process)
        assert ready["model"] == "sleeper"
        assert {"import_s", "import_predictor_s", "load_s", "warm_up_s", "ready_s"} <= ready.keys()
        assert process.stdout is not None
        assert process.stdout.readline() == "warm\n"
        body = json.dumps({"inputs": [x([0.2], [1, 1])]})
        head = "POST /v2/models/sleeper/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}"
        replica = Replica("Doubler")
        replica.port = int(ready["ready"].rpartition(":")[2])
        got: list[bytes] = []
        asking = threading.Thread(target=lambda: got.append(replica.raw(request.encode())))
        asking.start()
        assert process.stdout.readline() == "predicting\n"
        process.send_signal(signal.SIGTERM)
        asking.join(TIMEOUT_S)
        assert got[0].startswith(b"HTTP/1.1 200 OK\r\n")
        assert process.wait(TIMEOUT_S) == 0
        assert line(process)["stopped"] == "every request answered"
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({}, "no predictor: give module:Class"),
        ({"FAIRLEAD_PREDICTOR": "model"}, "predictor is 'model'; give module:Class"),
        ({"FAIRLEAD_PREDICTOR": "m:M", "PORT": "http"}, "PORT is 'http'; give a number"),
        ({"FAIRLEAD_PREDICTOR": "m:M", "FAIRLEAD_BATCHING": "{"}, "FAIRLEAD_BATCHING is not JSON"),
        ({"FAIRLEAD_PREDICTOR": "m:M", "FAIRLEAD_BATCHING": '{"size": 1}'}, "FAIRLEAD_BATCHING has 'size'"),
        ({"FAIRLEAD_PREDICTOR": "m:M", "FAIRLEAD_BATCHING": '{"max_batch_size": 1.5}'}, "is 1.5; give a number"),
        ({"FAIRLEAD_PREDICTOR": "m:M", "FAIRLEAD_BATCHING": '{"max_batch_size": 0}'}, "is 0; give 1 to 65536"),
        ({"FAIRLEAD_PREDICTOR": "m:M", "FAIRLEAD_GRACE": "-1"}, "grace is -1.0; give 0 to 86400"),
    ],
)
def test_what_a_replica_is_told_is_checked(env: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_settings([], env)
    assert says in str(caught.value)


def test_the_command_line_goes_before_the_environment() -> None:
    env = {"FAIRLEAD_PREDICTOR": "a:A", "PORT": "1", "FAIRLEAD_BATCHING": '{"max_batch_size": 8, "max_latency_ms": 5}'}
    given = read_settings(["b:B", "--port", "2", "--max-batch-size", "16", "--name", "n", "--model", "d"], env)
    assert given == Settings(predictor="b:B", port=2, max_batch_size=16, max_latency_ms=5, service="n", model="d")
