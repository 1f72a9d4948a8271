"""Reads and saves a cluster's history for ``simulate --from-cluster``."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.show import describe_time, message
from fairlead.cli.target import KUBERNETES, LOCAL, VARIABLES, Target, target_of
from fairlead.control.recording import record
from fairlead.errors import Conflict, NotAllowed, NotFound
from fairlead.specs.formats.rendering import to_yaml
from fairlead.specs.keys import Spec
from fairlead.state.snapshot import is_leaf
from fairlead.text.quantities import plural
from fairlead.traces.writing import write_trace

if TYPE_CHECKING:
    from fairlead.control.recording import Recording
    from fairlead.specs.team import Team

TRACE, CLUSTER = "trace.csv", "cluster.yaml"


def recorded_target(options: Mapping[str, str | None]) -> Target:
    """Return the cluster whose history to read, from options, then the environment, as for other commands.

    Raises:
        click.UsageError: Options contradict each other, or --cluster is a file.
    """
    named = frozenset(name for name, value in options.items() if value is not None)
    values = {name: value if value is not None else os.environ.get(VARIABLES[name]) for name, value in options.items()}
    if values["cluster"] and values["cluster"] not in (LOCAL, KUBERNETES):
        raise click.UsageError(
            f"With --from-cluster, --cluster is {LOCAL} or {KUBERNETES}, and it is {values['cluster']!r}. To replay a "
            "history on other nodes, --save it and give its trace with a cluster file."
        )
    return target_of(values, named)


def record_history(target: Target) -> "tuple[Recording, tuple[Team, ...]]":
    """Return the history of a cluster and its teams; print remarks on estimates and omissions.

    Raises:
        NotFound: The history is empty.
    """
    cluster = target.quietly()
    try:
        workloads, events = cluster.history()
        recording = record(filter(is_leaf, workloads), events, cluster.nodes(), time.time())
        try:
            teams = cluster.snapshot().teams
        except NotAllowed:
            teams = ()
    finally:
        cluster.close()
    if not recording.arrivals:
        raise NotFound("This cluster remembers no run that started or waits, so there is nothing to replay.")
    message(f"{plural(len(recording.arrivals), 'run')} since {describe_time(recording.began_at)}")
    for sentence in remarks(recording):
        message(sentence)
    return recording, teams


def remarks(recording: "Recording") -> list[str]:
    """Return remarks on estimated and omitted runs, as sentences."""
    sentences = []
    if recording.num_censored:
        sentences.append(
            f"{plural(recording.num_censored, 'run')} not over: taken to last the median of what those took that "
            "lasted as long (Kaplan-Meier)"
        )
    if recording.num_left_out:
        sentences.append(f"{plural(recording.num_left_out, 'run')} left out, over before the first start")
    return sentences


def save_history(recording: "Recording", teams: "tuple[Team, ...]", directory: Path) -> None:
    """Write the trace and the cluster file.

    Raises:
        Conflict: A file exists already, or cannot be written.
    """
    specs: tuple[Spec, ...] = (*recording.pools, *teams)
    texts = {
        TRACE: write_trace(recording.arrivals, remarks(recording)),
        CLUSTER: "---\n".join(to_yaml(spec, form="short") for spec in specs),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with (directory / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError as error:
        raise Conflict(f"{error.filename} is there already; give --save another directory.") from error
    except OSError as error:
        raise Conflict(f"{directory}: the history cannot be saved: {error.strerror}") from error
    message(f"Saved: {directory / TRACE} and {directory / CLUSTER}")
