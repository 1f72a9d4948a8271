"""Probes the readiness of endpoint servers in threads, so that no slow answer delays the agent."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from fairlead.cluster.local.home import Home
from fairlead.frozen import dataclass

# Intervals between probes of a server that is not ready, and of one that is.
STARTING_S, SERVING_S = 0.1, 1.0
# A probe without an answer after this long has failed; a ready server must fail this many in a row to be unready.
TIMEOUT_S = 2.0
PATIENCE = 3
MOST_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """A server's last answer; ``problem`` is a sentence on why it is not ready."""

    ready: bool
    problem: str | None = None


@dataclass(slots=True)
class _Target:
    """A probed server; ``path`` is None for a pod without a probe."""

    port: int
    path: str | None
    due: float = 0.0
    asking: bool = False
    silent: int = 0
    answer: ProbeResult | None = None


class Probes:
    """The probes of this machine. A changed answer wakes the supervisor."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._targets: dict[str, _Target] = {}
        self._lock = threading.Lock()
        self._more = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def knows(self, uid: str) -> bool:
        """Return whether a pod was added."""
        return uid in self._targets

    def add(self, uid: str, port: int, path: str | None) -> None:
        """Start probing a pod; without a path it is never probed."""
        with self._lock:
            self._targets[uid] = _Target(port=port, path=path)
        if path is not None:
            self._more.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="probes", daemon=True)
                self._thread.start()

    def keep(self, uids: set[str]) -> None:
        """Remove all other pods."""
        if self._targets.keys() - uids:
            with self._lock:
                self._targets = {uid: target for uid, target in self._targets.items() if uid in uids}

    def answer(self, uid: str) -> ProbeResult | None:
        """Return a pod's last answer; None before the first one, and for a pod without a probe."""
        target = self._targets.get(uid)
        return None if target is None else target.answer

    def close(self) -> None:
        """Stop probing."""
        self._closed = True
        self._more.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT_S + 1.0)

    def _run(self) -> None:
        with ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="probe") as pool:
            while not self._closed:
                now, soonest = time.monotonic(), SERVING_S
                with self._lock:
                    targets = list(self._targets.values())
                for target in targets:
                    if target.path is None or target.asking:
                        continue
                    if target.due <= now:
                        target.asking = True
                        pool.submit(self._ask, target)
                    else:
                        soonest = min(soonest, target.due - now)
                starting = any(target.asking or not (target.answer and target.answer.ready) for target in targets)
                self._more.wait(min(soonest, STARTING_S) if starting else soonest)
                self._more.clear()

    def _ask(self, target: _Target) -> None:
        before, answer = target.answer, _probe(target.port, str(target.path))
        target.silent = target.silent + 1 if answer is None else 0
        if answer is not None:
            target.answer = answer
        elif before is None or not before.ready or target.silent >= PATIENCE:
            problem = f"GET {target.path} on port {target.port} gets no answer within {TIMEOUT_S:g} s"
            target.answer = ProbeResult(ready=False, problem=problem)
        ready = target.answer is not None and target.answer.ready
        target.due = time.monotonic() + (SERVING_S if ready else STARTING_S)
        target.asking = False
        if target.answer != before:
            self._wake()

    def _wake(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake, suppress(OSError):
            wake.setblocking(False)
            wake.sendto(b"", str(self._home.socket))


def _probe(port: int, path: str) -> ProbeResult | None:
    """Probe a server; None when it does not answer in time."""
    import http.client  # here and not above: a twentieth of what a supervisor imports before the first run starts

    where = f"GET {path} on port {port}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"User-Agent": "fairlead-probe", "Connection": "close"})
        status = connection.getresponse().status
    except TimeoutError:
        return None
    except ConnectionRefusedError:
        return ProbeResult(ready=False, problem=f"{where}: nothing listens there yet")
    except (OSError, http.client.HTTPException) as error:
        return ProbeResult(ready=False, problem=f"{where}: {type(error).__name__}")
    finally:
        connection.close()
    return ProbeResult(ready=True) if status < 400 else ProbeResult(ready=False, problem=f"{where} answers {status}")
