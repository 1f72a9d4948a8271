"""Builds the instructions for a pod's shim: the command, the ranks, the whole environment.

Pure functions of run and pod.
"""

import hashlib
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fairlead.runtime
from fairlead.cluster import contract
from fairlead.cluster.local.code.keeping import IN_WORKDIR, AttemptDirectory
from fairlead.cluster.local.home import Home
from fairlead.cluster.origins import is_run_name
from fairlead.frozen import dataclass
from fairlead.runtime import shell_limits
from fairlead.runtime.paths import below
from fairlead.runtime.ranks import rank_environment
from fairlead.runtime.secret_entries import without_secrets
from fairlead.specs.data import DataMode
from fairlead.specs.overlay import SET_BY_FAIRLEAD
from fairlead.specs.secret_reference import as_variables
from fairlead.specs.training import SET_BY_FRAMEWORK, Elastic
from fairlead.state.plan import child_uid
from fairlead.state.snapshot import Pod, Workload, is_workspace

# Programs of ours that a shim starts, by path, so that this module need not import them.
PROGRAMS = Path(fairlead.runtime.__file__).parent
LOG_FILES = 4
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnvironment:
    """Facts about the machine that a pod runs on.

    Attributes:
        environ: The submitter's environment.
        own_environ: The supervisor's environment, for a supervisor that a shim starts when it finds none.
        master_port: Rendezvous port of this attempt; the port above it serves agreements among ranks.
        library: Directory that holds the package ``fairlead`` and nothing else.
        cgroup: Cgroup with the pod's memory limit; None for no limit.
        has_gpus: True if the machine has GPUs, which a pod without a grant must not see.
        place: Directory in which the attempt runs.
        packages: Directory of the run's own environment, whose Python comes first; None without one.
    """

    environ: Mapping[str, str]
    own_environ: Mapping[str, str]
    master_port: int
    library: Path
    cgroup: Path | None
    has_gpus: bool
    place: AttemptDirectory = IN_WORKDIR
    packages: Path | None = None


def render(home: Home, workload: Workload, pod: Pod, around: PodEnvironment) -> dict[str, Any]:
    """Return the content of ``pod.json``, as the shim's contract defines it."""
    spec = workload.spec
    ranks = spec.ranks_on_each_node
    first = pod.index * ranks
    env = _environment(home, workload, pod, around)
    place = around.place
    setup = None if spec.setup is None else place.moved(spec.setup, spec.workdir)
    if any(source.way is DataMode.COPY for source in spec.data.values()):
        # Programs that open files have them before they start; a second run of the same version copies nothing.
        setup = "\n".join(
            [shlex.join([sys.executable, "-m", "fairlead.runtime.data.copying"]), *([setup] if setup else [])]
        )
    # Another tree lacks what a set-up step has changed among the sources.
    stamp = f"setup-{pod.node}-{_digest(setup or '')}{'' if place.root is None else f'-{place.root.name}'}.done"
    return {
        "uid": pod.uid,
        "workdir": str(place.tree or spec.workdir or Path.home()),
        "command": place.moved(spec.run, spec.workdir),
        "setup": setup,
        "trial": [str(PROGRAMS / "trial.py")],
        "begin_by": {
            "xgboost": [str(PROGRAMS / "tracker.py")],
            "mpi": [str(PROGRAMS / "process_manager.py")],
            "ray": [str(PROGRAMS / "ray_cluster.py")],
        },
        "export": [str(PROGRAMS / "experiment_tracking" / "exporter.py")],
        "setup_stamp": str(home.run(workload.uid) / stamp),
        "env": env,
        # Paths alone: the shim adds their entries to the environment of processes, in memory.
        "secrets": {name: str(below(home.secrets, name)) for name in as_variables(spec.secrets)},
        "ranks": [
            {"rank": first + local, "local_rank": local, "env": rank_environment(first + local, local, env)}
            for local in range(ranks)
        ],
        "launch": "auto" if spec.may_fork else "exec",
        "shell_limits": around.environ.get(shell_limits.VARIABLE),
        "grace_s": spec.grace_s,
        "stall_timeout_s": spec.stall_timeout_s,
        "metrics": None if spec.metrics is None else {"pattern": spec.metrics.regular_expression},
        "cgroup": None if around.cgroup is None else str(around.cgroup),
        "log_max_bytes": spec.logs.max_bytes // LOG_FILES,
        "log_files": LOG_FILES,
        "supervisor": [sys.executable, "-m", "fairlead.control.supervisor", str(home.path)],
        "supervisor_env": without_secrets(around.own_environ),
        "supervisor_lock": str(home.lock),
        "poke": str(home.socket),
    }


