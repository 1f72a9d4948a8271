"""What free room on a device is worth: how much of it the pods still to come are expected to use.

Take so many pods of the task mix as candidates for one device (a Poisson number of each shape). Of those, the set that
uses most of ``f`` thousandths with at most ``c`` cores uses ``E(f, c)`` of the device, the mean over many samples. The
set with the fewest cores for each width is a subset sum, solved for all samples at once.

The table holds the conjugate of E in cores, the most of ``E(f, c) - p c`` over c, at some prices ``p`` of a core. A
node with several devices and ``C`` cores is then worth the least over p of ``p C`` plus the sum over its devices: the
best split of the cores among them, by Lagrangian duality, exact but for the steps of the prices where E is concave.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fairlead.policy.fleet import Fleet
from fairlead.policy.shapes import WHOLE_GPU
from fairlead.policy.task_mix import TaskMix

Floats = NDArray[np.float64]

# What is free is rounded down to these thousandths of a device, what is needed is rounded up.
STEP_MILLI = 10
LEVELS = WHOLE_GPU // STEP_MILLI + 1
# Prices of a core in devices. At the highest a pod must use a whole device with one core to be worth its cores.
PRICES: Floats = np.concatenate([[0.0], np.geomspace(0.004, 1.0, 23)])
# Cores considered for one device.
CORES = np.concatenate([np.arange(0.0, 16.0, 0.5), np.arange(16.0, 49.0, 2.0)]).astype(np.float32)
NUM_SAMPLES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one kind of device may expect, for each pair of width and cores that was asked for.

    Attributes:
        widths: Steps of one device.
        cores: Cores that go with each device.
        rates: Expected number for each candidate.
    """

    widths: tuple[int, ...] = ()
    cores: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()


def demands(mix: TaskMix, fleet: Fleet) -> list[Demand]:
    """The demand for each kind of device of the fleet.

    Candidates are counted by the pods with one device; one with several comes on top, for each of them. What only some
    kinds can serve comes to those the more often. Nothing but shapes that the fleet can serve counts.
    """
    devices = np.bincount(fleet.kind.ravel(), fleet.capacity_milli.ravel(), minlength=max(1, len(fleet.kinds)))
    share = devices / max(1.0, float(devices.sum()))
    served = [(shape, n * shape.num_gpus, fleet.allowed(shape)) for shape, n in mix.items() if shape.num_gpus]
    served = [item for item in served if share[item[2]].sum() > 0]
    total = sum(n for shape, n, _ in served if shape.num_gpus == 1) or sum(n for _, n, _ in served)
    merged: list[dict[tuple[int, float], float]] = [{} for _ in share]
    for shape, n, allowed in served:
        key = (-(-shape.gpu_milli // STEP_MILLI), shape.cpu_milli / shape.num_gpus / 1000)
        for kind in np.flatnonzero(allowed):
            merged[kind][key] = merged[kind].get(key, 0.0) + n / total / float(share[allowed].sum())
    return [_demand(entries) for entries in merged]


def _demand(entries: dict[tuple[int, float], float]) -> Demand:
    keys = sorted(entries)
    return Demand(
        widths=tuple(width for width, _ in keys),
        cores=tuple(cores for _, cores in keys),
        rates=tuple(entries[key] for key in keys),
    )


@lru_cache(maxsize=256)
def table(demand: Demand, num_candidates: float) -> Floats:
    """Worth in devices of free steps on one device at each of ``PRICES`` (LEVELS, prices), read-only.

    The same demand has the same samples and so the same table.
    """
    fewest = _fewest_cores(demand, num_candidates)
    steps = np.arange(LEVELS, dtype=np.uint8)[:, None, None]
    most = np.where(fewest[:, None, :] <= CORES[:, None], steps, np.uint8(0))
    for level in range(1, LEVELS):
        np.maximum(most[level], most[level - 1], out=most[level])
    within = most.sum(axis=2, dtype=np.uint32) / (NUM_SAMPLES * (LEVELS - 1))
    worth: Floats = (within[:, :, None] - CORES[:, None] * PRICES).max(axis=1)
    worth.flags.writeable = False
    return worth


def _fewest_cores(demand: Demand, num_candidates: float) -> NDArray[np.float32]:
    """Fewest cores with which candidates use exactly so many steps, in each sample (LEVELS, samples)."""
    rng = np.random.default_rng(0)
    fewest = np.full((LEVELS, NUM_SAMPLES), np.inf, dtype=np.float32)
    fewest[0] = 0.0
    for width, cores, rate in zip(demand.widths, demand.cores, demand.rates, strict=True):
        arrived = rng.poisson(num_candidates * rate, NUM_SAMPLES)
        for copy in range(min(int(arrived.max()), (LEVELS - 1) // width)):
            with_one = fewest[:-width] + np.where(arrived > copy, np.float32(cores), np.float32(np.inf))
            np.minimum(fewest[width:], with_one, out=fewest[width:])
    return fewest
