"""The Secret with the key by which the ranks of a run know each other; its pods alone refer to it."""

import base64
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.state.snapshot import Workload

KEY = "key"


def render_key(workload: Workload, attempt: int, key: str) -> dict[str, Any]:
    """Render the Secret. It is created once and never read or changed by the operator."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.key_name(workload, attempt),
            "namespace": workload.spec.team,
            "labels": names.run_labels(workload),
            "ownerReferences": [names.owner(workload)],
        },
        "immutable": True,
        "data": {KEY: base64.b64encode(key.encode()).decode()},
    }
