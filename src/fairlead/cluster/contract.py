"""Builds the environment variables of the processes of a run, the same on every cluster. Pure; no I/O."""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fairlead.runtime import run_key
from fairlead.runtime.data import variable_of
from fairlead.runtime.rendezvous import FIRST_PORT
from fairlead.specs.data import DataMode, DataSource
from fairlead.specs.secret_reference import SecretReference, as_files
from fairlead.specs.training import LISTING, Framework
from fairlead.state.snapshot import Workload, is_replica
from fairlead.state.split_probing import untried

if TYPE_CHECKING:
    from fairlead.specs.serving import Replica
    from fairlead.specs.workspace import Workspace

LOOPBACK = "127.0.0.1"

# The parts of the split of a run that its program receives, as `runtime/parallelism/split.py` reads them.
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
    hosts: str,
    listen: str = "127.0.0.1",
    key_file: str,
    replacement: int = 0,
    data_dir: str,
    secrets_dir: str,
) -> dict[str, str]:
    """Return the variables that all ranks of a pod share; each rank's own numbers are added where it is started.

    Args:
        index: Index of the pod in its gang, from 0.
        checkpoint_to: Place of this run's checkpoints; None for none.
        master: Host of rank 0 and the port of the rendezvous; the port above it serves agreements among ranks. A
            replica of an endpoint listens on that port.
        hosts: Host of each pod, with ``{}`` for its index where there are several.
        listen: Address on which a replica of an endpoint listens.
        key_file: Path of the run's key, by which its ranks know each other.
        replacement: How often a pod of that index was lost in the attempt, while the others went on.
        data_dir: Directory of manifests and bundles of data, shared by all runs if it outlives them.
        secrets_dir: Directory of secrets, each a directory of its entries. No value of one is in a variable here.
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
        if attempt and workload.progress is not None and workload.progress.checkpoint_step:
            env["FAIRLEAD_CHECKPOINT_STEP"] = str(workload.progress.checkpoint_step)
    if spec.checkpoint.origin is not None:
        env["FAIRLEAD_CHECKPOINT_FROM"] = spec.checkpoint.origin
    if workload.spec.most_nodes is not None:
        env["FAIRLEAD_ELASTIC"] = "1"
    if replacement:
        env["FAIRLEAD_REPLACEMENT"] = str(replacement)
    if spec.parallel is not None:
        env["FAIRLEAD_PARALLEL"] = json.dumps({name: getattr(spec.parallel, name) for name in PARALLEL_PARTS})
    if untried(workload.spec, workload.status.measured.probing):
        env["FAIRLEAD_PROBE"] = "1"
    if spec.preflight is not None and workload.is_to_be_tested:
        tests = {name: getattr(spec.preflight, name) for name in ("gpu_s", "network_s", "loss_steps")}
        env["FAIRLEAD_PREFLIGHT"] = json.dumps({name: value for name, value in tests.items() if value is not None})
    if spec.checkpoint.every_s is not None:
        env["FAIRLEAD_CHECKPOINT_EVERY_S"] = f"{spec.checkpoint.every_s:g}"
    if spec.checkpoint.every_steps is not None:
        env["FAIRLEAD_CHECKPOINT_EVERY_STEPS"] = str(spec.checkpoint.every_steps)
    if spec.checkpoint.trust:
        env["FAIRLEAD_CHECKPOINT_TRUST"] = "1"
    if not spec.terminate_on_nan:
        env["FAIRLEAD_TERMINATE_ON_NAN"] = "0"
    if spec.checkpoint.every_auto:
        env["FAIRLEAD_CHECKPOINT_EVERY_AUTO"] = "1"
        if workload.status.failures.nodes_per_day is not None:
            env["FAIRLEAD_NODE_FAILURES_PER_DAY"] = f"{workload.status.failures.nodes_per_day:.4g}"
    if spec.data:
        env |= data_variables(spec.data, data_dir, secrets_dir)
    env |= secret_paths(spec.secrets, secrets_dir)
    if is_replica(workload.spec):
        env |= _replica(workload.spec, pod_uid, listen, master[1], data_dir)
    if workload.spec.has_rendezvous:
        env |= _rendezvous(workload, attempt, index, *master) | {run_key.FILE: key_file}
        env |= _of_torchrun(workload, index, *master)
    if workload.spec.framework is not None:
        env |= _of_framework(workload, workload.spec.framework, *master, hosts, run_dir)
    return env


def num_ports(workload: Workload) -> int:
    """Return the number of ports, from the master's upwards, that an attempt needs if all its pods share one host."""
    framework = workload.spec.framework
    if framework in LISTING:
        return FIRST_PORT + workload.gang.world_size
    if framework is Framework.RAY:
        return FIRST_PORT + 2  # Ray's, and the one at which the first pod admits the others
    return FIRST_PORT + (framework in (Framework.JAX, Framework.XGBOOST, Framework.MPI))


