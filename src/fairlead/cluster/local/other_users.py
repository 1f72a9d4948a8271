"""Finds GPUs of this machine on which programs of other users compute, so that no run is placed on them."""

import os
from collections.abc import Iterable
from pathlib import Path

from fairlead.cluster.local.nvml import NvmlReader
from fairlead.state.snapshot import Grant, Node, Pod, PodPhase

UID = "others-"
# Its server computes for all users of a GPU, and is root's.
SHARED_SERVER = "nvidia-cuda-mps"


class OtherUsers:
    """The other users of this machine's GPUs; used in one thread."""

    def __init__(self) -> None:
        self._nvml = NvmlReader()

    def held(self, node: Node, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        """Return what other users hold of this machine, as one pod of no workload; nothing if they hold no GPU.

        GPUs of our own live pods are ours, whoever else computes on them. A process of this user is no reason to wait,
        nor is one that cannot be looked at, as those outside of a container.
        """
        own = {uuid for pod in pods if not pod.phase.is_final for uuid in pod.grant.gpu_uuids}
        others = [gpu.uuid for gpu in node.gpus if gpu.uuid not in own]
        taken = tuple(uuid for uuid in others if any(map(_is_of_another_user, self._nvml.pids(uuid))))
        if not taken:
            return ()
        pod = Pod(
            uid=f"{UID}{node.name}",
            workload_uid="",
            attempt=0,
            index=0,
            node=node.name,
            grant=Grant(gpu_uuids=taken, gpu_milli=1000),
            phase=PodPhase.RUNNING,
            created_at=0.0,
        )
        return (pod,)

    def close(self) -> None:
        """Close NVML."""
        self._nvml.close()


def _is_of_another_user(pid: int) -> bool:
    process = Path("/proc", str(pid))
    try:
        is_others = process.stat().st_uid != os.geteuid()
        return is_others and not (process / "comm").read_text(errors="replace").startswith(SHARED_SERVER)
    except OSError:
        return False
