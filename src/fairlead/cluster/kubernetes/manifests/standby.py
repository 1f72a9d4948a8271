"""A placeholder of a pool: a pod that takes one node of it, so that the node exists before a run needs it."""

from dataclasses import replace
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.manifests.placeholders import render_placeholder
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.specs.keys import API_VERSION
from fairlead.specs.pool import Pool
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.reasons import JUST_SUBMITTED
from fairlead.state.snapshot import WHOLE_MILLI, Intent, Phase, Status, Workload

# Share of a node's cores and memory: more than half, so that no two fit on one node, and small enough to fit beside the
# pods that run on every node.
PART = 0.55


def render_standby(
    pool: Pool, uid: str, index: int, namespace: str, settings: PodSettings, device: DeviceResource | None
) -> dict[str, Any]:
    """Render the placeholder of one node.

    Args:
        uid: Uid of the Pool's object, which owns it.
        device: Resource of whole GPUs on its nodes; None for a pool without GPUs.
    """
    hardware = pool.hardware
    gpu = None if hardware.gpu is None else GpuRequest(milli=WHOLE_MILLI * hardware.gpu.count)
    amounts = Resources(
        gpu=gpu,
        cpu_milli=max(1, int(PART * hardware.cpu_milli)),
        memory_bytes=max(1, int(PART * hardware.memory_bytes)),
    )
    spec = Training(name=names.standby_name(pool.name), team=namespace, run="true", ranks_per_node=1, resources=amounts)
    status = Status(phase=Phase.PENDING, reason=JUST_SUBMITTED, since=0.0)
    stands_for = Workload(uid=uid, spec=spec, intent=Intent.RUN, status=status, version=1, created_at=0.0)
    pod = render_placeholder(stands_for, index, replace(settings, workdir=(), archive=None), device=device)
    owner = {
        "apiVersion": API_VERSION, "kind": "Pool", "name": pool.name, "uid": uid, "controller": True,
        "blockOwnerDeletion": False,
    }  # fmt: skip
    pod["metadata"] |= {"ownerReferences": [owner]}
    pod["metadata"]["labels"] |= {names.POOL: pool.name}
    tolerations = [
        {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect.value}
        for taint in pool.taints
    ]
    pod["spec"] |= {
        "nodeSelector": {**pod["spec"].get("nodeSelector", {}), **pool.labels},
        "tolerations": [*pod["spec"].get("tolerations", ()), *tolerations],
    }
    return pod
