"""The files of a working directory that belong to a run: one rule for what is kept here and what goes to Kubernetes.

``.gitignore`` files count, in every directory and in those above up to the repository's, as git reads them. Nobody's
files are those of version control, of virtual environments, of caches that say so (CACHEDIR.TAG), compiled Python and
links.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

NEVER = frozenset((".git", ".hg", ".svn", "__pycache__"))
MARKS = frozenset(("pyvenv.cfg", "CACHEDIR.TAG"))
IGNORES = ".gitignore"


class IgnoreFile:
    """The rules of one file.

    Args:
        base: The directory that its names are relative to, with a slash at its end.
        outer: The token of the file before it.
    """

    def __init__(self, base: str, text: str, outer: str) -> None:
        self.base = base
        self._text = text
        self.token = hashlib.sha256(f"{outer}\0{base}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @cached_property
    def spec(self) -> "GitIgnoreSpec":
        """Read only when something is asked that is not known."""
        # Here and not above: it takes 0.1 s of CPU.
        from pathspec import GitIgnoreSpec

        return GitIgnoreSpec.from_lines(self._text.splitlines())


Rules = tuple[IgnoreFile, ...]
"""The inner file after the outer ones."""


class Found(NamedTuple):
    """A regular file below a directory, by its path with slashes; ``status`` is that of the file itself."""

    path: str
    status: os.stat_result


class TooMany(Exception):
    """A directory holds more than was to be looked at; its path below the first one."""


class Ignored:
    """Earlier answers of rules, so that the next walk need not load what reads rules, which takes 0.1 s of CPU.

    Args:
        known: By a hash of the rules, the answer of each path.
    """

    def __init__(self, known: dict[str, dict[str, bool]] | None = None) -> None:
        self._known = known or {}
        self._used: dict[str, dict[str, bool]] = {}
        self._asked = False

    @property
    def is_changed(self) -> bool:
        """Return whether something was asked that was not known."""
        return self._asked

    def ask(self, path: str, rules: Rules) -> bool:
        """Return whether git would ignore a path; that of a directory ends with a slash."""
        token = rules[-1].token
        said = self._known.get(token, {}).get(path)
        if said is None:
            self._asked = True
            said = _is_ignored(path, rules)
        self._used.setdefault(token, {})[path] = said
        return said

    def told(self) -> dict[str, dict[str, bool]]:
        """Return the paths that were asked this time, to be known the next time."""
        return self._used


def walk(
    directory: Path,
    *,
    most: int | None = None,
    most_in_one: int | None = None,
    without: str | None = None,
    ignored: Ignored | None = None,
) -> Iterator[Found | TooMany]:
    """The regular files below a directory that belong to a run, sorted by name within each directory.

    Args:
        most: Of entries to look at in all.
        most_in_one: Of entries in one directory; of one with more, only that is told, as a TooMany.
        without: An absolute path that is left out.
        ignored: What is known from before, and is added to.

    Raises:
        TooMany: There are more than ``most`` entries.
    """
    looked = 0
    memory = Ignored() if ignored is None else ignored

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
        if IGNORES in names and (own := _rules(place, rules)) is not None:
            rules = (*rules, own)
        for entry in sorted(entries, key=lambda each: each.name):
            if entry.name in NEVER or entry.is_symlink() or entry.path == without:
                continue
            is_directory = entry.is_dir(follow_symlinks=False)
            if rules and memory.ask(f"{entry.path}/" if is_directory else entry.path, rules):
                continue
            if is_directory:
                try:
                    yield from descend(entry.path, f"{below}{entry.name}/", rules)
                except PermissionError:
                    continue  # what its own user may not read, no run of theirs does
            elif stat.S_ISREG((status := entry.stat(follow_symlinks=False)).st_mode):
                yield Found(f"{below}{entry.name}", status)

    start = os.path.abspath(directory)
    return descend(start, "", _rules_above(start, memory))


def repository(directory: str) -> str | None:
    """The closest directory at or above this one that git keeps; None when there is none."""
    while not os.path.exists(os.path.join(directory, ".git")):
        directory, before = os.path.dirname(directory), directory
        if directory == before:
            return None
    return directory


def _rules_above(directory: str, memory: Ignored) -> Rules:
    """Of the directories above, from the repository's on; none when they ignore the directory itself."""
    top = repository(directory)
    if top is None or top == directory:
        return ()
    rules: Rules = ()
    place = top
    for part in os.path.relpath(directory, top).split(os.sep):
        own = _rules(place, rules)
        rules = rules if own is None else (*rules, own)
        place = os.path.join(place, part)
        if rules and memory.ask(f"{place}/", rules):
            return ()
    return rules


def _rules(directory: str, outer: Rules) -> "IgnoreFile | None":
    path = os.path.join(directory, IGNORES)
    if not os.path.isfile(path):
        return None
    with open(path, errors="replace") as file:
        return IgnoreFile(f"{directory.rstrip('/')}/", file.read(), outer[-1].token if outer else "")


def _is_ignored(path: str, rules: Rules) -> bool:
    """Return whether git would ignore it: the last rule that speaks of it decides, inner files after outer ones."""
    for file in reversed(rules):
        said = file.spec.check_file(path[len(file.base) :]).include
        if said is not None:
            return said
    return False
