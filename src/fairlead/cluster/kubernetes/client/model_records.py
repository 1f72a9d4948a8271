"""Versions of models on a cluster: records in a ConfigMap of the namespace, written with the user's own rights.

Their content is in the object store of the checkpoints that they come from. Each write is guarded by the version of the
ConfigMap on which it was decided, and decided again if another client wrote first.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TypeVar

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.names import MANAGED_BY, MANAGER, MODELS, segment
from fairlead.cluster.model_versions import is_same, updated
from fairlead.errors import ClusterError, Conflict, NotFound
from fairlead.specs.goal import Goal
from fairlead.state.models import ModelContent, ModelVersion
from fairlead.untrusted_json import parse_object

MOST_RECORD_BYTES = 1 << 20
MOST_TRIES = 20
MOST_BYTES = 900_000
"""Most bytes of all records of a namespace; an API server accepts objects of about 1 MiB."""

Answer = TypeVar("Answer")
_Changes = Mapping[str, str | None]


def versions_of(client: Client, namespace: str, name: str | None = None) -> tuple[ModelVersion, ...]:
    """Return the versions of one model or of all models, by name and number."""
    return _versions(_data(_configmap(client, namespace)), name)


def add_version(client: Client, namespace: str, version: ModelVersion) -> tuple[ModelVersion, bool]:
    """Store a version under the next number of its name; or return the one of the same content and origin, and False.

    Raises:
        Conflict: The namespace has no room for another version, or other clients keep writing.
    """

    def decide(data: Mapping[str, str]) -> tuple[tuple[ModelVersion, bool], _Changes]:
        for stored in _versions(data, version.name):
            if is_same(stored, version):
                known = updated(stored, version)
                return (known, False), {} if known == stored else {_key(known): _written(known)}
        made = replace(version, version=int(data.get(version.name, "0")) + 1, stage=None)
        changes = {version.name: str(made.version), _key(made): _written(made)}
        if sum(map(len, data.values())) + sum(map(len, changes.values())) > MOST_BYTES:
            raise Conflict(
                f"The namespace {namespace} has no room for more versions of models; remove some with "
                "`fairlead model delete`."
            )
        return (made, True), changes

    return _change(client, namespace, decide)


def remove_version(client: Client, namespace: str, version: ModelVersion) -> None:
    """Remove a version.

    Raises:
        Conflict: The version has a stage by now.
    """

    def decide(data: Mapping[str, str]) -> tuple[None, _Changes]:
        now = _read(data, version)
        if now is None:
            return None, {}
        if now.stage is not None:
            raise Conflict(f"{now} is {now.stage}; promote another version to that first.")
        return None, {_key(now): None}

    _change(client, namespace, decide)


def promote_version(client: Client, namespace: str, version: ModelVersion, stage: str) -> ModelVersion:
    """Give a version a stage, and remove the stage from the version that has it.

    Raises:
        NotFound: The version was removed in the meantime.
    """

    def decide(data: Mapping[str, str]) -> tuple[ModelVersion, _Changes]:
        now = _read(data, version)
        if now is None:
            raise NotFound(f"{version} was removed at this moment.")
        made = replace(now, stage=stage)
        before = [other for other in _versions(data, version.name) if other.stage == stage and other != made]
        changes = {_key(other): _written(replace(other, stage=None)) for other in before}
        return made, {**changes, _key(made): _written(made)}

    return _change(client, namespace, decide)


def _change(client: Client, namespace: str, decide: Callable[[Mapping[str, str]], tuple[Answer, _Changes]]) -> Answer:
    for _ in range(MOST_TRIES):
        configmap = _configmap(client, namespace)
        answer, changes = decide(_data(configmap))
        if not changes:
            return answer
        metadata = {"name": MODELS, "labels": {MANAGED_BY: MANAGER}}
        try:
            if configmap is None:
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(changes)}
                client.create(_place(namespace), body)
            else:
                version = {"resourceVersion": configmap["metadata"]["resourceVersion"]}
                client.merge(f"{_place(namespace)}/{MODELS}", {"metadata": version, "data": dict(changes)})
        except ApiError as error:
            if error.status != 409:
                raise
            continue
        return answer
    raise Conflict(f"Others change the models of the namespace {namespace} all the time; try again.")


def _data(configmap: Object | None) -> Mapping[str, str]:
    return {} if configmap is None else configmap.get("data") or {}


def _configmap(client: Client, namespace: str) -> Object | None:
    try:
        return client.get(f"{_place(namespace)}/{MODELS}")
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _place(namespace: str) -> str:
    return f"/api/v1/namespaces/{segment(namespace)}/configmaps"


def _key(version: ModelVersion) -> str:
    """Return the key of a record; the key without a number holds the last number assigned."""
    return f"{version.name}.{version.version}"


def _versions(data: Mapping[str, str], name: str | None) -> tuple[ModelVersion, ...]:
    versions = [_of(text) for key, text in data.items() if "." in key and name in (None, key.rpartition(".")[0])]
    return tuple(sorted(versions, key=lambda version: (version.name, version.version)))


def _read(data: Mapping[str, str], version: ModelVersion) -> ModelVersion | None:
    text = data.get(_key(version))
    return None if text is None else _of(text)


def _written(version: ModelVersion) -> str:
    return json.dumps(asdict(version), separators=(",", ":"))


def _of(text: str) -> ModelVersion:
    try:
        record = parse_object(text, max_bytes=MOST_RECORD_BYTES)
        goal = record.pop("goal")
        return ModelVersion(
            **{**record, "content": ModelContent(record["content"])}, goal=None if goal is None else Goal(goal)
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ClusterError(f"A record of a model version was not written by Fairlead: {error}") from error
