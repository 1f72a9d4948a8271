"""Lists of names in sentences, which are cut after the first few."""

from collections.abc import Sequence


def listed(names: Sequence[str], most: int, *, separator: str = ", ", joint: str = " and ") -> str:
    """Return the first names as a list, with the number of the others: "a, b and 2 more".

    Args:
        most: Maximum number of names in the list.
        separator: Text between two names.
        joint: Text before the number of the others.
    """
    more = f"{joint}{len(names) - most} more" if len(names) > most else ""
    return f"{separator.join(names[:most])}{more}"
