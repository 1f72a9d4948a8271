"""``fairlead ssh``: connect to a workspace with `ide: ssh`, and let editors do so by its name."""

import os
from pathlib import Path

import click

from fairlead.cli.names import RunName, find_run
from fairlead.cli.show import message
from fairlead.cli.target import Target, cluster_options
from fairlead.cli.workspaces import await_address, keep_ssh_host
from fairlead.errors import Conflict
from fairlead.state.snapshot import is_workspace


@click.command()
@click.argument("name", type=RunName())
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--config", is_flag=True, help="Print how editors and other clients connect, in place of a shell.")
@cluster_options
def ssh(target: Target, name: str, command: tuple[str, ...], config: bool) -> int:
    """Open a shell in the workspace NAME, or run COMMAND there, by OpenSSH's client.

    The workspace has `ide: ssh`. Its host NAME.fairlead is written for ssh, scp and editors, which know it by an
    `Include` in ~/.ssh/config; with --config that line is printed. Options of ssh go after `--`, before COMMAND.
    """
    if target.is_kubernetes:
        raise click.UsageError(
            f"workspaces run on this machine; `fairlead exec {name} -it -- bash` is a shell in a pod."
        )
    cluster = target.open()
    run = find_run(cluster, name)
    if not is_workspace(run):
        raise Conflict(f"{name} is a {run.spec.kind}, not a Workspace; `fairlead debug {name}` makes one of a run.")
    address = await_address(cluster, run)
    if address.ssh_config is None:
        raise Conflict(f"{name} has no sshd: it has `ide: {run.spec.ide}`. `fairlead workspace open {name}` opens it.")
    assert cluster.machine is not None, "it has an address"
    host, include = keep_ssh_host(cluster.machine.home, name, Path(address.ssh_config))
    if config:
        print(f'Include "{include}"')
        message(f"With this line at the top of ~/.ssh/config, ssh, scp and editors reach it as host {host}.")
        return 0
    # It is Running before sshd listens.
    argv = ["ssh", "-F", address.ssh_config, "-o", "ConnectionAttempts=10", "workspace", *command]
    try:
        os.execvp("ssh", argv)
    except FileNotFoundError as error:
        raise Conflict("there is no ssh on the PATH; install OpenSSH's client.") from error
