"""Registers versions of models in an MLflow registry if MLflow's usual variables name a server.

A registered version is identified by the hash of its content: the next registration resumes an interrupted one, and
content is never registered twice. A stage becomes an alias.

See decision 121.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fairlead.errors import ClusterError, Conflict
from fairlead.frozen import dataclass
from fairlead.runtime.experiment_tracking.mlflow_rest import THERE_ALREADY, Mlflow, MlflowError
from fairlead.runtime.experiment_tracking.mlflow_target import TAG
from fairlead.runtime.experiment_tracking.target import Refused
from fairlead.state.models import ModelVersion

TRACKING, REGISTRY = "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"
DIGEST = "fairlead.digest"
VERSION = "fairlead.version"
# Scheme of artefacts that an MLflow server stores itself and accepts over HTTP.
PROXIED = "mlflow-artifacts"
MOST_VERSIONS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredVersion:
    """A version in a registry.

    Attributes:
        is_new: It did not exist before.
    """

    name: str
    version: str
    address: str
    is_new: bool = False


def is_configured(env: Mapping[str, str]) -> bool:
    """Return whether a registry with an HTTP address is configured."""
    return any(env.get(name, "").startswith(("http://", "https://")) for name in (REGISTRY, TRACKING))


def register(version: ModelVersion, content: Path, env: Mapping[str, str]) -> RegisteredVersion:
    """Create the version in the registry, or find it there.

    Args:
        content: Path of its content.
        env: An environment in which one of MLflow's variables names a server.

    Raises:
        ClusterError: The server does not answer.
        Conflict: The server refuses.
    """
    try:
        return _Registry(env).register(version, content)
    except Refused as error:
        raise Conflict(f"{version} is not registered: {error}. {_again(version)}") from error
    except OSError as error:
        why = getattr(error, "reason", error)
        raise ClusterError(f"{version} is not registered: MLflow does not answer: {why}. {_again(version)}") from error


def alias(version: ModelVersion, content: Path, stage: str, env: Mapping[str, str]) -> RegisteredVersion:
    """Make the stage an alias of the version in the registry; register the version first if it is missing.

    Raises:
        ClusterError: The server does not answer.
        Conflict: The server refuses.
    """
    registered = register(version, content, env)
    again = f"`fairlead model promote {version} --to {stage}` tries again."
    try:
        body = {"name": registered.name, "alias": stage, "version": registered.version}
        _Registry(env).models.post("registered-models/alias", body)
    except Refused as error:
        raise Conflict(f"{stage} is not an alias of {version} in the registry: {error}. {again}") from error
    except OSError as error:
        raise ClusterError(f"{stage} is not an alias of {version} in the registry: {error}. {again}") from error
    return registered


class _Registry:
    """The server of models, and the server of runs and files, usually the same."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.models = Mlflow(env.get(REGISTRY) or env[TRACKING], env)
        self._runs = Mlflow(env[TRACKING], env) if env.get(TRACKING) else self.models

    def register(self, version: ModelVersion, content: Path) -> RegisteredVersion:
        known = self._find(version)
        if known is not None:
            return self._registered(known, is_new=False)
        try:
            self.models.post("registered-models/create", {"name": version.name})
        except MlflowError as error:
            if error.code != THERE_ALREADY:
                raise
        run = self._run_of(version)
        root = str(run["artifact_uri"]).rstrip("/")
        place = urlsplit(root)
        if place.scheme != PROXIED:
            raise Refused(
                f"the server keeps files in {root}, where only those who can reach that may put any; start it with "
                "`--artifacts-destination`, so that it takes them itself"
            )
        below = f"model-{version.digest[:12]}"
        for path, name in _files(content):
            with path.open("rb") as file:
                self._runs.upload(f"{place.path.strip('/')}/{below}/{name}", file, path.stat().st_size)
        tags = {DIGEST: version.digest, VERSION: str(version)}
        made = self.models.post(
            "model-versions/create",
            {"name": version.name, "source": f"{root}/{below}", "run_id": run["run_id"], "tags": _pairs(tags)},
        )
        return self._registered(made["model_version"], is_new=True)

    def _find(self, version: ModelVersion) -> dict[str, Any] | None:
        wanted = {"filter": f"name = '{version.name}'", "max_results": str(MOST_VERSIONS)}
        for model_version in self.models.get("model-versions/search", **wanted).get("model_versions") or ():
            if {"key": DIGEST, "value": version.digest} in (model_version.get("tags") or ()):
                fields: dict[str, Any] = model_version
                return fields
        return None

    def _run_of(self, version: ModelVersion) -> dict[str, Any]:
        """Return the MLflow run of the version's origin if its metrics were sent there; else create one."""
        experiment = self._runs.experiment(self._env)
        uid = version.lineage.get("uid")
        for tag, value in ((TAG, uid), (DIGEST, version.digest)):
            known = self._runs.find_run(experiment, tag, str(value)) if value is not None else None
            if known is not None:
                info: dict[str, Any] = known["info"]
                return info
        now_ms = int(time.time() * 1000)
        body = {
            "experiment_id": experiment,
            "run_name": str(version),
            "start_time": now_ms,
            "tags": _pairs({DIGEST: version.digest, "mlflow.runName": str(version)}),
        }
        made: dict[str, Any] = self._runs.post("runs/create", body)["run"]["info"]
        values = [
            {"key": name, "value": value, "timestamp": now_ms, "step": int(version.lineage.get("step") or 0)}
            for name, value in version.metrics.items()
        ]
        self._runs.post("runs/log-batch", {"run_id": made["run_id"], "metrics": values})
        self._runs.post("runs/update", {"run_id": made["run_id"], "status": "FINISHED", "end_time": now_ms})
        return made

    def _registered(self, fields: Mapping[str, Any], *, is_new: bool) -> RegisteredVersion:
        name, number = str(fields["name"]), str(fields["version"])
        address = f"{self.models.address}/#/models/{name}/versions/{number}"
        return RegisteredVersion(name=name, version=number, address=address, is_new=is_new)


def _files(content: Path) -> Iterator[tuple[Path, str]]:
    """Yield every file of a model with its relative name."""
    if content.is_file():
        yield content, content.name
        return
    for path in sorted(content.rglob("*")):
        if path.is_file():
            yield path, path.relative_to(content).as_posix()


def _pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]


def _again(version: ModelVersion) -> str:
    return f"{version} is kept on this machine; push it once more to register it, or unset {TRACKING} to do without."
