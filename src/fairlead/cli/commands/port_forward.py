"""``fairlead port-forward``: forward local ports to a rank."""

import errno
import socket
import threading

import click

from fairlead.cli.names import RunName, find_run
from fairlead.cli.show import as_json, json_option, message
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.kubernetes.api.streams import forward
from fairlead.cluster.kubernetes.client.rank_pods import member_of
from fairlead.errors import Conflict, FairleadError

LOOPBACK = "127.0.0.1"
MOST_PORT = 65_535


class PortPair(click.ParamType[tuple[int, int]]):
    """LOCAL:REMOTE, or one port for both; without LOCAL, or with 0, any free port."""

    name = "ports"

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        local, colon, remote = value.partition(":")
        pair = (local or "0", remote) if colon else (local, local)
        if not all(port.isascii() and port.isdigit() and int(port) <= MOST_PORT for port in pair) or int(pair[1]) == 0:
            self.fail(f"{value!r}: give LOCAL:REMOTE, such as 8080:80, or one port for both.", param, ctx)
        return int(pair[0]), int(pair[1])


@click.command()
@click.argument("name", type=RunName())
@click.argument("ports", nargs=-1, required=True, type=PortPair())
@click.option("--rank", default=0, show_default=True, type=click.IntRange(min=0), help="Rank to forward to.")
@cluster_options
@json_option
def port_forward(name: str, ports: tuple[tuple[int, int], ...], rank: int, target: Target, json_: bool) -> None:
    """Forward local PORTS to a rank of NAME until Ctrl-C; each is LOCAL:REMOTE, or one port for both.

    Only programs on this machine can connect. Each connection looks up the current place of the rank, so the run may
    restart in between. With --json each port is an object.
    """
    if not target.is_kubernetes:
        raise click.UsageError(
            f"{name} runs on this machine: its ports are here already, on {LOOPBACK}. --context names another cluster."
        )
    client, cluster = target.client(), target.quietly()
    member_of(client, find_run(cluster, name), rank)
    listeners = [(_listen(local), remote) for local, remote in ports]
    for listener, remote in listeners:
        local = listener.getsockname()[1]
        if json_:
            print(as_json({"host": LOOPBACK, "port": local, "remote_port": remote, "rank": rank}), flush=True)
        message(f"{LOOPBACK}:{local} leads to port {remote} of rank {rank} of {name}; Ctrl-C ends it.")

    def join(connection: socket.socket, remote: int) -> None:
        try:
            member = member_of(client, find_run(cluster, name), rank)
            forward(client.access, member.path, remote, connection)
        except FairleadError as error:
            message(f"A connection to port {remote} failed: {error}")
        finally:
            connection.close()

    def serve(listener: socket.socket, remote: int) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=join, args=(connection, remote), daemon=True).start()

    threads = [threading.Thread(target=serve, args=listener, daemon=True) for listener in listeners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise Conflict(f"Port {port} of this machine {why}. Give another, or 0:REMOTE for any.") from error
