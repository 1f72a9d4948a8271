"""The variables that the processes of a run find, the same on every cluster. A pure function of run and pod."""

import json

from fairlead.specs.serving import Replica
from fairlead.state.snapshot import Workload

# What a program is told of the split of its run, as `runtime/parallel.py` reads it.
PARALLEL_PARTS = ("choose", "data", "shard", "tensor", "pipeline", "micro_batch", "recompute", "batch")


def environment(
    workload: Workload,
    *,
    attempt: int,
    index: int,
    pod_uid: str,
    pod_dir: str,
    run_dir: str,
    checkpoint_to: str | None,
    master: tuple[str, int],
) -> dict[str, str]:
    """Make the variables that all ranks of a pod share; each rank's own numbers are added where it is started.

    Args:
        index: Of the pod in its gang, from 0.
        checkpoint_to: Place of this run's checkpoints; None for none.
        master: Host of rank 0 and the port of the rendezvous; the port above it is for agreements among ranks. A
            replica of an endpoint listens on that port.
    """
    spec = workload.gang
    env = {
        "FAIRLEAD_RUN": spec.name,
        "FAIRLEAD_RUN_UID": workload.uid,
        "FAIRLEAD_TEAM": spec.team,
        "FAIRLEAD_POD_UID": pod_uid,
        "FAIRLEAD_ATTEMPT": str(attempt),
        "FAIRLEAD_POD_DIR": pod_dir,
        "FAIRLEAD_RUN_DIR": run_dir,
        "FAIRLEAD_CHECKPOINT_KEEP": str(spec.checkpoint.keep),
        "FAIRLEAD_GRACE_S": f"{spec.grace_s:g}",
    }
    if checkpoint_to is not None:
        env["FAIRLEAD_CHECKPOINT_TO"] = checkpoint_to
    if spec.checkpoint.origin is not None:
        env["FAIRLEAD_CHECKPOINT_FROM"] = spec.checkpoint.origin
    if workload.spec.most_nodes is not None:
        env["FAIRLEAD_ELASTIC"] = "1"
    if spec.parallel is not None:
        env["FAIRLEAD_PARALLEL"] = json.dumps({name: getattr(spec.parallel, name) for name in PARALLEL_PARTS})
    if spec.checkpoint.every_s is not None:
        env["FAIRLEAD_CHECKPOINT_EVERY_S"] = f"{spec.checkpoint.every_s:g}"
    if spec.checkpoint.every_steps is not None:
        env["FAIRLEAD_CHECKPOINT_EVERY_STEPS"] = str(spec.checkpoint.every_steps)
    if spec.checkpoint.every_auto:
        env["FAIRLEAD_CHECKPOINT_EVERY_AUTO"] = "1"
    if isinstance(workload.spec, Replica):
        env |= _replica(workload.spec, pod_uid, master[1])
    if workload.spec.has_rendezvous:
        env |= _rendezvous(workload, attempt, index, *master)
    return env


def _replica(spec: Replica, pod_uid: str, port: int) -> dict[str, str]:
    """Make the variables of an endpoint's server: where it is to listen, and what it is to serve."""
    return {
        "PORT": str(port),
        "FAIRLEAD_MODEL": spec.model_path,
        "FAIRLEAD_PREDICTOR": spec.predictor,
        "FAIRLEAD_SERVICE": spec.service,
        "FAIRLEAD_REVISION": spec.revision,
        "FAIRLEAD_REPLICA": pod_uid,
        "FAIRLEAD_BATCHING": spec.batching,
        "FAIRLEAD_GRACE": f"{spec.grace_s:g}",
        "FAIRLEAD_MAX_QUEUE": str(spec.max_queue),
    }


def _rendezvous(workload: Workload, attempt: int, index: int, host: str, port: int) -> dict[str, str]:
    """Make torchrun's variables; programs take themselves for one of several ranks by them, even where there is one."""
    spec = workload.gang
    return {
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(spec.ranks_on_each_node),
        "GROUP_RANK": str(index),
        "GROUP_WORLD_SIZE": str(spec.nodes),
        "NODE_RANK": str(index),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(spec.world_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": workload.uid,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.retry.program),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "FAIRLEAD_AGREE_PORT": str(port + 1),
    }
