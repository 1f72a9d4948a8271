"""Lists what a node of a pool hands out of its GPUs: whole devices, devices that several share, or MIG instances."""

from collections.abc import Iterator

from fairlead.errors import InvalidSpec
from fairlead.policy.gpu.mig import GB, MODELS, holds, partitionable
from fairlead.specs.pool import PoolGpu
from fairlead.specs.sharing import Handing, Sharing
from fairlead.state.snapshot import WHOLE_MILLI, Gpu


def handed_out(gpu: PoolGpu, node: str) -> tuple[Gpu, ...]:
    """The devices of one node, named after it.

    Raises:
        InvalidSpec: No such GPU can be partitioned like this.
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


def _instances(gpu: PoolGpu, name: str) -> Iterator[Gpu]:
    model = partitionable(gpu.model, gpu.memory_bytes or 0)
    if model is None:
        known = ", ".join(MODELS)
        raise InvalidSpec((f"{gpu.model} has no known MIG profiles; give `model` and `memory` of one of {known}",))
    counts = {profile: int(number) for profile, number in gpu.instances.items()}
    if not holds(model, counts):
        said = " and ".join(f"{number} x {profile}" for profile, number in counts.items())
        has = ", ".join(model.profiles)
        raise InvalidSpec((f"{said} do not fit on one {model.name}, which has {has}",))
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
