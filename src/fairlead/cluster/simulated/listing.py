"""Items of a snapshot in order of uids: an update costs in proportion to the change, a copy little more."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ItemsByUid(Generic[Item]):
    """Items by uid; those of one uid are adjacent."""

    def __init__(self) -> None:
        self._uids: list[str] = []
        self._items: list[Item] = []

    def put(self, uid: str, items: Sequence[Item]) -> None:
        """Replace all items of a uid."""
        at = bisect_left(self._uids, uid)
        end = bisect_right(self._uids, uid, lo=at)
        self._uids[at:end] = [uid] * len(items)
        self._items[at:end] = items

    def items(self) -> tuple[Item, ...]:
        """Return all items, in order of their uids."""
        return tuple(self._items)
