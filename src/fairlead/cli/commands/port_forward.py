"""``fairlead port-forward``: forward local ports to a rank."""

from functools import partial

import click

from fairlead.cli.names import RunName, find_run
from fairlead.cli.show import as_json, json_option, message
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.kubernetes.client.port_forwarding import LOOPBACK, listen, serve
from fairlead.cluster.kubernetes.client.rank_pods import RankPod, member_of
from fairlead.errors import FairleadError

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
    listeners = [(listen(local), remote) for local, remote in ports]
    for listener, remote in listeners:
        local = listener.getsockname()[1]
        if json_:
            print(as_json({"host": LOOPBACK, "port": local, "remote_port": remote, "rank": rank}), flush=True)
        message(f"{LOOPBACK}:{local} leads to port {remote} of rank {rank} of {name}; Ctrl-C ends it.")

    def tell(remote: int, error: FairleadError) -> None:
        message(f"A connection to port {remote} failed: {error}")

    def pod() -> RankPod:
        return member_of(client, find_run(cluster, name), rank)

    threads = [serve(listener, remote, pod, client.access, partial(tell, remote)) for listener, remote in listeners]
    for thread in threads:
        thread.join()
