"""The stored code of a run: its files, its commit, and the environment it ran with."""

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from fairlead.frozen import dataclass

MOST_LINES = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A stored file; its digest identifies the content and serves no other purpose."""

    path: str
    size: int
    digest: str
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCode:
    """All that is stored of a run's code.

    Attributes:
        at: Unix time at which it was stored; None where that is the run's submission.
        workdir: Directory of origin of the files; None where unknown.
        files: None where none are stored, or they cannot be read.
        why: The reason why there are none; None where there are.
        left_out: Paths that were not stored because of their size or number.
        edited: Paths that differ in the working directory now; None where unknown.
        git: ``commit``, ``branch`` and ``dirty``; None outside of a git repository.
        diff: Diff of the working directory against the commit, as git shows it; bounded.
        environment: Environment of the newest attempt: machine, GPUs, Python and its packages; None where unknown.
        lock: The lock of the run's own environment, as PEP 751 has it; None without one, and before it is complete.
        read: Returns the content of a file by its path; None when it no longer exists.
    """

    at: float | None = None
    workdir: str | None = None
    files: tuple[KeptFile, ...] | None = None
    why: str | None = None
    left_out: tuple[str, ...] = ()
    edited: tuple[str, ...] | None = None
    git: Mapping[str, Any] | None = None
    diff: str | None = None
    environment: Mapping[str, Any] | None = None
    lock: str | None = None
    read: Callable[[str], bytes | None] = field(repr=False, compare=False, default=lambda _: None)

    def as_data(self) -> dict[str, Any]:
        """Return the data as a JSON object."""
        files = None
        if self.files is not None:
            files = [
                {"path": file.path, "size": file.size, "digest": file.digest, "executable": file.executable}
                for file in self.files
            ]
        return {
            "at": self.at,
            "workdir": self.workdir,
            "files": files,
            "why": self.why,
            "left_out": list(self.left_out),
            "edited": None if self.edited is None else list(self.edited),
            "git": None if self.git is None else {**self.git, "diff": self.diff},
            "environment": self.environment,
            "lock": self.lock,
        }


def file_differences(old: KeptCode, new: KeptCode) -> Iterator[str]:
    """Yield the lines of a unified diff of all files; a line for one that differs and has none to show."""
    before = {file.path: file for file in old.files or ()}
    after = {file.path: file for file in new.files or ()}
    for path in sorted({*before, *after}):
        if path in before and path in after and before[path] == after[path]:
            continue
        one, other = (code.read(path) if path in files else b"" for code, files in ((old, before), (new, after)))
        if one is None or other is None:
            yield f"Files a/{path} and b/{path} differ; one of them is kept no longer"
        elif b"\0" in one[:8192] or b"\0" in other[:8192]:
            yield f"Binary files a/{path} and b/{path} differ"
        elif one == other:
            yield f"{path}: only its mode differs"
        else:
            old_name = f"a/{path}" if path in before else "/dev/null"
            new_name = f"b/{path}" if path in after else "/dev/null"
            yield from _text_differences(one, other, old_name, new_name)


def _text_differences(one: bytes, other: bytes, old_name: str, new_name: str) -> Iterator[str]:
    old, new = (content.decode(errors="replace").splitlines(keepends=True) for content in (one, other))
    if max(len(old), len(new)) > MOST_LINES:
        yield f"Files {old_name} and {new_name} differ; a text of more than {MOST_LINES:,} lines is not compared"
        return
    yield from (line.rstrip("\n") for line in difflib.unified_diff(old, new, old_name, new_name))


def package_differences(old: KeptCode, new: KeptCode) -> list[str]:
    """Return a line per difference in Python or its packages; empty if either environment is unknown.

    A run that has not started yet has its packages of its lock.
    """
    pythons = [((code.environment or {}).get("python") or {}) for code in (old, new)]
    if all(pythons):
        first, second = ({"python": python.get("version"), **(python.get("packages") or {})} for python in pythons)
    elif old.lock is not None and new.lock is not None:
        first, second = locked_packages(old.lock), locked_packages(new.lock)
    else:
        return []
    names = sorted({*first, *second}, key=str.lower)
    return [
        f"{name}: {first.get(name, '-')} -> {second.get(name, '-')}"
        for name in names
        if first.get(name) != second.get(name)
    ]


def locked_packages(lock: str) -> dict[str, str]:
    """Return the versions of the packages of a lock, by name."""
    try:
        packages = tomllib.loads(lock)["packages"]
        return {package["name"]: str(package.get("version", "unversioned")) for package in packages}
    except (tomllib.TOMLDecodeError, AttributeError, KeyError, TypeError):  # somebody has written into it
        return {}
