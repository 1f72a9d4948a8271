"""A pod whose metrics are sent on: what the exporter does beside the ranks, and what it cannot do to them."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from tests.launch.pods import RUNTIME, PodDir
from tests.waiting import until

EXPORTER = [str(RUNTIME / "experiment_tracking" / "exporter.py")]
OF_RUN = {"FAIRLEAD_RUN": "run", "FAIRLEAD_RUN_UID": "uid", "FAIRLEAD_TEAM": "default", "FAIRLEAD_ATTEMPT": "0"}
PRINTS = "for i in 1 2 3; do echo step=$i loss=0.$i; done"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def write(pod: PodDir, command: str, **env: str) -> PodDir:
    return pod.write(command, env={**OF_RUN, **env}, export=EXPORTER, metrics={"pattern": None})


def messages(pod: PodDir) -> list[str]:
    path = pod.path / "rank-0.events.jsonl"
    return [json.loads(line)["message"] for line in path.read_text().splitlines()] if path.exists() else []


def test_metrics_that_a_program_prints_get_to_tensorboard(pod: PodDir) -> None:
    record = write(pod, PRINTS, TENSORBOARD_LOGGING_DIR="boards").run()
    assert record["ranks"][0]["exit_code"] == 0
    (file,) = (pod.path.parent / "boards" / "run-uid").iterdir()
    assert file.read_bytes().count(b"loss") == 3
    assert messages(pod) == [f"Metrics are sent to TensorBoard: {file.parent}"]


def test_a_server_that_never_answers_holds_up_no_rank_and_is_given_up_with_the_grace(
    pod: PodDir, silent_server: str
) -> None:
    # Its ranks end at once; what is left waits no longer than the grace that a stop notice gives.
    write(pod, f"{PRINTS}; exec sleep 600", MLFLOW_TRACKING_URI=silent_server).start()
    until((pod.path / "rank-0.series.jsonl").exists)
    told = time.time()
    pod.signal(signal.SIGTERM, grace_s=2.0)
    record = pod.end()
    (rank,) = record["ranks"]
    assert rank["signal"] == signal.SIGTERM
    assert rank["at"] - told < record["at"] - told < 2.0 + 8.0  # a busy machine's time beside the grace


def test_an_exporter_that_was_killed_is_followed_by_another(pod: PodDir) -> None:
    write(pod, f"{PRINTS}; while [ ! -e go ]; do sleep 0.05; done; echo step=4 loss=0.4", TENSORBOARD_LOGGING_DIR="b")
    pod.start()
    until(lambda: messages(pod))
    claimed = int(pod.wait("claimed.json")["pid"])
    ranks = set(pod.wait("started.json")["pids"].values())
    first = next(pid for pid in children(claimed) if pid not in ranks)
    os.kill(first, signal.SIGKILL)
    until(lambda: any(pid not in ranks and pid != first for pid in children(claimed)))
    (pod.path.parent / "go").touch()
    assert pod.end()["ranks"][0]["exit_code"] == 0
    files = sorted((pod.path.parent / "b" / "run-uid").iterdir())
    assert len(files) == 2
    assert sum(file.read_bytes().count(b"loss") for file in files) >= 4


def test_a_pod_without_such_variables_has_no_exporter(pod: PodDir) -> None:
    write(pod, f"{PRINTS}; while [ ! -e go ]; do sleep 0.05; done").start()
    claimed = int(pod.wait("claimed.json")["pid"])
    ranks = set(pod.wait("started.json")["pids"].values())
    until((pod.path / "rank-0.series.jsonl").exists)
    assert set(children(claimed)) <= ranks
    (pod.path.parent / "go").touch()
    pod.end()
    assert not (pod.path / "export.json").exists()


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]
