"""Stores the code of this machine's runs, and creates the directory in which an attempt runs it.

A run's ``code.json`` lists what was stored at each submission or resumption; the newest counts. An attempt runs in the
working directory itself unless a stored file was edited since: then in a tree of its own (``trees``).
"""

import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fairlead.cluster.kept_code import KeptCode, KeptFile
from fairlead.cluster.local.code.objects import Objects
from fairlead.cluster.local.code.snapshots import (
    File,
    Index,
    Snapshot,
    Unfit,
    differing,
    edited,
    is_named,
    read_snapshot,
    take,
)
from fairlead.cluster.local.code.trees import Damaged, Settled, build, settle
from fairlead.cluster.local.disk_errors import NO_ROOM
from fairlead.cluster.local.home import Home
from fairlead.cluster.revisions import read_revision
from fairlead.frozen import dataclass
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.specs.gang import ProgramSpec
from fairlead.state.snapshot import Pod, Workload

MOST_SAID = 3
MOST_KEPT = 20  # submissions and resumptions of one run
NOT_WANTED = "the spec says `snapshot: false`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The directory in which an attempt runs.

    Attributes:
        tree: The attempt's own tree; None for the working directory.
        paths: Paths of stored files and their directories; in the command, they refer to the tree.
        said: A message for the user; None for none.
    """

    tree: Path | None = None
    paths: frozenset[str] = frozenset()
    said: str | None = None

    def command(self, spec: ProgramSpec) -> str:
        """Return the run's command, with the paths of stored files replaced by those in the tree."""
        return spec.run if self.tree is None else self._moved(spec.run, spec)

    def python_path(self, path: str, spec: ProgramSpec) -> str:
        """Return a PYTHONPATH with the same replacements."""
        if self.tree is None:
            return path
        return os.pathsep.join(self._moved(each, spec) for each in path.split(os.pathsep))

    def _moved(self, text: str, spec: ProgramSpec) -> str:
        workdir, tree = (spec.workdir or "/").rstrip("/"), str(self.tree)
        if shlex.quote(tree) != tree:
            return text  # a shell would split the path; the user was told that the command reads the live files

        def instead(found: re.Match[str]) -> str:
            below = os.path.normpath(found[1].strip("/") or ".")
            return tree + found[1] if below == "." or below in self.paths else found[0]

        return re.sub(rf"(?<![\w./-]){re.escape(workdir)}((?:/[^\s'\":=,;|&<>()]*)?)(?![\w.-])", instead, text)


IN_WORKDIR = Place()