def _digest(text: str) -> str:
    """Hash a text, so that a changed set-up step is run again."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def checkpoint_place(home: Home, workload: Workload) -> str:
    """Return the place of this run's checkpoints, which no other run shares, not even one of the same name."""
    to = workload.spec.checkpoint.to
    if to is None:
        return str(home.run(workload.uid) / "checkpoints")
    own = f"{workload.spec.name}-{workload.uid}"
    if "://" in to:
        return f"{to.rstrip('/')}/{own}"
    return str(Path(workload.spec.workdir or Path.home(), to).expanduser() / own)


def _environment(home: Home, workload: Workload, pod: Pod, around: PodEnvironment) -> dict[str, str]:
    spec, ranks = workload.spec, workload.spec.ranks_on_each_node
    # A run submitted by a rank of another run must not inherit that run's variables.
    env = {name: value for name, value in around.environ.items() if SET_BY_FAIRLEAD.fullmatch(name) is None}
    env.pop(shell_limits.VARIABLE, None)
    if "FAIRLEAD_RUN_UID" in around.environ:
        env = {name: value for name, value in env.items() if not name.startswith("PET_")}
    for name in SET_BY_FRAMEWORK.get(around.environ.get("FAIRLEAD_FRAMEWORK", ""), ()):
        env.pop(name, None)
    cores = pod.grant.cpu_milli // 1000
    env.setdefault("OMP_NUM_THREADS", str(max(1, cores // ranks)))
    # Rendezvous by host name would leave loopback, and fails on machines whose name does not resolve.
    env.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    if spec.resources.gpu is not None or around.has_gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(pod.grant.gpu_uuids)
    path = env.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{path}:{around.library}" if path else str(around.library)
    env.update({name: around.place.moved(value, spec.workdir) for name, value in spec.env.items()})
    if around.packages is not None:
        env["PATH"] = f"{around.packages / 'bin'}:{env.get('PATH', os.defpath)}"
        env["VIRTUAL_ENV"] = str(around.packages)
        env.pop("PYTHONHOME", None)
    env["PYTHONPATH"] = around.place.python_path(env["PYTHONPATH"], spec.workdir, spec.run, env)
    if spec.elastic is Elastic.IN_PLACE:
        env["FAIRLEAD_MEMBERS_DIR"] = str(home.members(workload.uid, pod.attempt))
    checkpoint = spec.checkpoint
    if checkpoint.is_in_memory:
        env["FAIRLEAD_CHECKPOINT_MEMORY"] = str(home.checkpoint_memory(workload.uid))
    if checkpoint.memory_every_s is not None:
        env["FAIRLEAD_CHECKPOINT_MEMORY_EVERY_S"] = f"{checkpoint.memory_every_s:g}"
    if checkpoint.memory_every_steps is not None:
        env["FAIRLEAD_CHECKPOINT_MEMORY_EVERY_STEPS"] = str(checkpoint.memory_every_steps)
    return env | _contract(home, workload, pod, around.master_port)


def _of_sibling(home: Home, workload: Workload) -> Workload:
    """Replace the name of a sibling in ``checkpoint.from`` by the place of the sibling's checkpoints.

    Only a parent submits runs that still name another: a sweep whose trials start from each other's checkpoints.
    """
    origin = workload.spec.checkpoint.origin
    if origin is None or workload.parent is None or not is_run_name(origin):
        return workload
    uid = child_uid(workload.parent, origin.rpartition("-")[2])
    place = checkpoint_place(home, replace(workload, uid=uid, spec=replace(workload.spec, name=origin)))
    return replace(workload, spec=replace(workload.spec, checkpoint=replace(workload.spec.checkpoint, origin=place)))


def _contract(home: Home, workload: Workload, pod: Pod, port: int) -> dict[str, str]:
    workload = _of_sibling(home, workload)
    env = contract.environment(
        workload,
        attempt=pod.attempt,
        index=pod.index,
        pod_uid=pod.uid,
        replacement=pod.replacement,
        pod_dir=str(home.pod(workload.uid, pod.uid)),
        run_dir=str(home.run(workload.uid) / "files"),
        checkpoint_to=checkpoint_place(home, workload),
        master=(contract.LOOPBACK, port),
        hosts=contract.LOOPBACK,
        key_file=str(home.run_key(workload.uid)),
        data_dir=str(home.data),
        secrets_dir=str(home.secrets),
    )
    if is_workspace(workload):
        env |= contract.workspace_settings(workload.spec, port=port, home=workload.spec.home.path)
    return env
