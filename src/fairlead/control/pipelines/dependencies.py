"""Lists the dependencies of a task: command, code, inputs and environment, as hashes or text by readable names."""

import fnmatch
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.project_files import Found, walk
from fairlead.control.pipelines.artefacts import Artefacts, content_digest, file_identity
from fairlead.control.pipelines.result_store import ResultStore
from fairlead.policy.kinds.steps import CacheDecision, Task, decide_cache
from fairlead.specs.pipeline import Pipeline, Step

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
    ) -> None:
        self._is_in_pod = is_in_pod
        self._state = state
        self._pipeline = pipeline
        self._workdir = workdir
        self._environ = environ
        self._results = results
        self._files: dict[str, str] | None = None
        self._listings: dict[tuple[str, ...], str] = {}
        self._python = _python(environ.get("PATH", ""))

    def of(self, task: Task, handed: Mapping[str, str]) -> dict[str, str]:
        """Return the dependencies of a task by name.

        Args:
            handed: Hash of each output of its needs, by ``step.output``.

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
        parts |= dict(handed)
        for path in step.inputs:
            parts[f"input {path}"] = content_digest(self._workdir / Path(path).expanduser())
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
            for each in walk(self._workdir, without=os.path.abspath(self._state)):
                if isinstance(each, Found) and not self._is_pipeline(each):
                    self._files[each.path] = self._identity(each)
        return self._files

    def _identity(self, found: Found) -> str:
        return file_identity(os.path.join(self._workdir, found.path), found.status, by_content=self._is_in_pod)

    def _is_pipeline(self, found: Found) -> bool:
        """Return whether a file is a pipeline spec, which is not code: a step's own fields are dependencies already."""
        if not found.path.endswith((".yaml", ".yml", ".json")) or found.status.st_size > SPEC_BYTES:
            return False
        return _PIPELINE.search((self._workdir / found.path).read_bytes()) is not None


# Fields that determine the result of a run; not its resources, team or priority.
_OF_RUN = ("setup", "image", "nodes", "most_nodes", "ranks_per_node", "launch", "parallel", "metrics", "kubernetes")
_OF_SWEEP = ("parameters", "objective", "objectives", "trials", "sampler", "prune", "stop", "seed")


def _of_child(step: Step) -> dict[str, str]:
    """Return the additional dependencies of a step that is a run or a sweep."""
    found: dict[str, str] = {}
    for kind, spec, keys in (("training", step.program, _OF_RUN), ("sweep", step.sweep, _OF_SWEEP)):
        if spec is not None:
            found |= {f"{kind}.{key}": _hash(repr(getattr(spec, key))) for key in keys}
    return found


def _is_chosen(path: str, patterns: tuple[str, ...]) -> bool:
    given = [os.path.normpath(pattern) for pattern in patterns]
    return any(path == each or path.startswith(f"{each}/") or fnmatch.fnmatch(path, each) for each in given)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _python(path: str) -> str:
    """Return the path of ``python`` and the hash of its installed packages; empty without a Python."""
    found = shutil.which("python", path=path) or shutil.which("python3", path=path)
    if found is None:
        return ""
    packages = set()
    for place in sorted(Path(found).parent.parent.glob("lib/python3*/site-packages")):
        packages |= {name for name in os.listdir(place) if name.endswith(".dist-info")}
    return f"{os.path.realpath(found)} {_hash(' '.join(sorted(packages)))[:16]}"
