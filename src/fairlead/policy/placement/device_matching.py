"""Matches devices to a request: by model, with alternatives, and by memory."""

import re
from functools import lru_cache

from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.state.snapshot import Gpu

ALTERNATIVES = "|"


def serves(gpu: Gpu, shape: Shape) -> bool:
    """Return whether a pod of the shape can use a device if it is free.

    A device allocated to one run only does not serve a share if it is whole, nor a whole request if it is a part.
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
    """Return whether a device is of the requested kind; ``wanted`` is one model or several, as in ``A100|H100``.

    A model is a part of the driver's name of the device, ignoring case, but ``A10`` does not match ``A100``.
    """
    if min_memory_bytes is not None and memory_bytes < min_memory_bytes:
        return False
    if wanted is None:
        return True
    names = (name.strip() for name in wanted.split(ALTERNATIVES))
    return any(name and re.search(re.escape(name) + _end(name), model, re.IGNORECASE) for name in names)


def _end(name: str) -> str:
    return r"(?!\d)" if name[-1].isdigit() else ""
