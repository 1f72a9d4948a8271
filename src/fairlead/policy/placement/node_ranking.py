"""Finds the best node for a shape, at the cost of the nodes that changed since the last query."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fairlead.policy.placement.fleet_arrays import FleetArrays
from fairlead.policy.placement.node_arrays import Ints, Mask
from fairlead.policy.placement.pod_shapes import Shape

Scores = NDArray[np.float64]
Score = Callable[[Ints, Mask, Shape], Scores]


class NodeRanking:
    """Caches scores of every node for each shape.

    Args:
        score: Returns how good it is to place the shape on each of some nodes (B) that can host it, given the devices
            that it can use there (B, G). The first of the best wins. It may depend on the state of the node only.
    """

    def __init__(self, fleet: FleetArrays, score: Score) -> None:
        self._fleet = fleet
        self._score = score
        self._scores: dict[Shape, tuple[Scores, int]] = {}

    def forget(self) -> None:
        """Discard all scores."""
        self._scores.clear()

    def scores(self, shape: Shape) -> Scores:
        """Return the scores of all nodes (N); minus infinity where the shape does not fit."""
        fleet = self._fleet
        cached = self._scores.get(shape)
        if cached is None:
            scores, stale = np.full(len(fleet), -np.inf), np.arange(len(fleet))
        else:
            scores, seen = cached
            if seen == fleet.changes:
                return scores
            stale = np.flatnonzero(fleet.stamp > seen)
        usable = fleet.usable(stale, shape)
        fits = fleet.fits(stale, shape, usable)
        scores[stale] = -np.inf
        if fits.any():
            hosts = stale[fits]
            scores[hosts] = self._score(hosts, usable[fits], shape)
        self._scores[shape] = (scores, fleet.changes)
        return scores

    def best(self, shape: Shape, among: Ints | None = None, bonus: Scores | None = None) -> int | None:
        """Return the node with the highest score among those given; None if the shape fits on none of them.

        Args:
            bonus: Added to the scores (N).
        """
        scores = self.scores(shape) if bonus is None else self.scores(shape) + bonus
        if not len(scores if among is None else among):
            return None
        node = int(scores.argmax() if among is None else among[scores[among].argmax()])
        return node if scores[node] > -np.inf else None
