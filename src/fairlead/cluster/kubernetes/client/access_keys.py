"""Access keys of teams: hashes in a ConfigMap of each team's namespace, written with the user's own rights."""

import json

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.names import ACCESS_KEYS, MANAGED_BY, MANAGER, segment
from fairlead.cluster.kubernetes.workloads.team_keys import read_keys
from fairlead.errors import Conflict, NotFound
from fairlead.state.access_keys import AccessKey, too_many


def keys_of(client: Client, team: str) -> tuple[AccessKey, ...]:
    """Return the keys of a team, oldest first."""
    configmap = _configmap(client, team)
    keys = () if configmap is None else read_keys(configmap).keys
    return tuple(sorted(keys, key=lambda key: (key.created_at, key.name)))


def add_key(client: Client, key: AccessKey, options: str) -> None:
    """Store a key.

    Args:
        options: Options of a command that select this cluster, for a message.

    Raises:
        Conflict: The team has a key of that name, or as many as it may have, or another client changed its keys at the
            same time.
    """
    configmap = _configmap(client, key.team)
    if configmap is not None and key.name in (configmap.get("data") or {}):
        raise Conflict(
            f"Team {key.team} has a key {key.name}. Give another name, or "
            f"`{f'fairlead keys revoke {key.name} --team {key.team} {options}'.rstrip()}` first."
        )
    if configmap is not None and (refusal := too_many(key.team, read_keys(configmap).keys, options)) is not None:
        raise Conflict(refusal)
    record = {"sha256": key.sha256, "created_at": key.created_at, "expires_at": key.expires_at}
    data = {key.name: json.dumps({name: value for name, value in record.items() if value is not None})}
    metadata = {"name": ACCESS_KEYS, "labels": {MANAGED_BY: MANAGER}}
    if configmap is None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        try:
            client.create(_place(key.team), body)
        except ApiError as error:
            raise _explained(error, key.team) from error
        return
    _merge(client, key.team, {"metadata": _version(configmap), "data": data})


def remove_key(client: Client, team: str, name: str) -> None:
    """Remove a key.

    Raises:
        NotFound: The team has no key of that name.
        Conflict: Another client changed its keys at the same time.
    """
    configmap = _configmap(client, team)
    keys = {} if configmap is None else configmap.get("data") or {}
    if configmap is None or name not in keys:
        raise NotFound(f"Team {team} has no key {name}; it has: {', '.join(sorted(keys)) or 'none'}.")
    _merge(client, team, {"metadata": _version(configmap), "data": {name: None}})


def _version(configmap: Object) -> Object:
    return {"resourceVersion": configmap["metadata"]["resourceVersion"]}


def _merge(client: Client, team: str, body: Object) -> None:
    try:
        client.merge(f"{_place(team)}/{ACCESS_KEYS}", body)
    except ApiError as error:
        raise _explained(error, team) from error


def _explained(error: ApiError, team: str) -> Exception:
    if error.status == 409:
        return Conflict(f"Somebody else has changed the keys of team {team} at this moment; try again.")
    return error


def _configmap(client: Client, team: str) -> Object | None:
    try:
        return client.get(f"{_place(team)}/{ACCESS_KEYS}")
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _place(team: str) -> str:
    return f"/api/v1/namespaces/{segment(team)}/configmaps"
