"""Names the pool of a node, by the label that its autoscaler or cloud gave it."""

from collections.abc import Mapping

POOL_LABELS = (
    "fairlead.dev/pool",
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
)


def pool_name(node: str, labels: Mapping[str, str]) -> str:
    """Return the pool of a node: the value of a pool label, or else its name without a trailing number."""
    named = next((labels[label] for label in POOL_LABELS if label in labels), None)
    if named is not None:
        return named
    stem, dash, number = node.rpartition("-")
    return stem if dash and number.isdigit() else node
