"""Shows and opens the servers of workspaces; those in pods by a port of this machine until Ctrl-C, or by ssh."""

import html
import json
import sys
import time
import webbrowser
from pathlib import Path

from fairlead.cli.names import find_run
from fairlead.cli.show import as_json, message
from fairlead.cli.target import Target
from fairlead.cli.workspaces import await_with, no_sshd, show_address
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.client.port_forwarding import forward_stdio, listen, serve
from fairlead.cluster.kubernetes.client.rank_pods import member_of
from fairlead.cluster.kubernetes.client.workspaces import PodServer, find_server, write_ssh_config
from fairlead.cluster.kubernetes.manifests.pod_environment import MASTER_PORT
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.workspaces import WorkspaceAddress
from fairlead.errors import Conflict
from fairlead.runtime.paths import below
from fairlead.runtime.podfiles import write_private
from fairlead.state.snapshot import AnyWorkload, Phase, Workload, is_leaf

# Between two questions to a pod whose workspace is Running and which has no server at the moment.
POD_LOOK_S = 1.0


def show(name: str, address: WorkspaceAddress, directory: Path, *, browser: bool | None, json_: bool) -> None:
    """Print an address, and open a browser by a file in a directory where that is wished."""
    if json_:
        shown = {"name": name, "url": address.url, "open": address.open, "token": address.token}
        print(as_json({**shown, "ssh_config": address.ssh_config}), flush=True)
        return
    show_address(name, address)
    if address.open is not None and (browser or (browser is None and sys.stdout.isatty())):
        _browse(address, directory)


def _browse(address: WorkspaceAddress, directory: Path) -> None:
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


def open_in_pod(
    target: Target, cluster: ClusterClient, run: Workload, *, browser: bool | None, port: int, json_: bool
) -> None:
    """Print the address of a server in a pod, and forward a port of this machine to it until Ctrl-C."""
    client, name, home = target.client(), run.spec.name, Home.open()
    server = await_server(cluster, client, run)
    if server.keys:
        config = ssh_config_in_pod(home, cluster, client, run)
        address = WorkspaceAddress(url=server.address.url, ssh_config=str(config))
        show(name, address, home.path, browser=False, json_=json_)
        return
    listener = listen(port)
    thread = serve(
        listener, MASTER_PORT, lambda: member_of(client, find_run(cluster, name), 0), client.access,
        lambda error: message(f"A connection to {name} failed: {error}"),
    )  # fmt: skip
    show(name, server.address_at(listener.getsockname()[1]), home.path, browser=browser, json_=json_)
    message(f"It is reached through this command; Ctrl-C ends that, and {name} goes on.")
    thread.join()


def ssh_config_in_pod(home: Home, cluster: ClusterClient, client: Client, run: AnyWorkload) -> Path:
    """Wait for a workspace in a pod, write a configuration by which ssh reaches it, and return its path.

    Raises:
        Conflict: It is suspended or over, or has no sshd.
    """
    server = await_server(cluster, client, run)
    name, team = run.spec.name, run.spec.team
    if not server.keys:
        raise Conflict(no_sshd(run))
    proxy = (sys.executable, "-m", "fairlead.cli.main", "ssh", "--stdio", name, "--namespace", team)
    context = client.access.option.split(maxsplit=1)
    directory = below(home.path / "ssh-keys", f"{client.access.context.replace('/', '_')}.{team}.{name}")
    options = ("--context", client.access.context) if context else ("--cluster", "kubernetes")
    return write_ssh_config(directory, server, (*proxy, *options))


def connect_stdio(client: Client, run: Workload) -> None:
    """Connect standard input and output to the server of a workspace in a pod, until the connection ends."""
    forward_stdio(client.access, member_of(client, run, 0).path, MASTER_PORT)


def await_server(cluster: ClusterClient, client: Client, run: AnyWorkload) -> PodServer:
    """Wait until a workspace in a pod is Running, and return its server.

    Raises:
        Conflict: It is suspended or over.
        ClusterError: The user may not execute commands in its pod.
    """

    def find(uid: str) -> PodServer | None:
        now = cluster.get(uid)
        if now.status.phase is not Phase.RUNNING or not is_leaf(now):
            return None
        try:
            server = find_server(client, now)
        except Conflict:  # its pod has just ended, which its status will say
            server = None
        if server is None:
            time.sleep(POD_LOOK_S)
        return server

    return await_with(cluster, run, find)
