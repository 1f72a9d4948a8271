"""Shows the live cluster in a terminal: nodes with their GPUs, and runs with their resources and reasons."""

import os
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairlead.cli.show import describe_reason
from fairlead.cli.streams import terminal
from fairlead.cluster.client import ClusterClient
from fairlead.control.metrics.readings import dollars_per_hour
from fairlead.errors import NotAllowed
from fairlead.frozen import dataclass
from fairlead.policy.kinds.progress import progress_of, warning_of
from fairlead.state.snapshot import WHOLE_MILLI, Gpu, Node, Phase, Pod, Snapshot, Workload, is_leaf
from fairlead.text.quantities import describe_duration, plural
from fairlead.text.visible_text import one_line, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

LOOK_S = 2.0
KEY_S = 0.1
MOST_NODES = 12
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
NO_RUN, SHARED = ".", "+"
UP, DOWN = ("k", "\x1b[A", "\x1bOA"), ("j", "\x1b[B", "\x1bOB")
HELP = "up and down choose a run, Enter shows all of it, q ends"
COLOURS = {Phase.RUNNING: "green", Phase.STARTING: "cyan", Phase.PENDING: "yellow", Phase.RESTARTING: "yellow"}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The selected row, and whether details of its run are shown."""

    row: int = 0
    is_open: bool = False

    def after(self, key: str, num_rows: int) -> "Chosen":
        """Return the selection after a key."""
        step = -1 if key in UP else 1 if key in DOWN else 0
        row = min(max(0, self.row + step), max(0, num_rows - 1))
        return Chosen(row, self.is_open != (key in ("\r", "\n")))


@dataclass(frozen=True, slots=True)
class TopRow:
    """A run in the view; ``letter`` marks its GPUs in the rows of nodes."""

    letter: str
    run: Workload
    pods: tuple[Pod, ...]
    dollars_per_hour: float | None


def rows_of(seen: Snapshot) -> list[TopRow]:
    """Return a row per run: those that hold something, oldest first, then pending ones in order of submission."""
    nodes = {node.name: node for node in seen.nodes}
    live: dict[str, list[Pod]] = {}
    for pod in seen.pods:
        if not pod.phase.is_final and pod.workload_uid:
            live.setdefault(pod.workload_uid, []).append(pod)
    runs = [run for run in seen.workloads if not run.status.phase.is_final]
    runs.sort(key=lambda run: (run.uid not in live, run.created_at, run.uid))
    holding = [run for run in runs if run.uid in live]
    letters = {run.uid: LETTERS[index % len(LETTERS)] for index, run in enumerate(holding)}
    return [
        TopRow(letters.get(run.uid, " "), run, tuple(pods), dollars_per_hour(pods, nodes) if pods else None)
        for run in runs
        for pods in (live.get(run.uid, []),)
    ]


def gpus_of(node: Node, rows: Sequence[TopRow]) -> str:
    """Return a letter for each GPU of a node: of the run that holds it, or a mark for none or several."""
    return "".join(_mark(gpu, node, rows) for gpu in node.gpus)


def _mark(gpu: Gpu, node: Node, rows: Sequence[TopRow]) -> str:
    holding = ((row, pod) for row in rows for pod in row.pods if pod.node == node.name)
    letters = [row.letter for row, pod in holding if gpu.uuid in pod.grant.gpu_uuids]
    return NO_RUN if not letters else letters[0] if len(letters) == 1 else SHARED


def _held_milli(rows: Sequence[TopRow]) -> int:
    """Return the thousandths of GPUs that are held; a GPU that several runs hold counts once."""
    held: Counter[tuple[str, str]] = Counter()
    for pod in (pod for row in rows for pod in row.pods):
        for uuid in pod.grant.gpu_uuids:
            held[pod.node, uuid] += pod.grant.gpu_milli
    return sum(min(milli, WHOLE_MILLI) for milli in held.values())


def view(seen: Snapshot, chosen: Chosen, now: float, *, height: int, options: str = "") -> "RenderableType":
    """Draw the cluster in a number of lines; ``options`` select it in suggested commands."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = rows_of(seen)
    holding = [row for row in rows if row.pods]
    rates = [row.dollars_per_hour for row in rows if row.dollars_per_hour is not None]
    gpus = [gpu for node in seen.nodes for gpu in node.gpus]
    held = _held_milli(rows)
    head = [
        plural(len(seen.nodes), "node"),
        f"{plural(len(holding), 'run')} at work, {len(rows) - len(holding)} waiting",
    ]
    if gpus:
        head.append(f"{held / WHOLE_MILLI:g} of {len(gpus)} GPUs held")
    if rates:
        head.append(f"${sum(rates):,.2f} an hour")
    shown_nodes = [node for node in seen.nodes if node.gpus][:MOST_NODES]
    lines = [Text(f"fairlead top  {time.strftime('%T', time.localtime(now))}  {', '.join(head)}", style="bold")]
    for node in shown_nodes:
        state = "" if node.ready else "  not ready"
        lines.append(Text(f"{node.name[:30]:<30} {gpus_of(node, rows)}{state}"))
    if len(shown_nodes) < sum(bool(node.gpus) for node in seen.nodes):
        lines.append(Text("and more nodes with GPUs"))
    detail = _detail(rows[chosen.row], now, options) if chosen.is_open and chosen.row < len(rows) else []
    room = max(3, height - len(lines) - len(detail) - 4)
    first = max(0, min(chosen.row - room // 2, len(rows) - room))
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name in ("", "RUN", "TEAM", "PHASE", "FOR", "PROGRESS", "$/H"):
        table.add_column(name, no_wrap=True)
    table.add_column("WHY", no_wrap=True, ratio=1, overflow="ellipsis")
    for index, row in list(enumerate(rows))[first : first + room]:
        run, rate = row.run, row.dollars_per_hour
        wrong = warning_of(run, now)
        table.add_row(
            row.letter, run.spec.name, run.spec.team, run.status.phase.value,
            describe_duration(float(round(max(0.0, now - run.status.since)))), progress_of(run, short=True),
            "-" if rate is None else f"{rate:,.2f}", one_line((wrong or run.status.reason).message),
            style="reverse" if index == chosen.row else "red" if wrong else COLOURS.get(run.status.phase, ""),
        )  # fmt: skip
    return Group(
        *lines, table if rows else Text("No runs."), *(Text(visible(line)) for line in detail), Text(HELP, style="dim")
    )


def _detail(row: TopRow, now: float, options: str) -> list[str]:
    run = row.run
    where = ", ".join(sorted({pod.node for pod in row.pods})) or "nowhere"
    sentences = [
        f"{run.spec.name} is {run.status.phase.value}: {describe_reason(run.status.reason, options)}",
        f"on {where}",
    ]
    if (wrong := warning_of(run, now)) is not None:
        sentences.append(f"warning: {describe_reason(wrong, options)}")
    return [line for sentence in sentences for line in sentence.splitlines()]


def watch_cluster(cluster: ClusterClient) -> None:
    """Show the cluster until q or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console, chosen, look_at, seen = Console(file=terminal(), highlight=False), Chosen(), 0.0, _look(cluster)
    with _keys() as read, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            if time.monotonic() >= look_at:
                cluster.nudge()
                seen, look_at = _look(cluster), time.monotonic() + LOOK_S
            shown = view(seen, chosen, time.time(), height=console.height, options=cluster.named())
            live.update(shown, refresh=True)
            key = read(max(KEY_S, look_at - time.monotonic()))
            if key in ("q", "\x03", "\x04"):
                return
            chosen = chosen.after(key, len(rows_of(seen)))


def _look(cluster: ClusterClient) -> Snapshot:
    try:
        return cluster.snapshot()
    except NotAllowed:
        runs = tuple(filter(is_leaf, cluster.unfinished()))
        pods = tuple(pod for run in runs for pod in cluster.pods(run.uid))
        return Snapshot(nodes=(), workloads=runs, pods=pods)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Read single keys from the terminal, without waiting for a line."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read(timeout_s: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], timeout_s)
        return os.read(descriptor, 16).decode(errors="replace") if ready else ""

    tty.setcbreak(descriptor)
    try:
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
