"""``fairlead exec``: run a command in the environment of a rank."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.names import RunName, find_run
from fairlead.cli.show import message
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.deferred import deferred
from fairlead.errors import ClusterError, Conflict
from fairlead.runtime.ranks import environment_beside, start_failure
from fairlead.runtime.secret_entries import read_pod
from fairlead.state.snapshot import PodPhase

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.api import streams
    from fairlead.cluster.kubernetes.api.streams import ExecStream
    from fairlead.cluster.kubernetes.client import rank_pods
    from fairlead.state.snapshot import Workload
else:
    streams = deferred("fairlead.cluster.kubernetes.api.streams")
    rank_pods = deferred("fairlead.cluster.kubernetes.client.rank_pods")

PIECE_BYTES = 32 * 1024
# Exit codes of a shell, by POSIX (Shell Command Language, 2.8.2).
NOT_FOUND, NOT_EXECUTABLE = 127, 126


@click.command()
@click.argument("name", type=RunName())
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--rank", default=0, show_default=True, type=click.IntRange(min=0), help="Rank whose environment to use.")
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input to the command.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@cluster_options
def exec(name: str, command: tuple[str, ...], rank: int, stdin: bool, tty: bool, target: Target) -> int:
    """Run COMMAND in the environment of a rank of NAME, as in `fairlead exec NAME -it -- bash`.

    It gets the rank's variables and working directory. The exit code is that of COMMAND.
    """
    run = find_run(target.quietly(), name)
    if not target.is_kubernetes:
        return _here(run, command, rank)
    if tty and not (sys.stdin is not None and sys.stdin.isatty()):
        raise click.UsageError("standard input is not a terminal; leave -t out.")

    client = target.client()
    member = rank_pods.member_of(client, run, rank)
    argv = rank_pods.as_rank(member, rank, command)
    opened = streams.exec_stream(client.access, member.path, argv, container=member.container, stdin=stdin, tty=tty)
    with opened as stream, _terminal(stream, raw=tty and stdin, sized=tty):
        if stdin:
            threading.Thread(target=_pump, args=(stream,), name="stdin", daemon=True).start()
        return stream.run(_writer(sys.stdout), _writer(sys.stderr))


def _here(run: "Workload", command: tuple[str, ...], rank: int) -> int:
    """Run the command as a local process with the environment of the rank and our standard streams."""
    cluster = LocalCluster.open()
    name = run.spec.name
    if rank >= run.gang.world_size:
        raise Conflict(f"{name} has no rank {rank}; the last one is {run.gang.world_size - 1}.")
    index = rank // run.spec.ranks_on_each_node
    live = [pod for pod in cluster.pods(run.uid) if pod.phase is PodPhase.RUNNING and pod.index == index]
    if not live:
        raise Conflict(f"Rank {rank} does not run; {name} is {run.status.phase.value}: {run.status.reason.message}.")
    pod_fields = read_pod(cluster.home.pod(run.uid, live[-1].uid))
    environ = None if pod_fields is None else environment_beside(pod_fields, rank)
    if pod_fields is None or environ is None:
        raise Conflict(f"Rank {rank} of {name} has just ended.")
    if pod_fields.get("problem"):
        raise Conflict(f"{name}: secrets: {pod_fields['problem']}.")
    try:
        ended = subprocess.run(command, env=environ, cwd=pod_fields["workdir"], check=False)
    except OSError as error:
        message(f"fairlead: {start_failure(command, pod_fields['workdir'], error)}.")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode


def _writer(stream: Any) -> Any:
    def write(data: bytes) -> None:
        stream.buffer.write(data)
        stream.buffer.flush()

    return write


def _pump(stream: "ExecStream") -> None:
    """Forward standard input until it ends."""
    try:
        while data := os.read(0, PIECE_BYTES):
            stream.write(data)
        stream.end_input()
        if not stream.can_end_input:
            message("This API server does not support closing standard input; end the command with Ctrl-C.")
    except ClusterError:
        # The command has ended, so further input is dropped.
        return


@contextmanager
def _terminal(stream: "ExecStream", *, raw: bool, sized: bool) -> Iterator[None]:
    """Attach the terminal to the command within the block: send raw keys and each new size."""
    if not sized:
        yield
        return
    import termios
    import tty

    changed = threading.Event()

    def tell_sizes() -> None:
        while True:
            size = os.get_terminal_size(0)
            try:
                stream.resize(size.columns, size.lines)
            except ClusterError:
                return
            changed.wait()
            changed.clear()

    # Not in the handler itself, which may interrupt a write to the same connection.
    before = signal.signal(signal.SIGWINCH, lambda _number, _frame: changed.set())
    threading.Thread(target=tell_sizes, name="sizes", daemon=True).start()
    mode = termios.tcgetattr(0)
    try:
        if raw:
            tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, mode)
        signal.signal(signal.SIGWINCH, before)
