"""``fairlead workspace``: open workspaces, and remove their homes."""

import click

from fairlead.cli.names import RunName, find_run
from fairlead.cli.show import json_option, message
from fairlead.cli.target import Target, cluster_options
from fairlead.cli.workspace_servers import open_in_pod, show
from fairlead.cli.workspaces import await_address
from fairlead.cluster.kubernetes.client.workspaces import remove_home as remove_claim
from fairlead.cluster.local.workspaces import remove_home
from fairlead.errors import Conflict
from fairlead.specs.training import DEFAULT_TEAM
from fairlead.state.snapshot import is_leaf, is_workspace


@click.group()
def workspace() -> None:
    """Open workspaces, and remove their homes.

    `fairlead run FILE` starts one of `kind: Workspace`; `suspend`, `resume`, `stop` and `delete` are as for runs. Its
    home outlives it.
    """


@workspace.command("open")
@click.argument("name", type=RunName())
@click.option("--browser/--no-browser", default=None, help="Open a browser; by default on a terminal.")
@click.option("--port", type=click.IntRange(1, 65_535), help="Port of this machine for one in a pod; any by default.")
@json_option
@cluster_options
def open_(target: Target, name: str, browser: bool | None, port: int | None, json_: bool) -> None:
    """Print the URL of the workspace NAME with its token, once it is ready, and open it in a browser.

    Of a workspace with `ide: ssh` it prints the command that connects to it. A server in a pod is reached through
    --port of this machine until Ctrl-C, by this machine's programs only.
    """
    if port is not None and not target.is_kubernetes:
        raise click.UsageError("--port is for a workspace in a pod; one on this machine has a port of its own.")
    cluster = target.open()
    run = find_run(cluster, name)
    if not is_workspace(run):
        raise Conflict(f"{name} is a {run.spec.kind}, not a Workspace; `fairlead debug {name}` makes one of a run.")
    if target.is_kubernetes:
        open_in_pod(target, cluster, run, browser=browser, port=port or 0, json_=json_)
        return
    address = await_address(cluster, run)
    assert cluster.machine is not None, "it has an address"
    show(name, address, cluster.machine.home.run(run.uid), browser=browser, json_=json_)


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
        client = target.client()
        namespace = client.access.namespace if team == DEFAULT_TEAM else team
        if not yes:
            claim = f"the claim of the home of {name} in the namespace {namespace}"
            click.confirm(f"Delete {claim} with all files in it?", abort=True)
        unfinished = filter(is_leaf, cluster.unfinished(namespace))
        users = [run.spec.name for run in unfinished if run.spec.name == name and is_workspace(run)]
        message(f"Deleted {remove_claim(client, namespace, name, users)}.")
        return
    path = cluster.machine.home.workspace(team, name)
    if path.is_dir() and not yes:
        click.confirm(f"Delete {path} with all files in it?", abort=True)
    used_by = [run.spec.name for run in cluster.unfinished(team) if run.spec.name == name]
    message(f"Deleted {remove_home(cluster.machine.home, team, name, used_by)}.")
