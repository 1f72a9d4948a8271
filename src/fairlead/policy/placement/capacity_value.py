"""Estimates the value of free capacity on a device: how much of it future pods are expected to use.

Draw a number of pods of the task mix as candidates for one device (a Poisson number of each shape). Of those, the set
that uses most of ``f`` thousandths with at most ``c`` cores uses ``E(f, c)`` of the device, the mean over many samples.
The set with the fewest cores for each width is a subset sum, solved for all samples at once.

However, pods that fit must be placed, and one that needs more than half of a device fits few places, so an arbitrary
one is placed there rather than the best of many. The mean loss of such pods of the mix against ``E`` is subtracted.

The table holds the conjugate of E in cores, the maximum of ``E(f, c) - p c`` over c, at some prices ``p`` of a core.
The value of a node with several devices and ``C`` cores is then the minimum over p of ``p C`` plus the sum over its
devices: the best split of the cores among them, by Lagrangian duality, exact up to the steps of the prices where E is
concave.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fairlead.frozen import dataclass
from fairlead.policy.placement.fleet_arrays import FleetArrays
from fairlead.policy.placement.memo import cached_last
from fairlead.policy.placement.node_arrays import Frame, Mask
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.placement.task_mix import TaskMix

Floats = NDArray[np.float64]

# Free amounts are rounded down to this many thousandths of a device, needs are rounded up.
STEP_MILLI = 10
LEVELS = WHOLE_GPU // STEP_MILLI + 1
# Prices of a core in devices. At the highest, a pod must use a whole device with one core to justify its cores.
PRICES: Floats = np.concatenate([[0.0], np.geomspace(0.004, 1.0, 23)])
# Numbers of cores considered for one device.
CORES = np.concatenate([np.arange(0.0, 16.0, 0.5), np.arange(16.0, 49.0, 2.0)]).astype(np.float32)
NUM_SAMPLES = 1000
# Pods wider than this have a device to themselves, except for what fits beside them.
HALF = (LEVELS - 1) // 2
# The weight of the loss by pods wider than HALF: on six lists values from 1 to 1.6 were equally good; see decision 5.
FORCED_WEIGHT = 1.3
# The least number of candidates, as a part of the pods with one device, where the mix has few shares.
LEAST_SHARES = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDemand:
    """The demand for one kind of device, for each requested pair of width and cores.

    Attributes:
        widths: Steps of one device.
        cores: Cores per device.
        rates: Expected number per candidate.
    """

    widths: tuple[int, ...] = ()
    cores: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()


def demands(mix: TaskMix, fleet: FleetArrays) -> tuple[DeviceDemand, ...]:
    """Return the demand for each kind of device of the fleet.

    Candidates are counted by the shares, since only shares can fill the rest beside a share; whole devices are added.
    Demand that only some kinds can serve goes to those in proportion. Only shapes that the fleet can serve count.
    """
    return _demands((mix.items(), fleet.frame))


@cached_last
def _demands(counts_and_frame: tuple[tuple[tuple[Shape, int], ...], Frame]) -> tuple[DeviceDemand, ...]:
    counts, frame = counts_and_frame
    devices = np.bincount(frame.kind.ravel(), frame.capacity_milli.ravel(), minlength=max(1, len(frame.kinds)))
    kind_share = devices / max(1.0, float(devices.sum()))
    servable = [(shape, n * shape.num_gpus, frame.allowed(shape)) for shape, n in counts if shape.num_gpus]
    servable = [item for item in servable if kind_share[item[2]].sum() > 0]
    total = _num_candidate_pods(servable)
    rates: list[dict[tuple[int, float], float]] = [{} for _ in kind_share]
    for shape, n, allowed in servable:
        key = (-(-shape.gpu_milli // STEP_MILLI), shape.cpu_milli / shape.num_gpus / 1000)
        for kind in np.flatnonzero(allowed):
            rates[kind][key] = rates[kind].get(key, 0.0) + n / total / float(kind_share[allowed].sum())
    return tuple(_demand(entries) for entries in rates)


def _num_candidate_pods(servable: list[tuple[Shape, int, Mask]]) -> float:
    """Return how many pods count as candidates: the shares; all pods if none has just one device."""
    num_single = sum(n for shape, n, _ in servable if shape.num_gpus == 1)
    num_shares = sum(n for shape, n, _ in servable if shape.is_share)
    return max(num_shares, LEAST_SHARES * num_single) or sum(n for _, n, _ in servable)


def _demand(rates: dict[tuple[int, float], float]) -> DeviceDemand:
    keys = sorted(rates)
    return DeviceDemand(
        widths=tuple(width for width, _ in keys),
        cores=tuple(cores for _, cores in keys),
        rates=tuple(rates[key] for key in keys),
    )


@lru_cache(maxsize=256)
def table(demand: DeviceDemand, num_candidates: float, forced_weight: float = 1.0) -> Floats:
    """Return the value, in devices, of free steps on one device at each of ``PRICES`` (LEVELS, prices), read-only.

    Samples are deterministic: equal demands have equal tables.

    Args:
        forced_weight: The weight of the loss of forced pods: 1 in a fleet that only fills up, 0 if pods keep leaving.
    """
    fewest = _fewest_cores(demand, num_candidates)
    # If pods request few widths, most levels cannot be filled exactly and have the value of the next lower one.
    filled = np.flatnonzero(np.isfinite(fewest).any(axis=1))
    steps = filled.astype(np.uint8)[:, None, None]
    most_used = np.where(fewest[filled, None, :] <= CORES[:, None], steps, np.uint8(0))
    for level in range(1, len(filled)):
        np.maximum(most_used[level], most_used[level - 1], out=most_used[level])
    mean_used = most_used.sum(axis=2, dtype=np.uint32) / (NUM_SAMPLES * (LEVELS - 1))
    best_values: Floats = (mean_used[:, :, None] - CORES[:, None] * PRICES).max(axis=1)
    worth = best_values[np.searchsorted(filled, np.arange(LEVELS), side="right") - 1]
    worth *= 1.0 - forced_weight * FORCED_WEIGHT * _forced_loss(demand, worth[:, 0])[:, None]
    worth.flags.writeable = False
    return worth


def _forced_loss(demand: DeviceDemand, worth: Floats) -> Floats:
    """Return the part of the value of free steps lost for a mean pod of the mix, if wide ones come (LEVELS)."""
    widths = np.array(demand.widths, dtype=np.int64)
    weights = widths * np.array(demand.rates)
    steps_left = np.arange(LEVELS)[:, None] - widths
    lost = np.maximum(0.0, worth[:, None] - widths / (LEVELS - 1) - worth[np.maximum(steps_left, 0)])
    expected = np.where((widths > HALF) & (steps_left >= 0), lost, 0.0) @ weights / max(float(weights.sum()), 1e-9)
    return np.asarray(expected / np.maximum(worth, 1e-9))


def _fewest_cores(demand: DeviceDemand, num_candidates: float) -> NDArray[np.float32]:
    """Return the fewest cores with which candidates use exactly so many steps, in each sample (LEVELS, samples)."""
    rng = np.random.default_rng(0)
    fewest = np.full((LEVELS, NUM_SAMPLES), np.inf, dtype=np.float32)
    fewest[0] = 0.0
    for width, cores, rate in zip(demand.widths, demand.cores, demand.rates, strict=True):
        arrived = rng.poisson(num_candidates * rate, NUM_SAMPLES)
        for copy in range(min(int(arrived.max()), (LEVELS - 1) // width)):
            with_copy = fewest[:-width] + np.where(arrived > copy, np.float32(cores), np.float32(np.inf))
            np.minimum(fewest[width:], with_copy, out=fewest[width:])
    return fewest
