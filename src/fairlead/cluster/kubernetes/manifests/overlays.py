"""Applies an overlay to a pod like Kubernetes' strategic merge: mappings by key, lists by name or appended."""

from typing import Any

from fairlead.specs.overlay import Overlay
from fairlead.specs.pod_fields import POD, Branch, FieldTree, Items


def lay_over(pod: dict[str, Any], overlay: Overlay) -> dict[str, Any]:
    """Return the pod with the overlay's fields; all other fields are kept."""
    merged: dict[str, Any] = _merged(pod, overlay.pod, POD)
    return merged


def _merged(below: Any, above: Any, branch: Branch | None) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        fields = branch.fields if isinstance(branch, FieldTree) else {}
        merged = dict(below)
        for name, value in above.items():
            merged[name] = _merged(below[name], value, fields.get(name)) if name in below else value
        return merged
    if isinstance(below, list) and isinstance(above, list) and isinstance(branch, Items):
        if branch.merge is None:
            return [*below, *(item for item in above if item not in below)]
        return _merged_by(below, above, branch, branch.merge)
    return above


def _merged_by(below: list[Any], above: list[Any], items: Items, key: str) -> list[Any]:
    merged = {item[key]: item for item in below}
    for item in above:
        merged[item[key]] = _merged(merged[item[key]], item, items.item) if item[key] in merged else item
    return list(merged.values())
