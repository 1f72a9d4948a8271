"""Waits for workspaces until they can be opened."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cli.show import message
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.workspaces import address_of
from fairlead.errors import Conflict
from fairlead.runtime.paths import below
from fairlead.runtime.podfiles import write_private
from fairlead.state.snapshot import AnyWorkload, Intent, Phase

if TYPE_CHECKING:
    from fairlead.cluster.local.home import Home
    from fairlead.cluster.local.workspaces import WorkspaceAddress

LOOK_S = 0.1
NUDGE_S = 1.0
# Delay before reporting why it is not ready, since most soon are.
PATIENCE_S = 3.0


def await_address(cluster: ClusterClient, run: AnyWorkload) -> "WorkspaceAddress":
    """Wait until a workspace is Running, and return the address of its server.

    Raises:
        Conflict: It is suspended or over, or this is not its machine.
    """
    machine, name = cluster.machine, run.spec.name
    if machine is None:
        raise Conflict(f"{name} is on a cluster, and workspaces run on this machine only so far.")
    tell_at, nudge_at, shown = time.monotonic() + PATIENCE_S, 0.0, ""
    while True:
        now = cluster.get(run.uid)
        status = now.status
        if status.phase.is_final or (status.phase is Phase.SUSPENDED and now.intent is not Intent.RUN):
            raise Conflict(
                f"{name} is {status.phase.value}: {status.reason.message}. `fairlead resume {name}` continues it."
            )
        address = address_of(machine.home, run.uid, cluster.pods(run.uid))
        if status.phase is Phase.RUNNING and address is not None:
            return address
        if time.monotonic() >= tell_at and status.reason.message != shown:
            shown = status.reason.message
            message(f"{name} is {status.phase.value}: {shown}.")
        if time.monotonic() >= nudge_at:
            cluster.nudge()
            nudge_at = time.monotonic() + NUDGE_S
        cluster.wait(LOOK_S)


def show_address(name: str, address: "WorkspaceAddress") -> None:
    """Print how a workspace is opened: its URL with the token, or the command for ssh."""
    if address.ssh_config is not None:
        print(f"ssh -F {address.ssh_config} workspace")
        message(f"`fairlead ssh {name}` does the same, and `fairlead ssh {name} --config` says how editors connect.")
        return
    print(address.open)
    if address.open == address.url:
        message(f"Its password: {address.token}")


def keep_ssh_host(home: "Home", name: str, config: Path) -> tuple[str, str]:
    """Write a workspace's host for clients of ssh; return its name, and the pattern of files that they include.

    Args:
        config: The configuration of its present start, with the host `workspace`.
    """
    host = f"{name}.fairlead"
    path = below(home.path / "ssh", name)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_private(path, config.read_text().replace("Host workspace", f"Host {host}", 1))
    return host, str(path.parent / "*")


def await_workspaces(cluster: ClusterClient, runs: list[AnyWorkload]) -> None:
    """Wait until workspaces can be opened, and print how."""
    for run in runs:
        address = await_address(cluster, run)
        name = run.spec.name
        message(f"{name} is at {address.url}: `fairlead workspace open {name}` opens it, with its token.")
        message(f"`fairlead suspend {name}` releases what it holds, and `fairlead resume {name}` continues it.")
