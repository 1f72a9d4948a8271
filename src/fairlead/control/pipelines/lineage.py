"""Traces an artefact back to the code, the data and the runs from which it was made."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.pipelines.dependencies import CODE
from fairlead.control.pipelines.results import Origin, Results
from fairlead.control.pipelines.submission import pipeline_of, progress_of, store_of
from fairlead.errors import Conflict, NotFound
from fairlead.frozen import dataclass

LEAST_DIGITS = 6
# Dependencies of a task that are not outputs of other tasks; all others are hashes of such outputs.
_OWN = ("step", "command", "outputs", "item", "python", CODE)
_OWN_PREFIXES = ("variable ", "input ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """An artefact, the task that made it, and the artefacts that the task read.

    Attributes:
        name: Name in the reading task, such as ``prepare.data``; for the first, the name of the output.
        origin: Task that made it; None if no result of it is stored any more.
        code: Hash of each file of the task's code.
        inputs: Hash of each file or directory that the task read from elsewhere.
    """

    name: str
    digest: str
    origin: Origin | None
    code: dict[str, str]
    inputs: dict[str, str]
    read: "tuple[Lineage, ...]"

    def as_data(self) -> dict[str, Any]:
        """Return the lineage as plain data."""
        origin = self.origin
        made = None
        if origin is not None:
            parts = origin.result.parts
            made = {
                "pipeline": origin.pipeline,
                "task": origin.task,
                "output": origin.output,
                "run": origin.result.run,
                "at": origin.result.at,
                "took_s": origin.result.took_s,
                "command": parts.get("command"),
                "item": parts.get("item"),
                "python": parts.get("python"),
            }
        read = [source.as_data() for source in self.read]
        return {
            "name": self.name,
            "digest": self.digest,
            "made_by": made,
            "code": self.code,
            "inputs": self.inputs,
            "read": read,
        }


def find(cluster: LocalCluster, what: str) -> str:
    """Return the hash of an artefact named by ``RUN/STEP.OUTPUT``, its path, or a prefix of its hash.

    Raises:
        NotFound: The artefact does not exist.
        Conflict: The prefix is ambiguous.
    """
    name, slash, output = what.rpartition("/")
    if slash and "." in output and not Path(what).exists():
        return _of_run(cluster, name, output)
    digest = output if slash else what
    root = store_of(cluster.home)
    if len(digest) < LEAST_DIGITS or not set(digest) <= set("0123456789abcdef"):
        raise NotFound(
            f"{what!r} is no artefact; give RUN/STEP.OUTPUT, its path, or {LEAST_DIGITS} digits of its hash."
        )
    file_names = sorted({file.name for file in (root / digest[:2]).glob(f"{digest}*")})
    if not file_names:
        raise NotFound(f"No artefact begins with {digest}.")
    if len(file_names) > 1:
        raise Conflict(f"{len(file_names)} artefacts begin with {digest}; give more digits.")
    return file_names[0]


def lineage_of(cluster: LocalCluster, digest: str) -> Lineage:
    """Return the lineage of an artefact."""
    results = Results(store_of(cluster.home) / "results.db")
    try:
        return _follow(results, digest, None, None, {})
    finally:
        results.close()


_Known = dict[tuple[str, str | None, float | None], Lineage]


def _follow(results: Results, digest: str, name: str | None, before: float | None, known: _Known) -> Lineage:
    """Trace content made before a time: several tasks may have made the same content, its reader among them.

    Args:
        known: Cache of traced artefacts, since many tasks may have read the same.
    """
    origin = known.get((digest, name, before))
    if origin is None:
        origin = known[digest, name, before] = _followed(results, digest, name, before, known)
    return origin


def _followed(results: Results, digest: str, name: str | None, before: float | None, known: _Known) -> Lineage:
    origins = [candidate for candidate in results.origins(digest) if before is None or candidate.result.at < before]
    origins.sort(key=lambda origin: f"{origin.task}.{origin.output}" != name)
    origin = origins[0] if origins else None
    parts = {} if origin is None else origin.result.parts
    return Lineage(
        name=name or (digest[:12] if origin is None else origin.output),
        digest=digest,
        origin=origin,
        code=results.listing(parts.get(CODE, "")),
        inputs={part.removeprefix("input "): content for part, content in parts.items() if part.startswith("input ")},
        read=tuple(
            _follow(results, content, part, None if origin is None else origin.result.at, known)
            for part, content in parts.items()
            if _is_artefact(part)
        ),
    )


def _is_artefact(part: str) -> bool:
    return part not in _OWN and not part.startswith(_OWN_PREFIXES)


def _of_run(cluster: LocalCluster, name: str, output: str) -> str:
    run = cluster.find(name)
    pipeline = pipeline_of(run.spec)
    if pipeline is None:
        raise NotFound(f"{name} is not a pipeline, and has no artefacts.")
    known = dict(_outputs(progress_of(pipeline, run, cluster.home.run(run.uid)).steps))
    if output not in known:
        raise NotFound(f"{name} has no output {output}; it has: {', '.join(known) or 'none'}.")
    return known[output]


def _outputs(steps: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for tasks in steps.values():
        for task in tasks:
            for output, digest in task.outputs.items():
                yield f"{task.name}.{output}", digest
