"""The headless Service that gives a run's pods their DNS names, and the EndpointSlices with their addresses.

The Service has no selector, so that Kubernetes' own controllers ignore it: at each change of a pod they would write two
objects that are as large as the gang.
"""

from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.manifests.pod_environment import MASTER_PORT
from fairlead.state.snapshot import Workload

MOST_ENDPOINTS = 1000  # in one slice, by the API server's rules
SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
_PORT = {"name": "rendezvous", "port": MASTER_PORT, "protocol": "TCP"}


def render_service(workload: Workload) -> dict[str, Any]:
    """Render the Service of a run, which all its attempts share."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.service_name(workload),
            "namespace": workload.spec.team,
            "labels": names.run_labels(workload),
            "ownerReferences": [names.owner(workload)],
        },
        "spec": {
            "clusterIP": "None",
            # Ranks connect before any of them is ready; without this each would wait for the names of the others.
            "publishNotReadyAddresses": True,
            "ports": [_PORT],
        },
    }


def slice_name(workload: Workload, number: int) -> str:
    """Return the name of one of a run's EndpointSlices."""
    return f"{names.service_name(workload)}-{number}"


def render_slice(workload: Workload, number: int, addresses: Mapping[str, str]) -> dict[str, Any]:
    """Render one of a run's EndpointSlices.

    Args:
        addresses: Addresses of at most ``MOST_ENDPOINTS`` pods by name, all of one IP family.
    """
    service = names.service_name(workload)
    family = "IPv6" if any(":" in address for address in addresses.values()) else "IPv4"
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": slice_name(workload, number),
            "namespace": workload.spec.team,
            "labels": {**names.run_labels(workload), SERVICE_NAME: service, MANAGED_BY: names.MANAGER},
            "ownerReferences": [names.owner(workload)],
        },
        "addressType": family,
        "endpoints": [
            {"addresses": [address], "hostname": name, "conditions": {"ready": True}}
            for name, address in addresses.items()
        ],
        "ports": [_PORT],
    }
