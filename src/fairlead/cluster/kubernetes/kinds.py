"""The kinds that are stored as objects on a cluster, derived from the table of kinds, and their paths."""

from collections.abc import Mapping

from fairlead.cluster.kubernetes.names import segment
from fairlead.policy.kinds.table import KINDS
from fairlead.specs.keys import API_VERSION

DESCRIBED = ("Team", "Pool")
"""Kinds that describe the cluster itself; they are cluster-scoped."""
NAMED = ("Dataset",)
"""Kinds of a namespace that are no workloads: names for what its runs use."""
SUBMITTED_BY: Mapping[str, str] = {"Replica": "Serving"}
"""Kinds that users do not write, and the kinds whose workloads create them."""
PROBED = ("Replica", "Workspace")
"""Kinds whose pods run a server, which is ready once it passes its probe."""
NOT_IN_PODS = ("Federation",)
"""Kinds that run on one machine only, so that a cluster has no objects of them."""
_LEAVES = frozenset({"Training", "Replica", "Workspace"})


def kept_kinds() -> tuple[str, ...]:
    """Return all kinds: workloads first, then names of a namespace, then those that describe the cluster."""
    return (*workload_kinds(), *NAMED, *DESCRIBED)


def workload_kinds() -> tuple[str, ...]:
    """Return the kinds of workloads."""
    return tuple(kind for kind in KINDS if kind not in NOT_IN_PODS)


def leaf_kinds() -> tuple[str, ...]:
    """Return the kinds of workloads that have pods."""
    return tuple(kind for kind in workload_kinds() if kind in _LEAVES)


def is_leaf_kind(kind: str | None) -> bool:
    """Return whether workloads of a kind have pods."""
    return kind in _LEAVES


def parent_kinds() -> tuple[str, ...]:
    """Return the kinds of workloads that have children; their records are not read."""
    return tuple(kind for kind in workload_kinds() if kind not in _LEAVES)


def is_parent_kind(kind: str) -> bool:
    """Return whether workloads of a kind have children."""
    return kind in parent_kinds()


def plural(kind: str) -> str:
    """Return the plural of a kind, as used in paths and by kubectl."""
    return f"{kind.lower()}s"


def objects_path(kind: str, namespace: str | None = None, name: str | None = None) -> str:
    """Return the path of all objects of a kind, of those in a namespace, or of one object."""
    if namespace is None:
        return f"/apis/{API_VERSION}/{plural(kind)}"
    path = f"/apis/{API_VERSION}/namespaces/{segment(namespace)}/{plural(kind)}"
    return path if name is None else f"{path}/{segment(name)}"
