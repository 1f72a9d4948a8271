"""Pods become one Ray cluster, with a Ray that is played: a node is a process of its name that sleeps."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.runtime import processes, ray_cluster, run_key
from tests.ports import free_ports

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children that are adopted are Linux's")
TIMEOUT_S = 120.0
RAY = """\
import ctypes, os, sys, time

class ray_constants:
    ENABLE_RAY_CLUSTER = True

def main():
    here = os.path.dirname(__file__)
    with open(os.path.join(here, "calls"), "a") as file:
        file.write(" ".join(sys.argv) + "\\n")
    if os.path.exists(os.path.join(here, "broken")):
        sys.exit("no room for objects")
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, b"raylet", 0, 0, 0)
            null = os.open(os.devnull, os.O_RDWR)
            for each in (0, 1, 2):
                os.dup2(null, each)
            os.write(write, b"1")
            os.close(write)
            time.sleep(600)
        os._exit(0)
    os.read(read, 1)
    sys.exit(0)
"""
COMMAND = "import os, sys; print(os.environ['RAY_ADDRESS'], os.environ['WORLD_SIZE'], flush=True); sys.stdin.read()"


class Gang:
    """Pods whose ranks begin by `ray_cluster.py`."""

    def __init__(self, path: Path, num_pods: int, *, broken: bool = False, starts_at_once: bool = True) -> None:
        self.scripts, self.path = path / "ray" / "scripts", path
        self.scripts.mkdir(parents=True)
        for file, text in (("../__init__.py", ""), ("__init__.py", ""), ("scripts.py", RAY)):
            (self.scripts / file).write_text(text)
        if broken:
            (self.scripts / "broken").touch()
        found = free_ports(2000)
        self.port = next(port for port in found if port + 1 in found)
        run_key.create(path / "key")
        self._num_pods = num_pods
        self.pods: list[subprocess.Popen[str]] = []
        for index in range(num_pods if starts_at_once else 0):
            self.start(index)

    def uid(self, index: int) -> str:
        """The uid of a pod."""
        return f"{self.path.name}-{os.getpid()}-{index}"

    def start(self, index: int) -> None:
        """Start a pod; they are started in their order."""
        env = {
            **os.environ,
            run_key.FILE: str(self.path / "key"),
            "PYTHONPATH": str(self.path),
            "GROUP_RANK": str(index),
            "GROUP_WORLD_SIZE": str(self._num_pods),
            "WORLD_SIZE": str(self._num_pods),
            "RAY_ADDRESS": f"127.0.0.1:{self.port}",
            "RAY_AUTH_TOKEN_PATH": str(self.path / "files" / "token"),
            "FAIRLEAD_RAY_NODE": '{"num-cpus": 2}',
            "FAIRLEAD_POD_UID": self.uid(index),
        }
        pod = subprocess.Popen(
            [sys.executable, ray_cluster.__file__, sys.executable, "-c", COMMAND],
            env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.pods.append(pod)

    def processes(self) -> list[int]:
        """All of its processes."""
        return [
            pid
            for each in range(self._num_pods)
            for pid in processes.processes_with("FAIRLEAD_POD_UID", self.uid(each))
        ]

    def nodes(self) -> list[int]:
        """Those that play Ray."""
        return [pid for pid in self.processes() if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet"]

    def end(self) -> None:
        """End all of it."""
        processes.kill(self.processes())
        for pod in self.pods:
            with pod:  # which closes its pipes
                pod.wait(TIMEOUT_S)
        processes.kill(self.processes())


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    made = Gang(tmp_path, 3)
    yield made
    made.end()


def first_line(pod: "subprocess.Popen[str]") -> str:
    assert pod.stdout is not None
    return pod.stdout.readline()


def test_the_command_runs_once_as_a_lone_rank_when_all_pods_have_joined_and_their_end_is_its(gang: Gang) -> None:
    assert first_line(gang.pods[0]) == f"127.0.0.1:{gang.port} 1\n"
    calls = (gang.scripts / "calls").read_text().splitlines()
    assert len(calls) == len(gang.nodes()) == 3
    assert calls[0].startswith(f"ray start --head --port={gang.port} --include-dashboard=false")
    others = f"ray start --address=127.0.0.1:{gang.port} --num-cpus=2 --node-ip-address=127.0.0.1"
    assert all(each.startswith(others) for each in calls[1:])
    token = gang.path / "files" / "token"
    assert (token.stat().st_mode & 0o777, len(token.read_text())) == (0o600, 64)
    # A stop notice is for the program, which may need its cluster to save.
    gang.pods[1].send_signal(signal.SIGTERM)
    assert gang.pods[0].stdin is not None
    gang.pods[0].stdin.close()
    assert [pod.wait(TIMEOUT_S) for pod in gang.pods] == [0, 0, 0]


def test_a_node_of_ray_that_ends_fails_its_pod_and_says_so(gang: Gang) -> None:
    assert first_line(gang.pods[0])
    ended = [(1, ray_cluster.EXIT_FAILED, "Ray's node of this pod"), (0, -signal.SIGABRT, "Ray's head")]
    for index, code, subject in ended:
        processes.kill(
            [pid for pid in gang.nodes() if pid in processes.processes_with("FAIRLEAD_POD_UID", gang.uid(index))]
        )
        pod = gang.pods[index]
        assert pod.wait(TIMEOUT_S) == code
        assert pod.stderr is not None
        assert pod.stderr.readline() == f"fairlead: {subject} ended: its raylet ended with signal 9\n"


def test_a_node_that_does_not_start_is_tried_again_and_then_told_in_rays_words(tmp_path: Path) -> None:
    with Gang(tmp_path, 1, broken=True).pods[0] as pod:
        _, said = pod.communicate(timeout=TIMEOUT_S)
    assert pod.returncode == -signal.SIGABRT
    assert said == "fairlead: Ray's head ended: `ray start` failed 3 times, at last with:\nno room for objects\n"
