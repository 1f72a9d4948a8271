"""``fairlead keys``: keys by which teams may ask endpoints that have `access`."""

import time
from typing import Any

import click

from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.control.opening import open_local
from fairlead.errors import InvalidArgument
from fairlead.specs.constraints import NAME
from fairlead.specs.training import DEFAULT_TEAM
from fairlead.state.access_keys import AccessKey, new_key

team_option = click.option("--team", default=DEFAULT_TEAM, show_default=True, help="The team that may ask with it.")


@click.group()
def keys() -> None:
    """Make, list and revoke keys of teams for endpoints with `access`.

    A key is shown once, when it is made. Only its hash is kept, and no spec, log or bill has it.
    """


@keys.command("create")
@click.argument("name")
@team_option
@json_option
def create(name: str, team: str, json_: bool) -> None:
    """Make a key for the team, called NAME, and print it."""
    for given in (name, team):
        problem = NAME.problem(given)
        if problem is not None:
            raise InvalidArgument(f"{problem}.")
    text, key = new_key(team, name, time.time())
    cluster = open_local()
    cluster.add_access_key(key)
    cluster.nudge()
    if json_:
        print(as_json({**_json(key), "key": text}))
        return
    print(text)
    message("It is not shown again. Clients send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`.")


@keys.command("list")
@json_option
def list_(json_: bool) -> None:
    """List the keys that there are, by team."""
    found = sorted(open_local().access_keys(), key=lambda each: (each.team, each.created_at, each.name))
    if json_:
        print(as_json([_json(each) for each in found]))
    elif found:
        rows = [(each.team, each.name, describe_time(each.created_at)) for each in found]
        print(table([("TEAM", "NAME", "CREATED"), *rows]))
    else:
        message("There are no keys; `fairlead keys create NAME` makes one.")


@keys.command("revoke")
@click.argument("name")
@team_option
@json_option
def revoke(name: str, team: str, json_: bool) -> None:
    """Revoke the key NAME: requests with it are refused from now on."""
    cluster = open_local()
    cluster.remove_access_key(team, name)
    cluster.nudge()
    if json_:
        print(as_json({"team": team, "name": name}))
    else:
        message(f"Requests with the key {name} of team {team} are refused from now on.")


def _json(key: AccessKey) -> dict[str, Any]:
    return {"team": key.team, "name": key.name, "created_at": key.created_at}
