"""Tests a run's checkpoint storage before its program starts: `python trial.py PLACE`.

A directory is tested by writing into it, or into its nearest existing parent. An object store is tested in a separate
process by the program's own Python, as only that has the store's packages, so that the test can be limited in time.
Test files are removed again. Python 3.9 or newer; modules that only object stores need are imported only for them.
"""

from __future__ import annotations

import os
import sys
import types

from fairlead.errors import RuntimeFault
from fairlead.runtime.errors import MissingExtra

if __name__ == "__main__":
    # Started by path: Fairlead's modules are found without changing sys.path or running fairlead/__init__.py.
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
    """Test an object store and return the exit code, with the problem on standard output."""
    try:
        _try_store(place)
    except RuntimeFault as error:
        print(error)
        return NOT_INSTALLED if isinstance(error, MissingExtra) else 1
    return 0


def is_store(place: str) -> bool:
    """Return whether a place is an object store rather than a directory, like ``places.is_url``."""
    return "://" in place and not place.startswith("file://")


def directory_problem(place: str) -> OSError | None:
    """Return the error if a directory cannot be created or written to; None if it can."""
    path = os.path.abspath(os.path.expanduser(place[len("file://") :] if place.startswith("file://") else place))
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    # Not named by process id: pods of a cluster test a volume at the same time, and may have the same ids.
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
    """Return the problem if an object store cannot be written to; None if it can, or if that is unknown.

    Args:
        tried_by: Command that runs this module's ``main`` when the place is appended to it.
        is_its_own: Whether that is the program's own Python, so that packages missing there are missing for the
            program.
        within_s: Seconds after which the store counts as not answering.
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
        return None  # no such Python: the start of the program reports it best
    output = ended.stdout.strip()
    if ended.returncode == 0 or not output or (ended.returncode == NOT_INSTALLED and not is_its_own):
        return None
    return " ".join(output.split())


def _try_store(place: str) -> None:
    from fairlead.runtime.places import open_place, translated

    system, root = open_place(place, what="checkpoints")
    goal = f"{root}/.fairlead-trial-{os.getpid()}-{os.urandom(4).hex()}"

    def attempt() -> None:
        try:
            system.pipe_file(goal, b"written to see whether checkpoints can be kept here")
            system.rm_file(goal)
        except FileNotFoundError as error:  # raised for a missing bucket
            raise OSError(f"there is no such bucket or directory: {error}") from error

    translated(attempt, f"nothing can be written to {place}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
