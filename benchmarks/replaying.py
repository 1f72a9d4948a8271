"""Replays a list of pods on a fleet: the placement of each by one policy, with or without departures."""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

import numpy as np

from benchmarks.baselines.best_fit import BestFit
from benchmarks.baselines.fgd import Fgd
from benchmarks.openb import Workload
from fairlead.policy.placement.fleet_arrays import FleetArrays, Spot
from fairlead.policy.placement.gang_placement import place_one, release
from fairlead.policy.placement.packing import Packing
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.placement.task_mix import TaskMix

POLICIES = ("fairlead", "fgd", "best-fit")


class Policy(Protocol):
    """Chooses nodes, and may learn from what arrives."""

    def observe(self, shape: Shape) -> None:
        """A pod has arrived."""
        ...

    def choose(self, shape: Shape) -> Spot | None:
        """Where it goes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a replay with departures.

    Attributes:
        offered: GPU time asked for, in devices times mean lifetimes.
        refused: The part of it that no node had room for on arrival.
    """

    offered: float
    refused: float

    @property
    def refused_percent(self) -> float:
        """Refused GPU time as a percentage of what was asked for."""
        return 100 * self.refused / self.offered


def make_policy(name: str, fleet: FleetArrays, workload: Workload, seed: int) -> Policy:
    """A policy of ``POLICIES``; only FGD is told of the list beforehand, as its authors have it."""
    if name == "fairlead":
        return Packing(fleet, TaskMix())
    if name == "fgd":
        return Fgd(fleet, workload.shapes, seed)
    if name == "best-fit":
        return BestFit(fleet, seed)
    raise ValueError(f"{name!r} is no policy; there are {', '.join(POLICIES)}")


def fill(shapes: Iterable[Shape], fleet: FleetArrays, policy: Policy) -> float:
    """GPUs allocated, as a percentage, when all have arrived and none has left; what fits nowhere is dropped."""
    for shape in shapes:
        policy.observe(shape)
        place_one(shape, fleet, policy)
    return 100 * (1 - fleet.free_gpu_milli / fleet.total_gpu_milli)


def churn(workload: Workload, load: float, num_pods: int, seed: int, fleet: FleetArrays, policy: Policy) -> Outcome:
    """Pods drawn from the list come as a Poisson stream and stay for exponential times; what fits nowhere is refused.

    The first pods, as many as are there at any time, come at once; neither they nor those of the first half of a mean
    lifetime count. Lifetimes are exponential, so what is left of them at the start is distributed as they are.

    Args:
        load: Expected GPUs asked for at any time, as a share of the fleet's.
        num_pods: How many arrivals count.
    """
    rng = np.random.default_rng(seed)
    shapes = workload.shapes
    mean_gpus = float(np.mean([shape.total_gpu_milli for shape in shapes])) / 1000
    interval = mean_gpus / (load * fleet.total_gpu_milli / 1000)
    at_once, warm_up = round(1 / interval), round(1.5 / interval)
    leaving: list[tuple[float, int, Shape, Spot]] = []
    serial, now, offered, refused = count(), 0.0, 0.0, 0.0
    for i in range(warm_up + num_pods):
        now += rng.exponential(interval) if i >= at_once else 0.0
        shape, lifetime = shapes[rng.integers(len(shapes))], rng.exponential()
        while leaving and leaving[0][0] <= now:
            _, _, gone, spot = heappop(leaving)
            release(gone, spot, fleet)
        policy.observe(shape)
        spots = place_one(shape, fleet, policy)
        asked = shape.total_gpu_milli / 1000 * lifetime
        if spots is not None:
            heappush(leaving, (now + lifetime, next(serial), shape, spots[0]))
        if i >= warm_up:
            offered += asked
            refused += asked if spots is None else 0.0
    return Outcome(offered=offered, refused=refused)
