"""``fairlead gateway``: show and choose the program that routes requests to local endpoints."""

import time

import click

from fairlead.cli.show import as_json, json_option, message, table
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.endpoints import gateway_url
from fairlead.cluster.local.gateway_proxy import choose, chosen, read_report
from fairlead.gateway.proxying.programs import HAPROXY, PROXIES
from fairlead.policy.serving.routes import public_names

FOLLOWS_WITHIN_S = 15.0


@click.command()
@click.option(
    "--proxy",
    type=click.Choice(PROXIES),
    help="The program that forwards requests to replicas from now on: haproxy, or the gateway's own Python.",
)
@json_option
def gateway(proxy: str | None, json_: bool) -> None:
    """Show or set the proxy that forwards requests to the endpoints of this machine.

    With --proxy haproxy, haproxy forwards requests directly to replicas, with about half the CPU time. Endpoints
    whose requests each need a decision stay with the gateway; the list shows which, and why. Changing the proxy
    restarts the gateway; requests wait meanwhile.
    """
    cluster = LocalCluster.open()
    if proxy is not None:
        choose(cluster.home, proxy)
        cluster.nudge()
    wanted = chosen(cluster.home)
    names = sorted(public_names(cluster.snapshot()).values())
    if proxy is not None and names:
        _await(cluster, proxy)
    state = read_report(cluster.home)
    held = {} if state is None else state["held"]
    ways = {name: held.get(name) for name in names}
    if json_:
        endpoints = {name: {"held": why} for name, why in ways.items()}
        print(as_json({
            "url": gateway_url(cluster.home) if ways else None,
            "chosen": wanted,
            "running": state is not None,
            "problem": None if state is None else state["problem"],
            "endpoints": endpoints,
        }))  # fmt: skip
        return
    if proxy is not None:
        message(f"Requests are forwarded to replicas by {wanted} from now on.")
    else:
        message(f"Requests are forwarded to replicas by {wanted}.")
    if not ways:
        message("There are no endpoints: the gateway starts with the first.")
        return
    if state is not None and state["problem"] is not None:
        message(f"haproxy does not work: {state['problem']}")
    by_proxy = state is not None
    rows = [(name, "haproxy" if by_proxy and why is None else "gateway", why or "-") for name, why in ways.items()]
    print(table([("ENDPOINT", "REQUESTS BY", "WHY"), *rows]))


def _await(cluster: LocalCluster, proxy: str) -> None:
    """Wait a while for the new gateway, since the old one may have requests to finish."""
    until = time.monotonic() + FOLLOWS_WITHIN_S
    while time.monotonic() < until:
        state = read_report(cluster.home)
        if (state is not None) == (proxy == HAPROXY) and (state is None or state["problem"] is None):
            return
        cluster.nudge()
        time.sleep(0.1)
    message("The gateway is still the one before: it finishes its requests.")