class CodeStore:
    """The stored code of one state directory."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = home.path / "code"
        self.objects = Objects(self._path / "objects")

    def keep(self, uid: str, spec: ProgramSpec, now: float) -> None:
        """Store the code of a run that is submitted or resumed."""
        earlier = self.kept(uid)[1 - MOST_KEPT :]
        new: dict[str, Any] = {"at": now, "workdir": spec.workdir, "snapshot": None, "why": None}
        if spec.workdir is None:
            new["why"] = "it has no working directory"
        elif not spec.snapshot:
            new["why"] = NOT_WANTED
        else:
            workdir = Path(spec.workdir)
            with self.objects.writing():
                try:
                    self._take(workdir, new)
                except (Unfit, FileNotFoundError, NotADirectoryError) as error:
                    new["why"] = str(error)
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                    new |= {"snapshot": None, "why": f"the disk of {self._home.path} has no room for it"}
                else:
                    write_json(self._home.code(uid), {"kept": [*earlier, new]})
                    return
            # A partial copy would take the space that the run itself needs.
            self.prune()
        write_json(self._home.code(uid), {"kept": [*earlier, new]})

    def keep_again(self, uid: str, code: str) -> bool:
        """Make an earlier stored state of the code the newest; return False when it is gone."""
        kept, found = self.kept(uid), self._kept_as(uid, code)
        if found is None:
            return False
        if found != kept[-1]:
            write_json(self._home.code(uid), {"kept": [*kept[1 - MOST_KEPT :], found]})
        return True

    def keeps(self, uid: str, code: str) -> bool:
        """Return whether an earlier state of the code is still stored."""
        return self._kept_as(uid, code) is not None

    def newest(self, uid: str) -> str:
        """Return the name of the newest code of a run; empty if none is stored."""
        kept = self.kept(uid)
        return self.name_of(kept[-1]) if kept else ""

    def name_of(self, kept: dict[str, Any]) -> str:
        """Return the name of a stored state: the same for the same sources, whatever else is in the directory."""
        return _name(self.snapshot(kept))

    def name_now(self, spec: ProgramSpec) -> str:
        """Return the name that the code of a run would have if it were stored now; nothing is written."""
        return _name(self._look(spec))

    def edited_sources(self, uid: str, code: str, spec: ProgramSpec) -> tuple[str, ...] | None:
        """Return the sources in which a stored state of the code differs from the current directory of a spec.

        None if the state is gone, or nothing of the directory would be stored.
        """
        kept, now = self._kept_as(uid, code), self._look(spec)
        before = None if kept is None else self.snapshot(kept)
        if before is None or now is None:
            return None
        return tuple(sorted({path for path, *_ in {*_sources(before)} ^ {*_sources(now)}}))

    def _kept_as(self, uid: str, code: str) -> dict[str, Any] | None:
        return next((each for each in reversed(self.kept(uid)) if self.name_of(each) == code), None)

    def _look(self, spec: ProgramSpec) -> Snapshot | None:
        """Return the snapshot that ``keep`` would store now; None for none."""
        if spec.workdir is None or not spec.snapshot:
            return None
        workdir = Path(spec.workdir)
        try:
            return take(workdir, None, self._index(workdir), without=self._home.path)
        except (Unfit, FileNotFoundError, NotADirectoryError):
            return None

    def inherit(self, uid: str, parent_uid: str, spec: ProgramSpec, now: float) -> None:
        """Store for a run its parent's code of the same directory, or the current code if the parent has none.

        For an endpoint it is the code of the replica's revision.
        """
        of_parent = self.kept(parent_uid)
        same = [kept for kept in of_parent if kept["workdir"] == spec.workdir]
        if not spec.snapshot:
            same = [kept for kept in same if kept["why"] == NOT_WANTED]
        code = getattr(spec, "code", "")
        if code:
            same = [kept for kept in same if self.name_of(kept) == code] or same
        if not same:
            self.keep(uid, spec, now)
            return
        own = self.kept(uid)
        # A link avoids waiting for the disk with each of a parent's thousands of children.
        if own or of_parent != same[-1:] or not self._link(self._home.code(parent_uid), self._home.code(uid)):
            write_json(self._home.code(uid), {"kept": [*own[1 - MOST_KEPT :], same[-1]]})

    def _link(self, there: Path, here: Path) -> bool:
        """Link a file, which is safe since neither is ever written in place; False where the file system refuses."""
        try:
            os.link(there, here)
        except OSError:
            return False
        return True

    def _take(self, workdir: Path, new: dict[str, Any]) -> None:
        """Store the files of a directory, with its git commit."""
        snapshot = take(workdir, self.objects, self._index(workdir), without=self._home.path)
        new["snapshot"] = self.objects.put(snapshot.text())
        revision = read_revision(workdir)
        if revision is not None:
            new["git"] = {**revision.told(), "diff": None}
            if revision.diff:
                new["git"]["diff"] = self.objects.put(revision.diff)

    def kept(self, uid: str) -> list[dict[str, Any]]:
        """Return the stored states of a run's code, oldest first."""
        return list((read_json(self._home.code(uid)) or {}).get("kept") or ())

    def snapshot(self, kept: dict[str, Any]) -> Snapshot | None:
        """Return the stored files; None when none were stored, or they cannot be read any more."""
        content = None if kept["snapshot"] is None else self.objects.get(kept["snapshot"])
        return None if content is None else read_snapshot(content)

    def shown(self, uid: str) -> KeptCode:
        """Return the newest stored code of a run, for display."""
        kept = self.kept(uid)
        ran = (read_json(self._home.environments(uid)) or {}).get("attempts") or {}
        environment = dict(ran[max(ran, key=int)]) if ran else None
        if environment is not None and environment["python"] is not None:
            record = self.objects.get(environment["python"])
            environment["python"] = None if record is None else json.loads(record)
        if not kept:
            return KeptCode(why="it was submitted before code was kept", environment=environment)
        newest = kept[-1]
        snapshot = self.snapshot(newest)
        why = newest["why"]
        if snapshot is None and why is None:
            why = f"what was kept in {self._path} is not there any more"
        git = newest.get("git")
        diff = self.objects.get(git["diff"]) if git is not None and git["diff"] is not None else None
        files = () if snapshot is None else snapshot.files
        digests = {file.path: file.digest for file in files}
        workdir = Path(newest["workdir"] or "/")
        return KeptCode(
            at=newest["at"],
            workdir=newest["workdir"],
            files=None
            if snapshot is None
            else tuple(
                KeptFile(path=file.path, size=file.size, digest=file.digest, executable=file.executable)
                for file in files
            ),
            why=why,
            left_out=() if snapshot is None else snapshot.left_out,
            edited=None if snapshot is None else differing(snapshot, workdir, self._index(workdir)),
            git=None if git is None else {name: git[name] for name in ("commit", "branch", "dirty")},
            diff=None if diff is None else diff.decode(errors="replace"),
            environment=environment,
            read=lambda path: self.objects.get(digests[path]) if path in digests else None,
        )

    def place(self, run: Workload, pod: Pod, was_running: Callable[[float], bool]) -> Place:
        """Return the directory in which an attempt runs; the same for all of its pods, also after a kill."""
        decided = self._tree(run.uid, pod.attempt).with_suffix(".decided")
        known = read_json(decided)
        if known is not None:
            tree = None if known["tree"] is None else Path(known["tree"])
            return Place(tree=tree, paths=frozenset(known["paths"]))
        place = self._decide(run, pod, was_running)
        if place.tree is not None or run.gang.nodes > 1:
            decided.parent.mkdir(mode=0o700, exist_ok=True)
            tree_said = None if place.tree is None else str(place.tree)
            write_json(decided, {"tree": tree_said, "paths": sorted(place.paths)})
        return place

    def settle(self, uid: str, attempt: int | None = None) -> tuple[tuple[Settled, Path], ...]:
        """Settle the trees of a run's attempts, or of one, in which nothing runs; return each with its path."""
        trees = self._home.run(uid) / "code"
        paths = (trees / str(attempt),) if attempt is not None else tuple(_trees(trees))
        return tuple((settled, tree) for tree in paths if (settled := settle(tree)) is not None)

    def settle_in(self, directory: Path) -> None:
        """Settle all trees of a run's attempts, in the directory in which its files are now."""
        for tree in _trees(directory / "code"):
            settle(tree)

    def prune(self) -> int:
        """Remove objects that no run needs any more; return their number."""
        runs = self._home.path / "runs"
        needed: set[str] = set()
        snapshots: set[str] = set()
        workdirs: set[str] = set()
        for directory in runs.iterdir() if runs.is_dir() else ():
            for kept in self.kept(directory.name):
                workdirs.add(str(kept["workdir"]))
                snapshots |= {kept["snapshot"]} - {None}
                needed |= {(kept.get("git") or {}).get("diff"), kept["snapshot"]} - {None}
            ran = (read_json(self._home.environments(directory.name)) or {}).get("attempts") or {}
            needed |= {each.get("python") for each in ran.values()} - {None}
        for digest in snapshots:
            content = self.objects.get(digest)
            needed |= set() if content is None else {file.digest for file in read_snapshot(content).files}
        indexes = {self._index_path(Path(workdir)) for workdir in workdirs}
        for path in (self._path / "index").glob("*"):
            if path not in indexes and time.time() - path.stat().st_mtime > 60:
                path.unlink(missing_ok=True)
        return self.objects.prune(needed)

    def _decide(self, run: Workload, pod: Pod, was_running: Callable[[float], bool]) -> Place:
        kept = self.kept(run.uid)
        snapshot = self.snapshot(kept[-1]) if kept else None
        # A spec that was just changed may have another directory than the stored code.
        if snapshot is None and (not kept or kept[-1]["snapshot"] is None):
            return Place()
        if kept[-1]["workdir"] != run.spec.workdir or not run.spec.snapshot:
            return Place()
        if snapshot is None:
            return Place(
                said=f"the code as submitted cannot be read any more; attempt {pod.attempt} runs what is there"
            )
        workdir = Path(kept[-1]["workdir"])
        command = f"{run.spec.setup or ''}\n{run.spec.run}"
        changed = edited(snapshot, workdir, self._index(workdir), named=command, was_running=was_running)
        if not changed or not workdir.is_dir():
            return Place()
        files = [
            file for file in snapshot.files if file.is_source or file.path in changed or is_named(file.path, command)
        ]
        tree = self._tree(run.uid, pod.attempt)
        try:
            build(tree, workdir, files, self.objects)
        except Damaged as error:
            return Place(said=f"{error} as submitted cannot be read any more; attempt {pod.attempt} runs what is there")
        which = ", ".join(changed[:MOST_SAID]) + (f" and {len(changed) - MOST_SAID} more" * (len(changed) > MOST_SAID))
        verb = "was" if len(changed) == 1 else "were"
        said = f"{which} {verb} edited since submission; attempt {pod.attempt} runs the code as submitted, in {tree}"
        if shlex.quote(str(tree)) != str(tree) and str(workdir) in run.spec.run:
            said += f"; but what the command calls by its full path is read from {workdir}"
        return Place(tree=tree, paths=frozenset(_with_parents(files)), said=said)

    def _tree(self, uid: str, attempt: int) -> Path:
        return self._home.run(uid) / "code" / str(attempt)

    def _index(self, workdir: Path) -> Index:
        return Index(self._index_path(workdir))

    def _index_path(self, workdir: Path) -> Path:
        return self._path / "index" / hashlib.sha256(os.fsencode(workdir)).hexdigest()[:32]


def _sources(snapshot: Snapshot) -> list[tuple[str, str, bool]]:
    """Return the files that determine the name of a snapshot's code."""
    # Specs are not code: the edit of a spec changes the workload's own spec.
    sources = (file for file in snapshot.files if file.is_source and not file.path.endswith((".yaml", ".yml")))
    return sorted((file.path, file.digest, file.executable) for file in sources)


def _name(snapshot: Snapshot | None) -> str:
    return "" if snapshot is None else hashlib.sha256(repr(_sources(snapshot)).encode()).hexdigest()[:16]


def _with_parents(files: Iterable[File]) -> Iterable[str]:
    for file in files:
        yield file.path
        yield from (str(parent) for parent in Path(file.path).parents)


def _trees(directory: Path) -> Iterable[Path]:
    return (path for path in directory.iterdir() if path.name.isdigit()) if directory.is_dir() else ()
