"""Applies triggered pipelines to a cluster, where each is a persistent object, and lists them."""

from pathlib import Path
from typing import Any, cast

from fairlead.cli.show import message
from fairlead.cluster.client import ClusterClient
from fairlead.control.admission import Admission, admit_as, with_images
from fairlead.control.pipelines.as_pod import as_standing
from fairlead.control.pipelines.triggers import check_timezone
from fairlead.errors import Conflict
from fairlead.policy.kinds.standing_pipeline import is_standing
from fairlead.specs.keys import Spec
from fairlead.specs.pipeline import Pipeline
from fairlead.state.snapshot import AnyWorkload, Workload


def apply_specs(cluster: ClusterClient, specs: list[tuple[Spec, Path]]) -> list[dict[str, Any]]:
    """Submit pipelines, or update the specs of existing ones; return the outcome of each.

    Args:
        specs: Each with the directory that its relative paths start from.

    Raises:
        Conflict: A spec is not a triggered pipeline, or the cluster cannot run it.
    """
    wanted = [_admitted(cluster, _only(spec), directory) for spec, directory in specs]
    outcomes = []
    for admitted in (with_images(cluster, admitted, message) for admitted in wanted):
        name = admitted.spec.name
        before = next(
            (pipeline for pipeline in standing_in(cluster, admitted.spec.team) if pipeline.spec.name == name), None
        )
        # Under its own name: a finished one is replaced.
        run = cluster.launch(admitted.spec, directory=admitted.directory)
        if before is None:
            change, text = "applied", f"Applied {name}{cluster.where(run)}"
        elif before.spec == run.spec:
            change, text = "none", f"{name} is applied already{cluster.where(run)}"
        else:
            change, text = "changed", f"Changed {name}{cluster.where(run)}"
        outcomes.append(
            {"name": name, "change": change, "said": f"{text}: the operator runs it {_when(admitted.spec)}."}
        )
    return outcomes


def standing_in(cluster: ClusterClient, team: str | None = None) -> list[Workload[Pipeline]]:
    """Return the triggered pipelines, sorted by name."""
    pipelines = [
        cast("Workload[Pipeline]", pipeline)
        for pipeline in cluster.unfinished(team)
        if isinstance(pipeline.spec, Pipeline) and is_standing(pipeline.spec)
    ]
    return sorted(pipelines, key=lambda pipeline: pipeline.spec.name)


def describe_standing(pipeline: AnyWorkload) -> tuple[str, ...]:
    """Return the name, team and state of a pipeline."""
    return pipeline.spec.name, pipeline.spec.team, f"{pipeline.status.phase.value}: {pipeline.status.reason.message}"


def _only(spec: Any) -> Pipeline:
    if not isinstance(spec, Pipeline):
        kind = type(spec).__name__
        raise Conflict(
            f"{spec.name} is a {kind}; `fairlead run` starts it. Only Pipelines and Datasets can be applied."
        )
    if spec.schedule is None and spec.on is None:
        raise Conflict(
            f"{spec.name}: it has neither `schedule` nor `on`, by which it would run by itself; `fairlead run` runs "
            "it, and what is unchanged is not run again."
        )
    check_timezone(spec)
    return spec


def _admitted(cluster: ClusterClient, spec: Pipeline, directory: Path) -> Admission[Pipeline]:
    return admit_as(cluster, as_standing(cluster.in_its_team(spec)), directory)


def _when(spec: Pipeline) -> str:
    parts = [] if spec.schedule is None else [f"at `{spec.schedule.cron}` {spec.schedule.timezone}"]
    if spec.on is not None:
        parts += [f"when {', '.join(spec.on.data)} changes"] if spec.on.data else []
        parts += [] if spec.on.drift is None else [f"when {spec.on.drift.data} drifts"]
    return " and ".join(parts)
