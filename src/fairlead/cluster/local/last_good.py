"""Reads a file that an administrator writes; while it has a mistake, its last good version stays in force.

The control loop keeps a copy of each good version, so that a supervisor that starts later has it too. A mistake is
told by every command; it must not keep runs from being stopped, limited or started.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from fairlead.cluster.local.home import Home
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce(Generic[Value]):
    """The content of a file, or its content when it was last good.

    Attributes:
        problem: The mistake in the file, and what stays in force; None if the file is good or absent.
    """

    value: Value
    problem: str | None = None


def in_force(
    home: Home, path: Path, read: Callable[[Path], Value], default: Value, *, what: str, is_loop: bool
) -> InForce[Value]:
    """Return what a file says; what it said before, if it cannot be read now.

    Args:
        read: Reads the file, and raises ClusterError for a mistake in it.
        default: What holds without the file, and if it never was good.
        what: What holds then, as a clause.
        is_loop: This process is the control loop, which keeps the copy.
    """
    copy = home.last_good / path.name
    if not path.exists():
        if is_loop:
            with suppress(OSError):
                copy.unlink(missing_ok=True)
        return InForce(value=default)
    try:
        value = read(path)
    except ClusterError as error:
        try:
            before = read(copy) if copy.exists() else None
        except ClusterError:
            before = None  # of another version of Fairlead
        if before is None:
            return InForce(value=default, problem=f"{error} Until then {what}.")
        return InForce(value=before, problem=f"{error} Until then its last good version stays in force.")
    if is_loop:
        with suppress(OSError):  # a full disk; the next good version is kept again
            _keep(path, copy)
    return InForce(value=value)


def is_news(home: Home, path: Path) -> bool:
    """Return whether a file says something else than the last good version that the loop has read."""
    try:
        return path.read_bytes() != (home.last_good / path.name).read_bytes()
    except FileNotFoundError:
        return path.exists()
    except OSError:
        return True


def _keep(path: Path, copy: Path) -> None:
    content = path.read_bytes()
    if copy.exists() and copy.read_bytes() == content:
        return
    copy.parent.mkdir(mode=0o700, exist_ok=True)
    new = copy.with_name(f".{copy.name}.new")
    new.write_bytes(content)
    new.replace(copy)
