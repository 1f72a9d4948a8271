"""Estimates the worth of free room on a device: how much of it the pods still to come are expected to use.

Take so many pods of the task mix as candidates for one device (a Poisson number of each shape). Of those, the set that
uses most of ``f`` thousandths with at most ``c`` cores uses ``E(f, c)`` of the device, the mean over many samples. The
set with the fewest cores for each width is a subset sum, solved for all samples at once.

Pods that fit must be taken, though, and one that needs more than half of a device finds few places, so that it is not
the best of many that comes but any. What such pods of the mix lose on average against ``E`` comes off the worth.

The table holds the conjugate of E in cores, the most of ``E(f, c) - p c`` over c, at some prices ``p`` of a core. A
node with several devices and ``C`` cores is then worth the least over p of ``p C`` plus the sum over its devices: the
best split of the cores among them, by Lagrangian duality, exact but for the steps of the prices where E is concave.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fairlead.frozen import dataclass
from fairlead.policy.placement.fleet_arrays import Fleet
from fairlead.policy.placement.memo import kept
from fairlead.policy.placement.node_arrays import Frame, Mask
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.placement.task_mix import TaskMix

Floats = NDArray[np.float64]

# What is free is rounded down to these thousandths of a device, what is needed is rounded up.
STEP_MILLI = 10
LEVELS = WHOLE_GPU // STEP_MILLI + 1
# Prices of a core in devices. At the highest a pod must use a whole device with one core to be worth its cores.
PRICES: Floats = np.concatenate([[0.0], np.geomspace(0.004, 1.0, 23)])
# Cores considered for one device.
CORES = np.concatenate([np.arange(0.0, 16.0, 0.5), np.arange(16.0, 49.0, 2.0)]).astype(np.float32)
NUM_SAMPLES = 1000
# Pods wider than this have a device to themselves, but for what fits beside them.
HALF = (LEVELS - 1) // 2
# How much of what they lose counts: on six lists as good from 1 to 1.6; see docs/decisions/0005.
FORCED_WEIGHT = 1.3
# Shares count as at least this part of the pods with one device.
LEAST_SHARES = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The demand that one kind of device may expect, for each pair of width and cores that was asked for.

    Attributes:
        widths: Steps of one device.
        cores: Cores that go with each device.
        rates: Expected number for each candidate.
    """

    widths: tuple[int, ...] = ()
    cores: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()


def demands(mix: TaskMix, fleet: Fleet) -> tuple[Demand, ...]:
    """The demand for each kind of device of the fleet.

    Candidates are counted by the shares, which alone can fill what a share leaves; whole devices come on top. What only
    some kinds can serve comes to those the more often. Nothing but shapes that the fleet can serve counts.
    """
    return _demands((mix.items(), fleet.frame))


@kept
def _demands(asked: tuple[tuple[tuple[Shape, int], ...], Frame]) -> tuple[Demand, ...]:
    counts, frame = asked
    devices = np.bincount(frame.kind.ravel(), frame.capacity_milli.ravel(), minlength=max(1, len(frame.kinds)))
    share = devices / max(1.0, float(devices.sum()))
    served = [(shape, n * shape.num_gpus, frame.allowed(shape)) for shape, n in counts if shape.num_gpus]
    served = [item for item in served if share[item[2]].sum() > 0]
    total = _num_that_fill(served)
    merged: list[dict[tuple[int, float], float]] = [{} for _ in share]
    for shape, n, allowed in served:
        key = (-(-shape.gpu_milli // STEP_MILLI), shape.cpu_milli / shape.num_gpus / 1000)
        for kind in np.flatnonzero(allowed):
            merged[kind][key] = merged[kind].get(key, 0.0) + n / total / float(share[allowed].sum())
    return tuple(_demand(entries) for entries in merged)


def _num_that_fill(served: list[tuple[Shape, int, Mask]]) -> float:
    """Return how many pods count as candidates: the shares; all pods when none has just one device."""
    single = sum(n for shape, n, _ in served if shape.num_gpus == 1)
    shares = sum(n for shape, n, _ in served if shape.is_share)
    return max(shares, LEAST_SHARES * single) or sum(n for _, n, _ in served)


def _demand(entries: dict[tuple[int, float], float]) -> Demand:
    keys = sorted(entries)
    return Demand(
        widths=tuple(width for width, _ in keys),
        cores=tuple(cores for _, cores in keys),
        rates=tuple(entries[key] for key in keys),
    )


@lru_cache(maxsize=256)
def table(demand: Demand, num_candidates: float, forced: float = 1.0) -> Floats:
    """Worth in devices of free steps on one device at each of ``PRICES`` (LEVELS, prices), read-only.

    The same demand has the same samples and so the same table.

    Args:
        forced: How much of what forced pods lose counts: 1 in a fleet that only fills up, 0 where rooms come back.
    """
    fewest = _fewest_cores(demand, num_candidates)
    # Where pods ask for few widths, most levels cannot be filled exactly and are worth what the one below them is.
    filled = np.flatnonzero(np.isfinite(fewest).any(axis=1))
    steps = filled.astype(np.uint8)[:, None, None]
    most = np.where(fewest[filled, None, :] <= CORES[:, None], steps, np.uint8(0))
    for level in range(1, len(filled)):
        np.maximum(most[level], most[level - 1], out=most[level])
    within = most.sum(axis=2, dtype=np.uint32) / (NUM_SAMPLES * (LEVELS - 1))
    highest: Floats = (within[:, :, None] - CORES[:, None] * PRICES).max(axis=1)
    worth = highest[np.searchsorted(filled, np.arange(LEVELS), side="right") - 1]
    worth *= 1.0 - forced * FORCED_WEIGHT * _lost_when_forced(demand, worth[:, 0])[:, None]
    worth.flags.writeable = False
    return worth


def _lost_when_forced(demand: Demand, worth: Floats) -> Floats:
    """Return the part of the worth of free steps lost for a mean pod of the mix, if wide ones come (LEVELS)."""
    widths = np.array(demand.widths, dtype=np.int64)
    used = widths * np.array(demand.rates)
    rest = np.arange(LEVELS)[:, None] - widths
    lost = np.maximum(0.0, worth[:, None] - widths / (LEVELS - 1) - worth[np.maximum(rest, 0)])
    expected = np.where((widths > HALF) & (rest >= 0), lost, 0.0) @ used / max(float(used.sum()), 1e-9)
    return np.asarray(expected / np.maximum(worth, 1e-9))


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
