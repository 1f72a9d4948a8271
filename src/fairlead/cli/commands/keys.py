"""``fairlead keys``: keys of teams for endpoints with `access`."""

import time
from typing import Any

import click

from fairlead.cli.retaining import Duration
from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.errors import InvalidArgument
from fairlead.specs.constraints import NAME
from fairlead.specs.training import DEFAULT_TEAM
from fairlead.state.access_keys import AccessKey, new_key

team_option = click.option(
    "--team", help="Team of the key; `default`, or on Kubernetes that of the namespace, by default."
)


@click.group()
def keys() -> None:
    """Create, list and revoke keys of teams for endpoints with `access`.

    A key is shown only once, when it is created. Only its hash is stored; specs, logs and bills do not contain it.
    """


@keys.command("create")
@click.argument("name")
@team_option
@click.option(
    "--expires", type=Duration(), help="How long the key is valid, such as 90d; until it is revoked by default."
)
@json_option
@cluster_options
def create(target: Target, name: str, team: str | None, expires: float | None, json_: bool) -> None:
    """Create the key NAME for a team, and print it."""
    cluster, team = _opened(target, team)
    for value in (name, team):
        problem = NAME.problem(value)
        if problem is not None:
            raise InvalidArgument(f"{problem}.")
    if expires is not None and expires <= 0:
        raise InvalidArgument("--expires: a key has to be valid for a while; give a duration such as 90d.")
    text, key = new_key(team, name, time.time(), valid_s=expires)
    cluster.add_access_key(key)
    cluster.nudge()
    if json_:
        print(as_json({**_json(key), "key": text}))
        return
    print(text)
    message("It is not shown again. Clients send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`.")


@keys.command("list")
@json_option
@cluster_options
def list_(target: Target, json_: bool) -> None:
    """List keys by team, on Kubernetes those of the namespace."""
    access_keys = sorted(target.quietly().access_keys(), key=lambda key: (key.team, key.created_at, key.name))
    if json_:
        print(as_json([_json(key) for key in access_keys]))
    elif access_keys:
        rows = [(key.team, key.name, describe_time(key.created_at), _expiry(key), _use(key)) for key in access_keys]
        print(table([("TEAM", "NAME", "CREATED", "EXPIRES", "LAST USED"), *rows]))
    else:
        message("There are no keys; `fairlead keys create NAME` makes one.")


@keys.command("revoke")
@click.argument("name")
@team_option
@json_option
@cluster_options
def revoke(target: Target, name: str, team: str | None, json_: bool) -> None:
    """Revoke the key NAME: further requests with it are refused."""
    cluster, team = _opened(target, team)
    cluster.remove_access_key(team, name)
    cluster.nudge()
    if json_:
        print(as_json({"team": team, "name": name}))
    else:
        message(f"Requests with the key {name} of team {team} are refused from now on.")


def _opened(target: Target, team: str | None) -> tuple[ClusterClient, str]:
    """Return the selected cluster and the team; on Kubernetes each namespace is a team."""
    cluster = target.quietly()
    return cluster, team or str(getattr(cluster, "namespace", DEFAULT_TEAM))


def _json(key: AccessKey) -> dict[str, Any]:
    return {
        "team": key.team,
        "name": key.name,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
    }


def _expiry(key: AccessKey) -> str:
    if key.expires_at is None:
        return "never"
    return f"{describe_time(key.expires_at)}{' (expired)' if key.expires_at <= time.time() else ''}"


def _use(key: AccessKey) -> str:
    return "-" if key.last_used_at is None else describe_time(key.last_used_at)
