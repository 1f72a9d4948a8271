"""The variables by which the processes of each framework meet: those that differ from rank to rank of a pod.

Those that all ranks of a pod share are there already; see `cluster/contract.py`. Standard library only, and pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

FIRST_PORT = 2  # above the master's: that one is torch's, the next is for agreements among ranks


def address(common: Mapping[str, str], rank: int) -> str:
    """Return host and port at which a rank listens, as all others know it.

    Pods that have one host share its ports, so that each rank has another; pods with hosts of their own do not.
    """
    local_size = int(common["LOCAL_WORLD_SIZE"])
    node, local_rank = divmod(rank, local_size)
    hosts = common["FAIRLEAD_HOSTS"]
    host = hosts.replace("{}", str(node))
    return f"{host}:{int(common['MASTER_PORT']) + FIRST_PORT + (rank if host == hosts else local_rank)}"


def rank_variables(rank: int, local_rank: int, common: Mapping[str, str]) -> dict[str, str]:
    """Make a rank's own variables for the framework of its run; none where that needs none, or none is named."""
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
        # Sorted as text by the tracker, which gives ranks in that order.
        return {"DMLC_TASK_ID": f"{rank:06d}"}
    return {}


def _jax(rank: int, local_rank: int, common: Mapping[str, str]) -> dict[str, str]:
    """Make those by which `jax.distributed.initialize()` takes its number, where it finds a job of Open MPI's.

    Its own variables have no place for that.
    """
    own = {
        "JAX_PROCESS_ID": str(rank),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
    }
    devices = int(common.get("FAIRLEAD_DEVICES", "0")) // int(common["LOCAL_WORLD_SIZE"])
    if devices:
        first = local_rank * devices
        own["JAX_LOCAL_DEVICE_IDS"] = ",".join(str(each) for each in range(first, first + devices))
    return own


def _addresses(common: Mapping[str, str]) -> list[str]:
    return [address(common, rank) for rank in range(int(common["WORLD_SIZE"]))]
