"""Closes pods off: they reach nothing and nothing reaches them, but for the holes that training needs.

A policy cannot say "pods of the same run" for all runs at once, so each run has one of its own.
"""

from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.manifests.pod_environment import MASTER_PORT
from fairlead.frozen import dataclass
from fairlead.specs.engines import Engine
from fairlead.specs.serving import Replica
from fairlead.state.snapshot import Workload

DNS_PORT = 53
# KubeRay asks the head of a Ray cluster how its job is.
_KUBERAY: dict[str, Any] = {
    "from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}}],
    "ports": [{"port": 8265, "protocol": "TCP"}],
}
METADATA = "169.254.0.0/16"  # where clouds hand out a node's credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Addresses that pods of runs may reach outside their run.

    Attributes:
        storage_ports: TCP ports of object stores and package indexes.
        storage_cidrs: Where those are.
        withheld_cidrs: What stays closed within ``storage_cidrs``.
    """

    storage_ports: tuple[int, ...] = (443,)
    storage_cidrs: tuple[str, ...] = ("0.0.0.0/0",)
    withheld_cidrs: tuple[str, ...] = (METADATA,)


def render_team_policies(namespace: str, settings: NetworkSettings) -> list[dict[str, Any]]:
    """Nothing in and nothing out for every pod of a namespace, but names and storage for those of runs."""
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


def render_run_policy(workload: Workload) -> dict[str, Any]:
    """All ports between the pods of one run: collectives choose theirs as they go. A replica answers all pods."""
    same = {"podSelector": {"matchLabels": {names.RUN_UID: workload.uid}}}
    ingress: list[dict[str, Any]] = [{"from": [same]}]
    if isinstance(workload.spec, Replica):
        # Whoever is in the cluster may ask it, but nothing else than its server; with keys only who asks for them.
        gateways = {"kubernetes.io/metadata.name": names.GATEWAY_NAMESPACE}
        who = {"matchLabels": gateways} if workload.spec.guarded else {}
        ingress.append({"from": [{"namespaceSelector": who}], "ports": [{"port": MASTER_PORT, "protocol": "TCP"}]})
    if workload.spec.engine is Engine.RAYJOB:
        ingress.append(_KUBERAY)
    rules = {"policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": [{"to": [same]}]}
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
    inside = [each for each in withheld if _is_inside(each, cidr)]
    return {"ipBlock": {"cidr": cidr, **({"except": inside} if inside else {})}}


def _is_inside(inner: str, outer: str) -> bool:
    from ipaddress import IPv4Network, ip_network

    small, large = ip_network(inner), ip_network(outer)
    return isinstance(small, IPv4Network) and isinstance(large, IPv4Network) and small.subnet_of(large)
