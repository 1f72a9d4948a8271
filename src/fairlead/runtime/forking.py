"""Makes a fork of a warm interpreter indistinguishable from a fresh one.

A launcher executes the run's own command line, `python [flags] script.py args`, with Fairlead's sitecustomize first on
the path. While the interpreter is still in site, before it runs the script, that hook imports the script's first
imports and serves requests. A forked rank returns from the hook and the interpreter continues by itself: __main__,
sys.argv, sys.path[0], tracebacks, exit codes and shutdown are CPython's own. This module only restores state that the
time in the launcher has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import importlib.machinery
import os
import signal
import site
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.runtime import processes, ranks
from fairlead.runtime.hook import fairlead_stackdump
from fairlead.runtime.preloading import shadowed

# These differ between the pods of a run; no module reads them when it is imported.
_OF_POD = ("FAIRLEAD_", "MASTER_", "TORCHELASTIC_", "GROUP_", "ROLE_", "LOCAL_")
_OF_POD_TOO = frozenset(("RANK", "WORLD_SIZE", "NODE_RANK", "PORT", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"))
UID_ROOM = 64


def is_of_pod(name: str) -> bool:
    """Return whether a variable may differ between pods that come from one interpreter."""
    return name in _OF_POD_TOO or name.startswith(_OF_POD)


class Warm:
    """This process, with modules already imported, as the origin of ranks.

    Args:
        command: The run's command, for which this interpreter was started in ``workdir``.
        env: The environment of the pod for which it was started.
        first: The directory that will be first in sys.path.
        noise: Read ends of the pipes that replace standard output and error until a rank has its own.
    """

    def __init__(
        self, *, command: str, workdir: str, env: Mapping[str, str], first: str, noise: tuple[int, int]
    ) -> None:
        self._command = command
        self._workdir = workdir
        self._env = dict(env)
        self._first = first
        self._noise = noise
        self._output = (b"", b"")
        # Wrappers of the interpreter, and CPython in a C locale, add variables that a rank must have too.
        self._added = {name: value for name, value in os.environ.items() if env.get(name) != value}
        self._removed = [name for name in env if name not in os.environ]
        self._missed = _Missed()
        self._versions: dict[str, object] = {}
        self._trouble: str | None = None

    def preload(self, modules: Sequence[str]) -> None:
        """Import as the script would, but not from the script's own directory, so that none of the user's code runs."""
        custom = _customization()
        if custom is not None:
            self._trouble = f"{custom} runs before the program does"
            return
        open_before = _descriptors()
        sys.meta_path.append(self._missed)
        try:
            for name in modules:
                importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 (the script itself has to raise it)
            self._trouble = f"preloading failed: {type(error).__name__}: {error}"
        finally:
            sys.meta_path.remove(self._missed)
        if _descriptors() != open_before:
            self._trouble = self._trouble or "a preloaded module opened a file"
        self._versions = {name: _version(name) for name in {module.partition(".")[0] for module in modules}}
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        self._output = _drain(self._noise[0]), _drain(self._noise[1])

    def refusal(self) -> str | None:
        """Return the reason why no rank may be forked now, or None. Call it in the process that will be forked."""
        if self._trouble is not None:
            return self._trouble
        if processes.num_threads() != 1:
            return f"a preloaded module started {processes.num_threads() - 1} threads"
        cuda = sys.modules.get("torch.cuda")
        if cuda is not None and cuda.is_initialized():
            return "a preloaded module initialised CUDA"
        loaded = {name.partition(".")[0] for name in sys.modules}
        shadow = shadowed(self._first, loaded | self._missed.names)
        if shadow is not None:
            return f"{shadow} may stand in for the module of its name"
        for name, version in self._versions.items():
            if _version(name) != version:
                return f"{name} has been replaced since the launcher imported it"
        return None

    def differs(self, pod: Mapping[str, Any]) -> str | None:
        """Return the reason why this process cannot become a rank of the pod; None if it can."""
        if (pod.get("command"), pod.get("workdir")) != (self._command, self._workdir):
            return "the launcher was started for another command"
        if not _is_here(self._workdir):
            return "the working directory is another one than when the launcher started"
        env: Mapping[str, str] = pod["env"]
        for name in sorted({*env, *self._env}):
            if env.get(name) != self._env.get(name) and not is_of_pod(name):
                return f"{name} is not what it was when the launcher started"
        return None

    def become(self, env: Mapping[str, str]) -> None:
        """Restore the state of a fresh interpreter. Call it in a forked child that has entered its pod."""
        env = {name: value for name, value in env.items() if name not in self._removed}
        for name, value in self._added.items():
            if env.get(name) == self._env.get(name):
                env[name] = value
        for name in [name for name in os.environ if name not in env]:
            del os.environ[name]
        for name, value in env.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        processes.show_in_environment("FAIRLEAD_POD_UID", env.get("FAIRLEAD_POD_UID", ""))
        processes.name_process(os.path.basename(sys.executable))
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ranks.release_signals()
        with contextlib.suppress(OSError):  # it runs nevertheless, and its shim reports that it gave no stack
            fairlead_stackdump.register()
        # Frozen objects are never collected, and extension modules report leaks at exit.
        gc.unfreeze()
        main_thread: Any = threading.main_thread()
        if hasattr(main_thread, "_set_native_id"):
            main_thread._set_native_id()
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed()  # fresh entropy, as at import; the standard library reseeds random itself
        for fd, output in zip((1, 2), self._output):  # noqa: B905 (strict= needs Python 3.10)
            if output:
                os.write(fd, output)


class _Missed:
    """Records modules that preloading did not find; the script's directory may have them."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if path is None:
            self.names.add(fullname)


def _customization() -> str | None:
    """Return a user's customization that site runs, before which nothing may be preloaded; Debian's is harmless."""
    names = ["sitecustomize", "usercustomize"] if site.ENABLE_USER_SITE else ["sitecustomize"]
    for name in names:
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is not None and not os.path.realpath(str(spec.origin)).startswith(("/usr/lib/", "/etc/python")):
            return spec.origin or name
    return None


def noise_pipe() -> tuple[int, int]:
    """Return a pipe for the output of preloading; it is large, as no process reads it in the meantime."""
    read_end, write_end = os.pipe()
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(write_end, getattr(fcntl, "F_SETPIPE_SZ", 1031), 1 << 20)
    os.set_blocking(read_end, False)
    return read_end, write_end


def _drain(fd: int) -> bytes:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            more = os.read(fd, 1 << 16)
            if not more:
                break
            data += more
    return data


def _descriptors() -> set[str]:
    """Return the open descriptors, except the one that lists them."""
    with contextlib.suppress(FileNotFoundError):
        return {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}
    return set()


def _is_here(directory: str) -> bool:
    """Return whether the path is still this process's working directory."""
    try:
        return os.path.samestat(os.stat(directory), os.stat("."))
    except OSError:
        return False


def _version(name: str) -> object:
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