def data_variables(data: Mapping[str, DataSource], data_dir: str, secrets_dir: str) -> dict[str, str]:
    """Return the description of the data sets, and a variable for each whose path is known before it is read.

    Credentials are in it by the path of their secret.
    """
    described, paths = {}, {}
    for name, source in data.items():
        place = source.origin
        if source.claim is not None:
            place = source.mount_path(name)
        credentials = None if source.credentials is None else f"{secrets_dir}/{source.credentials}"
        fields = {"from": place, "mode": source.way.value, "version": source.version, "include": source.include,
                  "profile": source.profile, "credentials": credentials, "dataset": source.dataset}  # fmt: skip
        described[name] = {key: value for key, value in fields.items() if value is not None}
        variable = variable_of(name)
        if source.way is DataMode.MOUNT:
            paths[variable] = place.removeprefix("file://")
        elif source.way is DataMode.COPY:
            # A link, where the version is not known before.
            below = f"copies/{name}" if source.version is None else f"trees/{source.version}"
            paths[variable] = f"{data_dir}/{below}"
    return {"FAIRLEAD_DATA": json.dumps(described), "FAIRLEAD_DATA_DIR": data_dir, **paths}


def secret_paths(secrets: Iterable[SecretReference], secrets_dir: str) -> dict[str, str]:
    """Return the variables with paths of entries of secrets, or of the directory of all."""
    paths = {}
    for reference in as_files(secrets):
        assert reference.variable is not None
        below = "" if reference.entry is None else f"/{reference.entry}"
        paths[reference.variable] = f"{secrets_dir}/{reference.name}{below}"
    return paths


def _replica(spec: "Replica", pod_uid: str, listen: str, port: int, data_dir: str) -> dict[str, str]:
    """Return the variables of an endpoint's server: its listening address and what it serves."""
    return {
        "HOST": listen,
        "PORT": str(port),
        "FAIRLEAD_MODEL": spec.model_path,
        "FAIRLEAD_PREDICTOR": spec.predictor,
        "FAIRLEAD_SERVICE": spec.service,
        "FAIRLEAD_REVISION": spec.revision,
        "FAIRLEAD_REPLICA": pod_uid,
        "FAIRLEAD_BATCHING": spec.batching,
        "FAIRLEAD_GRACE": f"{spec.grace_s:g}",
        "FAIRLEAD_MAX_QUEUE": str(spec.max_queue),
        **_signer(spec, data_dir),
    }


def _signer(spec: "Replica", data_dir: str) -> dict[str, str]:
    """Return the variables of a published model."""
    if spec.signed_by is None:
        return {}
    return {"FAIRLEAD_MODEL_SIGNER": spec.signed_by, "FAIRLEAD_MODEL_CACHE": f"{data_dir}/models"}


def workspace_settings(
    spec: "Workspace", *, port: int, home: str | None, root: str | None = None, watches_gpus: bool = False
) -> dict[str, str]:
    """Return the variable with the settings of a workspace, as its process reads them.

    Its server listens on the loopback address: on a cluster it is reached by a port-forward, which kubelet connects
    to the loopback of the pod, so that no other pod can reach it.

    Args:
        home: HOME, which outlives it.
        root: The directory that it opens, made as a copy of the working directory if it is not there; None for the
            working directory itself.
        watches_gpus: Its own process measures the use of its GPUs, as nothing else does.
    """
    settings = {
        "ide": spec.ide.value, "home": home, "host": LOOPBACK, "port": port, "after_s": spec.idle.after_s,
        "root": root, "watches_gpus": watches_gpus,
    }  # fmt: skip
    return {"FAIRLEAD_WORKSPACE": json.dumps(settings)}


def _rendezvous(workload: Workload, attempt: int, index: int, host: str, port: int) -> dict[str, str]:
    """Return torchrun's variables, by which a program runs as one of several ranks, even if there is only one."""
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


