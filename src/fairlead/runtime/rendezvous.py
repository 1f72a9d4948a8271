"""Environment variables by which each framework connects its processes: those that differ between a pod's ranks.

Variables that all ranks of a pod share are already set; see `cluster/contract.py`. Standard library only, and pure.

See decision 37.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

FIRST_PORT = 2  # offset from the master's port, which is torch's; the one after it is for agreements among ranks


def address(common: Mapping[str, str], rank: int) -> str:
    """Return the host and port at which a rank listens, as all other ranks know it.

    Pods on one host share its ports, so each rank has a different one; pods with separate hosts reuse them.
    """
    local_size = int(common["LOCAL_WORLD_SIZE"])
    node, local_rank = divmod(rank, local_size)
    hosts = common["FAIRLEAD_HOSTS"]
    host = hosts.replace("{}", str(node))
    return f"{host}:{int(common['MASTER_PORT']) + FIRST_PORT + (rank if host == hosts else local_rank)}"


def rank_variables(rank: int, local_rank: int, common: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's own variables for its run's framework; empty if it needs none or none is named."""
    framework = common.get("FAIRLEAD_FRAMEWORK")
    if framework == "jax":
        return _jax(rank, local_rank, common)
    if framework == "tensorflow":
        cluster = {"worker": _addresses(common)}
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}
    if framework == "lightgbm":
        return {
            "LIGHTGBM_MACHINES": ",".join(_addresses(common)),
            "LIGHTGBM_LOCAL_LISTEN_PORT": address(common, rank).rpartition(":")[2],
        }
    if framework == "mpi":
        return {"PMI_ID": str(rank), "PMI_RANK": str(rank)}
    if framework == "xgboost":
        # The tracker sorts these ids as text and assigns ranks in that order.
        return {"DMLC_TASK_ID": f"{rank:06d}"}
    return {}


def _jax(rank: int, local_rank: int, common: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which `jax.distributed.initialize()` gets its rank, as in an Open MPI job.

    JAX's own variables cannot express it.
    """
    own = {
        "JAX_PROCESS_ID": str(rank),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
    }
    devices = int(common.get("FAIRLEAD_DEVICES", "0")) // int(common["LOCAL_WORLD_SIZE"])
    if devices:
        first = local_rank * devices
        own["JAX_LOCAL_DEVICE_IDS"] = ",".join(str(device) for device in range(first, first + devices))
    return own


def _addresses(common: Mapping[str, str]) -> list[str]:
    return [address(common, rank) for rank in range(int(common["WORLD_SIZE"]))]
