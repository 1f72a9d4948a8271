"""The Service by which the replicas of an endpoint find each other's data, and the Secret with the key for it.

Kubernetes' own controllers list all pods of the endpoint, from the moment they have an address: data is read before a
replica serves, and also from one that serves no more. See decision 275.
"""

import base64
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.manifests.pod_environment import DATA_PORT
from fairlead.cluster.kubernetes.manifests.run_keys import KEY
from fairlead.specs.serving import Replica
from fairlead.specs.workload import Kind
from fairlead.state.snapshot import Workload


def render_weights_service(replica: Workload) -> dict[str, Any]:
    """Render the headless Service that has the addresses of all replicas of an endpoint."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(replica),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": pods_with_weights(replica),
            "ports": [{"name": "data", "port": DATA_PORT, "protocol": "TCP"}],
        },
    }


def render_weights_key(replica: Workload, key: str) -> dict[str, Any]:
    """Render the Secret. It is created once and never read or changed by the operator."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(replica),
        "immutable": True,
        "data": {KEY: base64.b64encode(key.encode()).decode()},
    }


def pods_with_weights(replica: Workload) -> dict[str, str]:
    """Return the labels of the pods of all replicas of an endpoint."""
    assert isinstance(replica.spec, Replica)
    return {names.MANAGED_BY: names.MANAGER, names.SERVICE: replica.spec.service}


def _metadata(replica: Workload) -> dict[str, Any]:
    assert isinstance(replica.spec, Replica)
    endpoint = replica.spec.service
    return {
        "name": names.weights_name(replica),
        "namespace": replica.spec.team,
        "labels": {
            **names.recommended_labels(names.ENDPOINT_NAME, endpoint, "endpoint"),
            names.MANAGED_BY: names.MANAGER,
            names.RUN: endpoint,
        },
        "ownerReferences": [
            {
                "apiVersion": "fairlead.dev/v1alpha1",
                "kind": str(Kind.SERVING),
                "name": endpoint,
                "uid": replica.parent,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
