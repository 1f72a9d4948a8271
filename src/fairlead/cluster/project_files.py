"""The files of a working directory that belong to a run, by one rule for local copies and for uploads to Kubernetes.

``.gitignore`` files count, in every directory and in those above up to the repository's, as git reads them. Excluded
are files of version control, virtual environments, caches marked as such (CACHEDIR.TAG), compiled Python and links.
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
    """The rules of one ``.gitignore`` file.

    Args:
        base: The directory that its names are relative to, with a slash at its end.
        outer: The token of the next outer file.
    """

    def __init__(self, base: str, text: str, outer: str) -> None:
        self.base = base
        self._text = text
        self.token = hashlib.sha256(f"{outer}\0{base}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @cached_property
    def spec(self) -> "GitIgnoreSpec":
        """Return the parsed rules, parsed only for a path without a known answer."""
        # Imported here because it takes 0.1 s of CPU.
        from pathspec import GitIgnoreSpec

        return GitIgnoreSpec.from_lines(self._text.splitlines())


Rules = tuple[IgnoreFile, ...]
"""Outer files first, inner files last."""


class Found(NamedTuple):
    """A regular file below a directory, by its path with slashes; ``status`` is that of the file itself."""

    path: str
    status: os.stat_result


class TooMany(Exception):
    """A directory with more entries than the limit; its argument is its path below the first one."""


class Ignored:
    """A cache of earlier answers of rules, so that the next walk need not load the parser, which takes 0.1 s of CPU.

    Args:
        known: Answers by path, by a hash of the rules.
    """

    def __init__(self, known: dict[str, dict[str, bool]] | None = None) -> None:
        self._known = known or {}
        self._used: dict[str, dict[str, bool]] = {}
        self._asked = False

    @property
    def is_changed(self) -> bool:
        """Return whether a path without a known answer was asked."""
        return self._asked

    def ask(self, path: str, rules: Rules) -> bool:
        """Return whether git would ignore a path; the path of a directory ends with a slash."""
        token = rules[-1].token
        said = self._known.get(token, {}).get(path)
        if said is None:
            self._asked = True
            said = _is_ignored(path, rules)
        self._used.setdefault(token, {})[path] = said
        return said

    def told(self) -> dict[str, dict[str, bool]]:
        """Return the paths that were asked this time with their answers, to be passed to the next walk."""
        return self._used


def walk(
    directory: Path,
    *,
    most: int | None = None,
    most_in_one: int | None = None,
    without: str | None = None,
    ignored: Ignored | None = None,
) -> Iterator[Found | TooMany]:
    """Yield the regular files below a directory that belong to a run, sorted by name within each directory.

    Args:
        most: Maximum number of entries to look at in all.
        most_in_one: Maximum number of entries in one directory; a larger one is reported as a TooMany without its
            content.
        without: An absolute path that is left out.
        ignored: Answers from earlier walks, to which new ones are added.

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
                    continue  # the user cannot read it, so neither can the user's runs
            elif stat.S_ISREG((status := entry.stat(follow_symlinks=False)).st_mode):
                yield Found(f"{below}{entry.name}", status)

    start = os.path.abspath(directory)
    return descend(start, "", _rules_above(start, memory))


def repository(directory: str) -> str | None:
    """Return the closest git repository at or above a directory; None when there is none."""
    while not os.path.exists(os.path.join(directory, ".git")):
        directory, before = os.path.dirname(directory), directory
        if directory == before:
            return None
    return directory


def _rules_above(directory: str, memory: Ignored) -> Rules:
    """Return the rules above a directory, from its repository's root on; empty if they ignore the directory itself."""
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
    """Return whether git would ignore a path: the last matching rule decides, inner files after outer ones."""
    for file in reversed(rules):
        said = file.spec.check_file(path[len(file.base) :]).include
        if said is not None:
            return said
    return False
