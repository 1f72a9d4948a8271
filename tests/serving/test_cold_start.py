"""Replicas that a warm launcher forks serve as those that it executes, without importing anew."""

import json
import re
import signal
from pathlib import Path

from fairlead.runtime.podfiles import read_json
from tests.launch.pods import Launcher, PodDir
from tests.serving.replica import Replica
from tests.waiting import until

PROGRAM = """
import numpy as np


class Model:
    def predict(self, inputs):
        return {"y": inputs["x"] + np.float32(1)}
"""


def replica_pod(path: Path, name: str, port: int) -> PodDir:
    env = {"FAIRLEAD_PREDICTOR": "model:Model", "PORT": str(port), "FAIRLEAD_REPLICA": name, "FAIRLEAD_GRACE": "1"}
    return PodDir(path / name).write("python -m fairlead.runtime.serving", env=env)


def told(pod: PodDir, key: str) -> str:
    """The value of a key in what the server says of itself."""

    def find() -> str | None:
        found = re.search(rf'"{key}": "([^"]*)"', pod.log())
        return found[1] if found is not None else None

    return str(until(find, lambda: pod.log(), every_s=0.01))


def test_two_replicas_are_forked_from_one_launcher(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(PROGRAM)
    # What differs between replicas is no reason to execute: their port, above all.
    pods = [replica_pod(tmp_path, name, 0) for name in ("first", "second")]
    pods[1].write("python -m fairlead.runtime.serving", env={"FAIRLEAD_PREDICTOR": "model:Model", "PORT": "00"})
    with Launcher(pods[0]) as launcher:
        for pod in pods:
            launcher.start(pod)
            replica = Replica("model:Model")
            replica.port = int(told(pod, "ready").rpartition(":")[2])
            assert replica.numbers(1).json()["outputs"][0]["data"] == [2.0]
            pod.signal(signal.SIGTERM, grace_s=10.0)
            record = pod.end()
            assert record["ranks"][0]["exit_code"] == 0, (json.dumps(record), pod.log())
            started = read_json(str(pod.path / "started.json"))
            assert started is not None
            assert (started["launch"], started["why"]) == ("fork", None)


def test_a_replica_whose_predictor_is_missing_fails_and_says_so(tmp_path: Path) -> None:
    pod = replica_pod(tmp_path, "first", 0)
    with Launcher(pod) as launcher:
        launcher.start(pod)
        assert pod.end()["ranks"][0]["exit_code"] == 1
    assert told(pod, "failed").startswith("there is no module 'model'")
