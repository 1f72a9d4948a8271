"""Processes that start pods: warm launchers where a command allows it, otherwise one that makes shims for any pod."""

import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fairlead.runtime
from fairlead.cluster.local.home import Home
from fairlead.runtime import utf8_mode
from fairlead.runtime.forking import is_of_pod
from fairlead.runtime.launching import Fork, plan_launch
from fairlead.runtime.preloading import find_preload
from fairlead.state.snapshot import Workload

log = logging.getLogger(__name__)

# The process that makes shims ends as soon as its input closes; after this long it is killed.
END_S = 5.0
RUNTIME = Path(fairlead.runtime.__file__).resolve().parent


@dataclass(slots=True, eq=False)
class _Launcher:
    """A warm launcher process.

    Attributes:
        family: Uid of the parent whose runs it starts, or of the one run without a parent.
        program: What its pods have in common, beginning with the modules that it imports for them.
        users: Uids of the runs whose pods it started last.
    """

    process: subprocess.Popen[bytes]
    family: str
    program: tuple[object, ...]
    users: set[str] = field(default_factory=set)


class Launchers:
    """The launchers of unfinished runs. They end with this process; the pods they started live on.

    Runs of one parent with the same command and environment share a launcher, which waits for the next of them: a sweep
    whose trials read their parameters from variables imports once. If there is nothing to import ahead, that saves the
    start of an interpreter, and a launcher starts only with the second such run.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._warm: list[_Launcher] = []
        self._last: dict[str, subprocess.Popen[bytes]] = {}
        # The program started last for each parent, with its run.
        self._newest: dict[str, tuple[tuple[object, ...], str]] = {}
        self._shims: subprocess.Popen[bytes] | None = None
        self._cold: list[subprocess.Popen[bytes]] = []

    def start(self, workload: Workload, spec: dict[str, Any], pod_dir: Path) -> bool:
        """Start a pod through a launcher; False when that failed."""
        why = None
        # A launcher becomes the program, in the encoding of its environment; the paths of pods are UTF-8.
        if workload.spec.may_fork and workload.spec.setup is None and utf8_mode.is_chosen_by(spec["env"]):
            plan = plan_launch(spec["command"], "auto", spec["env"])
            if isinstance(plan, Fork):
                predictor = spec["env"].get("FAIRLEAD_PREDICTOR", "")
                preload = find_preload(plan.script, plan.module, spec["workdir"], predictor)
                program = (preload.modules, *_program(spec))
                if preload.modules or (preload.is_bare and self._repeats(workload, program)):
                    argv = (plan.interpreter, *plan.flags)
                    return self._start_warm(workload, argv, program, spec, pod_dir)
                why = preload.why
        return self._start_shim(workload.uid, why, pod_dir)

    def has_ended(self, workload_uid: str) -> bool:
        """Return whether the process last asked to start a pod of the run has ended."""
        process = self._last.get(workload_uid)
        return process is None or process.poll() is not None

    def start_cold(self, pod_dir: Path) -> None:
        """Start a shim directly, without a launcher."""
        shim = subprocess.Popen(
            [sys.executable, str(RUNTIME / "shim.py"), str(pod_dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        self._cold.append(shim)

    def get_ready(self) -> None:
        """Start the process that makes shims ahead of the first pod."""
        if self._shims is not None and self._shims.poll() is None:
            return
        self._shims = subprocess.Popen(
            [sys.executable, str(RUNTIME / "launcher.py"), "shims"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def reap(self, unfinished: set[str]) -> None:
        """Collect ended processes, and stop launchers that are no longer needed."""
        self._cold = [process for process in self._cold if process.poll() is None]
        self._last = {uid: process for uid, process in self._last.items() if uid in unfinished}
        self._newest = {family: newest for family, newest in self._newest.items() if family in unfinished}
        newest = {launcher.family: launcher for launcher in self._warm}
        for launcher in list(self._warm):
            launcher.users &= unfinished
            awaits_next = launcher.family in unfinished and newest[launcher.family] is launcher
            if not launcher.users and not awaits_next:
                # It may take a while to end, and a run resumed meanwhile gets a new launcher.
                self._let_go(launcher.process)
                self._cold.append(launcher.process)
                self._warm.remove(launcher)
            elif launcher.process.poll() is not None:
                self._warm.remove(launcher)

    def close(self) -> None:
        """Stop all launchers."""
        self.reap(set())
        if self._shims is not None:
            self._let_go(self._shims)
            try:
                self._shims.wait(END_S)
            except subprocess.TimeoutExpired:
                self._shims.kill()
                self._shims.wait()
            self._shims = None

    def _repeats(self, workload: Workload, program: tuple[object, ...]) -> bool:
        """Return whether another run of the same parent had the same program before, so that more may follow."""
        family = workload.parent
        if family is None:
            return False
        before = self._newest.get(family)
        if before is not None and before[0] == program:
            return before[1] != workload.uid
        self._newest[family] = program, workload.uid
        return False

    def _start_shim(self, uid: str, why: str | None, pod_dir: Path) -> bool:
        try:
            self.get_ready()
        except OSError as error:
            log.warning("no process to start pods from: %s", error)
            return False
        assert self._shims is not None
        self._last[uid] = self._shims
        return _ask(self._shims, {"pod": str(pod_dir), "why": why})

    def _start_warm(
        self,
        workload: Workload,
        argv: tuple[str, ...],
        program: tuple[object, ...],
        spec: dict[str, Any],
        pod_dir: Path,
    ) -> bool:
        family = workload.parent or workload.uid
        for other in self._warm:
            other.users.discard(workload.uid)
        live = (other for other in self._warm if other.process.poll() is None)
        launcher = next((other for other in live if (other.family, other.program) == (family, program)), None)
        if launcher is None:
            try:
                process = self._spawn(workload.uid, argv, spec)
            except OSError as error:  # no such interpreter or directory: the shim reports it for the run
                log.info("no launcher for %s: %s", workload.spec.name, error)
                return False
            launcher = _Launcher(process=process, family=family, program=program)
            self._warm.append(launcher)
        launcher.users.add(workload.uid)
        self._last[workload.uid] = launcher.process
        return _ask(launcher.process, {"pod": str(pod_dir)})

    def _let_go(self, process: subprocess.Popen[bytes]) -> None:
        """Close the input of a launcher, which then ends by itself."""
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # closing flushes unread requests, and the process may be gone
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


def _program(spec: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what pods must have in common to be forked from one process."""
    env = tuple(sorted((name, value) for name, value in spec["env"].items() if not is_of_pod(name)))
    return spec["command"], spec["workdir"], env, tuple(spec["secrets"])


def _ask(process: subprocess.Popen[bytes], request: Mapping[str, str | None]) -> bool:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return True
