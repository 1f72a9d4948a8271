"""Starts one rank's process: everything that a child of a shim does before any of the user's code runs.

A child has its own session, dies with its shim, is in the pod's cgroup, has only /dev/null and its two pipes open, and
has the signal handling of a fresh process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from fairlead.runtime import processes, rendezvous

_ALL_SIGNALS = {int(number) for number in signal.valid_signals()} - {signal.SIGKILL, signal.SIGSTOP}
_MAX_FD = 1 << 16


def fork_with_signals_held() -> int:
    """Fork with all signals blocked, so that no handler of the parent runs in the child; see ``release_signals``."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
    try:
        return os.fork()
    except OSError:
        release_signals()
        raise


def release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def enter(parent: int, cgroup: str | None, out: int, err: int, stdin: int | None = None) -> None:
    """Set up a forked child of `parent` as a fresh process, except for signal handlers; signals stay blocked.

    Args:
        stdin: Descriptor of its standard input; None for /dev/null.

    Raises:
        OSError: A step failed, for example because the cgroup is gone; the message is for the rank's standard error.
    """
    signal.set_wakeup_fd(-1)
    os.setsid()
    processes.die_with_parent(parent)
    null = os.open(os.devnull, os.O_RDWR)
    for source, target in ((null if stdin is None else stdin, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    os.closerange(3, _MAX_FD)
    if cgroup is not None:
        processes.join(cgroup)


def rank_environment(rank: int, local_rank: int, common: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's variables in addition to those of its pod; empty if those do not have the number of ranks."""
    if "WORLD_SIZE" not in common:
        return {}
    own = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "ROLE_RANK": str(rank)}
    return own | rendezvous.rank_variables(rank, local_rank, common)


def environment_beside(pod: Mapping[str, Any], rank: int) -> dict[str, str] | None:
    """Return the environment of a command that runs beside a rank of a ``pod.json``; None if there is no such rank.

    It is the rank's environment without the directory for reports, so that the command cannot report for the rank.
    """
    own = next((entry["env"] for entry in pod["ranks"] if entry["rank"] == rank), None)
    if own is None:
        return None
    return {name: value for name, value in {**pod["env"], **own}.items() if name != "FAIRLEAD_POD_DIR"}


def become(argv: Sequence[str], env: Mapping[str, str], workdir: str) -> NoReturn:
    """Replace this process by the program; on failure report it and exit with 127 or 126, as a shell does."""
    for number in _ALL_SIGNALS:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    release_signals()
    try:
        os.chdir(workdir)
    except OSError as error:
        _end(f"the working directory {workdir} cannot be entered: {error.strerror or error}", 126)
    try:
        path = shutil.which(argv[0], path=env.get("PATH", os.defpath))
        os.execve(path or argv[0], list(argv), dict(env))
    except OSError as error:
        _end(start_failure(argv, workdir, error), 127 if isinstance(error, FileNotFoundError) else 126)


def start_failure(argv: Sequence[str], workdir: str, error: OSError) -> str:
    """Explain why a command cannot be started: it is not on PATH, needs a shell, or the system's reason."""
    import shlex

    from fairlead.runtime.launching import needs_shell

    name = argv[0]
    if not isinstance(error, FileNotFoundError) or "/" in name or error.filename not in (None, name):
        return f"{name} cannot be started in {workdir}: {error.strerror or error}"
    if needs_shell(argv):
        return f"{name}: command not found; it is a builtin of shells: `sh -c {shlex.quote(shlex.join(argv))}`"
    return f"{name}: command not found on PATH"


def give_up(error: OSError) -> NoReturn:
    """Exit from a child that could not be set up, with the reason on its standard error."""
    subject = f"{error.filename}: " if error.filename else ""
    _end(f"{subject}{error.strerror or error}", 126)


def _end(message: str, code: int) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"fairlead: {message}\n".encode("utf-8", "replace"))
    os._exit(code)


def start_detached(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Start a program that is not a descendant of this process and inherits none of its open files."""
    processes.adopt_orphans(False)
    try:
        child = fork_with_signals_held()
        if child == 0:
            with contextlib.suppress(OSError):
                if os.fork() == 0:
                    os.setsid()
                    null = os.open(os.devnull, os.O_RDWR)
                    for target in (0, 1, 2):
                        os.dup2(null, target)
                    signal.set_wakeup_fd(-1)
                    os.closerange(3, _MAX_FD)
                    become(argv, env, "/")
            os._exit(0)
        release_signals()
        os.waitpid(child, 0)
    finally:
        processes.adopt_orphans(True)
