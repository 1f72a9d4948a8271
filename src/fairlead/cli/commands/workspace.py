"""``fairlead workspace``: open workspaces, and remove their homes."""

import html
import json
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.names import RunName, find_run
from fairlead.cli.show import as_json, json_option, message
from fairlead.cli.target import Target, cluster_options
from fairlead.cli.workspaces import await_address, show_address
from fairlead.cluster.local.workspaces import remove_home
from fairlead.errors import Conflict, NotFound
from fairlead.runtime.podfiles import write_private
from fairlead.specs.training import DEFAULT_TEAM
from fairlead.state.snapshot import is_workspace

if TYPE_CHECKING:
    from fairlead.cluster.local.workspaces import WorkspaceAddress


@click.group()
def workspace() -> None:
    """Open workspaces, and remove their homes.

    `fairlead run FILE` starts one of `kind: Workspace`; `suspend`, `resume`, `stop` and `delete` are as for runs. Its
    home outlives it.
    """


@workspace.command("open")
@click.argument("name", type=RunName())
@click.option("--browser/--no-browser", default=None, help="Open a browser; by default on a terminal.")
@json_option
@cluster_options
def open_(target: Target, name: str, browser: bool | None, json_: bool) -> None:
    """Print the URL of the workspace NAME with its token, once it is ready, and open it in a browser.

    Of a workspace with `ide: ssh` it prints the command that connects to it.
    """
    cluster = target.open()
    run = find_run(cluster, name)
    if not is_workspace(run):
        raise Conflict(f"{name} is a {run.spec.kind}, not a Workspace; `fairlead debug {name}` makes one of a run.")
    address = await_address(cluster, run)
    if json_:
        shown = {"name": name, "url": address.url, "open": address.open, "token": address.token}
        print(as_json({**shown, "ssh_config": address.ssh_config}))
        return
    show_address(name, address)
    if address.open is not None and (browser or (browser is None and sys.stdout.isatty())):
        assert cluster.machine is not None, "it has an address"
        _browse(address, cluster.machine.home.run(run.uid))


def _browse(address: "WorkspaceAddress", directory: Path) -> None:
    """Open a browser by a private file: the arguments of a process, which a URL would be, are visible to all users."""
    page = directory / "open.html"
    target = json.dumps(address.open).replace("<", "\\u003c")
    link = html.escape(address.open or "", quote=True)
    content = f'<!doctype html><script>location.replace({target})</script><a href="{link}">Open</a>\n'
    write_private(page, content)
    try:
        is_open = webbrowser.open(page.as_uri())
    except webbrowser.Error:
        is_open = False
    if not is_open:
        message("There is no browser here; open the URL in one.")


@workspace.command("delete-home")
@click.argument("name")
@click.option("--team", default=DEFAULT_TEAM, show_default=True, help="Team of the workspace.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@cluster_options
def delete_home(target: Target, name: str, team: str, yes: bool) -> None:
    """Delete the files in the home of the workspace NAME, which has to be over.

    A directory that a spec names as `home` is never deleted.
    """
    cluster = target.open()
    if cluster.machine is None:
        raise NotFound("workspaces run on this machine only so far, and so do their homes.")
    path = cluster.machine.home.workspace(team, name)
    if path.is_dir() and not yes:
        click.confirm(f"Delete {path} with all files in it?", abort=True)
    used_by = [run.spec.name for run in cluster.unfinished(team) if run.spec.name == name]
    message(f"Deleted {remove_home(cluster.machine.home, team, name, used_by)}.")
