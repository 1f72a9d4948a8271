"""Prepares the debugging of a run: a workspace with its code, data and variables at its newest checkpoint.

See decisions 232 and 274.
"""

import os
import platform
from pathlib import Path

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.contract import data_variables, secret_paths
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.packages.locked_packages import packages_of
from fairlead.cluster.local.packages.place import complete
from fairlead.cluster.local.packages.requests import request_of
from fairlead.cluster.local.pod_spec import checkpoint_place
from fairlead.cluster.written_code import write_code
from fairlead.control.image.locks import wheels_in
from fairlead.frozen import dataclass
from fairlead.runtime.paths import below
from fairlead.specs.environment import PythonEnvironment
from fairlead.specs.training import Checkpoint
from fairlead.specs.workspace import Workspace
from fairlead.state.snapshot import Workload

NAME_MOST = 50
HAS_SERVER = "python3 -c 'import jupyter_server' 2>/dev/null || python3 -m pip install --quiet --user jupyterlab"
"""Setup of a workspace in an image that may have no Jupyter, which its home has from then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugSession:
    """The place to debug a run in.

    Attributes:
        workspace: The spec of a workspace there.
        directory: A copy of the code of the run, or its working directory where none was kept.
        variables: Variables that the run had, for a shell.
        checkpoint: The place of its checkpoints and the newest step; None without one.
        why_live: Why the code is not a copy; None for a copy.
        lacks_packages: The environment of the run was removed, so that a shell has none.
    """

    workspace: Workspace
    directory: Path
    variables: dict[str, str]
    checkpoint: tuple[str, int] | None
    why_live: str | None
    lacks_packages: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDebugSession:
    """The workspace to debug a run of a cluster in.

    Attributes:
        workspace: Its spec; the files of ``directory`` go along with it, if it has a ``workdir`` that is relative.
        step: The newest checkpoint, at which it stands; None for none.
        notes: What it does not have, a clause each.
    """

    workspace: Workspace
    step: int | None
    notes: tuple[str, ...]


def debug_in_pod(cluster: ClusterClient, run: Workload, directory: Path) -> PodDebugSession:
    """Return the workspace to debug a run in on its cluster, with the run's code in an empty directory of this machine.

    Raises:
        Conflict: A file of the kept code cannot be read any more.
    """
    spec, code = run.gang, cluster.code(run.uid)
    notes = []
    workdir = spec.workdir if code.files is None else "."
    if code.files is None:
        notes.append(f"its code is not copied: {code.why}")
        workdir = workdir if workdir is not None and workdir.startswith("/") else None
    else:
        write_code(code, directory)
    step = None if run.progress is None else run.progress.checkpoint_step
    if step is not None and spec.checkpoint.to is None:
        step = None
        notes.append("its checkpoints are gone with its pods, or where the operator keeps those of all runs")
    environment, image, setup = None, spec.image, spec.setup
    if code.lock is not None:
        environment, image = _same_versions(code.lock), None
    else:
        setup = HAS_SERVER if setup is None else f"{setup}\n{HAS_SERVER}"
    workspace = Workspace(
        name=_name(spec.name), team=spec.team, labels=spec.labels, env=spec.env, data=spec.data, setup=setup,
        resources=spec.resources, environment=environment, image=image, secrets=spec.secrets, workdir=workdir,
        priority=spec.priority, kubernetes=spec.kubernetes,
        checkpoint=Checkpoint(origin=None if step is None else spec.name, trust=spec.checkpoint.trust),
    )  # fmt: skip
    return PodDebugSession(workspace=workspace, step=step, notes=tuple(notes))


def _same_versions(lock: str) -> PythonEnvironment:
    """Return the packages of a lock by their versions, with which the server of a workspace goes along."""
    return PythonEnvironment(packages=tuple(f"{wheel.name}=={wheel.version}" for wheel in wheels_in(lock)))


def _name(run: str) -> str:
    return f"debug-{run}"[:NAME_MOST].rstrip("-")


def debug_session(cluster: ClusterClient, home: Home, run: Workload) -> DebugSession:
    """Return the place to debug a run in, with a copy of its code, which later calls for the same code keep as it is.

    Raises:
        Conflict: The kept code cannot be read any more.
    """
    spec, code = run.gang, cluster.code(run.uid)
    name = _name(spec.name)
    directory, why_live = Path(spec.workdir or Path.home()), None
    if code.files is None:
        why_live = code.why
    else:
        directory = below(home.workspace(spec.team, name), f"code-{run.uid}-{code.at or 0:.0f}")
        if not directory.exists():
            write_code(code, directory)
    step = None if run.progress is None else run.progress.checkpoint_step
    checkpoint = None if step is None else (checkpoint_place(home, run), step)
    data = {key: source for key, source in spec.data.items() if source.claim is None}
    variables = {**spec.env, **(data_variables(data, str(home.data), str(home.secrets)) if data else {})}
    variables |= secret_paths(spec.secrets, str(home.secrets))
    # As in a pod: a Python without the package finds it there.
    path = [variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")), str(home.path / "library")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    if checkpoint is not None:
        variables["FAIRLEAD_CHECKPOINT_FROM"] = checkpoint[0]
    packages = _packages(home, run)
    if packages is not None:
        variables["PATH"] = f"{packages / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        variables["VIRTUAL_ENV"] = str(packages)
    environment = _environment(home, run, home.workspace(spec.team, name))
    workspace = Workspace(
        name=name, team=spec.team, labels=spec.labels, env=spec.env, data=data, resources=spec.resources,
        environment=environment,
        secrets=spec.secrets, workdir=str(directory), priority=spec.priority,
        checkpoint=Checkpoint(origin=None if checkpoint is None else checkpoint[0], trust=spec.checkpoint.trust),
    )  # fmt: skip
    return DebugSession(
        workspace=workspace, directory=directory, variables=variables, checkpoint=checkpoint, why_live=why_live,
        lacks_packages=spec.environment is not None and packages is None,
    )  # fmt: skip


def _packages(home: Home, run: Workload) -> Path | None:
    """Return the directory with the packages of a run; None without one."""
    request = request_of(run.spec, home, run.uid)
    return None if request is None else complete(home, request["digest"])


def _environment(home: Home, run: Workload, directory: Path) -> PythonEnvironment | None:
    """Return the environment of a workspace with the versions that a run has, in a file of a directory.

    It is the one that the run asks for, where it has no lock yet.
    """
    environment, request = run.spec.environment, request_of(run.spec, home, run.uid)
    if environment is None or request is None:
        return environment
    lock = below(home.packages_of(run.uid), f"{request['digest']}.toml")
    if not lock.exists():
        return environment
    python = request["python"][1]
    options = [line for line in request["files"].get("requirements.txt", "").splitlines() if line.startswith("-")]
    pins = [f"{name}=={version}" for name, version in packages_of(lock.read_bytes(), python, platform.machine())]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = below(directory, f"packages-{run.uid}.txt")
    path.write_text("\n".join([*options, *pins, ""]))
    return PythonEnvironment(file=str(path), python=python)
