"""Starts pods on this machine, similar programs by forking an interpreter that has already imported their modules.

Started as `PYTHON launcher.py`, it reads one JSON object a line, {"pod": POD_DIRECTORY}, and starts a shim for each,
which outlives it; it exits at the end of its input. As soon as a pod's command can be forked, it becomes `PYTHON
[flags] script.py args` with a hook that preloads modules and continues to serve (see forking). `PYTHON launcher.py
shims` only starts shims whose ranks are executed: {"pod": POD_DIRECTORY, "why": REASON}. The launcher never runs the
user's code and has one thread.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
import types


def _borrow() -> None:
    """Make Fairlead's modules importable for now, without changing sys.path or running fairlead/__init__.py."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name, path in (("fairlead", os.path.dirname(here)), ("fairlead.runtime", here)):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [path]


def _give_back() -> None:
    """Remove Fairlead's modules from sys.modules, so that the program's own `import fairlead` resolves as usual."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "fairlead"]:
        del sys.modules[name]
    here = os.path.dirname(os.path.abspath(__file__))
    for path in list(sys.path_importer_cache):
        if path in (os.path.dirname(here), here) or path.startswith(here + os.sep):
            del sys.path_importer_cache[path]


_borrow()
from fairlead.runtime import podfiles, ranks, secret_entries, shim, utf8_mode  # noqa: E402
from fairlead.runtime.forking import UID_ROOM, Warm, noise_pipe  # noqa: E402
from fairlead.runtime.launching import Fork, plan_launch  # noqa: E402

_STATE = "FAIRLEAD_LAUNCHER"
_REFUSED = "FAIRLEAD_LAUNCHER_REFUSED"
_HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")


def main() -> None:
    """Serve without preloaded modules, and become a warm launcher at the first pod that allows it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.argv[1:] == ["shims"]:
        utf8_mode.enter()
        requests = os.dup(0)
        _import_for_shims()
        while (fields := _read_line(requests)) is not None:
            serve_one(str(fields["pod"]), None, fields.get("why"))
        return
    refused = os.environ.pop(_REFUSED, None)
    state = _State.parse(os.environ.pop(_STATE, None))
    if state is None:
        state = _State()
        # High descriptors, so that they do not collide with those that a program has.
        state.requests, state.replies = os.dup(0), _duplicate(1)
    request = state.first
    while True:
        if request is None:
            request = read_request(state.requests)
            if request is None:
                return
        why = refused or _become_warm(request, state)
        serve_one(request, None, why)
        request = None


def _import_for_shims() -> None:
    """Import once the modules that most shims need; otherwise each shim would, just as its ranks start.

    Only used where ranks are executed: a forked rank would have these modules in its memory.
    """
    import _socket  # noqa: F401

    from fairlead.runtime import metric_lines  # noqa: F401
    from fairlead.runtime.experiment_tracking import choice  # noqa: F401

    gc.collect()
    gc.freeze()


def serve_warm() -> None:
    """Preload and serve; return only in a forked rank. The hook calls it in the interpreter of the ranks."""
    try:
        _serve_warm()
    except BaseException as error:  # noqa: BLE001 (the program must not run in this process in any case)
        with contextlib.suppress(OSError):
            os.write(2, f"fairlead: {type(error).__name__}: {error}\n".encode("utf-8", "replace"))
        os._exit(1)


def _serve_warm() -> None:
    began = time.monotonic()
    state = _State.parse(os.environ.pop(_STATE))
    assert state is not None
    path = state.pythonpath
    if path is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = path
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pod = secret_entries.read_pod(str(state.first))
    _give_back()
    if pod is None:  # the pod was removed in the meantime, after a time-out
        os._exit(0)
    env = dict(pod["env"])
    if "FAIRLEAD_POD_UID" in env:
        os.environ["FAIRLEAD_POD_UID"] = env["FAIRLEAD_POD_UID"]
    else:
        del os.environ["FAIRLEAD_POD_UID"]
    warm = Warm(
        command=str(pod["command"]), workdir=str(pod["workdir"]), env=env, first=state.first_path, noise=state.noise
    )
    warm.preload(state.modules)
    gc.collect()
    gc.freeze()
    ready = {"ready": True, "preloaded": state.modules, "seconds": round(time.monotonic() - began, 3)}
    with contextlib.suppress(OSError):
        os.write(state.replies, json.dumps(ready).encode() + b"\n")
    request = state.first
    while request is not None:
        if serve_one(request, warm, None):
            return
        request = read_request(state.requests)
    os._exit(0)


