"""Determines the networks of a cluster itself, which pods of runs cannot reach, as far as the API server tells them."""

from collections.abc import Iterable
from ipaddress import IPv4Network, collapse_addresses, ip_network

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object

NODES, SERVICES = "/api/v1/nodes", "/apis/networking.k8s.io/v1/servicecidrs"
SERVERS = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
# Nodes to come get the next block of the same range, which no object tells; ranges of pods are seldom smaller.
WIDEST_PREFIX = 16


def cluster_networks(client: Client) -> tuple[str, ...]:
    """Return the IPv4 networks of pods and Services, and the addresses of the API server, each once.

    What may not be read, or an older API server does not have, is left out.
    """
    blocks = [cidr for node in _items(client, NODES) for cidr in (node.get("spec") or {}).get("podCIDRs") or ()]
    services = [
        cidr
        for service_cidr in _items(client, SERVICES)
        for cidr in (service_cidr.get("spec") or {}).get("cidrs") or ()
    ]
    slices = _items(client, SERVERS, {"labelSelector": "kubernetes.io/service-name=kubernetes"})
    addresses = [
        address
        for slice_ in slices
        for endpoint in slice_.get("endpoints") or ()
        for address in endpoint.get("addresses") or ()
    ]
    pods = [_widened(network) for network in _networks(blocks)]
    return tuple(map(str, collapse_addresses([*pods, *_networks(services), *_networks(addresses)])))


def _items(client: Client, path: str, query: dict[str, str] | None = None) -> list[Object]:
    try:
        return list(client.items(path, query or {}))
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return []


def _networks(texts: Iterable[str]) -> list[IPv4Network]:
    return [network for network in map(ip_network, texts) if isinstance(network, IPv4Network)]


def _widened(block: IPv4Network) -> IPv4Network:
    return block if block.prefixlen <= WIDEST_PREFIX else block.supernet(new_prefix=WIDEST_PREFIX)
