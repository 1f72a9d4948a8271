"""Access keys of teams: hashes in a ConfigMap of each team's namespace, written with the user's own rights."""

import json

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.names import ACCESS_KEYS, MANAGED_BY, MANAGER
from fairlead.cluster.kubernetes.operator.pods.gateways import read_keys
from fairlead.errors import Conflict, NotFound
from fairlead.state.access_keys import AccessKey


def keys_of(client: Client, team: str) -> tuple[AccessKey, ...]:
    """Return the keys of a team, oldest first."""
    found = _configmap(client, team)
    keys = () if found is None else read_keys(found).keys
    return tuple(sorted(keys, key=lambda each: (each.created_at, each.name)))


def add_key(client: Client, key: AccessKey, options: str) -> None:
    """Store a key.

    Args:
        options: Options of a command that select this cluster, for a message.

    Raises:
        Conflict: The team has a key of that name, or another client changed its keys at the same time.
    """
    found = _configmap(client, key.team)
    if found is not None and key.name in (found.get("data") or {}):
        raise Conflict(
            f"Team {key.team} has a key {key.name}. Give another name, or "
            f"`{f'fairlead keys revoke {key.name} --team {key.team} {options}'.rstrip()}` first."
        )
    data = {key.name: json.dumps({"sha256": key.sha256, "created_at": key.created_at})}
    metadata = {"name": ACCESS_KEYS, "labels": {MANAGED_BY: MANAGER}}
    if found is None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        try:
            client.create(_place(key.team), body)
        except ApiError as error:
            raise _explained(error, key.team) from error
        return
    _merge(client, key.team, {"metadata": _version(found), "data": data})


def remove_key(client: Client, team: str, name: str) -> None:
    """Remove a key.

    Raises:
        NotFound: The team has no key of that name.
        Conflict: Another client changed its keys at the same time.
    """
    found = _configmap(client, team)
    there = {} if found is None else found.get("data") or {}
    if found is None or name not in there:
        raise NotFound(f"Team {team} has no key {name}; it has: {', '.join(sorted(there)) or 'none'}.")
    _merge(client, team, {"metadata": _version(found), "data": {name: None}})


def _version(found: Object) -> Object:
    return {"resourceVersion": found["metadata"]["resourceVersion"]}


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
    return f"/api/v1/namespaces/{team}/configmaps"
