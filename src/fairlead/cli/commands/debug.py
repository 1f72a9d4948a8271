"""``fairlead debug``: open a workspace or a shell with what a run had."""

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from fairlead.api import submit
from fairlead.cli.names import RunName, find_run
from fairlead.cli.show import message
from fairlead.cli.target import Target, cluster_options
from fairlead.cli.workspace_servers import open_in_pod
from fairlead.cli.workspaces import await_address, show_address
from fairlead.cluster.preflight import command_problem
from fairlead.control.admission import admit
from fairlead.control.debugging import DebugSession, debug_in_pod, debug_session
from fairlead.errors import Conflict
from fairlead.runtime.paths import below
from fairlead.runtime.secret_entries import variables
from fairlead.specs.secret_reference import as_variables
from fairlead.state.snapshot import Intent, is_leaf, is_workspace

if TYPE_CHECKING:
    from fairlead.cluster.client import ClusterClient
    from fairlead.cluster.local.home import Home
    from fairlead.state.snapshot import Workload


@click.command()
@click.argument("name", type=RunName())
@click.option("--shell", is_flag=True, help="Start a shell in this terminal, also where there is Jupyter.")
@cluster_options
def debug(target: Target, name: str, shell: bool) -> int:
    """Open a workspace with the code, data, variables and newest checkpoint of NAME, or a shell without Jupyter.

    NAME may have failed, ended or still run, and stays as it is. The code is a copy; the program continues from the
    checkpoint of NAME and saves elsewhere. A workspace waits in the queue for what NAME requests; a shell does not.
    On a cluster the workspace is a pod with the image and the volumes of NAME, and is opened as by `workspace open`.
    """
    cluster = target.open(is_to_submit=True)
    run = find_run(cluster, name)
    if is_workspace(run):
        raise Conflict(f"{name} is a Workspace; `fairlead workspace open {name}` opens it.")
    if cluster.machine is None:
        if shell:
            raise click.UsageError(f"--shell is for runs of this machine; `fairlead exec {name} -it -- bash` is one.")
        _debug_in_pod(target, cluster, run)
        return 0
    session = debug_session(cluster, cluster.machine.home, run)
    _tell(session, name)
    problem = None if shell else command_problem(session.workspace, session.directory, os.environ)
    if shell or problem is not None:
        if problem is not None:
            message(f"A shell, as {problem}.")
        if session.lacks_packages:
            message(f"The packages of {name} were removed; `fairlead resume {name}` makes its environment again.")
        return _shell(session, cluster.machine.home)
    wanted = session.workspace
    for other in cluster.unfinished(wanted.team):
        if other.spec.name == wanted.name:
            cluster.set_intent(other.uid, Intent.RUN)
            show_address(wanted.name, await_address(cluster, other))
            return 0
    workload = submit(cluster, admit(cluster, wanted, session.directory))
    show_address(wanted.name, await_address(cluster, workload))
    message(
        f"`fairlead delete {wanted.name}` ends it, `fairlead workspace delete-home {wanted.name}` removes its files."
    )
    return 0


def _debug_in_pod(target: Target, cluster: "ClusterClient", run: "Workload") -> None:
    """Submit the workspace of a run of a cluster, unless it is there, and open it."""
    name = run.spec.name
    with TemporaryDirectory(prefix="fairlead-debug-") as place:
        session = debug_in_pod(cluster, run, Path(place))
        wanted = session.workspace
        for note in session.notes:
            message(f"{name}: {note}.")
        if session.step is not None:
            message(f"Its newest checkpoint is of step {session.step}; `run.resume` of its program continues there.")
        unfinished = filter(is_leaf, cluster.unfinished(wanted.team))
        workspace = next((run for run in unfinished if run.spec.name == wanted.name and is_workspace(run)), None)
        if workspace is None:
            workspace = submit(cluster, admit(cluster, wanted, Path(place)))
        else:
            cluster.set_intent(workspace.uid, Intent.RUN)
    named = cluster.named(workspace)
    message(f"`fairlead delete {named}` ends it, `fairlead workspace delete-home {wanted.name}` removes its files.")
    open_in_pod(target, cluster, workspace, browser=None, port=0, json_=False)


def _tell(session: DebugSession, name: str) -> None:
    """Print where the code is, and at which checkpoint the program would continue."""
    if session.why_live is None:
        message(f"The code of {name} is copied to {session.directory}.")
    else:
        message(f"The code is the live one in {session.directory}: {session.why_live}.")
    if session.checkpoint is None:
        message(f"{name} has no checkpoint, so that its program begins anew.")
    else:
        place, step = session.checkpoint
        message(f"Its newest checkpoint is of step {step}, in {place}; `run.resume` of its program continues there.")


def _shell(session: DebugSession, home: "Home") -> int:
    """Run the user's shell with the variables and the secrets of the run, and return its exit code."""
    secrets = variables((name, below(home.secrets, name)) for name in as_variables(session.workspace.secrets))
    env = {**os.environ, **session.variables, **secrets}
    ended = subprocess.run([os.environ.get("SHELL", "/bin/sh")], env=env, cwd=session.directory, check=False)
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
