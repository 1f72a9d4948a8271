"""What free room on a device is worth: how much of it pods that are still to come will use, at a price for cores.

Take ``patience`` pods of the task mix as candidates for a device (a Poisson number of each shape). Of those, the best
set that fits into ``f`` thousandths uses ``g`` devices and ``c`` cores; at a price of ``p`` devices a core it is worth
``g - p c``. ``table`` is the mean of the best worth over many such samples. The best set for each ``g`` is the one with
the fewest cores: a subset sum, solved for all samples at once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.policy.fleet import Fleet
from fairlead.policy.shapes import WHOLE_GPU
from fairlead.policy.task_mix import TaskMix

# Widths of a device are counted in these thousandths: what is free is rounded down, what is needed is rounded up.
STEP_MILLI = 10
LEVELS = WHOLE_GPU // STEP_MILLI + 1
# Prices of a core in devices; at the highest one no pod is worth its cores unless it needs none.
PRICES: NDArray[np.float64] = np.concatenate([[0.0], np.geomspace(0.004, 1.0, 23)])
NUM_SAMPLES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Pods that use one device or a share of it, as seen by one kind of device.

    Attributes:
        size: Width in steps (T).
        cores: Cores of each (T).
        rate: Expected number among one candidate pod (T).
    """

    size: NDArray[np.int64]
    cores: NDArray[np.float64]
    rate: NDArray[np.float64]


def demands(mix: TaskMix, fleet: Fleet) -> list[Demand]:
    """What each kind of device of the fleet may expect.

    A shape that only some kinds can serve comes to each of those the more often.
    """
    per_kind = np.bincount(
        fleet.kind.ravel(), weights=fleet.capacity_milli.ravel(), minlength=max(1, len(fleet.kinds))
    )
    share = per_kind / max(1.0, float(per_kind.sum()))
    merged: list[dict[tuple[int, int], float]] = [{} for _ in share]
    total = sum(count for shape, count in mix.items() if shape.num_gpus == 1)
    for shape, count in mix.items():
        if shape.num_gpus != 1:
            continue
        allowed = fleet.allowed(shape)
        served = float(share[allowed].sum())
        key = (-(-shape.gpu_milli // STEP_MILLI), shape.cpu_milli)
        for kind in np.flatnonzero(allowed):
            merged[kind][key] = merged[kind].get(key, 0.0) + count / total / served
    return [_demand(entries) for entries in merged]


def _demand(entries: dict[tuple[int, int], float]) -> Demand:
    keys = sorted(entries)
    return Demand(
        size=np.array([size for size, _ in keys], dtype=np.int64),
        cores=np.array([cpu / 1000 for _, cpu in keys], dtype=np.float64),
        rate=np.array([entries[key] for key in keys], dtype=np.float64),
    )


def table(demand: Demand, patience: float, *, seed: int = 0) -> NDArray[np.float64]:
    """Worth in devices of free steps on one device at each of ``PRICES`` (LEVELS, prices)."""
    rng = np.random.default_rng(seed)
    fewest = np.full((NUM_SAMPLES, LEVELS), np.inf)
    fewest[:, 0] = 0.0
    for size, cores, rate in zip(demand.size, demand.cores, demand.rate, strict=True):
        arrived = rng.poisson(patience * rate, NUM_SAMPLES)
        for copy in range(min(int(arrived.max()), (LEVELS - 1) // int(size))):
            with_one = fewest[:, :-size] + np.where(arrived > copy, cores, np.inf)[:, None]
            np.minimum(fewest[:, size:], with_one, out=fewest[:, size:])
    used = np.arange(LEVELS) / (LEVELS - 1)
    worth = np.empty((LEVELS, len(PRICES)))
    reachable = np.where(np.isfinite(fewest), fewest, 1e9)
    for i, price in enumerate(PRICES):
        net = used - price * reachable
        if price == 0.0:
            net = np.where(np.isfinite(fewest), used, 0.0)
        worth[:, i] = np.maximum.accumulate(net, axis=1).mean(axis=0)
    return worth
