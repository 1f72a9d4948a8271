"""The Service of an endpoint and the EndpointSlice that holds its replicas: one address, whoever serves behind it.

The Service selects nothing. Kubernetes' own controllers would list each pod that is ready, and a replica that is about
to go is to be listed no more before it gets its notice.
"""

from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.manifests.pod_environment import MASTER_PORT
from fairlead.cluster.kubernetes.manifests.services import MANAGED_BY, SERVICE_NAME
from fairlead.gateway.packing import ROUTES_KEY, packed
from fairlead.specs.serving import Serving
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.snapshot import Workload

PORT, PORT_NAME = 80, "http"


def endpoint_name(spec: WorkloadSpec) -> str:
    """Return the name of an endpoint's Service, which starts with a letter, as its own name need not."""
    return f"serve-{spec.name}"


def endpoint_url(spec: WorkloadSpec) -> str:
    """Return the address of an endpoint within its cluster."""
    return f"http://{endpoint_name(spec)}.{spec.team}.svc/"


def render_endpoint(endpoint: Workload[Serving]) -> dict[str, Any]:
    """The Service of an endpoint, of all its revisions."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(endpoint),
        "spec": {"ports": [{"name": PORT_NAME, "port": PORT, "protocol": "TCP", "targetPort": MASTER_PORT}]},
    }


def render_backends(
    endpoint: Workload[Serving],
    addresses: Mapping[str, str],
    family: str,
    *,
    port: int = MASTER_PORT,
    namespace: str | None = None,
) -> dict[str, Any]:
    """The EndpointSlice of an endpoint.

    Args:
        addresses: Of the pods that serve by their names; at most a thousand, as an endpoint has no more replicas.
        family: IPv4 or IPv6, as all of them are.
        port: Of these pods; that of replicas by default.
        namespace: Of these pods; that of the endpoint by default.
    """
    metadata = _metadata(endpoint)
    metadata["labels"] |= {SERVICE_NAME: endpoint_name(endpoint.spec), MANAGED_BY: names.MANAGER}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": family,
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": name, "namespace": namespace or endpoint.spec.team},
            }
            for name, address in addresses.items()
        ],
        "ports": [{"name": PORT_NAME, "port": port, "protocol": "TCP"}],
    }


def _metadata(endpoint: Workload[Serving]) -> dict[str, Any]:
    return {
        "name": endpoint_name(endpoint.spec),
        "namespace": endpoint.spec.team,
        "labels": {names.MANAGED_BY: names.MANAGER, names.RUN: endpoint.spec.name},
        "ownerReferences": [names.owner(endpoint)],
    }


def render_routes(routes: Mapping[str, Any]) -> dict[str, Any]:
    """The ConfigMap that tells gateways where requests go."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.ROUTES,
            "namespace": names.GATEWAY_NAMESPACE,
            "labels": {names.MANAGED_BY: names.MANAGER},
        },
        "binaryData": {ROUTES_KEY: packed(dict(routes))},
    }
