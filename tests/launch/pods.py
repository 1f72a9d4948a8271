"""Pods for tests: their directories, shims and launchers as real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fairlead.runtime
from tests.waiting import until

RUNTIME = Path(fairlead.runtime.__file__).parent
TIMEOUT_S = 120.0


class PodDir:
    """One pod directory and what its processes have written there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[subprocess.Popen[bytes]] = []

    def write(self, command: str, *, ranks: int = 1, env: dict[str, str] | None = None, **changes: Any) -> PodDir:
        self.path.mkdir(parents=True, exist_ok=True)
        uid = f"uid-{self.path.name}-{os.getpid()}"
        common = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "FAIRLEAD_POD_UID": uid,
            "FAIRLEAD_POD_DIR": str(self.path),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            **(env or {}),
        }
        of_ranks = [{"rank": i, "local_rank": i, "env": {"RANK": str(i), "LOCAL_RANK": str(i)}} for i in range(ranks)]
        pod = {
            "uid": uid,
            "workdir": str(self.path.parent),
            "command": command,
            "setup": None,
            "setup_stamp": None,
            "env": common,
            "ranks": of_ranks,
            "launch": "auto",
            "grace_s": 5.0,
            "cgroup": None,
            "log_max_bytes": 1 << 24,
            "log_files": 3,
            "supervisor": None,
            "supervisor_lock": str(self.path / "supervisor.lock"),
            **changes,
        }
        (self.path / "pod.json").write_text(json.dumps(pod))
        return self

    @property
    def uid(self) -> str:
        return str(self.read("pod.json")["uid"])

    def start(self) -> PodDir:
        argv = [sys.executable, str(RUNTIME / "shim.py"), str(self.path)]
        self.processes.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, cwd="/", start_new_session=True))
        return self

    def run(self) -> dict[str, Any]:
        self.start()
        return self.end()

    def end(self) -> dict[str, Any]:
        """The record of the pod's exit; a shim of ours has ended too."""
        record = self.wait("exit.json")
        for process in self.processes:
            process.wait(TIMEOUT_S)
        return record

    def wait(self, name: str) -> dict[str, Any]:
        until((self.path / name).exists, f"{name} of {self.path}")
        return self.read(name)

    def wait_for_output(self, text: str) -> None:
        until(lambda: text in self.log(), f"{text!r} in the log")

    def read(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.path / name).read_text())
        return value

    def log(self) -> str:
        path = self.path / "output.log"
        return path.read_text() if path.exists() else ""

    def lines(self) -> list[tuple[str, str, str]]:
        """(rank, stream, text) of each line of the newest log file."""
        split = (line.split(" ", 3) for line in self.log().splitlines())
        return [(rank, stream, text) for _, rank, stream, text in split]

    def signal(self, number: int, *, grace_s: float | None = None) -> None:
        if grace_s is not None:
            (self.path / "stop.json").write_text(json.dumps({"at": time.time(), "grace_s": grace_s}))
        os.kill(int(self.wait("claimed.json")["pid"]), number)

    def clean_up(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                process.wait(TIMEOUT_S)


class Launcher:
    """A launcher of a run; leaving the with block ends its input."""

    def __init__(self, pod: PodDir, python: str = sys.executable) -> None:
        env = pod.read("pod.json")["env"]
        self.process = subprocess.Popen(
            [python, str(RUNTIME / "launcher.py")],
            env=env,
            cwd=pod.path.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Launcher:
        return self

    def start(self, pod: PodDir) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"pod": str(pod.path)}).encode() + b"\n")
        self.process.stdin.flush()

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(TIMEOUT_S)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
