"""``fairlead model``: versions of models, where they came from, and their stages."""

import math
import os
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.control.opening import open_local
from fairlead.state.models import ModelVersion
from fairlead.text.quantities import describe_memory

if TYPE_CHECKING:
    from fairlead.control.model_registry import RegisteredVersion

DIGITS = 12


@click.group()
def model() -> None:
    """Keep versions of models, and promote them to stages.

    What a version is named by can be used as `checkpoint.from` of a run: NAME@production or another stage, NAME@best,
    NAME@latest, NAME@3, or run://NAME@best for a checkpoint that is no version.
    """


@model.command()
@click.argument("name")
@click.argument("source")
@click.option("--metric", "metrics", multiple=True, metavar="NAME=VALUE", help="What it reached; may be repeated.")
@click.option("--objective", metavar="METRIC[:GOAL]", help="What versions compare by, such as `accuracy:maximize`.")
@json_option
def push(name: str, source: str, metrics: tuple[str, ...], objective: str | None, json_: bool) -> None:
    """Make a version of the model NAME from SOURCE.

    SOURCE is a run (its newest checkpoint; of a sweep its best trial's), run://RUN@best, run://RUN@STEP,
    RUN/STEP.OUTPUT of a pipeline, or a path. Where MLFLOW_REGISTRY_URI or MLFLOW_TRACKING_URI names a server, the
    version is registered there too.
    """
    from fairlead.control.model_registry import is_configured, register
    from fairlead.control.models import push as push_model

    cluster = open_local()
    given = dict(_metric(each) for each in metrics)
    version, is_new = push_model(cluster, name, source, metrics=given, objective=objective)
    registered = None
    if is_configured(os.environ):
        registered = register(version, cluster.home.artefact(version.digest), os.environ)
    if json_:
        print(as_json({**told(version), "new": is_new, "registered": _told_registered(registered)}))
        return
    print(version)
    if registered is not None:
        message(f"In the registry it is version {registered.version}: {registered.address}")
    if is_new:
        message(f"`fairlead model promote {version} --to production` gives it a stage.")
    else:
        message(f"It was there already: {version} has this content from this place.")


@model.command("list")
@click.argument("name", required=False)
@json_option
def list_(name: str | None, json_: bool) -> None:
    """List models and their versions, those of NAME or all."""
    from fairlead.cluster.local.models import find_version
    from fairlead.specs.model_reference import LATEST, ModelReference
    from fairlead.state.models import best_version

    cluster = open_local()
    if name is not None:
        find_version(cluster, ModelReference(name=name, which=LATEST))
    versions = cluster.models(name)
    best = {each: best_version([v for v in versions if v.name == each]) for each in {v.name for v in versions}}
    if json_:
        print(as_json({"models": [{**told(each), "best": best[each.name] == each} for each in versions]}))
        return
    if not versions:
        message("No model has a version yet. `fairlead model push NAME RUN` makes one of a run's checkpoint.")
        return
    rows: list[tuple[str, ...]] = [("MODEL", "STAGE", "BEST", "METRICS", "FROM", "SIZE", "PUSHED", "CONTENT")]
    for each in versions:
        metrics = ", ".join(f"{metric} {value:.6g}" for metric, value in sorted(each.metrics.items()))
        rows.append((
            str(each), each.stage or "-", "best" if best[each.name] == each else "-", metrics or "-", origin(each),
            describe_memory(each.size_bytes), describe_time(each.created_at), each.digest[:DIGITS],
        ))  # fmt: skip
    print(table(rows))


@model.command()
@click.argument("version")
@click.option("--to", "stage", required=True, metavar="STAGE", help="Such as `production`.")
@json_option
def promote(version: str, stage: str, json_: bool) -> None:
    """Give VERSION a stage, which a model has at most one version of.

    VERSION is NAME@best, NAME@latest, NAME@3 or NAME@STAGE. Where MLFLOW_REGISTRY_URI or MLFLOW_TRACKING_URI names a
    server, the stage is an alias there.
    """
    from fairlead.control.model_registry import alias, is_configured
    from fairlead.control.models import promote as promote_model

    cluster = open_local()
    now, before = promote_model(cluster, version, stage)
    registered = None
    if is_configured(os.environ):
        registered = alias(now, cluster.home.artefact(now.digest), stage, os.environ)
    if json_:
        said = {"before": None if before is None else before.version, "registered": _told_registered(registered)}
        print(as_json({**told(now), **said}))
        return
    print(f"{now} is {stage}")
    if registered is not None:
        message(f"In the registry {stage} is version {registered.version}: {registered.address}")
    if before is not None:
        message(f"{before} was before; `fairlead model promote {before} --to {stage}` goes back.")


@model.command()
@click.argument("version")
@json_option
def delete(version: str, json_: bool) -> None:
    """Remove VERSION, which is NAME@3. One that has a stage stays.

    Its number is not given again. `fairlead prune --artefacts` removes its content where nothing else needs that.
    """
    from fairlead.control.models import delete as delete_model

    gone = delete_model(open_local(), version)
    if json_:
        print(as_json(told(gone)))
    else:
        message(f"{gone} is removed. `fairlead prune --artefacts` removes its content where nothing else needs that.")


def told(version: ModelVersion) -> dict[str, Any]:
    """A version as an object for programs."""
    return {
        "name": version.name,
        "version": version.version,
        "stage": version.stage,
        "content": version.content,
        "digest": version.digest,
        "size_bytes": version.size_bytes,
        "created_at": version.created_at,
        "metrics": dict(version.metrics),
        "objective": version.objective,
        "goal": version.goal,
        "lineage": dict(version.lineage),
    }


def _told_registered(found: "RegisteredVersion | None") -> dict[str, str] | None:
    return None if found is None else {"name": found.name, "version": found.version, "address": found.address}


def origin(version: ModelVersion) -> str:
    """Tell where a version came from, in a few words."""
    lineage = version.lineage
    kind = lineage.get("kind")
    if kind == "run":
        return f"{lineage['run']} at step {lineage['step']}"
    return str(lineage.get({"output": "output", "model": "model"}.get(str(kind), "path"), "-"))


def _metric(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not name or not equals or not math.isfinite(number):
        raise click.BadParameter(f"{text!r} is no metric; give a name and a number, such as accuracy=0.93.")
    return name, number
