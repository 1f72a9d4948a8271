"""Tries the place of a run's checkpoints before its program starts: `python trial.py PLACE`.

A directory is tried by writing into it, or into the nearest one above it that is there. An object store is tried in a
process of its own, by the Python that the program will have, as only that has its packages; so it can be bounded in
time. What was written is removed again. Any Python from 3.9 on; what only stores need is imported for them alone.
"""

from __future__ import annotations

import os
import sys
import types

if __name__ == "__main__":
    # Started by path: our own modules are found without touching sys.path, and without running fairlead/__init__.py.
    _here = os.path.dirname(os.path.abspath(__file__))
    for _name, _path in (("fairlead", os.path.dirname(_here)), ("fairlead.runtime", _here)):
        sys.modules[_name] = types.ModuleType(_name)
        sys.modules[_name].__path__ = [_path]
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TRY_BYTES = 64 * 1024
ANSWER_S = 20.0
NOT_INSTALLED = 3


def main(place: str) -> int:
    """Try an object store; the exit code, with the problem on standard output."""
    from fairlead.errors import RuntimeFault
    from fairlead.runtime.errors import MissingExtra

    try:
        _try_store(place)
    except RuntimeFault as error:
        print(error)
        return NOT_INSTALLED if isinstance(error, MissingExtra) else 1
    return 0


def is_store(place: str) -> bool:
    """Return whether a place is an object store and no directory, as ``places.is_url`` has it."""
    return "://" in place and not place.startswith("file://")


def directory_problem(place: str) -> OSError | None:
    """Tell why a directory cannot be written to, or cannot be made; None when it can."""
    path = os.path.abspath(os.path.expanduser(place[len("file://") :] if place.startswith("file://") else place))
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    # Not by the process: the pods of a cluster try a volume at the same time, and in each of them it has the same id.
    probe = os.path.join(path, f".fairlead-trial-{os.urandom(8).hex()}")
    try:
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            left = bytes(TRY_BYTES)
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)
            os.unlink(probe)
    except OSError as error:
        return OSError(error.errno, error.strerror, path)
    return None


def store_problem(
    place: str, tried_by: Sequence[str], env: Mapping[str, str], *, is_its_own: bool, within_s: float = ANSWER_S
) -> str | None:
    """Tell why an object store cannot be written to; None when it can, or when that cannot be told.

    Args:
        tried_by: What runs this module's ``main`` when the place is put behind it.
        is_its_own: That is the program's own Python, so that what is not installed there is not there for the program.
        within_s: Seconds after which it counts as one that does not answer.
    """
    import subprocess

    try:
        ended = subprocess.run(
            [*tried_by, place], env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=within_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{place} does not answer within {within_s:g} s"
    except OSError:
        return None  # no such Python: the program's start says it best
    said = ended.stdout.strip()
    if ended.returncode == 0 or not said or (ended.returncode == NOT_INSTALLED and not is_its_own):
        return None
    return " ".join(said.split())


def _try_store(place: str) -> None:
    from fairlead.runtime.places import open_place, translated

    system, root = open_place(place, what="checkpoints")
    goal = f"{root}/.fairlead-trial-{os.getpid()}-{os.urandom(4).hex()}"

    def attempt() -> None:
        try:
            system.pipe_file(goal, b"written to see whether checkpoints can be kept here")
            system.rm_file(goal)
        except FileNotFoundError as error:  # how a bucket that is not there is told
            raise OSError(f"there is no such bucket or directory: {error}") from error

    translated(attempt, f"nothing can be written to {place}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
