"""Whether an operator looks after the cluster, as far as its Lease tells a user."""

import time
from typing import Any

from fairlead.cluster.kubernetes.client import ApiError, Client
from fairlead.cluster.kubernetes.election import DURATION_S
from fairlead.cluster.kubernetes.names import LEASE, SYSTEM_NAMESPACE
from fairlead.cluster.kubernetes.objects import seconds
from fairlead.policy.quantities import say_duration

# Beyond what the Lease itself allows: clocks differ, and the next of several operators needs a moment.
SLACK_S = 10.0
REMEDY = (
    "Nothing starts, stops or restarts until one does: `fairlead operator` runs one from here, `fairlead install` puts "
    "it into the cluster."
)


def unattended(client: Client) -> str | None:
    """That no operator renews its Lease, and what to do; None when one does, or when we may not look."""
    try:
        leases = _leases(client)
    except ApiError:  # no right to look, or something that the command itself will tell
        return None
    if not leases:
        return f"No operator has ever run on this cluster. {REMEDY}"
    ages = [age for lease in leases if (age := _age(lease, time.time())) is not None]
    if not ages:
        return f"No operator runs on this cluster: the last one has stopped. {REMEDY}"
    age_s, lasts_s = min(ages)
    if age_s <= lasts_s + SLACK_S:
        return None
    return f"No operator runs on this cluster: its Lease was last renewed {say_duration(age_s)} ago. {REMEDY}"


def _leases(client: Client) -> list[dict[str, Any]]:
    """The operator's, where it usually is, or else wherever we may look."""
    api = "/apis/coordination.k8s.io/v1"
    try:
        return [client.get(f"{api}/namespaces/{SYSTEM_NAMESPACE}/leases/{LEASE}", patience_s=5.0)]
    except ApiError as error:
        if error.status != 404:
            raise
    return list(client.items(f"{api}/leases", {"fieldSelector": f"metadata.name={LEASE}"}))


def _age(lease: dict[str, Any], now: float) -> tuple[float, float] | None:
    """Seconds since it was renewed, and how many it lasts; None when it was given back."""
    spec = lease.get("spec") or {}
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return None
    return now - seconds(spec["renewTime"]), float(spec.get("leaseDurationSeconds") or DURATION_S)
