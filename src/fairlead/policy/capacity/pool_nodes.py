"""Builds nodes from the description of a pool, for use in decisions."""

from fairlead.policy.gpu.device_inventory import handed_out, in_layout, layout_of
from fairlead.policy.placement.node_eligibility import CAPACITY_TYPE_LABEL
from fairlead.specs.pool import CapacityType, Pool, TaintEffect
from fairlead.state.snapshot import Gpu, Node, Taint


def node_of(pool: Pool, name: str) -> Node:
    """Return the pool's node with that name."""
    hardware = pool.hardware
    is_spot = pool.capacity_type is CapacityType.SPOT
    return Node(
        name=name,
        cpu_milli=hardware.cpu_milli,
        memory_bytes=hardware.memory_bytes,
        gpus=_gpus(pool, name),
        labels={CAPACITY_TYPE_LABEL: CapacityType.SPOT.value, **pool.labels} if is_spot else pool.labels,
        taints=tuple(
            Taint(key=taint.key, value=taint.value, effect=taint.effect)
            for taint in pool.taints
            if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE
        ),
        price_per_hour=pool.price_per_hour,
    )


def _gpus(pool: Pool, name: str) -> tuple[Gpu, ...]:
    """Return the devices of a node before any repartitioning: those of a matching layout, if any."""
    if pool.hardware.gpu is None:
        return ()
    gpus = handed_out(pool.hardware.gpu, name)
    layout = None if pool.partitions is None else layout_of(pool, gpus, None)
    return gpus if layout is None else in_layout(pool, layout, name)
