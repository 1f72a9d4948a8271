"""Namespaces in which administrators alone create objects: what is read, asked or let in there is believed. Pure.

A label says nothing of who wrote it. So pods that the operator believes, or that may reach others' pods, are chosen by
their namespace too. A namespace of a Team is never one of them.

See decision 156.
"""

import re
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from fairlead.frozen import dataclass

DEFAULT = (
    "dcgm-exporter",
    "gke-managed-system",
    "gpu-operator",
    "kube-system",
    "kuberay-operator",
    "kuberay-system",
    "monitoring",
    "nvidia-gpu-operator",
    "prometheus",
    "ray-system",
)
"""Those that the charts and manuals of NVIDIA's GPU operator, KubeRay and Prometheus name."""
_SERVICE = re.compile(r"[a-z][a-z0-9-]*")
_IN_CLUSTER = ((), ("svc",), ("svc", "cluster", "local"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemNamespaces:
    """The system namespaces of a cluster, and the hosts of Prometheus servers elsewhere.

    Attributes:
        prometheus_hosts: Hosts, as in a URL, that endpoints may scale by beside the Services of these namespaces.
    """

    names: tuple[str, ...] = DEFAULT
    prometheus_hosts: tuple[str, ...] = ()

    def include(self, namespace: str, teams: Collection[str]) -> bool:
        """Return whether a namespace is one, and no Team's."""
        return namespace in self.names and namespace not in teams

    def selector(self) -> dict[str, Any]:
        """Return the namespaceSelector of a NetworkPolicy."""
        key = "kubernetes.io/metadata.name"
        return {"matchExpressions": [{"key": key, "operator": "In", "values": list(self.names)}]}

    def prometheus_problem(self, url: str) -> str | None:
        """Return why the operator does not ask the Prometheus at a URL, as a clause; None if it does.

        It asks from a network of administrators, so that a user's URL leads it only to their servers.
        """
        host = urlsplit(url).hostname or ""
        name, *rest = host.split(".")
        # A name of a Service begins with a letter; a number alone is an address, as 2130706433 is 127.0.0.1.
        is_service = _SERVICE.fullmatch(name) is not None and name != "localhost"
        is_here = is_service and not rest
        is_system = is_service and len(rest) > 0 and rest[0] in self.names and tuple(rest[1:]) in _IN_CLUSTER
        if is_here or is_system or host in self.prometheus_hosts:
            return None
        return (
            f"the operator asks no Prometheus at {host}: ask an administrator to allow it with "
            f"`fairlead install --prometheus-host {host}`, or use a Service in {', '.join(self.names)}"
        )
