"""Who looks after a cluster's runs just now, as its Lease tells everybody who asks."""

from dataclasses import dataclass
from datetime import UTC, datetime

from fairlead.cluster.kubernetes.client import ApiError, Client
from fairlead.cluster.kubernetes.roles import OPERATOR

# Clocks of two machines may differ; a holder renews its Lease every few seconds.
STALE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The operator that leads.

    Attributes:
        age_s: Since it last renewed the Lease, by our clock.
    """

    name: str
    namespace: str
    age_s: float


def holder_of(client: Client, namespace: str, *, patience_s: float | None = None) -> Holder | None:
    """The operator that holds the Lease of a namespace and renews it; None when none does.

    Raises:
        ClusterError: The Lease cannot be read.
    """
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{OPERATOR}"
    try:
        spec = client.get(path, patience_s=patience_s).get("spec") or {}
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    name, renewed = str(spec.get("holderIdentity") or ""), spec.get("renewTime")
    if not name or renewed is None:
        return None
    age_s = (datetime.now(UTC) - datetime.fromisoformat(renewed)).total_seconds()
    return Holder(name=name, namespace=namespace, age_s=max(0.0, age_s)) if age_s < STALE_S else None
