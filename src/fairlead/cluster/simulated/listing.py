"""Lists what a snapshot shows in order of uids: a change costs what has changed, a copy of the whole little more."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Listing(Generic[Item]):
    """Items by the uid of whose they are; several of one uid are next to each other."""

    def __init__(self) -> None:
        self._uids: list[str] = []
        self._items: list[Item] = []

    def put(self, uid: str, items: Sequence[Item]) -> None:
        """From now on these are all that there are of the uid."""
        at = bisect_left(self._uids, uid)
        end = bisect_right(self._uids, uid, lo=at)
        self._uids[at:end] = [uid] * len(items)
        self._items[at:end] = items

    def items(self) -> tuple[Item, ...]:
        """All of them, in order of their uids."""
        return tuple(self._items)
