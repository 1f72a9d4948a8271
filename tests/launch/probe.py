"""Says everything about its interpreter and process that a program could trip on: printed as JSON, for comparison."""

import atexit
import faulthandler
import gc
import inspect
import io
import json
import locale
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import warnings
from typing import Any

import numpy

NAMES_AT_START = sorted(globals())


def main() -> None:
    facts = {**of_main(), **of_interpreter(), **of_streams(), **of_process(), **of_threads(), **of_environment()}
    facts["multiprocessing"] = {method: run_child(method) for method in ("fork", "spawn")}
    path = os.environ["PROBE_OUT"]
    atexit.register(finish, path, facts)
    print("to stdout")
    print("to stderr", file=sys.stderr)


def finish(path: str, facts: dict[str, Any]) -> None:
    facts["atexit"] = [threading.main_thread().is_alive(), sys.is_finalizing()]
    with open(path, "w") as file:
        json.dump(facts, file, indent=1, default=repr, sort_keys=True)


def of_main() -> dict[str, Any]:
    module = sys.modules["__main__"]
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    spec = module.__spec__
    return {
        "main names": NAMES_AT_START,
        "main": [module.__name__, getattr(module, "__file__", None), module.__doc__, getattr(module, "__cached__", 0)],
        "main package": module.__package__,
        "main spec": None if spec is None else [spec.name, spec.origin, spec.parent],
        "main loader": type(module.__loader__).__name__,
        "main builtins": type(module.__builtins__).__name__,
        "is main": [__name__, module.__dict__ is globals()],
        "frames": [depth, frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno],
        "stack": [(entry.filename, entry.function) for entry in inspect.stack()],
    }


def of_interpreter() -> dict[str, Any]:
    ours = ("sitecustomize", "launcher")
    return {
        "argv": [sys.argv, sys.orig_argv],
        "path": [
            sys.path,
            [hook.__qualname__ for hook in sys.path_hooks],
            [getattr(finder, "__qualname__", type(finder).__name__) for finder in sys.meta_path],
        ],
        "flags": [repr(sys.flags), sys.warnoptions, dict(sys._xoptions), sys.dont_write_bytecode],
        "executable": [sys.executable, sys.prefix, sys.exec_prefix, sys.base_prefix],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, repr(sys.gettrace())],
        "exception": [repr(sys.exc_info()), hasattr(sys, "last_value")],
        "filters": [(f[0], repr(f[2]), f[4]) for f in warnings.filters],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
        "modules of ours": [name for name in sys.modules if "fairlead" in name or name in ours],
        "importers": sorted(path for path in sys.path_importer_cache if "fairlead" in path),
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "faulthandler": faulthandler.is_enabled(),
        "hash": hash("a string") if os.environ.get("PYTHONHASHSEED") else None,
        "asyncgen": repr(sys.get_asyncgen_hooks()),
        "numpy": numpy.__file__,
    }


def of_streams() -> dict[str, Any]:
    streams: list[tuple[str, Any]] = [("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr)]
    return {
        name: [
            stream.encoding,
            stream.errors,
            stream.line_buffering,
            stream.write_through,
            stream.isatty(),
            stream.fileno(),
            stream.newlines,
            type(stream.buffer).__name__,
            stream.buffer.raw.mode if hasattr(stream.buffer, "raw") else None,
            stream.name,
            stream.mode,
            stream.seekable(),
            stream is getattr(sys, f"__{name}__"),
        ]
        for name, stream in streams
    } | {"stdin is": [os.readlink("/proc/self/fd/0"), sys.stdin.read()], "default buffer": io.DEFAULT_BUFFER_SIZE}


def of_process() -> dict[str, Any]:
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    with open("/proc/self/environ") as file:
        shown = file.read().split("\0")
    with open("/proc/self/cmdline") as file:
        command_line = file.read()
    mask = os.umask(0)
    os.umask(mask)
    return {
        "signals": {int(s): repr(signal.getsignal(s)) for s in sorted(signal.valid_signals())},
        "signal masks": [status[key] for key in ("SigBlk", "SigIgn", "SigCgt")],
        "wakeup": signal.set_wakeup_fd(-1),
        "timers": signal.getitimer(signal.ITIMER_REAL),
        "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")),
        "name": status["Name"],
        "command line": command_line,
        "umask": mask,
        "cwd": os.getcwd(),
        "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "limits": [resource.getrlimit(getattr(resource, n)) for n in sorted(dir(resource)) if n.startswith("RLIMIT_")],
        "nice": [os.nice(0), os.sched_getscheduler(0), len(os.sched_getaffinity(0))],
        "temporary": tempfile.gettempdir(),
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False), sys.getfilesystemencoding()],
        "uid shown": [variable for variable in shown if variable.startswith("FAIRLEAD_POD_UID=")],
    }


def of_threads() -> dict[str, Any]:
    main_thread = threading.main_thread()
    return {
        "threads": [threading.active_count(), os.listdir("/proc/self/task") == [str(os.getpid())], main_thread.name],
        "native": [main_thread.native_id == os.getpid(), threading.get_native_id() == os.getpid()],
        "ident": [main_thread.ident == threading.get_ident(), main_thread is threading.current_thread()],
        "process": multiprocessing.current_process().name,
    }


def of_environment() -> dict[str, Any]:
    seen = {k: v for k, v in os.environ.items() if k != "PROBE_OUT"}
    child = os.popen("env -0").read().split("\0")
    ignored = ("_=", "PROBE_OUT=", "SHLVL=", "PWD=", "OLDPWD=")
    return {"environ": seen, "environ of a child": sorted(v for v in child if v and not v.startswith(ignored))}


def run_child(method: str) -> object:
    context: Any = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=answer, args=(queue,))
    process.start()
    value = queue.get()
    process.join()
    return [value, process.exitcode]


def answer(queue: Any) -> None:
    queue.put([__name__, sys.argv, sys.path, "fairlead" in sys.modules])


if __name__ == "__main__":
    main()
