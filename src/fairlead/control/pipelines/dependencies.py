"""Lists the dependencies of a task: command, code, inputs and environment, as hashes or text by readable names."""

import errno
import fnmatch
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cluster.project_files import ProjectFile, is_source, walk
from fairlead.control.data import version_of
from fairlead.control.pipelines.artefacts import Artefacts, content_digest, file_identity
from fairlead.control.pipelines.result_store import ResultStore
from fairlead.errors import FairleadError
from fairlead.policy.kinds.steps import CacheDecision, Task, decide_cache
from fairlead.specs.pipeline import Pipeline, Step

if TYPE_CHECKING:
    from fairlead.cluster.local.code.trees import Tree

CODE = "code"
# Maximum size of a spec file.
SPEC_BYTES = 2 * 2**20
_PIPELINE = re.compile(rb"^\W*kind\W+Pipeline\W*$", re.MULTILINE)


class Dependencies:
    """The dependencies of a pipeline's tasks. Code is read once; later edits are not part of the run.

    Args:
        workdir: Working directory of the steps.
        environ: Environment that the steps inherit.
        state: State directory, excluded from the code even inside ``workdir``.
        is_in_pod: The image is a dependency, and modification times are meaningless.
        tree: The tree in which the steps find the code as submitted; None if they work in ``workdir`` itself.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        workdir: Path,
        environ: Mapping[str, str],
        results: ResultStore,
        state: Path,
        *,
        is_in_pod: bool = False,
        tree: "Tree | None" = None,
    ) -> None:
        self._is_in_pod = is_in_pod
        self._tree = tree
        self._state = state
        self._pipeline = pipeline
        self._workdir = workdir
        self._environ = environ
        self._results = results
        self._files: dict[str, str] | None = None
        self._statuses: dict[str, os.stat_result] = {}
        self._versions: dict[str, str | None] = {}
        self._listings: dict[tuple[str, ...], str] = {}
        self._python = _python(environ.get("PATH", ""))

    def of(self, task: Task, inputs: Mapping[str, str]) -> dict[str, str]:
        """Return the dependencies of a task by name.

        Args:
            inputs: Hash of each output of its needs, by ``step.output``.

        Raises:
            OSError: An input cannot be read.
        """
        step = self._pipeline.steps[task.step]
        whole = f"{self._pipeline.team}/{self._pipeline.name}/{task.step}"
        parts = {
            "step": whole,
            "command": step.command,
            "outputs": ",".join(sorted(step.outputs)),
            CODE: self._code(step.code),
        }
        if task.item is not None:
            parts["item"] = task.item
        own = {} if step.program is None else step.program.env
        parts |= {f"variable {name}": _hash(value) for name, value in {**self._pipeline.env, **step.env, **own}.items()}
        if self._is_in_pod:
            parts |= {"image": self._pipeline.image or "", "setup": _hash(self._pipeline.setup or "")}
        parts |= _of_child(step)
        parts |= dict(inputs)
        for path in step.inputs:
            parts[f"input {path}"] = self._input_digest(path)
        for name, source in () if step.program is None else step.program.data.items():
            # Recorded at the submission; a claim has none.
            parts[f"input data.{name}"] = source.version or source.origin
        parts["python"] = self._python
        return parts

    def looked_up(self, task: Task, parts: Mapping[str, str], artefacts: Artefacts, now: float) -> CacheDecision:
        """Decide whether to reuse an earlier result of a task with these dependencies."""
        cache = self._pipeline.steps[task.step].cache
        same = None if cache.off else self._results.same(parts)
        if same is not None:
            lacking = (name for name, digest in same.outputs.items() if not artefacts.has(digest))
            same = replace(same, lacks=next(lacking, None))
        last = None if cache.off or same is not None else self._results.last(self._pipeline.name, task.name)
        if last is not None:
            last, parts = replace(last, parts=self.in_full(last.parts)), self.in_full(parts)
        return decide_cache(cache, parts, same, last, now)

    def in_full(self, parts: Mapping[str, str]) -> dict[str, str]:
        """Return the dependencies with the code expanded to its files by name."""
        files = self._results.listing(parts.get(CODE, ""))
        return {
            **{f"code {path}": digest for path, digest in files.items()},
            **{name: digest for name, digest in parts.items() if name != CODE},
        }

    def _code(self, patterns: tuple[str, ...]) -> str:
        if patterns not in self._listings:
            files = self._all_files()
            chosen = {path: digest for path, digest in files.items() if not patterns or _is_chosen(path, patterns)}
            self._listings[patterns] = self._results.keep_listing(chosen)
        return self._listings[patterns]

    def _all_files(self) -> dict[str, str]:
        if self._files is None:
            self._files = {}
            for entry in walk(self._workdir, without=os.path.abspath(self._state), secrets=True):
                if isinstance(entry, ProjectFile) and not (self._tree is not None and entry.path in self._tree.copies):
                    self._add(entry)
            for path in () if self._tree is None else self._tree.copies:
                with suppress(FileNotFoundError):  # a program has removed it
                    self._add(ProjectFile(path, self._read_at(path).lstat()))
        return self._files

    def _add(self, entry: ProjectFile) -> None:
        if not self._is_pipeline(entry):
            identity = file_identity(str(self._read_at(entry.path)), entry.status, by_content=self._is_in_pod)
            assert self._files is not None
            self._files[entry.path], self._statuses[entry.path] = identity, entry.status

    def _read_at(self, path: str) -> Path:
        """Return where steps read a file of the working directory."""
        return (self._workdir if self._tree is None or path not in self._tree.copies else self._tree.cwd) / path

    def _input_digest(self, path: str) -> str:
        """Return the hash of an input's content, as steps read it, or the version of data."""
        if path not in self._versions:
            try:
                self._versions[path] = version_of(path, self._pipeline.team, self._workdir, self._state)
            except FairleadError as error:
                raise OSError(errno.EIO, str(error).removeprefix(f"{path}: "), path) from error
        version = self._versions[path]
        if version is not None:
            return version
        live = Path(os.path.normpath(self._workdir / Path(path).expanduser()))
        if self._tree is None or not live.is_relative_to(self._workdir):
            return content_digest(live)
        return content_digest(self._tree.cwd / live.relative_to(self._workdir), at=self._tree.meant)

    def read_code(self) -> None:
        """Read the code on which results depend; later edits are not part of it."""
        self._all_files()

    def edited_sources(self, patterns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the sources of a step that have changed since they were read, also if they are as before by now.

        Args:
            patterns: The files that a step names as its code; without any, its sources are those that people write.
        """
        return tuple(
            path
            for path, status in self._statuses.items()
            if (_is_chosen(path, patterns) if patterns else is_source(path, executable=bool(status.st_mode & 0o100)))
            and _is_edited(self._read_at(path), status)
        )

    def _is_pipeline(self, entry: ProjectFile) -> bool:
        """Return whether a file is a pipeline spec, which is not code: a step's own fields are dependencies already."""
        if not entry.path.endswith((".yaml", ".yml", ".json")) or entry.status.st_size > SPEC_BYTES:
            return False
        return _PIPELINE.search(self._read_at(entry.path).read_bytes()) is not None


def _is_edited(path: Path, before: os.stat_result) -> bool:
    try:
        now = path.lstat()
    except OSError:
        return True
    return (now.st_mtime_ns, now.st_ctime_ns, now.st_ino, now.st_size) != (
        before.st_mtime_ns, before.st_ctime_ns, before.st_ino, before.st_size,
    )  # fmt: skip


# Fields that determine the result of a run; not its resources, team or priority.
_OF_RUN = (
    "setup", "image", "environment", "nodes", "most_nodes", "ranks_per_node", "launch", "parallel", "metrics",
    "kubernetes",
)  # fmt: skip
_OF_SWEEP = ("parameters", "objective", "objectives", "trials", "sampler", "prune", "stop", "seed")


def _of_child(step: Step) -> dict[str, str]:
    """Return the additional dependencies of a step that is a run or a sweep."""
    hashes: dict[str, str] = {}
    for kind, spec, keys in (("training", step.program, _OF_RUN), ("sweep", step.sweep, _OF_SWEEP)):
        if spec is not None:
            hashes |= {f"{kind}.{key}": _hash(repr(getattr(spec, key))) for key in keys}
    return hashes


def _is_chosen(path: str, patterns: tuple[str, ...]) -> bool:
    normal = [os.path.normpath(pattern) for pattern in patterns]
    return any(
        path == pattern or path.startswith(f"{pattern}/") or fnmatch.fnmatch(path, pattern) for pattern in normal
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _python(path: str) -> str:
    """Return the path of ``python`` and the hash of its installed packages; empty without a Python."""
    python = shutil.which("python", path=path) or shutil.which("python3", path=path)
    if python is None:
        return ""
    packages = set()
    for place in sorted(Path(python).parent.parent.glob("lib/python3*/site-packages")):
        packages |= {name for name in os.listdir(place) if name.endswith(".dist-info")}
    return f"{os.path.realpath(python)} {_hash(' '.join(sorted(packages)))[:16]}"
