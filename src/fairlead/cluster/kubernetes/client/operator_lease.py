"""Reads from the operator's Lease who looks after a cluster's runs just now."""

import time
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.names import LEASE, POLICY, SYSTEM_NAMESPACE
from fairlead.cluster.kubernetes.operator.leader_election import DURATION_S
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.state.scheduling_policy import DEFAULT, POLICIES, SchedulingPolicy
from fairlead.text.quantities import describe_duration

API = "/apis/coordination.k8s.io/v1"
# Beyond what the Lease itself allows: clocks differ, and the next of several operators needs a moment.
SLACK_S = 10.0
REMEDY = (
    "Nothing starts, stops or restarts until one does: `fairlead operator` runs one from here, `fairlead install` puts "
    "it into the cluster."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """An operator that holds its Lease.

    Attributes:
        age_s: Since it last renewed the Lease, by our clock.
        lasts_s: How long a renewal lasts.
        policy: Name of its policy in ``fairlead.state.scheduling_policy.POLICIES``; None when it does not say.
    """

    name: str
    namespace: str
    age_s: float
    lasts_s: float
    policy: str | None = None

    @property
    def leads(self) -> bool:
        """It renews its Lease."""
        return self.age_s <= self.lasts_s + SLACK_S


def holder_of(client: Client, namespace: str, *, patience_s: float | None = None) -> LeaseHolder | None:
    """The operator that holds the Lease of a namespace and renews it; None when none does.

    Raises:
        ClusterError: The Lease cannot be read.
    """
    found = _lease(client, namespace, patience_s)
    holder = None if found is None else _holder(found)
    return holder if holder is not None and holder.leads else None


def unattended(client: Client) -> str | None:
    """That no operator renews its Lease, and what to do; None when one does, or when we may not look."""
    try:
        leases = _leases(client)
    except ApiError:  # no right to look, or something that the command itself will tell
        return None
    if not leases:
        return f"No operator has ever run on this cluster. {REMEDY}"
    holders = [holder for lease in leases if (holder := _holder(lease)) is not None]
    if not holders:
        return f"No operator runs on this cluster: the last one has stopped. {REMEDY}"
    youngest = min(holders, key=lambda holder: holder.age_s)
    if youngest.leads:
        return None
    ago = describe_duration(youngest.age_s)
    return f"No operator runs on this cluster: its Lease was last renewed {ago} ago. {REMEDY}"


def rules_there(client: Client) -> SchedulingPolicy:
    """Those of the operator that leads; the usual ones where none does, or where we may not look.

    Raises:
        ClusterError: It goes by rules that this version does not know.
    """
    try:
        holders = [holder for lease in _leases(client) if (holder := _holder(lease)) is not None]
    except ApiError:
        return DEFAULT
    policy = min(holders, key=lambda holder: holder.age_s).policy if holders else None
    if policy is not None and policy not in POLICIES:
        raise ClusterError(
            f"The operator starts what waits by the policy {policy!r}, and this version of fairlead knows "
            f"{', '.join(POLICIES)}. Use the operator's version to ask what would happen."
        )
    return DEFAULT if policy is None else POLICIES[policy]


def _leases(client: Client) -> list[dict[str, Any]]:
    """That of the usual namespace, or else those of all."""
    usual = _lease(client, SYSTEM_NAMESPACE, 5.0)
    anywhere = {"fieldSelector": f"metadata.name={LEASE}"}
    return [usual] if usual is not None else list(client.items(f"{API}/leases", anywhere))


def _lease(client: Client, namespace: str, patience_s: float | None) -> dict[str, Any] | None:
    try:
        return client.get(f"{API}/namespaces/{namespace}/leases/{LEASE}", patience_s=patience_s)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _holder(lease: dict[str, Any]) -> LeaseHolder | None:
    """Return who has it; None when it was given back."""
    spec = lease.get("spec") or {}
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return None
    return LeaseHolder(
        name=str(spec["holderIdentity"]),
        namespace=str(lease["metadata"]["namespace"]),
        age_s=max(0.0, time.time() - seconds(spec["renewTime"])),
        lasts_s=float(spec.get("leaseDurationSeconds") or DURATION_S),
        policy=(lease["metadata"].get("annotations") or {}).get(POLICY),
    )
