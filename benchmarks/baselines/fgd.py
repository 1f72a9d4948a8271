"""Fragmentation gradient descent: Weng et al., "Beware of Fragmentation", USENIX ATC 2023.

A node's fragment for a typical task is its idle GPU on devices too small for the task; all of its idle GPU where the
task does not fit at all. A pod goes where the expected fragment grows least. Scores are whole numbers from 0 to 100, as
in the authors' scheduler, and ties go to a seeded order: with exact scores the rule packs about 3 points worse.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fairlead.policy.placement.fleet_arrays import FleetArrays, Spot
from fairlead.policy.placement.node_arrays import Ints, Mask
from fairlead.policy.placement.node_ranking import NodeRanking, Scores
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape

TYPICAL = 0.95


class Fgd:
    """FGD on a fleet.

    Args:
        tasks: The list that typical tasks are taken from, known beforehand as in the paper.
    """

    def __init__(self, fleet: FleetArrays, tasks: Sequence[Shape], seed: int) -> None:
        self._fleet = fleet
        self._order = np.random.default_rng(seed).permutation(len(fleet))
        self._tie = np.empty(len(fleet))
        self._tie[self._order] = np.arange(len(fleet)) / len(fleet) / 2
        typical = _typical(tasks)
        self._weight = np.array([weight for _, weight in typical])
        self._cpu = np.array([task.cpu_milli for task, _ in typical])
        self._milli = np.array([task.gpu_milli for task, _ in typical])
        self._num = np.array([task.num_gpus for task, _ in typical])
        self._allowed = np.array([fleet.allowed(task) for task, _ in typical])
        self._ranking = NodeRanking(fleet, self._score)

    def observe(self, shape: Shape) -> None:
        """Nothing is learnt from arrivals."""

    def choose(self, shape: Shape) -> Spot | None:
        """Node and devices for one pod; None where it fits nowhere."""
        node = self._ranking.best(shape)
        if node is None:
            return None
        nodes = np.array([node])
        usable = self._fleet.usable(nodes, shape)
        if not shape.is_share:
            return Spot(node=node, devices=tuple(int(i) for i in np.flatnonzero(usable[0])[: shape.num_gpus]))
        return Spot(node=node, devices=(int(self._by_device(nodes, usable, shape)[0].argmax()),))

    def _score(self, nodes: Ints, usable: Mask, shape: Shape) -> Scores:
        if shape.is_share:
            best = self._by_device(nodes, usable, shape).max(axis=1)
        else:
            chosen = usable & (usable.cumsum(axis=1) <= shape.num_gpus)
            after = self._fleet.gpu_milli[nodes] - WHOLE_GPU * chosen
            best = self._gradient(nodes, after[:, None, :], shape)[:, 0]
        return np.asarray(best - self._tie[nodes])

    def _by_device(self, nodes: Ints, usable: Mask, shape: Shape) -> Scores:
        """Score of each device (B, G)."""
        num = usable.shape[1]
        after = self._fleet.gpu_milli[nodes][:, None, :] - shape.gpu_milli * np.eye(num, dtype=np.int64)
        return np.where(usable, self._gradient(nodes, after, shape), -np.inf)

    def _gradient(self, nodes: Ints, after: Ints, shape: Shape) -> Scores:
        """Scores of leaving the devices with ``after`` (B, A, G): (B, A)."""
        kind = self._fleet.kind[nodes][:, None, :]
        cpu = self._fleet.cpu_milli[nodes][:, None]
        before = self._fragment(self._fleet.gpu_milli[nodes][:, None, :], cpu, kind)
        shrink = before - self._fragment(after, cpu - shape.cpu_milli, kind)
        return np.asarray(np.floor(100 / (1 + np.exp(-shrink / 1000))))

    def _fragment(self, gpu_milli: Ints, cpu: Ints, kind: Ints) -> Scores:
        """Expected fragment in GPU-milli of devices (B, A, G) with cores (B, 1)."""
        enough = gpu_milli[..., None] >= self._milli
        if not self._allowed.all():
            enough &= self._allowed.T[kind]
        hosts = (enough.sum(axis=2) >= self._num) & (cpu[..., None] >= self._cpu) & (self._num > 0)
        usable = np.einsum("bag,bagt->bat", gpu_milli, enough)
        return np.asarray(gpu_milli.sum(axis=2) - (hosts * usable) @ self._weight)


def _typical(tasks: Sequence[Shape]) -> list[tuple[Shape, float]]:
    """The most frequent distinct tasks that make up 95 % of pods, with frequencies; memory tells none apart."""
    counts = Counter(
        Shape(cpu_milli=t.cpu_milli, num_gpus=t.num_gpus, gpu_milli=t.gpu_milli, gpu_model=t.gpu_model) for t in tasks
    )
    chosen: list[tuple[Shape, int]] = []
    covered = 0
    for task, count in sorted(counts.items(), key=lambda item: -item[1]):
        if covered >= TYPICAL * len(tasks):
            break
        chosen.append((task, count))
        covered += count
    return [(task, count / covered) for task, count in chosen]