def serve_one(pod_dir: str, warm: Warm | None, why: str | None) -> bool:
    """Start the pod's shim, which is no child of this process; return True in a rank forked from that shim."""
    if warm is not None:
        pod = secret_entries.read_pod(pod_dir)
        why = "it has no pod.json" if pod is None else warm.differs(pod) or warm.refusal()
    child = ranks.fork_with_signals_held()
    if child:
        ranks.release_signals()
        os.waitpid(child, 0)
        return False
    try:
        os.setsid()
        pid = os.fork()
        if pid:
            # With this file the supervisor detects a shim that has ended before it claimed its pod.
            with contextlib.suppress(OSError):
                podfiles.write_json(os.path.join(pod_dir, "shim.json"), {"pid": pid}, durably=False)
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.closerange(3, 1 << 16)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        ranks.release_signals()
        if warm is not None and why is not None:
            # A fork of a large process that may have threads must not serve as a shim.
            os.execv(sys.executable, [sys.executable, os.path.abspath(shim.__file__), pod_dir, why])
        if shim.run(pod_dir, warm, why):
            return True
    except Exception:  # noqa: BLE001 (the pod is found to be lost; the program must not run in its shim)
        os._exit(1)
    os._exit(0)


def read_request(fd: int) -> str | None:
    """Return the next pod directory; None at the end of the input."""
    fields = _read_line(fd)
    return None if fields is None else str(fields["pod"])


def _read_line(fd: int) -> dict[str, str | None] | None:
    """Return the next request, or None at the end. Reads no byte beyond it, because another process may read on."""
    while True:
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(fd, 1)
            if not byte:
                return None
            line += byte
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            fields = json.loads(line)
            return {"pod": str(fields["pod"]), "why": fields.get("why")}


def _become_warm(pod_dir: str, state: _State) -> str | None:
    """Become a warm launcher, which does not return, or return the reason why the pod's program cannot be forked."""
    pod = secret_entries.read_pod(pod_dir)
    if pod is None:
        return None
    env: dict[str, str] = dict(pod["env"])
    plan = plan_launch(str(pod["command"]), str(pod["launch"]), env)
    stamp = pod.get("setup_stamp")
    if not isinstance(plan, Fork):
        return None
    if pod.get("setup") and not (stamp and os.path.exists(str(stamp))):
        return "the setup may change what a launcher would have in memory"
    from fairlead.runtime.preloading import find_preload

    preload = find_preload(plan.script, plan.module, str(pod["workdir"]), env.get("FAIRLEAD_PREDICTOR", ""))
    if not preload.modules and not preload.is_bare:
        return preload.why
    if os.pathsep in _HOOK:
        return f"{_HOOK} cannot be on PYTHONPATH"
    pythonpath = env.get("PYTHONPATH")
    state.first, state.first_path, state.modules, state.pythonpath = pod_dir, preload.first, preload.modules, pythonpath
    try:
        os.chdir(str(pod["workdir"]))
    except OSError as error:
        return str(error)
    (out, out_write), (err, err_write) = noise_pipe(), noise_pipe()
    state.noise = (out, err)
    env[_STATE] = state.text()
    env["PYTHONPATH"] = _HOOK + (os.pathsep + pythonpath if pythonpath else "")
    env["FAIRLEAD_POD_UID"] = "-" * UID_ROOM  # space for the uid of each rank's pod
    null = os.open(os.devnull, os.O_RDWR)
    for fd, target in ((null, 0), (out_write, 1), (err_write, 2)):
        os.dup2(fd, target)
        os.close(fd)
    for fd in (state.requests, state.replies, *state.noise):
        os.set_inheritable(fd, True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execve(plan.interpreter, list(plan.argv), env)
    except OSError as error:
        return str(error)


class _State:
    """State that one interpreter passes to the next across execve, in an environment variable."""

    def __init__(self) -> None:
        self.requests = self.replies = -1
        self.noise = (-1, -1)
        self.first: str | None = None
        self.first_path = ""
        self.modules: tuple[str, ...] = ()
        self.pythonpath: str | None = None

    def text(self) -> str:
        # The first two lines tell the hook how to return to this file if it cannot serve.
        return "\n".join((sys.executable, os.path.abspath(__file__), json.dumps(vars(self))))

    @classmethod
    def parse(cls, text: str | None) -> _State | None:
        if text is None:
            return None
        state = cls()
        vars(state).update(json.loads(text.split("\n", 2)[2]))
        return state


def _duplicate(fd: int) -> int:
    try:
        return os.dup(fd)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


if __name__ == "__main__":
    main()
