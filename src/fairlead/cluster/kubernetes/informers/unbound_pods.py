"""Bounds the pods on no node that are held in memory, for each namespace and for each run.

Nodes bound the number of pods that are bound to them, and a gang that of its members. Of all others whoever may create
pods creates any number, with any labels and owners: so many of them are held, and the rest is as if it were not there
until it is bound. Each namespace has a number of its own, so that nobody takes the room of another.

See decision 259.
"""

import logging

log = logging.getLogger(__name__)

MOST_OF_NAMESPACE = 1_000
"""Maximum held of a namespace that name no run which is here: more than an engine or another cluster's Kueue creates
before a watch shows the run."""
MOST_OF_RUN = 100
"""Maximum held of a run beside twice its size: pods of earlier attempts which are not deleted yet, and placeholders."""


class UnboundPods:
    """The keys of those that are held, by their group: a namespace or a run. Not thread-safe: callers lock."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, None]] = {}
        self._group_of: dict[str, str] = {}
        self._full: set[str] = set()

    def admits(self, key: str, group: str, most: int) -> bool:
        """Return whether there is a place for a pod in its group, or it has one already."""
        keys = self._keys.get(group, {})
        if key in keys or len(keys) < most:
            return True
        if group not in self._full:
            self._full.add(group)
            log.warning("more than %d pods of %s are on no node and of no gang; the others are ignored", most, group)
        return False

    def follow(self, key: str, group: str | None) -> None:
        """Record the group of a pod that is held; None if it is in none, or gone."""
        before = self._group_of.get(key)
        if before == group:
            return
        if before is not None:
            del self._group_of[key], self._keys[before][key]
            if not self._keys[before]:
                del self._keys[before]
                self._full.discard(before)
        if group is not None:
            self._group_of[key] = group
            self._keys.setdefault(group, {})[key] = None
