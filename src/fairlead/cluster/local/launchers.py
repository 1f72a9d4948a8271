"""Processes that start pods: for each run a warm launcher where its command allows it, otherwise a shim of its own."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fairlead.runtime
from fairlead.cluster.local.home import Home
from fairlead.runtime.launching import interpreter_for
from fairlead.specs.gang import ProgramSpec
from fairlead.state.snapshot import Workload

log = logging.getLogger(__name__)

RUNTIME = Path(fairlead.runtime.__file__).resolve().parent


class Launchers:
    """The launchers of unfinished runs. They end with this process; what they started lives on."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._warm: dict[str, subprocess.Popen[bytes]] = {}
        self._specs: dict[str, ProgramSpec] = {}
        self._cold: list[subprocess.Popen[bytes]] = []

    def start(self, workload: Workload, spec: dict[str, Any], pod_dir: Path) -> bool:
        """Have the run's launcher start a pod; False when the run has no use for one."""
        if not workload.spec.may_fork or workload.spec.setup is not None:
            return False
        process = self._warm.get(workload.uid)
        if process is not None and self._specs[workload.uid] != workload.spec:
            # What it has imported, and its environment, are those of the spec that the run had.
            self._let_go(process)
            self._cold.append(process)
            process = None
        if process is None or process.poll() is not None:
            argv = interpreter_for(spec["command"], spec["env"])
            if argv is None:
                return False
            try:
                process = self._spawn(workload.uid, argv, spec)
            except OSError as error:  # no such interpreter or directory: the shim says so in the run's own words
                log.info("no launcher for %s: %s", workload.spec.name, error)
                return False
            self._warm[workload.uid], self._specs[workload.uid] = process, workload.spec
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"pod": str(pod_dir)}).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def has_ended(self, workload_uid: str) -> bool:
        """Whether the run's launcher is gone."""
        process = self._warm.get(workload_uid)
        return process is None or process.poll() is not None

    def start_cold(self, pod_dir: Path) -> None:
        """Start a shim by itself."""
        shim = subprocess.Popen(
            [sys.executable, str(RUNTIME / "shim.py"), str(pod_dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        self._cold.append(shim)

    def reap(self, unfinished: set[str]) -> None:
        """Collect what has ended, and let the launchers of finished runs go."""
        self._cold = [shim for shim in self._cold if shim.poll() is None]
        for uid, process in list(self._warm.items()):
            if uid not in unfinished:
                # It may take a while to end, and the run may be resumed meanwhile, with a launcher of its own.
                self._let_go(process)
                self._cold.append(process)
            if uid not in unfinished or process.poll() is not None:
                del self._warm[uid], self._specs[uid]

    def close(self) -> None:
        """Let all launchers go."""
        self.reap(set())

    def _let_go(self, process: subprocess.Popen[bytes]) -> None:
        """Tell a launcher that no more pods come; it ends by itself."""
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()

    def _spawn(self, uid: str, argv: tuple[str, ...], spec: dict[str, Any]) -> subprocess.Popen[bytes]:
        with open(
            os.open(self._home.run(uid) / "launcher.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab"
        ) as log_file:
            return subprocess.Popen(
                [*argv, str(RUNTIME / "launcher.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log_file,
                env=spec["env"],
                cwd=spec["workdir"],
                start_new_session=True,
            )
