"""Stores the code of this machine's runs, and creates the directory in which an attempt runs it.

A run's ``code.json`` lists what was stored at each submission or resumption; the newest counts. All attempts of a run
work in a tree with these files (``trees``), and so do the runs of one parent.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fairlead.cluster.kept_code import KeptCode, KeptFile
from fairlead.cluster.local.code.environments import editable_directories
from fairlead.cluster.local.code.objects import Objects
from fairlead.cluster.local.code.snapshots import (
    CodeSnapshot,
    Index,
    StoredFile,
    Unfit,
    differing,
    is_named,
    read_snapshot,
    scan,
    take,
)
from fairlead.cluster.local.code.trees import LEFT, SPARE, Damaged, Tree, Written, new_tree, place_for_trees
from fairlead.cluster.local.disk_errors import NO_ROOM
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.packages.place import newest_lock
from fairlead.cluster.revisions import read_revision
from fairlead.frozen import dataclass
from fairlead.runtime.paths import below
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.specs.gang import ProgramSpec
from fairlead.state.snapshot import Pod
from fairlead.text.lists import listed

MOST_SAID = 3
MOST_READ = 20
MOST_KEPT = 20  # submissions and resumptions of one run
SETTINGS_BYTES = 256 * 1024  # a larger file beside sources, unless it is one, is data
YAML = (".yaml", ".yml")
SPEC = re.compile(
    rb"^(?:kind\s*:\s*[\"']?"
    rb"(?:Training|Workspace|Serving|Sweep|Pipeline|Federation|Team|Pool|Simulation|Fleet)\b|run\s*:)",
    re.MULTILINE,
)
"""A line of a YAML file that makes it one of specs."""
Source = tuple[str, str, bool]
"""Path, digest, and whether it is executable."""
NOT_WANTED = "the spec says `snapshot: false`"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDirectory:
    """The directory in which an attempt runs.

    Attributes:
        tree: The directory of its tree that stands for the working directory; None for the working directory itself.
        root: The whole tree.
        paths: Paths of stored files and their directories; in the command, they refer to the tree.
        message: For the user; None for none.
    """

    tree: Path | None = None
    root: Path | None = None
    paths: frozenset[str] = frozenset()
    message: str | None = None

    def python_path(self, path: str, directory: str | None, command: str, env: Mapping[str, str]) -> str:
        """Return a PYTHONPATH in which paths of stored files are those in the tree.

        Projects in the working directory that are installed as editable are imported from the tree, too.
        """
        entries = [self.moved(entry, directory) for entry in path.split(os.pathsep)]
        if self.tree is not None and self.root is not None:
            of_trees, real = f"{self.root.parent}/", os.path.realpath(directory or "/")
            below = os.path.relpath(self.tree, self.root)
            for editable in reversed(editable_directories(command, str(self.tree), env)):
                # `uv run` installs the project from the directory in which it is called, which may be another tree.
                inside = os.path.relpath(editable.removeprefix(of_trees).partition("/")[2], below)
                if not editable.startswith(of_trees):
                    inside = os.path.relpath(os.path.realpath(editable), real)
                if inside in self.paths:
                    entries.insert(0, os.path.normpath(self.tree / inside))
        return os.pathsep.join(dict.fromkeys(entries))

    def moved(self, text: str, directory: str | None) -> str:
        """Return a text in which paths of stored files in the working directory are those in the tree."""
        if self.tree is None:
            return text
        workdir, tree = (directory or "/").rstrip("/"), str(self.tree)
        if workdir not in text or shlex.quote(str(self.root)) != str(self.root):
            return text  # a shell would split the path; the user was told that the command reads the live files

        def instead(match: re.Match[str]) -> str:
            path = os.path.normpath(match[1].strip("/") or ".")
            return tree + match[1] if path == "." or path in self.paths else match[0]

        return re.sub(rf"(?<![\w./-]){re.escape(workdir)}((?:/[^\s'\":=,;|&<>()]*)?)(?![\w.-])", instead, text)


IN_WORKDIR = AttemptDirectory()


class CodeStore:
    """The stored code of one state directory."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = home.path / "code"
        self.objects = Objects(self._path / "objects")
        self._trees: dict[str, Tree] = {}
        self._written: dict[str, Written] = {}
        # By the digest that names each: they are read once.
        self._snapshots: dict[str, CodeSnapshot] = {}

    def keep(self, uid: str, spec: ProgramSpec, now: float) -> None:
        """Store the code of a run that is submitted or resumed."""
        earlier = self.stored_states(uid)[1 - MOST_KEPT :]
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
        states, state = self.stored_states(uid), self._kept_as(uid, code)
        if state is None:
            return False
        if state != states[-1]:
            write_json(self._home.code(uid), {"kept": [*states[1 - MOST_KEPT :], state]})
        return True

    def keeps(self, uid: str, code: str) -> bool:
        """Return whether an earlier state of the code is still stored."""
        return self._kept_as(uid, code) is not None

    def newest(self, uid: str) -> str:
        """Return the name of the newest code of a run; empty if none is stored."""
        states = self.stored_states(uid)
        return self.name_of(states[-1]) if states else ""

    def name_of(self, state: dict[str, Any]) -> str:
        """Return the name of a stored state: the same for the same sources, whatever else is in the directory."""
        return _name(self._sources(self.snapshot(state)))

    def name_now(self, spec: ProgramSpec) -> str:
        """Return the name that the code of a run would have if it were stored now; nothing is written."""
        return _name(self._sources(self._look(spec), spec.workdir))

    def edited_sources(self, uid: str, code: str, spec: ProgramSpec) -> tuple[str, ...] | None:
        """Return the sources in which a stored state of the code differs from the current directory of a spec.

        None if the state is gone, or nothing of the directory would be stored.
        """
        state, now = self._kept_as(uid, code), self._look(spec)
        before = None if state is None else self.snapshot(state)
        if before is None or now is None:
            return None
        sources, sources_now = self._sources(before), self._sources(now, spec.workdir)
        return tuple(sorted({path for path, *_ in {*(sources or ())} ^ {*(sources_now or ())}}))

    def _kept_as(self, uid: str, code: str) -> dict[str, Any] | None:
        return next((state for state in reversed(self.stored_states(uid)) if self._is_named(state, code)), None)

    def _is_named(self, state: dict[str, Any], code: str) -> bool:
        """Return whether a stored state has a name, also as versions gave it that left out all YAML files."""
        sources = self._sources(self.snapshot(state))
        if _name(sources) == code:
            return True
        return sources is not None and code == _name([file for file in sources if not file[0].endswith(YAML)])

    def _sources(self, snapshot: CodeSnapshot | None, workdir: str | None = None) -> list[Source] | None:
        """Return the files that determine the name of a snapshot's code; None without a snapshot.

        Specs of Fairlead are not code: the edit of a spec changes the workload's own spec.

        Args:
            workdir: Where the files are that are not stored yet; None if all are.
        """
        if snapshot is None:
            return None
        sources = (file for file in snapshot.files if file.is_source and not self._is_spec(file, workdir))
        return sorted((file.path, file.digest, file.executable) for file in sources)

    def _is_spec(self, file: StoredFile, workdir: str | None) -> bool:
        if not file.path.endswith(YAML):
            return False
        content = self.objects.get(file.digest)
        if content is None and workdir is not None:
            try:
                content = Path(workdir, file.path).read_bytes()
            except OSError:
                content = None
        return content is not None and SPEC.search(content) is not None

    def _look(self, spec: ProgramSpec) -> CodeSnapshot | None:
        """Return the snapshot that ``keep`` would store now; None for none."""
        if spec.workdir is None or not spec.snapshot:
            return None
        workdir = Path(spec.workdir)
        try:
            return take(workdir, None, self._index(workdir), without=self._home.path)
        except (Unfit, FileNotFoundError, NotADirectoryError):
            return None

    def problem(self, spec: ProgramSpec) -> str | None:
        """Return why ``keep`` would not store the code of a run that wants it stored; None if it would."""
        if spec.workdir is None or not spec.snapshot:
            return None
        workdir = Path(spec.workdir)
        try:
            scan(workdir, self._index(workdir), without=self._home.path)
        except Unfit as error:
            return str(error)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None

    def inherit(self, uid: str, parent_uid: str, spec: ProgramSpec, now: float) -> None:
        """Store for a run its parent's code of the same directory, or the current code if the parent has none.

        For an endpoint it is the code of the replica's revision.
        """
        of_parent = self.stored_states(parent_uid)
        same = [state for state in of_parent if state["workdir"] == spec.workdir]
        if not spec.snapshot:
            same = [state for state in same if state["why"] == NOT_WANTED]
        code = getattr(spec, "code", "")
        if code:
            same = [state for state in same if self._is_named(state, code)] or same
        if not same:
            self.keep(uid, spec, now)
            return
        own = self.stored_states(uid)
        # A link avoids waiting for the disk with each of a parent's thousands of children.
        if own or of_parent != same[-1:] or not self._link(self._home.code(parent_uid), self._home.code(uid)):
            write_json(self._home.code(uid), {"kept": [*own[1 - MOST_KEPT :], same[-1]]})

    def _link(self, source: Path, here: Path) -> bool:
        """Link a file, which is safe since neither is ever written in place; False where the file system refuses."""
        try:
            os.link(source, here)
        except OSError:
            return False
        return True

    def _take(self, workdir: Path, new: dict[str, Any]) -> None:
        """Store the files of a directory, with its git commit."""
        snapshot = take(workdir, self.objects, self._index(workdir), without=self._home.path)
        new["snapshot"] = self.objects.put(snapshot.text())
        revision = read_revision(workdir)
        if revision is not None:
            new["git"] = {**revision.as_data(), "diff": None}
            if revision.diff:
                new["git"]["diff"] = self.objects.put(revision.diff)

    def stored_states(self, uid: str) -> list[dict[str, Any]]:
        """Return the stored states of a run's code, oldest first."""
        return list((read_json(self._home.code(uid)) or {}).get("kept") or ())

    def snapshot(self, state: dict[str, Any]) -> CodeSnapshot | None:
        """Return the stored files; None when none were stored, or they cannot be read any more."""
        digest = state["snapshot"]
        if digest is None or digest in self._snapshots:
            return self._snapshots.get(digest)
        content = self.objects.get(digest)
        if content is None:
            return None
        if len(self._snapshots) >= MOST_READ:
            self._snapshots.clear()
        return self._snapshots.setdefault(digest, read_snapshot(content))

    def shown(self, uid: str) -> KeptCode:
        """Return the newest stored code of a run, for display."""
        states = self.stored_states(uid)
        ran = (read_json(self._home.environments(uid)) or {}).get("attempts") or {}
        environment = dict(ran[max(ran, key=int)]) if ran else None
        if environment is not None and environment["python"] is not None:
            record = self.objects.get(environment["python"])
            environment["python"] = None if record is None else json.loads(record)
        lock = newest_lock(self._home, uid)
        if not states:
            return KeptCode(why="it was submitted before code was kept", environment=environment, lock=lock)
        newest = states[-1]
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
            edited=None if snapshot is None else self._edited(snapshot.files, workdir),
            git=None if git is None else {name: git[name] for name in ("commit", "branch", "dirty")},
            diff=None if diff is None else diff.decode(errors="replace"),
            environment=environment,
            lock=lock,
            read=lambda path: self.objects.get(digests[path]) if path in digests else None,
        )

    def place(self, uid: str, owner: str, pod: Pod, spec: ProgramSpec) -> AttemptDirectory:
        """Return the directory in which an attempt runs, the same for all of its pods; build it if it is not there.

        Args:
            owner: The outermost parent of the run, whose runs share a tree; the run itself without one.
        """
        newest = self._newest(uid, spec)
        if newest is None:
            return IN_WORKDIR
        snapshot = self.snapshot(newest)
        if snapshot is None:
            return AttemptDirectory(
                message=f"the code as submitted cannot be read any more; attempt {pod.attempt} runs what is there"
            )
        workdir = Path(newest["workdir"])
        if not workdir.is_dir():
            return IN_WORKDIR
        command = f"{spec.setup or ''}\n{spec.run}"
        key = self._key(self._owner(uid, owner), newest, snapshot, command)
        tree = self._tree(key)
        if tree is not None and uid != owner and pod.attempt == pod.index == 0 and tree.written_copies():
            # Another run of the same parent has changed its sources; this one gets them as submitted.
            self._own_mark(uid).touch()
            key = self._key(uid, newest, snapshot, command)
            tree = self._tree(key)
        if tree is None or not tree.is_there:
            # Those that work beside it first show what they have created.
            self.sync([key for key, other in self._trees.items() if other.workdir == os.path.realpath(workdir)])
            try:
                tree = self._build(key, workdir, snapshot, command)
            except Damaged as error:
                return AttemptDirectory(
                    message=f"{error} as submitted cannot be read any more; attempt {pod.attempt} runs what is there"
                )
        else:
            tree.sync(self._written_in(tree))
        message = (
            self._edited_message(tree, workdir, snapshot, f"attempt {pod.attempt}", spec.run)
            if pod.index == 0
            else None
        )
        return self._place_in(tree, message)

    def place_at(self, directory: Path) -> tuple[AttemptDirectory, Tree] | None:
        """Return the place that a process with this current directory works in; None for no tree."""
        for record in (self._home.path / "trees").glob("*.json"):
            if record.stem in directory.parts:
                tree = Tree.read(record)
                if tree is not None and os.path.realpath(tree.cwd) == str(directory):
                    return self._place_in(tree, None), tree
        return None

    def tree_of(self, uid: str, owner: str, spec: ProgramSpec) -> str | None:
        """Return the key of the tree in which a run works; None for none."""
        newest = self._newest(uid, spec)
        snapshot = None if newest is None else self.snapshot(newest)
        if newest is None or snapshot is None:
            return None
        return self._key(self._owner(uid, owner), newest, snapshot, f"{spec.setup or ''}\n{spec.run}")

    def sync(self, keys: Iterable[str]) -> None:
        """Link new entries of trees, and of their working directories, to the other side."""
        for key in keys:
            tree = self._tree(key)
            if tree is not None and tree.is_there:
                tree.sync(self._written_in(tree))

    def settle(self, key: str) -> tuple[Tree, tuple[str, ...]] | None:
        """Settle a tree in which nothing runs; return it with the paths that newly stay in it."""
        tree = self._tree(key)
        if tree is None or not tree.is_there:
            return None
        return tree, tree.settle(self._written_in(tree))

    def close(self, active: Collection[str], in_use: Collection[str]) -> Iterator[tuple[str, Tree, tuple[str, ...]]]:
        """Close the trees whose owners are not active; yield owner, tree, and the paths that newly stay in it.

        Args:
            in_use: Keys of trees in which processes run.
        """
        for key in self._keys("*.json"):
            owner = key.rpartition("-")[0]
            if owner in active or key in in_use:
                continue
            tree = self._tree(key)
            if tree is not None:
                yield owner, tree, tree.close(self._written_in(tree))
            self._trees.pop(key, None)

    def forget(self, uid: str) -> None:
        """Close all trees of a run that is to be deleted, also those with files that stayed in them."""
        for suffix in (".json", LEFT):
            for key in self._keys(f"{uid}-*{suffix}"):
                tree = Tree.read(self._record(key).with_suffix(suffix))
                if tree is not None:
                    tree.close(self._written_in(tree), is_forgotten=True)

    def prune(self) -> int:
        """Remove objects that no run needs any more; return their number."""
        runs = self._home.path / "runs"
        needed: set[str] = set()
        snapshots: set[str] = set()
        workdirs: set[str] = set()
        for directory in runs.iterdir() if runs.is_dir() else ():
            for state in self.stored_states(directory.name):
                workdirs.add(str(state["workdir"]))
                snapshots |= {state["snapshot"]} - {None}
                needed |= {(state.get("git") or {}).get("diff"), state["snapshot"]} - {None}
            ran = (read_json(self._home.environments(directory.name)) or {}).get("attempts") or {}
            needed |= {environment.get("python") for environment in ran.values()} - {None}
        for digest in snapshots:
            content = self.objects.get(digest)
            needed |= set() if content is None else {file.digest for file in read_snapshot(content).files}
        indexes = {self._index_path(Path(workdir)) for workdir in workdirs}
        for path in (self._path / "index").glob("*"):
            if path not in indexes and time.time() - path.stat().st_mtime > 60:
                path.unlink(missing_ok=True)
        for path in (self._home.path / "trees").glob("*"):
            if path.is_symlink() and not path.exists():
                path.unlink(missing_ok=True)
        if not workdirs:
            for path in (self._home.path / "trees").glob(f"{SPARE}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self.objects.prune(needed)

    def _newest(self, uid: str, spec: ProgramSpec) -> dict[str, Any] | None:
        """Return the stored code with which a run works; None if it works with the files that are there."""
        stored = self.stored_states(uid)
        # A spec that was just changed may have another directory than the stored code.
        if not stored or stored[-1]["snapshot"] is None or stored[-1]["workdir"] != spec.workdir or not spec.snapshot:
            return None
        return stored[-1]

    def _build(self, key: str, workdir: Path, snapshot: CodeSnapshot, command: str) -> Tree:
        """Build a tree of the files whose content counts as submitted."""
        written = self._written_at(os.path.realpath(workdir))
        with_sources = {os.path.dirname(file.path) for file in snapshot.files if file.is_source}
        files = [
            file
            for file in snapshot.files
            if file.is_source
            or is_named(file.path, command)
            or (os.path.dirname(file.path) in with_sources and file.path not in written and self._is_settings(file))
        ]
        root = below(place_for_trees(self._home.path, workdir), key)
        tree = self._trees[key] = new_tree(self._record(key), root, workdir, files, without=self._home.path)
        tree.build(files, self.objects)
        return tree

    def _is_settings(self, file: StoredFile) -> bool:
        """Return whether a file beside sources is a text that people may have written, such as one of settings."""
        content = self.objects.get(file.digest) if file.size <= SETTINGS_BYTES else None
        return content is not None and b"\0" not in content

    def _edited_message(self, tree: Tree, workdir: Path, snapshot: CodeSnapshot, who: str, command: str) -> str | None:
        """Return a message about files that were edited since submission; None if none was."""
        sentences = []
        changed = self._edited((file for file in snapshot.files if file.path in tree.copies), workdir)
        if changed:
            verb = "was" if len(changed) == 1 else "were"
            sentences.append(
                f"{listed(changed, MOST_SAID)} {verb} edited since submission; "
                f"{who} runs the code as submitted, in {tree.cwd}"
            )
        if shlex.quote(tree.root) != tree.root and str(workdir) in command:
            sentences.append(f"what the command calls by its full path is read from {workdir}")
        return "; but ".join(sentences) or None

    def _edited(self, files: Iterable[StoredFile], workdir: Path) -> tuple[str, ...]:
        """Return the stored files that people have changed or removed: not those whose content a run has written."""
        index, written = self._index(workdir), self._written_at(os.path.realpath(workdir))
        return tuple(path for path in differing(files, workdir, index) if not written.is_last(path, workdir / path))

    def _place_in(self, tree: Tree, message: str | None) -> AttemptDirectory:
        paths = frozenset(_with_parents(tree.copies))
        return AttemptDirectory(tree=tree.cwd, root=Path(tree.root), paths=paths, message=message)

    def _key(self, owner: str, state: dict[str, Any], snapshot: CodeSnapshot, command: str) -> str:
        """Return the name of a tree: one for an owner, its stored code, and the data files that a command names."""
        named = [file.path for file in snapshot.files if not file.is_source and is_named(file.path, command)]
        text = repr((state["at"], state["snapshot"], state["workdir"], named))
        key = f"{owner}-{hashlib.sha256(os.fsencode(text)).hexdigest()[:8]}"
        while self._record(key).with_suffix(LEFT).exists():
            key += "x"  # files that stayed in an earlier tree of that name are not to be lost
        return key

    def _owner(self, uid: str, owner: str) -> str:
        return uid if uid != owner and self._own_mark(uid).exists() else owner

    def _own_mark(self, uid: str) -> Path:
        """Return the path of the mark of a run that shares no tree."""
        return self._home.run(uid) / "own-tree"

    def _tree(self, key: str) -> Tree | None:
        if key not in self._trees:
            tree = Tree.read(self._record(key))
            if tree is None:
                return None
            self._trees[key] = tree
        return self._trees[key]

    def _record(self, key: str) -> Path:
        return below(self._home.path / "trees", f"{key}.json")

    def _keys(self, pattern: str) -> list[str]:
        return [record.stem for record in (self._home.path / "trees").glob(pattern)]

    def _written_in(self, tree: Tree) -> Written:
        return self._written_at(tree.workdir)

    def _written_at(self, workdir: str) -> Written:
        if workdir not in self._written:
            name = hashlib.sha256(os.fsencode(workdir)).hexdigest()[:32]
            self._written[workdir] = Written(self._path / "written" / f"{name}.json")
        return self._written[workdir]

    def _index(self, workdir: Path) -> Index:
        return Index(self._index_path(workdir))

    def _index_path(self, workdir: Path) -> Path:
        return self._path / "index" / hashlib.sha256(os.fsencode(workdir)).hexdigest()[:32]


def _name(sources: list[Source] | None) -> str:
    return "" if sources is None else hashlib.sha256(repr(sources).encode()).hexdigest()[:16]


def _with_parents(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield path
        yield from (str(parent) for parent in Path(path).parents)
