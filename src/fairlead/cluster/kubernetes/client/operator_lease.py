"""Reads from the Lease which operator currently manages a cluster's runs.

Whoever may edit a namespace can write such a Lease there. So one counts only in a namespace of operators, by what
administrators alone write: the usual one, that of the installation, and those with the label
``fairlead.dev/operator=enabled``.

See decision 245.
"""

import time
from collections.abc import Collection
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.client.installation import installed_in
from fairlead.cluster.kubernetes.client.karmada import is_karmada, undispatched
from fairlead.cluster.kubernetes.lease_contents import DURATION_S, debts_on
from fairlead.cluster.kubernetes.names import LEASE, OPERATORS, POLICY, SYSTEM_NAMESPACE, TROUBLE, WATCHES, segment
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.policy.queue.team_debts import DebtRecord
from fairlead.state.scheduling_policy import DEFAULT, POLICIES, SchedulingPolicy
from fairlead.text.quantities import describe_duration

API = "/apis/coordination.k8s.io/v1"
# Tolerance beyond the Lease's own duration: clocks differ, and a successor needs a moment.
SLACK_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """An operator that holds the Lease.

    Attributes:
        age_s: Seconds since its last renewal, by the local clock.
        lasts_s: Seconds for which a renewal is valid.
        policy: Name of its policy in ``fairlead.state.scheduling_policy.POLICIES``; None if not recorded.
        trouble: What keeps it from seeing the cluster, as it says; empty for nothing.
        watches: The namespace whose runs alone it acts on; empty for all.
        uid: Uid of its Lease.
        debts: What teams have had beyond their shares.
    """

    name: str
    namespace: str
    age_s: float
    lasts_s: float
    policy: str | None = None
    trouble: str = ""
    watches: str = ""
    uid: str = ""
    debts: DebtRecord = DebtRecord()

    @property
    def leads(self) -> bool:
        """True if its Lease is valid."""
        return self.age_s <= self.lasts_s + SLACK_S


def holder_of(client: Client, namespace: str, *, patience_s: float | None = None) -> LeaseHolder | None:
    """Return the operator that holds a valid Lease in a namespace, or None.

    Raises:
        ClusterError: The Lease cannot be read.
    """
    lease = _lease(client, namespace, patience_s)
    holder = None if lease is None else _holder(lease)
    return holder if holder is not None and holder.leads else None


def labelled_namespaces(client: Client) -> frozenset[str]:
    """Return the usual namespace of operators, and those that an administrator labelled as such.

    Raises:
        ApiError: The namespaces may not be listed.
    """
    labelled = client.items("/api/v1/namespaces", {"labelSelector": f"{OPERATORS}=enabled"})
    return frozenset({SYSTEM_NAMESPACE, *(str(space["metadata"]["name"]) for space in labelled)})


def operator_namespaces(client: Client) -> frozenset[str]:
    """Return the namespaces in which the Lease of an operator counts, as far as the user may see them.

    Raises:
        ClusterError: The API server does not answer.
    """
    installed = installed_in(client)
    try:
        labelled = labelled_namespaces(client)
    except ApiError as error:
        if error.status != 403:
            raise
        labelled = frozenset({SYSTEM_NAMESPACE})
    return labelled | {installed} if installed else labelled


def leaders(client: Client, namespaces: Collection[str]) -> list[LeaseHolder]:
    """Return the operators that hold a valid Lease in these namespaces.

    Raises:
        ApiError: The Leases of the cluster may not be listed.
    """
    leases = client.items(f"{API}/leases", {"fieldSelector": f"metadata.name={LEASE}"})
    counted = [lease for lease in leases if lease["metadata"].get("namespace") in namespaces]
    holders = [holder for lease in counted if (holder := _holder(lease)) is not None and holder.leads]
    return sorted(holders, key=lambda holder: holder.namespace)


def in_conflict(one: LeaseHolder, other: LeaseHolder) -> bool:
    """Return whether two leaders may act on the same runs."""
    return not one.watches or not other.watches or one.watches == other.watches


def unattended(client: Client) -> str | None:
    """Return a message with a remedy if no operator holds a valid Lease; None if one does, or if it may not be read.

    On a control plane of Karmada there is no operator, and the message is about what gives runs to its clusters.
    """
    try:
        leases = _leases(client)
        if not leases and is_karmada(client):
            return undispatched(client)
    except ApiError:  # no right to read, or a problem that the command itself reports
        return None
    here = client.access.option
    remedy = (
        f"Nothing starts, stops or restarts until one does: `fairlead operator{here}` runs one from here, "
        f"`fairlead install --image-to REGISTRY/NAME{here}` puts it into the cluster."
    )
    if not leases:
        return f"No operator has ever run on this cluster. {remedy}"
    holders = [holder for lease in leases if (holder := _holder(lease)) is not None]
    if not holders:
        return f"No operator runs on this cluster: the last one has stopped. {remedy}"
    youngest = min(holders, key=lambda holder: holder.age_s)
    if youngest.leads:
        return None
    ago = describe_duration(youngest.age_s)
    return f"No operator runs on this cluster: its Lease was last renewed {ago} ago. {remedy}"


def leader_there(client: Client) -> LeaseHolder | None:
    """Return the leading operator; None if none leads, or if the Lease may not be read."""
    try:
        holders = [holder for lease in _leases(client) if (holder := _holder(lease)) is not None]
    except ApiError:
        return None
    return min(holders, key=lambda holder: holder.age_s, default=None)


def rules_of(leader: LeaseHolder | None) -> SchedulingPolicy:
    """Return the policy of the leading operator; the default if none leads.

    Raises:
        ClusterError: This version does not know the operator's policy.
    """
    policy = None if leader is None else leader.policy
    if policy is not None and policy not in POLICIES:
        raise ClusterError(
            f"The operator starts what waits by the policy {policy!r}, and this version of fairlead knows "
            f"{', '.join(POLICIES)}. Use the operator's version to ask what would happen."
        )
    return DEFAULT if policy is None else POLICIES[policy]


def _leases(client: Client) -> list[dict[str, Any]]:
    """Return the Lease of the usual namespace, or otherwise those of the other namespaces of operators."""
    usual = _lease(client, SYSTEM_NAMESPACE, 5.0)
    if usual is not None:
        return [usual]
    others = sorted(operator_namespaces(client) - {SYSTEM_NAMESPACE})
    return [lease for namespace in others if (lease := _lease(client, namespace, 5.0)) is not None]


def _lease(client: Client, namespace: str, patience_s: float | None) -> dict[str, Any] | None:
    try:
        return client.get(f"{API}/namespaces/{segment(namespace)}/leases/{LEASE}", patience_s=patience_s)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _holder(lease: dict[str, Any]) -> LeaseHolder | None:
    """Return the holder of a Lease; None if it was released."""
    spec = lease.get("spec") or {}
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return None
    annotations = lease["metadata"].get("annotations") or {}
    return LeaseHolder(
        name=str(spec["holderIdentity"]),
        namespace=str(lease["metadata"]["namespace"]),
        age_s=max(0.0, time.time() - seconds(spec["renewTime"])),
        lasts_s=float(spec.get("leaseDurationSeconds") or DURATION_S),
        policy=annotations.get(POLICY),
        trouble=str(annotations.get(TROUBLE) or ""),
        watches=str(annotations.get(WATCHES) or ""),
        uid=str(lease["metadata"].get("uid") or ""),
        debts=debts_on(annotations),
    )
