"""``fairlead model``: versions of models, their origins and their stages."""

import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.local.models import resolve
from fairlead.cluster.model_versions import find_version
from fairlead.control.model_publishing import publish as write_signed
from fairlead.control.model_registry import alias, is_configured, register
from fairlead.control.models import delete as delete_model
from fairlead.control.models import promote as promote_model
from fairlead.control.models import version_of
from fairlead.control.opening import open_local
from fairlead.deferred import deferred
from fairlead.errors import Conflict
from fairlead.specs.model_reference import LATEST, ModelReference
from fairlead.state.models import ModelVersion, best_version
from fairlead.text.quantities import describe_memory

if TYPE_CHECKING:
    from fairlead.cluster.local.cluster import LocalCluster
    from fairlead.cluster.model_versions import ModelVersions
    from fairlead.control import cluster_models, models
    from fairlead.control.model_registry import RegisteredVersion
else:
    cluster_models = deferred("fairlead.control.cluster_models")
    models = deferred("fairlead.control.models")

DIGITS = 12


@click.group()
def model() -> None:
    """Manage versions of models, and promote them to stages.

    Versions are stored on this machine, or with --context in a namespace of a cluster, with their content in the object
    store of its checkpoints. Use them in `checkpoint.from` of a run or `model` of an endpoint, as NAME@production or
    another stage, NAME@best, NAME@latest or NAME@3; on this machine also run://NAME@best for a run's checkpoint.
    """


@model.command()
@click.argument("name")
@click.argument("source")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME=VALUE", help="Metric of the version; may be repeated."
)
@click.option(
    "--objective",
    metavar="METRIC[:GOAL]",
    help="Objective by which versions are compared, such as `accuracy:maximize`.",
)
@json_option
@cluster_options
def push(name: str, source: str, metrics: tuple[str, ...], objective: str | None, json_: bool, target: Target) -> None:
    """Create a version of the model NAME from SOURCE.

    SOURCE is a run (its newest checkpoint; for a sweep that of its best trial), run://RUN@best, run://RUN@STEP, a
    version of another model, or on this machine RUN/STEP.OUTPUT of a pipeline, a federation (the model of its last
    round) or a path. If MLFLOW_REGISTRY_URI or MLFLOW_TRACKING_URI is set, the version is also registered at that
    server.
    """
    cluster = target.quietly()
    values = dict(_metric(metric) for metric in metrics)
    version, is_new = _push_at(target)(cluster, name, source, metrics=values, objective=objective)
    registered = None
    if is_configured(os.environ):
        with _content(target, cluster, version) as content:
            registered = register(version, content, os.environ)
    if json_:
        print(as_json({**version_json(version), "new": is_new, "registered": _registration(registered)}))
        return
    print(version)
    if registered is not None:
        message(f"In the registry it is version {registered.version}: {registered.address}")
    if is_new:
        command = f"fairlead model promote {version} --to production {cluster.named()}".rstrip()
        message(f"`{command}` gives it a stage.")
    else:
        added = "; the given metrics were added to it" if values else ""
        message(f"It was there already, with this content from this source{added}.")


@model.command("list")
@click.argument("name", required=False)
@json_option
@cluster_options
def list_(name: str | None, json_: bool, target: Target) -> None:
    """List the versions of the model NAME, or of all models."""
    cluster = cast("ModelVersions", target.quietly())
    if name is not None:
        find_version(cluster, ModelReference(name=name, which=LATEST))
    versions = cluster.models(name)
    best = {model: best_version([v for v in versions if v.name == model]) for model in {v.name for v in versions}}
    if json_:
        models = [{**version_json(version), "best": best[version.name] == version} for version in versions]
        print(as_json({"models": models}))
        return
    if not versions:
        command = f"fairlead model push NAME RUN {cluster.named()}".rstrip()
        message(f"No model has a version yet. `{command}` makes one of a run's checkpoint.")
        return
    rows: list[tuple[str, ...]] = [("MODEL", "STAGE", "BEST", "METRICS", "FROM", "SIZE", "PUSHED", "CONTENT")]
    for version in versions:
        metrics = ", ".join(f"{metric} {value:.6g}" for metric, value in sorted(version.metrics.items()))
        rows.append((
            str(version), version.stage or "-", "best" if best[version.name] == version else "-", metrics or "-",
            origin(version), describe_memory(version.size_bytes), describe_time(version.created_at),
            version.digest[:DIGITS],
        ))  # fmt: skip
    print(table(rows))


