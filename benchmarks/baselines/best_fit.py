"""Best fit: the node with the least left over in cores and GPUs, each as a share of the largest node's, in equal parts.

As in the FGD authors' comparison: scores are whole numbers from 0 to 100, ties go to a seeded order, and a share takes
the fullest device that holds it.
"""

import numpy as np

from fairlead.policy.placement.fleet_arrays import FleetArrays, Spot
from fairlead.policy.placement.node_arrays import Ints, Mask
from fairlead.policy.placement.node_ranking import NodeRanking, Scores
from fairlead.policy.placement.pod_shapes import Shape


class BestFit:
    """Best fit on a fleet."""

    def __init__(self, fleet: FleetArrays, seed: int) -> None:
        self._fleet = fleet
        self._tie = np.random.default_rng(seed).permutation(len(fleet)) / len(fleet) / 2
        self._most_cpu = int(fleet.cpu_milli.max())
        self._most_gpu = int(fleet.gpu_milli.sum(axis=1).max())
        self._ranking = NodeRanking(fleet, self._score)

    def observe(self, shape: Shape) -> None:
        """Nothing is learnt from arrivals."""

    def choose(self, shape: Shape) -> Spot | None:
        """Node and devices for one pod; None where it fits nowhere."""
        node = self._ranking.best(shape)
        if node is None:
            return None
        usable = self._fleet.usable(np.array([node]), shape)[0]
        devices = np.flatnonzero(usable)
        devices = devices[np.argsort(self._fleet.gpu_milli[node, devices], kind="stable")]
        return Spot(node=node, devices=tuple(int(i) for i in devices[: shape.num_gpus]))

    def _score(self, nodes: Ints, usable: Mask, shape: Shape) -> Scores:
        cpu = (self._fleet.cpu_milli[nodes] - shape.cpu_milli) / self._most_cpu
        gpu = (self._fleet.gpu_milli[nodes].sum(axis=1) - shape.total_gpu_milli) / self._most_gpu
        return np.asarray(np.floor(100 * (1 - (cpu + gpu) / 2)) - self._tie[nodes])
