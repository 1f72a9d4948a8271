"""Makes one environment with uv: ``python -m fairlead.cluster.local.packages.build HOME REQUEST [--gpus]``.

REQUEST is the file of a request. It locks what is asked for, with hashes, and installs exactly that into a new virtual
environment, from wheels alone. It may be killed at any time: what it was making has no mark of completion then, and the
next one begins anew. Beside another of the same environment it waits, and takes what that has made. With ``--gpus`` a
lock that cannot work with this machine's driver and GPUs fails before anything is installed.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.packages import place as places
from fairlead.cluster.local.packages.gpu_support import judge_lock
from fairlead.cluster.local.packages.uv_errors import BuildFailure, explain, last_progress
from fairlead.policy.gpu.cuda_support import Support
from fairlead.runtime.podfiles import read_json, write_json

# The supervisor is told of progress at most this often.
TELL_S = 1.0
OPTIONS = ("--no-progress", "--color", "never", "--no-python-downloads")


class BuildFailed(Exception):
    """The environment cannot be made."""

    def __init__(self, failure: BuildFailure, *, is_of_gpus: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.is_of_gpus = is_of_gpus


def main(home: Home, request_path: Path, *, is_for_gpus: bool = False) -> int:
    """Make an environment, and record how that went; return the exit code."""
    request = read_json(request_path)
    if request is None:
        return 2
    place = places.place_of(home, request["digest"])
    for path in (place.record, place.state):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    reporter = _Reporter(home, place.state)
    try:
        with _locked(place.record.with_suffix(".lock")):
            if places.unchanged(home, request["digest"]) is None:
                _make(home, request, place, request_path.parent, reporter, is_for_gpus=is_for_gpus)
    except BuildFailed as error:
        reporter.fail(error.failure, is_of_gpus=error.is_of_gpus)
        return 1
    except OSError as error:
        no_room = error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = "No space left on device" if no_room else f"{error.filename}: {error.strerror or error}"
        reporter.fail(explain(text))
        return 1
    reporter.end()
    return 0


def _make(
    home: Home,
    request: dict[str, Any],
    place: places.EnvironmentPlace,
    run_directory: Path,
    reporter: "_Reporter",
    *,
    is_for_gpus: bool,
) -> None:
    lock = run_directory / f"{request['digest']}.toml"
    content = lock.read_bytes() if lock.exists() else _locked_content(request, place, reporter)
    if lock.exists():
        write_atomically(place.lock, content)
    if is_for_gpus:
        reporter.remark(_check_gpus(content, request["python"][1]))
    directory = places.directory_of(home, content, request["python"])
    with _locked(directory.with_name(f"{directory.name}.lock")):
        for number in itertools.count(1):
            directory = places.directory_of(home, content, request["python"], number)
            changes = places.changes_of(directory) if places.is_complete(directory) else []
            if not changes:
                break
            others = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
            reporter.remark(
                f"it is made again, as a program added or removed {changes[0]}{others} since it was made; list what is "
                "needed in `environment`"
            )
        if not places.is_complete(directory):
            _install(request, place.lock, directory, reporter)
    write_json(place.record, {"directory": directory.name, "python": request["python"], "at": time.time()})


def lock_of(home: Home, request: dict[str, Any]) -> bytes:
    """Return the lock of a request, which its next run will have; resolve its packages if none has yet.

    Raises:
        BuildFailed: There is none.
        OSError: It cannot be written.
    """
    place = places.place_of(home, request["digest"])
    if place.lock.exists():  # whoever installs it now holds the lock for long
        return place.lock.read_bytes()
    place.record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(place.record.with_suffix(".lock")):
        return _locked_content(request, place, _Reporter(home, None))


def _locked_content(request: dict[str, Any], place: places.EnvironmentPlace, reporter: "_Reporter") -> bytes:
    if not place.lock.exists():
        reporter.say("its packages are being resolved")
        write_atomically(place.lock, resolve(request, reporter.say))
    return place.lock.read_bytes()


def _check_gpus(lock: bytes, python: str) -> str:
    """Return a remark on a lock and this machine's GPUs; empty if it works with them.

    Raises:
        BuildFailed: It cannot work with them.
    """
    answer = judge_lock(lock, python, os.environ)
    if answer.support is Support.REFUSED:
        raise BuildFailed(BuildFailure(message=answer.message, remedy=answer.remedy), is_of_gpus=True)
    return "" if answer.support is Support.WORKS else answer.message


def resolve(request: dict[str, Any], say: Callable[[str], None]) -> bytes:
    """Resolve the packages of a request to a lock, as PEP 751 has it; for another machine if it has a ``target``.

    Raises:
        BuildFailed: There is none.
    """
    with tempfile.TemporaryDirectory(prefix="fairlead-lock-") as temporary:
        directory = Path(temporary)
        for name in ("requirements.txt", "constraints.txt", "pyproject.toml", "uv.lock", "pylock.toml"):
            if name in request["files"]:
                (directory / name).write_text(request["files"][name])
        form, made = request["form"], directory / "pylock.made.toml"
        if form == "pylock":
            return (directory / "pylock.toml").read_bytes()
        if form == "uv.lock":
            argv = ["export", "--frozen", "--no-emit-project", "--format", "pylock.toml", "--no-header"]
            argv += ["--project", str(directory)]
        else:
            argv = ["pip", "compile", "--format", "pylock.toml", "--no-header", "--only-binary", ":all:"]
            argv.append("pyproject.toml" if form == "pyproject" else "requirements.txt")
            if "constraints.txt" in request["files"]:
                argv += ["--constraint", "constraints.txt"]
            if "torch_backend" in request:
                argv += ["--torch-backend", request["torch_backend"]]
        if "target" not in request:
            argv += ["--python", request["python"][0]]
        elif form != "uv.lock":  # which is for all platforms
            platform, python = request["target"]
            argv += ["--python-platform", platform, "--python-version", python]
        _uv(request, [*argv, "--output-file", str(made)], say, cwd=directory)
        return made.read_bytes()


def _install(request: dict[str, Any], lock: Path, directory: Path, reporter: "_Reporter") -> None:
    """Make the directory of a lock; one without the file ``complete`` is what a killed process left.

    Raises:
        BuildFailed: A package cannot be installed.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        _uv(request, ["venv", "--no-project", "--python", request["python"][0], str(directory)], reporter.say)
        reporter.say("its packages are being installed")
        argv = ["pip", "sync", "--link-mode", "hardlink", "--only-binary", ":all:", "--preview-features", "pylock"]
        with tempfile.TemporaryDirectory(prefix="fairlead-lock-") as temporary:
            named = Path(temporary) / "pylock.toml"  # a name by which uv knows the form
            shutil.copyfile(lock, named)
            _uv(request, [*argv, "--python", str(directory / "bin" / "python"), str(named)], reporter.say)
        shutil.copyfile(lock, directory / "pylock.toml")
        places.mark_complete(directory)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _uv(request: dict[str, Any], argv: Sequence[str], say: Callable[[str], None], *, cwd: Path | None = None) -> None:
    try:
        process = subprocess.Popen(
            [request["uv"], *argv, *OPTIONS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=cwd or "/",
            text=True,
            errors="replace",
        )
    except OSError as error:
        message = f"uv cannot be started: {request['uv']}: {error.strerror}"
        raise BuildFailed(BuildFailure(message=message, remedy="Install it, and submit the run again.")) from error
    lines: list[str] = []
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            done = last_progress(lines[-1:])
            if done is not None:
                say(done)
    if process.returncode != 0:
        raise BuildFailed(explain("".join(lines)))


class _Reporter:
    """Tells the supervisor how far the environment is."""

    def __init__(self, home: Home, state: Path | None) -> None:
        self._home = home
        self._state = state
        self._said_at = 0.0
        self._remark = ""

    def say(self, message: str) -> None:
        now = time.monotonic()
        if now - self._said_at >= TELL_S:
            self._said_at = now
            self._tell({"pid": os.getpid(), "message": f"{message}; {self._remark}" if self._remark else message})

    def remark(self, sentence: str) -> None:
        """End each message from now on with a sentence, the next one at once; nothing if it is empty."""
        if sentence:
            self._remark, self._said_at = sentence, 0.0

    def fail(self, failure: BuildFailure, *, is_of_gpus: bool = False) -> None:
        state = {"pid": os.getpid(), "failed": failure.message, "remedy": failure.remedy}
        self._tell({**state, "is_of_gpus": True} if is_of_gpus else state)

    def end(self) -> None:
        if self._state is not None:
            self._state.unlink(missing_ok=True)
        self._poke()

    def _tell(self, state: dict[str, Any]) -> None:
        if self._state is None:
            return
        with contextlib.suppress(OSError):  # a full disk: the exit code says that it failed
            write_json(self._state, state, durably=False)
        self._poke()

    def _poke(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake, contextlib.suppress(OSError):
            wake.setblocking(False)
            wake.sendto(b"", os.fspath(self._home.socket))  # it looks by itself otherwise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock during the block, after waiting for it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at a path by a whole one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main(Home(Path(sys.argv[1])), Path(sys.argv[2]), is_for_gpus="--gpus" in sys.argv[3:]))
