"""Network namespaces of a cluster of real nodes: one for the control plane with a bridge, one for each node.

Nothing of it is in the machine's own network, and none of it reaches beyond: traffic of pods stays in here.
"""

import subprocess
from dataclasses import dataclass

from tests.kubernetes.testcluster.control_plane import API_SERVICE

CONTROL_PLANE = "10.90.0.1"
DNS_SERVICE = "10.96.0.10"
"""Where pods ask for names. Two addresses of the services' network are the control plane's; others need kube-proxy."""
PODS = "10.244.0.0/16"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNetwork:
    """The network of one node."""

    namespace: str
    address: str
    pods: str


def make(cluster: str, count: int) -> tuple[str, list[NodeNetwork]]:
    """Make the namespaces of a cluster; the control plane's by name, and the nodes' networks."""
    control = f"{cluster}-control"
    nodes = [
        NodeNetwork(namespace=f"{cluster}-{i}", address=f"10.90.0.{10 + i}", pods=f"10.244.{i}.0/24")
        for i in range(1, count + 1)
    ]
    _new_namespace(control)
    _ip(control, "link add bridge type bridge")
    for address in (f"{CONTROL_PLANE}/24", f"{API_SERVICE}/32", f"{DNS_SERVICE}/32"):
        _ip(control, f"address add {address} dev bridge")
    _ip(control, "link set bridge up")
    for index, node in enumerate(nodes, start=1):
        _new_namespace(node.namespace)
        _ip(control, f"link add node{index} type veth peer name eth0 netns {node.namespace}")
        _ip(control, f"link set node{index} master bridge up")
        _ip(node.namespace, f"address add {node.address}/24 dev eth0")
        _ip(node.namespace, "link set eth0 up")
        _ip(node.namespace, f"route add default via {CONTROL_PLANE}")
        _ip(control, f"route add {node.pods} via {node.address}")
    for node in nodes:
        for other in nodes:
            if other is not node:
                _ip(node.namespace, f"route add {other.pods} via {other.address}")
    return control, nodes


def _new_namespace(name: str) -> None:
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=60)
    _ip(name, "link set lo up")
    inside = ["nsenter", f"--net=/var/run/netns/{name}"]
    subprocess.run([*inside, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], check=True, timeout=60)


def _ip(namespace: str, command: str) -> None:
    subprocess.run(
        ["ip", "-netns", namespace, *command.split()], check=True, capture_output=True, text=True, timeout=60
    )
