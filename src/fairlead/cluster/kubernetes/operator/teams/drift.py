"""Compares an object with its rendered form, ignoring what others and the API server have added. Pure."""

from typing import Any

from fairlead.cluster.kubernetes.api.objects import quantity

AMOUNTS = frozenset({"hard", "default", "defaultRequest"})


def is_as_rendered(live: Any, rendered: Any, *, is_amount: bool = False, is_exact: bool = False) -> bool:
    """Return whether an object contains everything that was rendered.

    Args:
        is_amount: The values are quantities, which the API server writes in its own notation.
        is_exact: Nothing else may be present. This holds within lists, whose items each allow something, and of which
        ours
            are complete.
    """
    if isinstance(rendered, dict):
        if not isinstance(live, dict) or (is_exact and set(live) != set(rendered)):
            return False
        return all(
            is_as_rendered(live.get(name), value, is_amount=is_amount or name in AMOUNTS, is_exact=is_exact)
            for name, value in rendered.items()
        )
    if isinstance(rendered, list):
        return (
            isinstance(live, list)
            and len(live) == len(rendered)
            and all(is_as_rendered(one, other, is_exact=True) for one, other in zip(live, rendered, strict=True))
        )
    return bool(live == rendered or (is_amount and live is not None and quantity(str(live)) == quantity(str(rendered))))


def surplus(live: Any, rendered: Any) -> dict[str, Any]:
    """Return a merge patch that removes what was not rendered, at any depth of mappings; empty if there is nothing."""
    patch: dict[str, Any] = {}
    for name, value in live.items():
        if name not in rendered:
            patch[name] = None
        elif isinstance(value, dict) and isinstance(rendered[name], dict) and (inner := surplus(value, rendered[name])):
            patch[name] = inner
    return patch
