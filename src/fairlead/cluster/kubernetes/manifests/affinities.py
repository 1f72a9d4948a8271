"""Extends node affinities; terms are alternatives, so every requirement is added to each of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def among(
    affinity: Mapping[str, Any], labels: Iterable[tuple[str, str]], others: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the affinity restricted to nodes with one of the labels that also match all other expressions.

    Args:
        labels: Alternative labels as key and value; empty for any node.
        others: Expressions that are added to every term.
    """
    values: dict[str, list[str]] = {}
    for key, value in labels:
        values.setdefault(key, []).append(value)
    if not values and not others:
        return dict(affinity)
    own_terms: list[dict[str, Any]] = (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    wanted = [[{"key": key, "operator": "In", "values": sorted(set(texts))}] for key, texts in values.items()] or [[]]
    terms = [
        {**term, "matchExpressions": [*term.get("matchExpressions", ()), *alternative, *others]}
        for term in own_terms
        for alternative in wanted
    ]
    return {**affinity, REQUIRED: {"nodeSelectorTerms": terms}}
