"""Shows a live listing of runs: redrawn on a terminal, elsewhere a line per change."""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from fairlead.cli.show import as_json, message, run_json, run_rows, table
from fairlead.cli.streams import terminal
from fairlead.cluster.client import ClusterClient
from fairlead.errors import NotFound
from fairlead.policy.kinds.progress import progress_of
from fairlead.state.snapshot import AnyWorkload
from fairlead.text.visible_text import visible

LOOK_S = 1.0
# Minimum interval between updates of frequent changes.
LEAST_S = 0.3
NONE = "No runs."

Look = Callable[[], list[AnyWorkload]]


def watch(cluster: ClusterClient, look: Look, *, json_: bool) -> NoReturn:
    """Show the runs as they change, until Ctrl-C."""
    if json_:
        _changes(cluster, look, run_json, lambda run: as_json(run_json(run)), _gone_json)
    if sys.stdout is not None and sys.stdout.isatty():
        _redraw(cluster, look)
    _changes(cluster, look, _state_sentence, lambda run: f"{time.strftime('%T')} {_state_sentence(run)}", _gone)


def _changes(
    cluster: ClusterClient,
    look: Look,
    key: Callable[[AnyWorkload], Any],
    say: Callable[[AnyWorkload], str],
    describe_gone: Callable[[AnyWorkload], str],
) -> NoReturn:
    known: dict[str, tuple[AnyWorkload, Any]] = {}
    while True:
        runs = look()
        _print(say(run) for run in runs if known.get(run.uid, (run, None))[1] != key(run))
        uids = {run.uid for run in runs}
        _print(describe_gone(run) for uid, (run, _) in known.items() if uid not in uids and not _is_there(cluster, uid))
        known = {run.uid: (run, key(run)) for run in runs}
        _wait(cluster)


def _redraw(cluster: ClusterClient, look: Look) -> NoReturn:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=terminal(), highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            runs = look()
            live.update(Text(visible(table(run_rows(runs))) if runs else NONE, no_wrap=True), refresh=True)
            _wait(cluster)


def _wait(cluster: ClusterClient) -> None:
    begun = time.monotonic()
    cluster.nudge()
    cluster.wait(LOOK_S)
    time.sleep(max(0.0, LEAST_S - (time.monotonic() - begun)))
    trouble = cluster.trouble()
    if trouble is not None:
        message(f"fairlead: {trouble}")


def _is_there(cluster: ClusterClient, uid: str) -> bool:
    """Return whether a run that is no longer in the listing still exists."""
    try:
        cluster.get(uid)
    except NotFound:
        return False
    return True


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _state_sentence(run: AnyWorkload) -> str:
    progress = progress_of(run)
    step = "" if progress == "-" else f", {progress}"
    return f"{run.spec.name} is {run.status.phase.value}{step}: {run.status.reason.message}"


def _gone(run: AnyWorkload) -> str:
    return f"{time.strftime('%T')} {run.spec.name} is deleted"


def _gone_json(run: AnyWorkload) -> str:
    return as_json({"name": run.spec.name, "uid": run.uid, "deleted": True})
