"""Servers as child processes that end with us, each with a log.

The kernel ends them when the *thread* that started them does: start them in one that lives as long as they should.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.kubernetes.testcluster.errors import Broken

PATIENCE_S = 180.0
"""A killed API server takes 3 s to be ready, and over 60 where there is twenty times more to do than cores."""
GOGC = "300"
"""The garbage that servers, which are written in Go, let gather, in percent of what they need.

With Go's own 100 an API server spends a quarter of its processor time on collecting, with 300 an eighth; it takes
600 MB of memory then, for 350.
"""
GOMAXPROCS = "1"
"""So many processors a server uses at a time, as several clusters share few.

The servers of one take 29 s of processor time for two files of tests instead of 34, as fewer threads look for work.
"""

PR_SET_PDEATHSIG = 1


class Server:
    """One server; it may be killed and started again with the same arguments."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        *,
        network: str | None = None,
        mounts: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """`network` names the network namespace that it runs in, `mounts` is its mount namespace; None is ours."""
        self.name = name
        # Not `ip netns exec`, which makes a mount namespace of its own: what kubelet mounts, containerd must see.
        entered = [f"--net=/var/run/netns/{network}"] if network else []
        entered += [f"--mount={mounts}"] if mounts else []
        self._argv = [*(["nsenter", *entered] if entered else []), *argv]
        self._pass_fds = tuple(pass_fds)
        self._log = log
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process; None while it does not run."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        """Start it; its output is added to its log."""
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._argv,
                env={"GOGC": GOGC, "GOMAXPROCS": GOMAXPROCS, **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self._pass_fds,
                start_new_session=True,  # Ctrl-C is for who started it
                preexec_fn=_die_with_parent,
            )

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        """Ask it to end, and kill it when it does not."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def until(self, met: Callable[[], bool], what: str) -> None:
        """Wait for something that this server brings about.

        Raises:
            Broken: It ended, or the patience did.
        """
        deadline, every_s = time.monotonic() + PATIENCE_S, 0.02
        while not met():
            if self.pid is None:
                raise Broken(f"{self.name} ended before {what}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise Broken(f"{self.name}: no {what} within {PATIENCE_S:.0f} s:\n{self.log_tail()}")
            time.sleep(every_s)
            every_s = min(1.05 * every_s, 0.2)

    def said(self, words: str) -> bool:
        """Whether its log has these words since it was last started."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return words.encode() in log.read()

    def log_tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-25:]) if self._log.exists() else ""


_LIBC = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