def _of_torchrun(workload: Workload, index: int, host: str, port: int) -> dict[str, str]:
    """Return the variables by which `torchrun` in the command, one on each node, finds those of the other nodes.

    It takes them for options that the command line does not have.
    """
    spec = workload.gang
    if spec.nodes == 1 or spec.ranks_on_each_node > 1:
        return {}
    env = {
        "PET_NNODES": str(spec.nodes),
        "PET_NODE_RANK": str(index),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(port),
    }
    if spec.resources.gpu is not None:
        env["PET_NPROC_PER_NODE"] = str(spec.resources.gpu.num_devices)
    return {name: value for name, value in env.items() if name not in spec.env}


def _of_framework(
    workload: Workload, framework: Framework, host: str, port: int, hosts: str, run_dir: str
) -> dict[str, str]:
    """Return the framework's variables that all ranks share; `runtime/rendezvous.py` adds those of each rank."""
    spec = workload.gang
    ranks, first = str(spec.world_size), port + FIRST_PORT
    env = {"FAIRLEAD_FRAMEWORK": framework.value}
    if framework in LISTING:
        env["FAIRLEAD_HOSTS"] = hosts
    if framework is Framework.JAX:
        env |= {
            "JAX_COORDINATOR_ADDRESS": f"{host}:{first}",
            "JAX_NUM_PROCESSES": ranks,
            # By these two JAX takes the ranks for processes of Open MPI, and asks no cluster about them.
            "OMPI_MCA_orte_hnp_uri": "fairlead",
            "OMPI_COMM_WORLD_SIZE": ranks,
        }
        if host == LOOPBACK:
            env["JAX_COORDINATOR_BIND_ADDRESS"] = f"{host}:{first}"
        if spec.resources.gpu is not None:
            env["FAIRLEAD_DEVICES"] = str(spec.resources.gpu.num_devices)
    elif framework is Framework.XGBOOST:
        env |= {"DMLC_TRACKER_URI": host, "DMLC_TRACKER_PORT": str(first), "DMLC_NUM_WORKER": ranks}
        env["DMLC_ROLE"] = "worker"
    elif framework is Framework.LIGHTGBM:
        env["LIGHTGBM_NUM_MACHINES"] = ranks
    elif framework is Framework.MPI:
        on_one = spec.world_size if hosts == host else spec.ranks_on_each_node
        env |= {"PMI_PORT": f"{host}:{first}", "PMI_SIZE": ranks, "FAIRLEAD_RANKS_PER_HOST": str(on_one)}
    elif framework is Framework.RAY:
        env |= _of_ray(workload, host, first, run_dir)
    elif framework is Framework.DEEPSPEED:
        env["LOCAL_SIZE"] = str(spec.ranks_on_each_node)
    if spec.resources.gpu is None and (own := _WITHOUT_GPUS.get(framework)) is not None and own[0] not in spec.env:
        env |= dict([own])
    return env


def _of_ray(workload: Workload, host: str, port: int, run_dir: str) -> dict[str, str]:
    """Return the variables of a Ray cluster: its address, its authentication, and the resources of each pod."""
    resources, gang_env = workload.gang.resources, workload.gang.env
    node = {"num-gpus": 0 if resources.gpu is None else resources.gpu.num_devices}
    if resources.cpu_milli is not None:
        node["num-cpus"] = max(1, resources.cpu_milli // 1000)
    if resources.memory_bytes is not None:
        node["object-store-memory"] = max(OBJECT_STORE_LEAST_BYTES, resources.memory_bytes * 3 // 10)
    env = {"RAY_ADDRESS": f"{host}:{port}", "FAIRLEAD_RAY_NODE": json.dumps(node)}
    if host == LOOPBACK:
        # Otherwise Ray uses another address of the machine.
        env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if "RAY_AUTH_MODE" not in gang_env:
        # A client that reaches a cluster without a token can run code in it. Here that is every user of the machine;
        # pods are reachable only from pods of their run.
        env["RAY_AUTH_MODE"] = "token" if host == LOOPBACK else "disabled"
        if host == LOOPBACK:
            env["RAY_AUTH_TOKEN_PATH"] = f"{run_dir}/ray-token"
    return env


# Ray's own least, and its default is the same part of what it finds (ray.io, `ray start --object-store-memory`).
OBJECT_STORE_LEAST_BYTES = 75 * 1024 * 1024

# Without these both look at the machine: Accelerate then trains every rank by itself, without a word.
_WITHOUT_GPUS = {
    Framework.ACCELERATE: ("ACCELERATE_USE_CPU", "true"),
    Framework.DEEPSPEED: ("DS_ACCELERATOR", "cpu"),
}
