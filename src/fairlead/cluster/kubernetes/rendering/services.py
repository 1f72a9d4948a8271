"""The headless Service that gives the pods of a run their names."""

from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.rendering.contract import MASTER_PORT
from fairlead.state.snapshot import Workload


def render_service(workload: Workload) -> dict[str, Any]:
    """The Service of a run; one serves all its attempts."""
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
            # Ranks meet before any of them is ready; without this each would wait for the others' names.
            "publishNotReadyAddresses": True,
            "selector": {names.RUN_UID: workload.uid},
            "ports": [{"name": "rendezvous", "port": MASTER_PORT, "protocol": "TCP"}],
        },
    }
