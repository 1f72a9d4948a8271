"""Splits the GPU time of a simulation, and its cost, by use, for runs and pools."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields

from fairlead.cluster.simulated.accounts import NodeTime, PodTime
from fairlead.frozen import dataclass
from fairlead.specs.pool import CapacityType, Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Uses of GPU time that runs held, in GPU-seconds or GPU-hours.

    Attributes:
        useful: Work that was not lost.
        redone: Work lost with a pod, since its newest checkpoint.
        start_up: From placement until the ranks started work.
        saving: Saving checkpoints.
        slowed: Slowdown by interference from other runs.
        stopping: After a stop notice without saving, or while hanging.
        cost: Dollars for the total, at the price of each pool's GPUs; GPUs without a price count as zero.
    """

    useful: float = 0.0
    redone: float = 0.0
    start_up: float = 0.0
    saving: float = 0.0
    slowed: float = 0.0
    stopping: float = 0.0
    cost: float = 0.0

    @classmethod
    def total(cls, parts: Iterable["Spent"]) -> "Spent":
        """Return the sum."""
        parts_ = list(parts)
        return cls(**{field.name: sum(getattr(part, field.name) for part in parts_) for field in fields(cls)})

    @property
    def allocated(self) -> float:
        """Return the total time."""
        return self.useful + self.redone + self.start_up + self.saving + self.slowed + self.stopping

    @property
    def goodput(self) -> float | None:
        """Return the useful share of the total; None if the total is zero."""
        return self.useful / self.allocated if self.allocated else None

    def scaled(self, factor: float) -> "Spent":
        """Return the times in another unit; the cost stays."""
        return Spent(
            **{
                field.name: getattr(self, field.name) * (1 if field.name == "cost" else factor)
                for field in fields(self)
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """The size of a pool and its uses.

    Attributes:
        node_hours: Hours of its nodes while they existed.
        gpu_hours: Hours of its GPUs, the sum of held, idle and down.
        price_per_gpu_hour: Dollars; None without a price or without GPUs.
        cost: Dollars for its nodes while they existed; None without a price.
        idle_cost: The part of it for GPUs that were up but not held; None without a price or without GPUs.
    """

    capacity_type: CapacityType
    node_hours: float
    gpu_hours: float
    held_gpu_hours: float
    idle_gpu_hours: float
    down_gpu_hours: float
    price_per_gpu_hour: float | None
    cost: float | None
    idle_cost: float | None


def spent_by(pods: Iterable[PodTime], prices: dict[str, float] | None = None) -> Spent:
    """Split the GPU-seconds of some pods by use.

    Args:
        prices: Dollars per GPU-second, by pool.
    """
    useful = redone = start_up = saving = slowed = stopping = cost = 0.0
    for pod in pods:
        gpus = pod.num_gpus
        useful += gpus * pod.kept_s
        redone += gpus * pod.redone_s
        start_up += gpus * pod.start_up_s
        saving += gpus * pod.saving_s
        slowed += gpus * pod.slowed_s
        stopping += gpus * pod.stopping_s
        cost += gpus * (pod.ended_at - pod.created_at) * (prices or {}).get(pool_of(pod.node), 0.0)
    return Spent(
        useful=useful, redone=redone, start_up=start_up, saving=saving, slowed=slowed, stopping=stopping, cost=cost
    )


def prices_of(pools: Iterable[Pool]) -> dict[str, float]:
    """Return the dollars per GPU-second of each pool that has a price and GPUs."""
    return {pool.name: price / 3600 for pool in pools if (price := _price_per_gpu_hour(pool)) is not None}


def uses_of(pools: Sequence[Pool], nodes: Iterable[NodeTime], pods: Iterable[PodTime]) -> dict[str, Uses]:
    """Sum up the uses of each pool, by name."""
    sums: defaultdict[tuple[str, bool], float] = defaultdict(float)
    for node in nodes:
        sums[pool_of(node.node), node.up] += (node.until - node.since) / 3600
    held: defaultdict[str, float] = defaultdict(float)
    for pod in pods:
        held[pool_of(pod.node)] += pod.num_gpus * (pod.ended_at - pod.created_at) / 3600
    uses = {}
    for pool in pools:
        gpus = 0 if pool.hardware.gpu is None else pool.hardware.gpu.count
        up, down, price = sums[pool.name, True], sums[pool.name, False], pool.price_per_hour
        per_gpu = _price_per_gpu_hour(pool)
        # Rounding of sums may give a slightly negative difference.
        idle = max(0.0, gpus * up - held[pool.name])
        uses[pool.name] = Uses(
            capacity_type=pool.capacity_type,
            node_hours=up + down,
            gpu_hours=gpus * (up + down),
            held_gpu_hours=held[pool.name],
            idle_gpu_hours=idle,
            down_gpu_hours=gpus * down,
            price_per_gpu_hour=per_gpu,
            cost=None if price is None else price * (up + down),
            idle_cost=None if per_gpu is None else per_gpu * idle,
        )
    return uses


def pool_of(node: str) -> str:
    """Return the pool after which a node is named."""
    return node.rpartition("-")[0]


def _price_per_gpu_hour(pool: Pool) -> float | None:
    gpu, price = pool.hardware.gpu, pool.price_per_hour
    return None if gpu is None or price is None else price / gpu.count
