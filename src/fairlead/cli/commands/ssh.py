"""``fairlead ssh``: connect to a workspace with `ide: ssh`, and let editors do so by its name."""

import os
from pathlib import Path

import click

from fairlead.cli.names import RunName, find_run
from fairlead.cli.show import message
from fairlead.cli.target import Target, cluster_options
from fairlead.cli.workspace_servers import connect_stdio, ssh_config_in_pod
from fairlead.cli.workspaces import await_address, keep_ssh_host, no_sshd
from fairlead.cluster.local.home import Home
from fairlead.errors import Conflict
from fairlead.state.snapshot import is_workspace


@click.command()
@click.argument("name", type=RunName())
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--config", is_flag=True, help="Print how editors and other clients connect, in place of a shell.")
@click.option("--stdio", is_flag=True, help="Connect standard input and output to sshd in its pod, for ssh itself.")
@cluster_options
def ssh(target: Target, name: str, command: tuple[str, ...], config: bool, stdio: bool) -> int:
    """Open a shell in the workspace NAME, or run COMMAND there, by OpenSSH's client.

    The workspace has `ide: ssh`. Its host NAME.fairlead is written for ssh, scp and editors, which know it by an
    `Include` in ~/.ssh/config; with --config that line is printed. Options of ssh go after `--`, before COMMAND.
    """
    if stdio and not target.is_kubernetes:
        raise click.UsageError("--stdio is for a workspace in a pod; one on this machine has a port here.")
    cluster = target.quietly() if stdio else target.open()
    run = find_run(cluster, name)
    if not is_workspace(run):
        raise Conflict(f"{name} is a {run.spec.kind}, not a Workspace; `fairlead debug {name}` makes one of a run.")
    if stdio:
        connect_stdio(target.client(), run)
        return 0
    if target.is_kubernetes:
        home = Home.open()
        ssh_config = ssh_config_in_pod(home, cluster, target.client(), run)
    else:
        address = await_address(cluster, run)
        if address.ssh_config is None:
            raise Conflict(no_sshd(run))
        assert cluster.machine is not None, "it has an address"
        home, ssh_config = cluster.machine.home, Path(address.ssh_config)
    host, include = keep_ssh_host(home, run.spec.name, ssh_config)
    if config:
        print(f'Include "{include}"')
        message(f"With this line at the top of ~/.ssh/config, ssh, scp and editors reach it as host {host}.")
        return 0
    try:
        os.execvp("ssh", ["ssh", "-F", str(ssh_config), "workspace", *command])
    except FileNotFoundError as error:
        raise Conflict("there is no ssh on the PATH; install OpenSSH's client.") from error
