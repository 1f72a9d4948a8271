"""Isolates pods: all connections are denied except those that training needs.

A policy cannot express "pods of the same run" for all runs at once, so each run has a separate one.
"""

from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.manifests.endpoint_weights import pods_with_weights
from fairlead.cluster.kubernetes.manifests.pod_environment import DATA_PORT, MASTER_PORT, has_shared_weights
from fairlead.cluster.kubernetes.system_namespaces import SystemNamespaces
from fairlead.frozen import dataclass
from fairlead.specs.engines import Engine
from fairlead.specs.serving import Replica
from fairlead.state.snapshot import Workload

DNS_PORT = 53
# KubeRay queries the head of a Ray cluster for the status of its job. Its names are those of its manifests and chart.
_KUBERAY_NAMES = {"key": "app.kubernetes.io/name", "operator": "In", "values": ["kuberay", "kuberay-operator"]}
_KUBERAY_PORTS = [{"port": 8265, "protocol": "TCP"}]
BY_DEFAULT = SystemNamespaces()
METADATA = "169.254.0.0/16"  # where clouds serve a node's credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Addresses that pods of runs may reach outside their run.

    Attributes:
        storage_ports: TCP ports of object stores and package indexes.
        storage_cidrs: Networks with those.
        withheld_cidrs: Networks within ``storage_cidrs`` that remain denied.
    """

    storage_ports: tuple[int, ...] = (443,)
    storage_cidrs: tuple[str, ...] = ("0.0.0.0/0",)
    withheld_cidrs: tuple[str, ...] = (METADATA,)


def render_team_policies(namespace: str, settings: NetworkSettings) -> list[dict[str, Any]]:
    """Deny all traffic of a namespace's pods, except DNS and storage for pods of runs."""
    of_runs = {"matchExpressions": [{"key": names.RUN_UID, "operator": "Exists"}]}
    dns = [{"port": DNS_PORT, "protocol": protocol} for protocol in ("UDP", "TCP")]
    system = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    blocks = [_block(cidr, settings.withheld_cidrs) for cidr in settings.storage_cidrs]
    ports = [{"port": port, "protocol": "TCP"} for port in settings.storage_ports]
    egress = [{"to": [system], "ports": dns}, {"to": blocks, "ports": ports}]
    return [
        _policy("fairlead-nothing", namespace, {}, {"policyTypes": ["Ingress", "Egress"]}),
        _policy("fairlead-runs", namespace, of_runs, {"policyTypes": ["Egress"], "egress": egress}),
    ]


def render_run_policy(workload: Workload, system: SystemNamespaces = BY_DEFAULT) -> dict[str, Any]:
    """Allow all ports between one run's pods, as collectives choose ports dynamically. A replica accepts all pods.

    Replicas of an endpoint read data from each other.
    """
    same = {"podSelector": {"matchLabels": {names.RUN_UID: workload.uid}}}
    ingress: list[dict[str, Any]] = [{"from": [same]}]
    if isinstance(workload.spec, Replica):
        # Any pod of the cluster may connect to its server's port; with access keys only the gateways may.
        gateways = {"kubernetes.io/metadata.name": names.GATEWAY_NAMESPACE}
        who = {"matchLabels": gateways} if workload.spec.guarded else {}
        ingress.append({"from": [{"namespaceSelector": who}], "ports": [{"port": MASTER_PORT, "protocol": "TCP"}]})
    egress: list[dict[str, Any]] = [{"to": [same]}]
    if has_shared_weights(workload):
        others = {"podSelector": {"matchLabels": pods_with_weights(workload)}}
        ports = [{"port": DATA_PORT, "protocol": "TCP"}]
        ingress.append({"from": [others], "ports": ports})
        egress.append({"to": [others], "ports": ports})
    if workload.spec.engine is Engine.RAYJOB:
        # The port takes programs to run, so that a label, which everybody may write, is not enough.
        kuberay = {"namespaceSelector": system.selector(), "podSelector": {"matchExpressions": [_KUBERAY_NAMES]}}
        ingress.append({"from": [kuberay], "ports": _KUBERAY_PORTS})
    rules = {"policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": egress}
    policy = _policy(names.service_name(workload), workload.spec.team, same["podSelector"], rules)
    policy["metadata"]["labels"] |= names.run_labels(workload)
    policy["metadata"]["ownerReferences"] = [names.owner(workload)]
    return policy


def _policy(name: str, namespace: str, selector: dict[str, Any], rules: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace, "labels": {names.MANAGED_BY: names.MANAGER}},
        "spec": {"podSelector": selector, **rules},
    }


def _block(cidr: str, withheld: tuple[str, ...]) -> dict[str, Any]:
    inside = [network for network in withheld if _is_inside(network, cidr)]
    return {"ipBlock": {"cidr": cidr, **({"except": inside} if inside else {})}}


def _is_inside(inner: str, outer: str) -> bool:
    from ipaddress import IPv4Network, ip_network

    small, large = ip_network(inner), ip_network(outer)
    return isinstance(small, IPv4Network) and isinstance(large, IPv4Network) and small.subnet_of(large)
