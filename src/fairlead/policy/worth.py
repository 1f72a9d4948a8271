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
VARIANT = 0
LOW = 1.0
HIGH = 1.0
SCARCE = 1
UNREACHABLE = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Pods that use one device or a share of it, as seen by one kind of device.

    Attributes:
        size: Width in steps (T).
        cores: Cores of each (T).
        rate: Expected number among one candidate pod (T).
    """

    size: tuple[int, ...]
    cores: tuple[float, ...]
    rate: tuple[float, ...]


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
        served = float(share[allowed].sum()) if SCARCE else 1.0
        key = (-(-shape.gpu_milli // STEP_MILLI), shape.cpu_milli)
        for kind in np.flatnonzero(allowed):
            merged[kind][key] = merged[kind].get(key, 0.0) + count / total / served
    return [_demand(entries) for entries in merged]


def _demand(entries: dict[tuple[int, int], float]) -> Demand:
    keys = sorted(entries)
    return Demand(
        size=tuple(size for size, _ in keys),
        cores=tuple(cpu / 1000 for _, cpu in keys),
        rate=tuple(entries[key] for key in keys),
    )


def table(demand: Demand, patience: float, *, seed: int = 0) -> NDArray[np.float64]:
    """Worth in devices of free steps on one device at each of ``PRICES`` (LEVELS, prices)."""
    rng = np.random.default_rng(seed)
    patiences = patience * np.geomspace(LOW, HIGH, NUM_SAMPLES)
    fewest = np.full((LEVELS, NUM_SAMPLES), UNREACHABLE)
    fewest[0] = 0.0
    for size, cores, rate in zip(demand.size, demand.cores, demand.rate, strict=True):
        arrived = rng.poisson(patiences * rate)
        for copy in range(min(int(arrived.max()), (LEVELS - 1) // size)):
            with_one = fewest[:-size] + np.where(arrived > copy, cores, UNREACHABLE)
            np.minimum(fewest[size:], with_one, out=fewest[size:])
    used = np.arange(LEVELS)[:, None] / (LEVELS - 1)
    worth = np.empty((LEVELS, len(PRICES)))
    if VARIANT:
        cores_grid = np.concatenate([np.arange(0, 16, 0.25), np.arange(16, 40, 1.0)])
        mean = np.stack([np.maximum.accumulate(np.where(fewest <= c, used, 0.0), axis=0).mean(axis=1) for c in cores_grid])
        for i, price in enumerate(PRICES):
            worth[:, i] = (mean - max(price, 1e-9) * cores_grid[:, None]).max(axis=0)
        return worth
    for i, price in enumerate(PRICES):
        net = used - max(price, 1e-9) * fewest
        worth[:, i] = np.maximum.accumulate(net, axis=0, out=net).mean(axis=1)
    return worth
