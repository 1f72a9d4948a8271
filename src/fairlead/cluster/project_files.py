"""The files of a working directory that belong to a run: one rule for what is kept here and what goes to Kubernetes.

``.gitignore`` files count, in every directory and in those above up to the repository's, as git reads them. Nobody's
files are those of version control, of virtual environments, of caches that say so (CACHEDIR.TAG), compiled Python and
links.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

NEVER = frozenset((".git", ".hg", ".svn", "__pycache__"))
MARKS = frozenset(("pyvenv.cfg", "CACHEDIR.TAG"))
IGNORES = ".gitignore"

Rules = tuple[tuple[str, "GitIgnoreSpec"], ...]
"""Each with the directory that its names are relative to, with a slash at its end."""


class Found(NamedTuple):
    """A regular file below a directory, by its path with slashes; ``status`` is that of the file itself."""

    path: str
    status: os.stat_result


class TooMany(Exception):
    """A directory holds more than was to be looked at; its path below the first one."""


def walk(
    directory: Path, *, most: int | None = None, most_in_one: int | None = None, without: str | None = None
) -> Iterator[Found | TooMany]:
    """The regular files below a directory that belong to a run, sorted by name within each directory.

    Args:
        most: Of entries to look at in all.
        most_in_one: Of entries in one directory; of one with more, only that is told, as a TooMany.
        without: An absolute path that is left out.

    Raises:
        TooMany: There are more than ``most`` entries.
    """
    looked = 0

    def descend(place: str, below: str, rules: Rules) -> Iterator[Found | TooMany]:
        nonlocal looked
        entries = []
        with os.scandir(place) as found:
            for entry in found:
                entries.append(entry)
                looked += 1
                if most_in_one is not None and below and len(entries) > most_in_one:
                    yield TooMany(below.rstrip("/"))
                    return
                if most is not None and looked > most:
                    raise TooMany(below.rstrip("/"))
        names = {entry.name for entry in entries}
        if below and names & MARKS:
            return
        if IGNORES in names and (own := _rules(place)) is not None:
            rules = (*rules, own)
        for entry in sorted(entries, key=lambda each: each.name):
            if entry.name in NEVER or entry.is_symlink() or entry.path == without:
                continue
            is_directory = entry.is_dir(follow_symlinks=False)
            if rules and _is_ignored(f"{entry.path}/" if is_directory else entry.path, rules):
                continue
            if is_directory:
                try:
                    yield from descend(entry.path, f"{below}{entry.name}/", rules)
                except PermissionError:
                    continue  # what its own user may not read, no run of theirs does
            elif stat.S_ISREG((status := entry.stat(follow_symlinks=False)).st_mode):
                yield Found(f"{below}{entry.name}", status)

    start = os.path.abspath(directory)
    return descend(start, "", _rules_above(start))


def repository(directory: str) -> str | None:
    """The closest directory at or above this one that git keeps; None when there is none."""
    while not os.path.exists(os.path.join(directory, ".git")):
        directory, before = os.path.dirname(directory), directory
        if directory == before:
            return None
    return directory


def _rules_above(directory: str) -> Rules:
    """Of the directories above, from the repository's on; none when they ignore the directory itself."""
    top = repository(directory)
    if top is None or top == directory:
        return ()
    rules: Rules = ()
    place = top
    for part in os.path.relpath(directory, top).split(os.sep):
        own = _rules(place)
        rules = rules if own is None else (*rules, own)
        place = os.path.join(place, part)
        if _is_ignored(f"{place}/", rules):
            return ()
    return rules


def _rules(directory: str) -> tuple[str, "GitIgnoreSpec"] | None:
    path = os.path.join(directory, IGNORES)
    if not os.path.isfile(path):
        return None
    # Here and not above: 10 ms that a directory without such a file does not need.
    from pathspec import GitIgnoreSpec

    with open(path, errors="replace") as file:
        return f"{directory.rstrip('/')}/", GitIgnoreSpec.from_lines(file.read().splitlines())


def _is_ignored(path: str, rules: Rules) -> bool:
    """Whether git would ignore it: the last rule that speaks of it decides, inner files after outer ones."""
    for base, spec in reversed(rules):
        said = spec.check_file(path[len(base) :]).include
        if said is not None:
            return said
    return False
