"""Waits for workspaces until they can be opened."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

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
SSH_HOST = "Host workspace"

Server = TypeVar("Server")


def await_address(cluster: ClusterClient, run: AnyWorkload) -> "WorkspaceAddress":
    """Wait until a workspace on this machine is Running, and return the address of its server.

    Raises:
        Conflict: It is suspended or over.
    """
    machine = cluster.machine
    assert machine is not None, "one in a pod has another way"
    return await_with(cluster, run, lambda now: address_of(machine.home, now, cluster.pods(now)))


def await_with(cluster: ClusterClient, run: AnyWorkload, find: Callable[[str], Server | None]) -> Server:
    """Wait until a workspace is Running and its server is known, and return that; say meanwhile why it is not.

    Args:
        find: Returns the server of the workspace with this uid; None while there is none.

    Raises:
        Conflict: It is suspended or over.
    """
    name = run.spec.name
    tell_at, nudge_at, shown = time.monotonic() + PATIENCE_S, 0.0, ""
    while True:
        now = cluster.get(run.uid)
        status = now.status
        if status.phase.is_final or (status.phase is Phase.SUSPENDED and now.intent is not Intent.RUN):
            resume = f"`fairlead resume {name}` continues it"
            raise Conflict(f"{name} is {status.phase.value}: {status.reason.message}. {resume}.")
        server = find(run.uid)
        if status.phase is Phase.RUNNING and server is not None:
            return server
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
        print(f"ssh -F {address.ssh_config} workspace", flush=True)
        message(f"`fairlead ssh {name}` does the same, and `fairlead ssh {name} --config` says how editors connect.")
        return
    print(address.open, flush=True)
    if address.open == address.url:
        message(f"Its password: {address.token}")


def no_sshd(run: AnyWorkload) -> str:
    """Return the refusal to connect by ssh to a workspace with another server."""
    name, ide = run.spec.name, getattr(run.spec, "ide", None)
    return f"{name} has no sshd: it has `ide: {ide}`. `fairlead workspace open {name}` opens it."


def keep_ssh_host(home: "Home", name: str, config: Path) -> tuple[str, str]:
    """Write a workspace's host for clients of ssh; return its name, and the pattern of files that they include.

    Args:
        config: The configuration of its present start, with the host `workspace`.
    """
    host = f"{name}.fairlead"
    path = below(home.path / "ssh", name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, config.read_text().replace(SSH_HOST, f"Host {host}", 1))
    return host, str(path.parent / "*")


def await_workspaces(cluster: ClusterClient, runs: list[AnyWorkload]) -> None:
    """Wait until workspaces can be opened, and print how."""
    for run in runs:
        name = run.spec.name
        place = ""
        if cluster.machine is None:
            await_with(cluster, run, lambda uid: uid)
        else:
            place = f" at {await_address(cluster, run).url}"
        named = cluster.named(run)
        message(f"{name} is ready{place}: `fairlead workspace open {named}` opens it, with its token.")
        message(f"`fairlead suspend {named}` releases what it holds, and `fairlead resume {named}` continues it.")
