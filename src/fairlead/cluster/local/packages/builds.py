"""Has the environments of waiting runs made, each by a process of its own, and tells how far they are.

A process is killed, with all that it started, when no waiting run needs what it makes. See decision 227.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.packages import place as places
from fairlead.cluster.local.packages.gpu_support import judge_lock
from fairlead.cluster.local.packages.requests import key_of, request_of
from fairlead.policy.gpu.cuda_support import Support
from fairlead.runtime.podfiles import read_json
from fairlead.specs.environment import PythonEnvironment
from fairlead.state.preparations import Preparation
from fairlead.state.snapshot import Intent, Phase, Workload
from fairlead.untrusted_json import text

log = logging.getLogger(__name__)

BEGUN = "its packages are being looked up"
_WAITING = (Phase.PENDING, Phase.RESTARTING)
_Wait = tuple[str, int, PythonEnvironment]
"""A waiting run: its uid, its attempt, and what it asks for."""


class EnvironmentBuilds:
    """The processes that make environments for one state directory, and their results; used by its supervisor."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._requests: dict[_Wait, dict[str, Any]] = {}
        self._failed: dict[_Wait, Preparation] = {}
        self._waiting: dict[_Wait, Workload] = {}
        self._judged: set[_Wait] = set()

    def prepared(self, runs: Iterable[Workload]) -> tuple[Workload, ...]:
        """Return the runs, those that wait for their environment with what is still to do; begin what is not begun."""
        runs = tuple(runs)
        waiting = {
            (run.uid, run.status.attempt, run.spec.environment): run
            for run in runs
            if run.spec.environment is not None and run.status.phase in _WAITING and run.intent is Intent.RUN
        }
        self._waiting = waiting
        self._judged &= waiting.keys()
        for known in (self._requests, self._failed):
            for key in [key for key in known if key not in waiting]:
                del known[key]
        states = {key[0]: self._prepare(key, run) for key, run in waiting.items()}
        self._stop_unneeded({request["digest"] for request in self._requests.values()})
        return tuple(replace(run, preparation=states[run.uid]) if run.uid in states else run for run in runs)

    def close(self) -> None:
        """Kill all processes; the next supervisor begins anew."""
        self._stop_unneeded(set())

    def _prepare(self, key: _Wait, run: Workload) -> Preparation | None:
        failed = self._failed.get(key)
        if failed is not None:
            return failed
        request = self._requests.get(key)
        if request is None:
            request = request_of(run.spec, self._home, run.uid)
            if request is None:
                gone = "what its environment asks for is gone"
                return Preparation(message=gone, has_failed=True, remedy=f"Submit {run.spec.name} again.")
            self._requests[key] = request
        digest = str(request["digest"])
        place = places.place_of(self._home, digest)
        process = self._running.get(digest)
        if process is None:
            if places.unchanged(self._home, digest) is not None:
                return self._complete(key, run, place.lock, digest)
            place.state.unlink(missing_ok=True)
            self._running[digest] = self._start(run)
            return Preparation(message=BEGUN)
        code = process.poll()
        state = read_json(place.state) or {}
        failure = text(state.get("failed")) if state.get("pid") == process.pid else None
        if failure is not None or (code is not None and code != 0):
            # All runs that wait for it get the same answer, but for those that do without GPUs if they are the reason;
            # one that is submitted later begins anew.
            message = failure or f"the process that made its environment was ended with exit code {code}"
            lost = Preparation(message=message, has_failed=True, remedy=text(state.get("remedy")))
            is_of_gpus = state.get("is_of_gpus") is True
            self._failed |= {
                other: lost
                for other, request in self._requests.items()
                if request["digest"] == digest and (not is_of_gpus or _uses_gpus(self._waiting[other]))
            }
            self._reap(digest)
            return self._failed.get(key, Preparation(message=BEGUN))
        if places.unchanged(self._home, digest) is not None:
            self._reap(digest)
            return self._complete(key, run, place.lock, digest)
        if code is not None:  # it ended well, and somebody has removed what it made
            del self._running[digest]
        return Preparation(message=text(state.get("message")) or BEGUN)

    def _start(self, run: Workload) -> subprocess.Popen[bytes]:
        assert run.spec.environment is not None
        request = self._home.packages_of(run.uid) / f"{key_of(run.spec.environment, run.spec.workdir)}.json"
        environ = read_json(self._home.environment(run.uid)) or {}
        own = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        usual = {name: value for name, value in environ.items() if isinstance(value, str) and name != "PYTHONPATH"}
        argv = [sys.executable, "-m", "fairlead.cluster.local.packages.build", str(self._home.path), str(request)]
        return subprocess.Popen(
            [*argv, "--gpus"] if _uses_gpus(run) else argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=usual | own,
            cwd="/",
            start_new_session=True,
        )

    def _complete(self, key: _Wait, run: Workload, lock: Path, digest: str) -> Preparation | None:
        """Keep the lock of a complete environment with its run; return why that cannot use it, None if it can.

        It may have been made for runs without GPUs, or with another driver.
        """
        if key not in self._judged and _uses_gpus(run):
            environ = read_json(self._home.environment(run.uid)) or {}
            library = {"LD_LIBRARY_PATH": text(environ.get("LD_LIBRARY_PATH")) or ""}
            answer = judge_lock(lock.read_bytes(), str(self._requests[key]["python"][1]), library)
            if answer.support is Support.REFUSED:
                self._failed[key] = Preparation(message=answer.message, has_failed=True, remedy=answer.remedy)
                return self._failed[key]
        self._judged.add(key)
        self._keep_lock(run, lock, digest)
        return None

    def _keep_lock(self, run: Workload, lock: Path, digest: str) -> None:
        """Keep the lock with the run, which stays when the environment is removed."""
        own = self._home.packages_of(run.uid) / f"{digest}.toml"
        if not own.exists():
            with contextlib.suppress(FileExistsError):
                os.link(lock, own)  # neither is ever written in place

    def _stop_unneeded(self, needed: set[str]) -> None:
        for digest in [digest for digest in self._running if digest not in needed]:
            self._reap(digest)

    def _reap(self, digest: str) -> None:
        """End a process together with those that it has started."""
        process = self._running.pop(digest)
        # Also after its end: as long as one of its group lives, no other group has that number.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _uses_gpus(run: Workload) -> bool:
    gpu = run.spec.resources.gpu
    return gpu is not None and gpu.milli > 0
