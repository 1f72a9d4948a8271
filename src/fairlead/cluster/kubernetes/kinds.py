"""The kinds that a cluster keeps as objects, by the table of kinds, and the paths of those objects."""

from collections.abc import Mapping

from fairlead.policy.kinds.table import KINDS
from fairlead.specs.keys import API_VERSION

DESCRIBED = ("Team", "Pool")
"""Kinds that describe the cluster itself; they belong to no namespace."""
SUBMITTED_BY: Mapping[str, str] = {"Replica": "Serving"}
"""Kinds that nobody writes, and those whose workloads submit them."""
_LEAVES = frozenset({"Training", "Replica"})


def kept_kinds() -> tuple[str, ...]:
    """Return all of them: workloads first, then what describes the cluster."""
    return (*workload_kinds(), *DESCRIBED)


def workload_kinds() -> tuple[str, ...]:
    """Return those of workloads."""
    return tuple(KINDS)


def leaf_kinds() -> tuple[str, ...]:
    """Return those of workloads that have pods."""
    return tuple(kind for kind in workload_kinds() if kind in _LEAVES)


def is_leaf_kind(kind: str | None) -> bool:
    """Tell whether workloads of a kind have pods."""
    return kind in _LEAVES


def parent_kinds() -> tuple[str, ...]:
    """Return those of workloads that have children; their records stay unread."""
    return tuple(kind for kind in workload_kinds() if kind not in _LEAVES)


def is_parent_kind(kind: str) -> bool:
    """Tell whether workloads of a kind have children."""
    return kind in parent_kinds()


def plural(kind: str) -> str:
    """Return what the objects of a kind are called in paths and by kubectl."""
    return f"{kind.lower()}s"


def objects_path(kind: str, namespace: str | None = None, name: str | None = None) -> str:
    """Return where the objects of a kind are: all, those of a namespace, or one of them."""
    if namespace is None:
        return f"/apis/{API_VERSION}/{plural(kind)}"
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/{plural(kind)}"
    return path if name is None else f"{path}/{name}"
