"""Builds a pod's environment, which is the same on every cluster: variables, paths and the shim's instructions."""

import json
from pathlib import PurePosixPath
from typing import Any

from fairlead.cluster import contract
from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.names import host_name, is_alone, service_name
from fairlead.runtime import run_key
from fairlead.runtime.rendezvous import FIRST_PORT
from fairlead.specs.data import DataMode
from fairlead.specs.gang import ProgramSpec
from fairlead.specs.serving import Replica
from fairlead.specs.training import Elastic
from fairlead.state.plan import CreatePod
from fairlead.state.pod_uids import pod_uid
from fairlead.state.run_places import place_of
from fairlead.state.snapshot import Workload, is_workspace

HOME = "/fairlead"
LOCAL = f"{HOME}/local"  # an emptyDir for files of this pod
POD_DIR = f"{LOCAL}/pod"
RUN_DIR = f"{LOCAL}/run"
MEMBERS_DIR = f"{LOCAL}/members"
WORK_DIR = f"{LOCAL}/work"
KEY_FILE = f"{LOCAL}/key"
DATA_DIR = f"{LOCAL}/data"
SECRETS_DIR = f"{HOME}/secrets"
USER_HOME = f"{LOCAL}/home"
RUNTIME_DIR = f"{HOME}/runtime"
RUNTIME = f"{RUNTIME_DIR}/runtime.pyz"
WORKSPACE = f"{RUNTIME_DIR}/workspace.pyz"
WORKSPACE_HOME = f"{HOME}/home"
"""Where the claim of a workspace is mounted, which is its HOME."""
DRIVER = f"{RUNTIME_DIR}/driver.pyz"
WORKDIR_PARTS = f"{HOME}/workdir"
MASTER_PORT = 29500  # torchrun's default; a pod shares its ports with no other
DATA_PORT = MASTER_PORT - 1  # those above it are of frameworks
LOG_MAX_BYTES = 4 * 1024 * 1024
LOG_FILES = 1
PYTHON = "python3"
"""Interpreter of the image that runs the shim; 3.9 or newer."""
CODE_LETTERS = 12


def environment(
    workload: Workload, create: CreatePod, *, checkpoint_to: str | None, code: str | None = None
) -> dict[str, str]:
    """Return the variables that all ranks of a pod share.

    Args:
        code: Digest of the files that went along; None for none.
    """
    domain = f"{service_name(workload)}.{workload.spec.team}.svc"
    first = host_name(workload.gang, create.attempt, 0)
    # A pod alone has no Service, and so no name.
    master, hosts = f"{first}.{domain}", f"{first.removesuffix('0')}{{}}.{domain}"
    if is_alone(workload.spec):
        master = hosts = contract.LOOPBACK
    env = contract.environment(
        workload,
        attempt=create.attempt,
        index=create.index,
        pod_uid=pod_uid(workload.uid, create.attempt, create.index, create.replacement),
        replacement=create.replacement,
        pod_dir=POD_DIR,
        run_dir=RUN_DIR,
        checkpoint_to=checkpoint_to,
        master=(master, MASTER_PORT),
        hosts=hosts,
        # Kubelet and other pods connect to the pod's address.
        listen="0.0.0.0",
        key_file=KEY_FILE,
        data_dir=DATA_DIR,
        secrets_dir=SECRETS_DIR,
    )
    if is_workspace(workload):
        spec = workload.spec
        in_image = spec.workdir is not None and code is None
        root = None if in_image else WORKSPACE_HOME if code is None else f"{WORKSPACE_HOME}/code-{code[:CODE_LETTERS]}"
        env |= contract.workspace_settings(
            spec, port=MASTER_PORT, home=WORKSPACE_HOME, root=root, watches_gpus=spec.resources.gpu is not None
        )
    if workload.gang.elastic is Elastic.IN_PLACE:
        env["FAIRLEAD_MEMBERS_DIR"] = MEMBERS_DIR
        env["FAIRLEAD_MEMBERS_HOST"] = env["MASTER_ADDR"]
        env["FAIRLEAD_MEMBERS_PORT"] = str(MASTER_PORT + FIRST_PORT)
    # Pods that an engine makes have names of its own.
    if has_shared_weights(workload):
        env["FAIRLEAD_DATA_PEERS"] = f"{names.weights_name(workload)}.{workload.spec.team}.svc:{DATA_PORT}"
        env[run_key.FILE] = KEY_FILE
    elif _is_shared(workload.spec) and workload.spec.has_rendezvous and workload.gang.nodes > 1:
        env["FAIRLEAD_DATA_PEERS"] = f"{hosts}:{DATA_PORT}"
    return env


def has_shared_weights(workload: Workload) -> bool:
    """Return whether the pods of a replica read its data from those of the other replicas, and let them read."""
    return isinstance(workload.spec, Replica) and workload.parent is not None and _is_shared(workload.spec)


def _is_shared(spec: ProgramSpec) -> bool:
    """Return whether pods keep some of their data, which others then read from them."""
    ways = {source.way for source in spec.data.values()}
    return spec.engine is None and not ways.isdisjoint((DataMode.CACHE, DataMode.COPY))


def instructions(
    workload: Workload, create: CreatePod, *, checkpoint_to: str | None, parts: str | None, archive: str | None = None
) -> dict[str, str]:
    """Return the variables with the instructions for the pod's entry point, which does not pass them to the ranks.

    They include the ranks' variables: as separate variables, each would cost the API server more than all of them do
    together. Commands are separate variables because one variable holds at most 128 KiB.

    Args:
        parts: Digest of the working directory that is mounted in parts; None for none.
        archive: Path or URL of the working directory's archive instead; None for none.
    """
    spec = workload.spec
    ranks, first = spec.ranks_on_each_node, create.index * spec.ranks_on_each_node
    code = parts if archive is None else PurePosixPath(archive).name.partition(".")[0]
    pod: dict[str, Any] = {
        "uid": pod_uid(workload.uid, create.attempt, create.index, create.replacement),
        "workdir": WORK_DIR if parts is not None or archive is not None else spec.workdir,
        "parts": None if parts is None else WORKDIR_PARTS,
        **({} if parts is None else {"digest": parts}),
        **({} if archive is None else {"archive": archive}),
        "ranks": list(range(first, first + ranks)),
        "threads": max(1, create.grant.cpu_milli // 1000 // ranks),
        "launch": "auto" if spec.may_fork else "exec",
        "grace_s": spec.grace_s,
        **({} if spec.stall_timeout_s is None else {"stall_timeout_s": spec.stall_timeout_s}),
        **({} if spec.metrics is None else {"metrics": {"pattern": spec.metrics.regular_expression}}),
        "log_max_bytes": LOG_MAX_BYTES,
        "log_files": LOG_FILES,
        "env": environment(workload, create, checkpoint_to=checkpoint_to, code=code),
    }
    variables = {"FAIRLEAD_INSTRUCTIONS": json.dumps(pod, separators=(",", ":")), "FAIRLEAD_COMMAND": spec.run}
    if is_workspace(workload):
        variables["FAIRLEAD_COMMAND"] = f"{PYTHON} {WORKSPACE}"
    return variables if spec.setup is None else variables | {"FAIRLEAD_SETUP": spec.setup}


def checkpoint_place(workload: Workload, default: str | None) -> str | None:
    """Return the location of a run's checkpoints; None if there is none that outlives a pod.

    Args:
        default: Location of the cluster or the team, for runs that name none.
    """
    to = workload.spec.checkpoint.to or default
    return None if to is None else place_of(to, workload)
