"""The Service of an endpoint and the EndpointSlice with its replicas: one address for all replicas.

The Service has no selector. Kubernetes' own controllers would list every ready pod, but a replica that is about to stop
has to be unlisted before it gets its stop notice.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.manifests.pod_environment import MASTER_PORT
from fairlead.cluster.kubernetes.manifests.services import MANAGED_BY, SERVICE_NAME
from fairlead.gateway.packing import ROUTES_KEY, packed
from fairlead.specs.serving import Serving
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.snapshot import Workload

PORT, PORT_NAME = 80, "http"
# A ConfigMap holds a mebibyte.
MOST_ROUTES_BYTES = 1_000_000


def endpoint_name(spec: WorkloadSpec) -> str:
    """Return the name of an endpoint's Service, which starts with a letter, as its own name need not."""
    return f"serve-{spec.name}"


def endpoint_url(spec: WorkloadSpec) -> str:
    """Return the address of an endpoint within its cluster."""
    return f"http://{endpoint_name(spec)}.{spec.team}.svc/"


def render_endpoint(endpoint: Workload[Serving]) -> dict[str, Any]:
    """Render the Service of an endpoint, for all its revisions."""
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
    """Render the EndpointSlice of an endpoint.

    Args:
        addresses: Addresses of the serving pods by name; at most a thousand, the limit of an endpoint's replicas.
        family: IPv4 or IPv6, the same for all.
        port: Port of these pods; that of replicas by default.
        namespace: Namespace of these pods; that of the endpoint by default.
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


def render_disruption_budget(endpoint: Workload[Serving], num_pods: int) -> dict[str, Any]:
    """Render the PodDisruptionBudget of an endpoint's replicas.

    It states the number of pods that must stay, not `maxUnavailable`, for which Kubernetes would look up the expected
    number at the pods' own controllers, one for each replica. A pod that is not ready may always be evicted, so that a
    broken revision keeps no node from being drained.
    """
    metadata = _metadata(endpoint)
    metadata["labels"] |= {names.ENDPOINT_UID: endpoint.uid}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata,
        "spec": {
            "minAvailable": num_pods,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {names.MANAGED_BY: names.MANAGER, names.SERVICE: endpoint.spec.name}},
        },
    }


def _metadata(endpoint: Workload[Serving]) -> dict[str, Any]:
    return {
        "name": endpoint_name(endpoint.spec),
        "namespace": endpoint.spec.team,
        "labels": {
            **names.recommended_labels(names.ENDPOINT_NAME, endpoint.spec.name, "endpoint"),
            names.RUN: endpoint.spec.name,
        },
        "ownerReferences": [names.owner(endpoint)],
    }


def routes_name(team: str) -> str:
    """Return the name of the ConfigMap with a team's routes."""
    return f"{names.ROUTES}-{team}"


def render_team_routes(team: str, routes: Mapping[str, Any]) -> dict[str, Any]:
    """Render the ConfigMap with one team's part of the routes of the gateways.

    Raises:
        ValueError: A ConfigMap cannot hold them.
    """
    text = packed({**routes, "team": team})
    if (size := len(text) * 3 // 4) > MOST_ROUTES_BYTES:
        raise ValueError(
            f"the routes of team {team} take {size:,} bytes, of which gateways read {MOST_ROUTES_BYTES:,}; it has to "
            "have fewer endpoints or replicas"
        )
    return _routes_map(routes_name(team), text)


def render_routes(teams: Iterable[str]) -> dict[str, Any]:
    """Render the ConfigMap that lists the teams with routes; what others have there does not count."""
    return _routes_map(names.ROUTES, packed({"teams": sorted(teams)}))


def _routes_map(name: str, text: str) -> dict[str, Any]:
    labels = {names.MANAGED_BY: names.MANAGER, names.CONTENT: names.TEAM_ROUTES}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": names.GATEWAY_NAMESPACE, "labels": labels},
        "binaryData": {ROUTES_KEY: text},
    }
