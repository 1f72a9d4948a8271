"""Records the peak use of GPU memory by a rank, as PyTorch counts it, and adds up that of a pod's ranks by device.

Standard library only; PyTorch is asked if the program has imported it.

See decision 143.
"""

from __future__ import annotations

import os
import sys

from fairlead.runtime import podfiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OUTSIDE_BYTES = 1 << 30
"""Memory of a device that a process holds beside PyTorch's own: the context, kernels, cuBLAS and NCCL."""
_PREFIX = "gpu-memory-"


def record(pod_dir: str, rank: int) -> None:
    """Write the peak of this process for each device that it has used; nothing without PyTorch or a GPU."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    peaks = {index: int(cuda.max_memory_reserved(index)) for index in range(cuda.device_count())}
    # Devices have other numbers in each rank, where it sees only its own.
    device_peaks = {
        str(getattr(cuda.get_device_properties(index), "uuid", index)): peak + OUTSIDE_BYTES
        for index, peak in peaks.items()
        if peak
    }
    if device_peaks:
        podfiles.write_json(os.path.join(pod_dir, f"{_PREFIX}{rank}.json"), device_peaks)


def of_pod(pod_dir: str) -> int | None:
    """Return the peak of the device that was used most, in bytes; None if no rank has recorded any.

    The peaks of ranks on one device are added up, although they may not coincide.
    """
    totals: dict[str, int] = {}
    for name in os.listdir(pod_dir):
        if name.startswith(_PREFIX):
            for device, peak in (podfiles.read_json(os.path.join(pod_dir, name)) or {}).items():
                totals[device] = totals.get(device, 0) + int(peak)
    return max(totals.values(), default=None)
