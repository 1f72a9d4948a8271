"""The files of a working directory that belong to a run, by one rule for local copies and for uploads to Kubernetes.

``.gitignore`` files count, in every directory and in those above up to the repository's, as git reads them. Excluded
are files of version control, virtual environments, caches marked as such (CACHEDIR.TAG), compiled Python, links, and
files that usually hold credentials. A ``.fairleadignore`` file, of the same form, has the last word on what it names.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairlead.cluster.secret_files import is_secret
from fairlead.text.lists import listed

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

NEVER = frozenset((".git", ".hg", ".svn", "__pycache__"))
MOST_NAMED = 5
SOURCES_AMONG = 10
MARKS = frozenset(("pyvenv.cfg", "CACHEDIR.TAG"))
IGNORES = ".gitignore"
OWN_IGNORES = ".fairleadignore"

# fmt: off
SOURCES = frozenset(
    (
        ".bash", ".c", ".cc", ".cfg", ".cmake", ".conf", ".cpp", ".cu", ".cuh", ".cxx", ".gin", ".go", ".h", ".hpp",
        ".ini", ".ipynb", ".j2", ".java", ".jinja", ".jl", ".js", ".kt", ".lua", ".m", ".mjs", ".php", ".pl", ".proto",
        ".py", ".pyi", ".pyx", ".r", ".rb", ".rs", ".scala", ".sh", ".sql", ".swift", ".toml", ".ts", ".yaml", ".yml",
        ".zsh",
    )
)
# fmt: on


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


class ProjectFile(NamedTuple):
    """A regular file below a directory, by its path with slashes; ``status`` is that of the file itself."""

    path: str
    status: os.stat_result


class Withheld(NamedTuple):
    """A file or directory with a name of credentials, which is left out; a directory's path ends with ``/``."""

    path: str


class TooMany(Exception):
    """A directory with more entries than the limit; its argument is its path below the first one."""


class Ignored:
    """A cache of earlier answers of rules, so that the next walk need not load the parser, which takes 0.1 s of CPU.

    Args:
        known: Answers by path, by a hash of the rules.
    """

    def __init__(self, known: dict[str, dict[str, bool | None]] | None = None) -> None:
        self._known = known or {}
        self._used: dict[str, dict[str, bool | None]] = {}
        self._is_changed = False

    @property
    def is_changed(self) -> bool:
        """Return whether a path without a known answer was asked."""
        return self._is_changed

    def ask(self, path: str, rules: Rules) -> bool | None:
        """Return whether rules exclude a path, None if none names it; the path of a directory ends with a slash."""
        token = rules[-1].token
        known = self._known.get(token, {})
        if path in known:
            verdict = known[path]
        else:
            self._is_changed = True
            verdict = _verdict(path, rules)
        self._used.setdefault(token, {})[path] = verdict
        return verdict

    def answers(self) -> dict[str, dict[str, bool | None]]:
        """Return the paths that were asked this time with their answers, to be passed to the next walk."""
        return self._used


def walk(
    directory: Path,
    *,
    most: int | None = None,
    most_in_one: int | None = None,
    without: str | None = None,
    ignored: Ignored | None = None,
    secrets: bool = False,
) -> Iterator[ProjectFile | TooMany | Withheld]:
    """Yield the regular files below a directory that belong to a run, sorted by name within each directory.

    A file or directory with the name of one with credentials is reported as a Withheld without its content.

    Args:
        most: Maximum number of entries to look at in all.
        most_in_one: Maximum number of entries in one directory; a larger one is reported as a TooMany, with no more of
            its content than up to as many sources among ``SOURCES_AMONG`` times as many entries.
        without: An absolute path that is left out.
        ignored: Answers from earlier walks, to which new ones are added.
        secrets: Include files of credentials, for a caller that neither stores nor sends them.

    Raises:
        TooMany: There are more than ``most`` entries.
    """
    looked = 0
    memory = Ignored() if ignored is None else ignored

    def descend(place: str, below: str, rules: Rules, own_rules: Rules) -> Iterator[ProjectFile | TooMany | Withheld]:
        nonlocal looked
        entries = []
        is_data = False
        with os.scandir(place) as listing:
            for entry in listing:
                entries.append(entry)
                is_data = most_in_one is not None and bool(below) and len(entries) > most_in_one
                if not is_data:
                    looked += 1
                elif most_in_one is not None and len(entries) > SOURCES_AMONG * most_in_one:
                    yield TooMany(below.rstrip("/"))
                    return
                if most is not None and looked > most:
                    raise TooMany(below.rstrip("/"))
        if is_data and most_in_one is not None:
            # Data, with the sources among it: an edit of these is not to reach a run.
            entries = [entry for entry in entries if is_source(entry.name, executable=False)]
            yield TooMany(below.rstrip("/"))
            if len(entries) > most_in_one:
                return
        names = {entry.name for entry in entries}
        if below and names & MARKS:
            return
        if IGNORES in names and (own := _rules(place, rules)) is not None:
            rules = (*rules, own)
        if OWN_IGNORES in names and (own := _rules(place, own_rules, OWN_IGNORES)) is not None:
            own_rules = (*own_rules, own)
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name in NEVER or entry.is_symlink() or entry.path == without:
                continue
            is_directory = entry.is_dir(follow_symlinks=False)
            named = f"{entry.path}/" if is_directory else entry.path
            verdict = memory.ask(named, own_rules) if own_rules else None
            if verdict is None and rules:
                verdict = memory.ask(named, rules) or None
            if verdict:
                continue
            if verdict is None and not secrets and is_secret(entry.name, is_directory=is_directory):
                yield Withheld(f"{below}{entry.name}{'/' if is_directory else ''}")
                continue
            if is_directory:
                try:
                    yield from descend(entry.path, f"{below}{entry.name}/", rules, own_rules)
                except PermissionError:
                    continue  # the user cannot read it, so neither can the user's runs
            elif stat.S_ISREG((status := entry.stat(follow_symlinks=False)).st_mode):
                yield ProjectFile(f"{below}{entry.name}", status)

    start = os.path.abspath(directory)
    return descend(start, "", _rules_above(start, memory), ())


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


def is_source(path: str, *, executable: bool) -> bool:
    """Return whether people rather than programs write a file: by its extension, or because it is executable."""
    return executable or os.path.splitext(path)[1].lower() in SOURCES


def no_project(directory: Path) -> str | None:
    """Return the reason why the files of a directory are never stored or sent; None when they may be."""
    home, directory = Path(os.path.realpath(os.path.expanduser("~"))), Path(os.path.realpath(directory))
    if directory == home or directory in home.parents:
        return f"{directory} is or holds a home directory; give the run a directory of its own"
    return None


def withheld_sentence(paths: Sequence[str]) -> str | None:
    """Return a sentence that names files left out for their credentials; None for none."""
    if not paths:
        return None
    return (
        f"left out, as such files hold credentials: {listed(paths, MOST_NAMED)}; a line `!NAME` in "
        f"{OWN_IGNORES} takes one along"
    )


def _rules(directory: str, outer: Rules, name: str = IGNORES) -> "IgnoreFile | None":
    path = os.path.join(directory, name)
    if not os.path.isfile(path):
        return None
    with open(path, errors="replace") as file:
        return IgnoreFile(f"{directory.rstrip('/')}/", file.read(), outer[-1].token if outer else "")


def _verdict(path: str, rules: Rules) -> bool | None:
    """Return whether rules exclude a path: the last matching rule decides, inner files after outer ones."""
    for file in reversed(rules):
        verdict = file.spec.check_file(path[len(file.base) :]).include
        if verdict is not None:
            return verdict
    return None