@model.command()
@click.argument("version")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Private Ed25519 key of OpenSSH, with which it is signed.",
)
@click.option(
    "--arch",
    "architectures",
    multiple=True,
    type=click.Choice(("amd64", "arm64")),
    help="CPU kind that it was made for; may be repeated, any if left out.",
)
@json_option
def publish(version: str, directory: Path, key: Path, architectures: tuple[str, ...], json_: bool) -> None:
    """Write VERSION of a model of this machine into DIRECTORY, signed and in chunks, for `signed_by` of endpoints.

    Serve DIRECTORY by any web server or object store, or copy it to the sites. Chunks that another version in it has
    already are not written again, nor sent again to a site that has them.
    """
    cluster = open_local()
    resolved = resolve(cluster, version)
    if resolved.version is None:
        raise Conflict(
            f"{version} is not a version of a model. Push it first, by `fairlead model push NAME {version}`."
        )
    label = f"{resolved.version.name}-{resolved.version.version}"
    directory.mkdir(parents=True, exist_ok=True)
    published = write_signed(resolved.path, label, directory, key, architectures=architectures)
    if json_:
        print(
            as_json(
                {
                    "index": str(published.index), "signed_by": published.signer, "size": published.size,
                    "written": published.written,
                }
            )
        )  # fmt: skip
        return
    print(f"{published.index}\nsigned_by: {published.signer}")
    message(f"{describe_memory(published.written)} of {describe_memory(published.size)} were new in {directory}.")


@model.command()
@click.argument("version")
@click.option("--to", "stage", required=True, metavar="STAGE", help="Such as `production`.")
@json_option
@cluster_options
def promote(version: str, stage: str, json_: bool, target: Target) -> None:
    """Move a stage to VERSION; a stage has one version of each model.

    VERSION is NAME@best, NAME@latest, NAME@3 or NAME@STAGE. If MLFLOW_REGISTRY_URI or MLFLOW_TRACKING_URI is set, the
    stage is an alias at that server.
    """
    cluster = target.quietly()
    now, before = promote_model(cast("ModelVersions", cluster), version, stage)
    registered = None
    if is_configured(os.environ):
        with _content(target, cluster, now) as content:
            registered = alias(now, content, stage, os.environ)
    if json_:
        changes = {"before": None if before is None else before.version, "registered": _registration(registered)}
        print(as_json({**version_json(now), **changes}))
        return
    print(f"{now} is {stage}")
    if registered is not None:
        message(f"In the registry {stage} is version {registered.version}: {registered.address}")
    if before is not None:
        command = f"fairlead model promote {before} --to {stage} {cluster.named()}".rstrip()
        message(f"{before} was before; `{command}` goes back.")


@model.command()
@click.argument("version")
@json_option
@cluster_options
def delete(version: str, json_: bool, target: Target) -> None:
    """Remove VERSION, such as NAME@3, unless it has a stage.

    Its number is not reused. On this machine `fairlead prune --artefacts` removes its content unless something else
    needs it. On a cluster the content stays, as runs and endpoints may need it when they restart.
    """
    gone = delete_model(cast("ModelVersions", target.quietly()), version)
    if json_:
        print(as_json(version_json(gone)))
    elif gone.place is not None:
        message(f"{gone} is removed. Its content stays at {gone.place}.")
    else:
        message(f"{gone} is removed. `fairlead prune --artefacts` removes its content unless something else needs it.")


@model.command()
@click.argument("version")
@click.argument("place", type=click.Path(path_type=Path))
@json_option
@cluster_options
def get(version: str, place: Path, json_: bool, target: Target) -> None:
    """Copy the content of VERSION, such as NAME@best, to PLACE, a new file or directory."""
    cluster = target.quietly()
    model_version = version_of(cast("ModelVersions", cluster), version)
    if place.exists() or place.is_symlink():
        raise Conflict(f"{place} is there already; give a new name, or remove it.")
    with _content(target, cluster, model_version) as content:
        if content.is_dir():
            shutil.copytree(content, place, symlinks=True)
        else:
            shutil.copyfile(content, place)
    if json_:
        print(as_json({**version_json(model_version), "copied_to": str(place)}))
    else:
        message(f"Copied {model_version} ({describe_memory(model_version.size_bytes)}) to {place}.")


def version_json(version: ModelVersion) -> dict[str, Any]:
    """Return a version as a JSON object."""
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
        "place": version.place,
    }


def _push_at(target: Target) -> "Callable[..., tuple[ModelVersion, bool]]":
    """Return the function that creates versions on a target."""
    if target.is_kubernetes:
        return cluster_models.push

    return models.push


@contextmanager
def _content(target: Target, cluster: Any, version: ModelVersion) -> Iterator[Path]:
    """Provide the content of a version as local files within the block."""
    if not target.is_kubernetes:
        yield cast("LocalCluster", cluster).home.artefact(version.digest)
        return

    with cluster_models.fetched(version) as directory:
        yield directory


def _registration(registered: "RegisteredVersion | None") -> dict[str, str] | None:
    return (
        None
        if registered is None
        else {"name": registered.name, "version": registered.version, "address": registered.address}
    )


def origin(version: ModelVersion) -> str:
    """Describe the origin of a version in a few words."""
    lineage = version.lineage
    kind = lineage.get("kind")
    if kind == "run":
        return f"{lineage['run']} at step {lineage['step']}"
    if kind == "federation":
        return f"{lineage['run']} after round {lineage['round']}"
    return str(lineage.get({"output": "output", "model": "model"}.get(str(kind), "path"), "-"))


def _metric(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not name or not equals or not math.isfinite(number):
        raise click.BadParameter(f"{text!r} is not a metric; give a name and a number, such as accuracy=0.93.")
    return name, number
