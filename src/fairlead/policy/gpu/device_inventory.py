"""Lists the devices that a node of a pool offers: whole GPUs, shared GPUs, or MIG instances."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from fairlead.errors import InvalidSpec
from fairlead.policy.gpu.mig import GB, MODELS, holds, partitionable
from fairlead.specs.pool import GpuLayout, Pool, PoolGpu
from fairlead.specs.sharing import Handing, Sharing
from fairlead.state.snapshot import WHOLE_MILLI, Gpu


def handed_out(gpu: PoolGpu, node: str) -> tuple[Gpu, ...]:
    """Return the devices of one node, named after it.

    Raises:
        InvalidSpec: Such a GPU cannot be partitioned like this.
    """
    names = [f"{node}-gpu-{index}" for index in range(gpu.count)]
    if gpu.instances:
        return tuple(instance for name in names for instance in _instances(gpu, name))
    sharing = None if gpu.sharing in (None, Handing.WHOLE) else Sharing(gpu.sharing)
    return tuple(
        Gpu(
            uuid=name,
            model=gpu.model,
            memory_bytes=gpu.memory_bytes or 0,
            divisible=gpu.sharing is not Handing.WHOLE,
            shared_by=sharing,
        )
        for name in names
    )


def in_layout(pool: Pool, layout: str, node: str) -> tuple[Gpu, ...]:
    """Return the devices of one node of a pool in one of the possible layouts of its GPUs.

    Raises:
        InvalidSpec: Such a GPU cannot be partitioned like this.
    """
    gpu, partitions = pool.hardware.gpu, pool.partitions
    assert gpu is not None, "a pool has layouts of GPUs only"
    assert partitions is not None, "this pool has layouts"
    return _laid_out(gpu, partitions.layouts[layout], node)


def layout_of(pool: Pool, gpus: tuple[Gpu, ...], requested: str | None) -> str | None:
    """Return the layout of a node's devices, the requested one if several match; None without a match."""
    assert pool.partitions is not None, "a pool without layouts has none"
    sizes = sorted(gpu.milli for gpu in gpus)
    for name in sorted(pool.partitions.layouts, key=lambda layout: (layout != requested, layout)):
        if sorted(gpu.milli for gpu in in_layout(pool, name, "")) == sizes:
            return name
    return None


@lru_cache(maxsize=4096)
def _laid_out(gpu: PoolGpu, layout: GpuLayout, node: str) -> tuple[Gpu, ...]:
    if layout.replicas is None:
        handing = None if layout.instances else Handing.WHOLE
        return handed_out(replace(gpu, instances=layout.instances, sharing=handing), node)
    sharing = Sharing.MPS if layout.sharing is Handing.MPS else Sharing.TIME_SLICING
    return tuple(
        Gpu(
            uuid=f"{node}-gpu-{index}-share-{number}",
            model=gpu.model,
            memory_bytes=(gpu.memory_bytes or 0) // layout.replicas,
            milli=max(1, WHOLE_MILLI // layout.replicas),
            divisible=False,
            shared_by=sharing,
        )
        for index in range(gpu.count)
        for number in range(layout.replicas)
    )


def _instances(gpu: PoolGpu, name: str) -> Iterator[Gpu]:
    model = partitionable(gpu.model, gpu.memory_bytes or 0)
    if model is None:
        known = ", ".join(MODELS)
        raise InvalidSpec((f"{gpu.model} has no known MIG profiles; give `model` and `memory` of one of {known}",))
    counts = {profile: int(number) for profile, number in gpu.instances.items()}
    if not holds(model, counts):
        counted = " and ".join(f"{number} x {profile}" for profile, number in counts.items())
        has = ", ".join(model.profiles)
        raise InvalidSpec((f"{counted} do not fit on one {model.name}, which has {has}",))
    for profile, number in counts.items():
        sized = model.profiles[profile]
        for index in range(number):
            yield Gpu(
                uuid=f"{name}-{profile}-{index}",
                model=gpu.model,
                memory_bytes=sized.memory_gb * GB,
                milli=sized.compute * WHOLE_MILLI // model.compute,
                divisible=False,
                shared_by=Sharing.MIG,
            )
