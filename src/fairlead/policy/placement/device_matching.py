"""Finds the devices that a request means: by model, with alternatives, and by memory."""

import re
from functools import lru_cache

from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.state.snapshot import Gpu

ALTERNATIVES = "|"


def serves(gpu: Gpu, shape: Shape) -> bool:
    """Return whether a device, if it is free, is one that a pod of the shape can use.

    What goes to one run only is no place for a share when it is whole, and no whole device when it is a part.
    """
    is_part = gpu.milli < WHOLE_GPU
    is_fit = (gpu.divisible and not shape.parts_only) or is_part == shape.is_share
    is_apart = not shape.is_share or shape.sharing is None or gpu.sharing in shape.sharing
    return (
        is_fit
        and is_apart
        and gpu.milli >= shape.gpu_milli
        and matches(gpu.model, gpu.memory_bytes, shape.gpu_model, shape.min_gpu_memory_bytes)
    )


@lru_cache(maxsize=4096)
def matches(model: str, memory_bytes: int, wanted: str | None, min_memory_bytes: int | None) -> bool:
    """Return whether a device is of the kind asked for; ``wanted`` is one model or several, as in ``A100|H100``.

    A model is part of what the driver calls the device, whatever the case, but ``A10`` is not ``A100``.
    """
    if min_memory_bytes is not None and memory_bytes < min_memory_bytes:
        return False
    if wanted is None:
        return True
    names = (name.strip() for name in wanted.split(ALTERNATIVES))
    return any(name and re.search(re.escape(name) + _end(name), model, re.IGNORECASE) for name in names)


def _end(name: str) -> str:
    return r"(?!\d)" if name[-1].isdigit() else ""
