"""Options that say what an operator believes, and which networks of the cluster it keeps from pods of teams."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fairlead.cluster.kubernetes.system_namespaces import DEFAULT, SystemNamespaces
from fairlead.specs.constraints import NAME

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.system_namespaces import SystemNamespaces

Command = Callable[..., Any]


def trust_options(command: Command) -> Command:
    """Add the options to a command."""
    hosts = click.option(
        "--prometheus-host",
        "prometheus_hosts",
        multiple=True,
        metavar="HOST",
        help="Endpoints may scale by a Prometheus on this host, beside those in namespaces of administrators.",
    )
    namespaces = click.option(
        "--system-namespace",
        "system_namespaces",
        multiple=True,
        metavar="NAME",
        help="A namespace where only administrators create pods, with DCGM's exporter, Prometheus or KubeRay; beside "
        "the usual ones.",
    )
    networks = click.option(
        "--cluster-network",
        "cluster_networks",
        multiple=True,
        metavar="CIDR",
        help="A network of pods, Services or API servers, kept from pods of teams. By default `install` asks the API "
        "server for them.",
    )
    return networks(namespaces(hosts(command)))


def networks_of(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return networks as they are written in policies.

    Raises:
        UsageError: One is not a network.
    """
    from ipaddress import ip_network

    for network in texts:
        try:
            ip_network(network)
        except ValueError as error:
            raise click.UsageError(f"--cluster-network: {error}; give one such as 10.96.0.0/16.") from error
    return texts


def trusted(namespaces: tuple[str, ...], hosts: tuple[str, ...]) -> "SystemNamespaces":
    """Return what an operator believes by the options.

    Raises:
        UsageError: A namespace or a host is not one.
    """
    for name in namespaces:
        if (problem := NAME.problem(name)) is not None:
            raise click.UsageError(f"--system-namespace: {problem}.")
    for name in hosts:
        if not name or any(mark in name for mark in "/@?# ") or (":" in name and name.count(":") == 1):
            raise click.UsageError(f"--prometheus-host {name!r}: give a host alone, such as metrics.example.com.")
    return SystemNamespaces(names=tuple(dict.fromkeys((*DEFAULT, *namespaces))), prometheus_hosts=hosts)
