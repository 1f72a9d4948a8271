"""Recognizes a control plane of Karmada, and tells why it gives no run to a cluster.

See decision 137.
"""

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.names import KARMADA_POLICIES, KARMADA_POLICY


def is_karmada(client: Client) -> bool:
    """Return whether the API server is Karmada's."""
    try:
        client.get(f"/apis/{KARMADA_POLICIES}")
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return False
    return True


def undispatched(client: Client) -> str | None:
    """Return a message with a remedy if Karmada has no policy for runs; None if it has, or if it may not be read."""
    try:
        client.get(f"/apis/{KARMADA_POLICIES}/v1alpha1/clusterpropagationpolicies/{KARMADA_POLICY}")
    except ApiError as error:
        if error.status != 404:
            return None
        return (
            "Karmada has no policy that gives runs to its clusters: there is no ClusterPropagationPolicy "
            f"{KARMADA_POLICY}. `fairlead install{client.access.option}` creates it, and runs that were submitted "
            "before go out then."
        )
    return None
