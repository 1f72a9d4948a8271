"""``fairlead fleet``: one queue of runs over several clusters."""

import logging
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.overrides import Overrides, override_options
from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.cli.specfiles import directory_of, files_type, load, refuse_twice, workloads
from fairlead.cluster.local.home import Home
from fairlead.control.fleets.controller import FleetController
from fairlead.control.fleets.journal import FleetJournal, fleet_names
from fairlead.errors import Conflict, NotFound
from fairlead.policy.fleet.placement import dollars_so_far
from fairlead.specs.fleet import Fleet
from fairlead.specs.training import Training
from fairlead.state.fleets import FleetStage

if TYPE_CHECKING:
    from fairlead.state.fleets import FleetRun


@click.group()
def fleet() -> None:
    """Distribute runs over several clusters: your own first, rented ones when waiting costs more.

    A run is in one cluster at a time. It moves with its checkpoint if both clusters can access `checkpoint.to`.
    """


@fleet.command()
@click.argument("file", type=files_type)
def run(file: str) -> None:
    """Run the Fleet of FILE until Ctrl-C: place its runs, rent nodes when that pays, and move runs back.

    It may be killed and restarted at any time; clusters keep their runs meanwhile.
    """
    journal = FleetJournal.create(Home.open(), _fleet_of(file))
    logging.getLogger("fairlead.cluster").setLevel(logging.ERROR)  # the controller logs each problem once, by cluster
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    with journal.lock_controller():
        controller = FleetController(journal)
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, lambda *_: controller.stop())
        message(f"Running the fleet {journal.fleet().name}; `fairlead fleet submit` adds runs. Ctrl-C ends it.")
        try:
            controller.run()
        finally:
            controller.close()


@fleet.command()
@click.argument("name")
@click.argument("files", nargs=-1, type=files_type, required=True)
@override_options
@json_option
def submit(name: str, files: tuple[str, ...], overrides: Overrides, json_: bool) -> None:
    """Submit the runs in FILES to the fleet NAME, with the current files of their `workdir`."""
    refuse_twice(files)
    sources = [(overrides.of(spec), directory_of(file)) for file in files for spec in workloads(file)]
    for spec, _ in sources:
        if type(spec) is not Training:
            raise Conflict(f"{spec.name} is a {type(spec).__name__}; a fleet takes Trainings only.")
    journal = _open(name)
    submitted = [journal.submit(spec, directory, time.time()) for spec, directory in sources if type(spec) is Training]
    if json_:
        print(as_json([_run_json(run, journal.fleet()) for run in submitted]))
        return
    for submission in submitted:
        message(f"Submitted {submission.spec.name} to the fleet {name}.")
    _warn_if_not_running(journal)


@fleet.command()
@click.argument("name", required=False)
@json_option
def status(name: str | None, json_: bool) -> None:
    """Show the clusters and runs of the fleet NAME, or list the fleets."""
    if name is None:
        fleets = fleet_names(Home.open())
        print(as_json(fleets) if json_ else "\n".join(fleets) or "There is no fleet here.")
        return
    journal = _open(name)
    fleet_, runs, notes = journal.fleet(), journal.runs(), journal.clusters()
    if json_:
        clusters = {
            cluster: {"answers": note.trouble is None, "trouble": note.trouble, "since": note.since, "at": note.at}
            for cluster, note in notes.items()
        }
        print(as_json({"clusters": clusters, "runs": [_run_json(run, fleet_) for run in runs]}))
        return
    rows: list[tuple[str, ...]] = [("CLUSTER", "PRICE", "STATE")]
    for cluster, member in fleet_.clusters.items():
        note = notes.get(cluster)
        price = f"${member.gpu_price:g} a GPU hour" if member.gpu_price else f"${member.cpu_price:g} a core hour"
        state = "not visited yet" if note is None else "answers"
        if note is not None and note.trouble is not None:
            state = f"unreachable since {describe_time(note.since)}: {note.trouble}"
        rows.append((cluster, price if member.is_rented else "own", state))
    print(table(rows))
    if runs:
        rows = [("NAME", "PHASE", "CLUSTER", "STEP", "RENT", "REASON")]
        rows += [_row(run, fleet_) for run in runs]
        print(f"\n{table(rows)}")
    _warn_if_not_running(journal)


@fleet.command()
@click.argument("name")
@click.argument("runs", nargs=-1, required=True)
@json_option
def stop(name: str, runs: tuple[str, ...], json_: bool) -> None:
    """Stop RUNS of the fleet NAME, wherever they are; each saves a checkpoint first."""
    journal = _open(name)
    stopped = [journal.stop(run, time.time()) for run in runs]
    if json_:
        print(as_json([_run_json(run, journal.fleet()) for run in stopped]))
        return
    for run_name in runs:
        message(f"{run_name}: stop requested.")
    _warn_if_not_running(journal)


@fleet.command()
@click.argument("name")
@json_option
def events(name: str, json_: bool) -> None:
    """Show what happened to the runs of the fleet NAME, and why, oldest first."""
    journal = _open(name)
    for event in journal.events():
        if json_:
            print(as_json({"at": event.at, "run": event.run, "said": event.message}))
        else:
            print(f"{describe_time(event.at)}  {event.run}  {event.message}")


def _fleet_of(file: str) -> Fleet:
    specs = load(file)
    if len(specs) != 1 or not isinstance(specs[0], Fleet):
        kinds = ", ".join(f"{type(spec).__name__} {spec.name}" for spec in specs)
        raise Conflict(f"{file} has {kinds}; give a file with one Fleet.")
    return specs[0]


def _open(name: str) -> FleetJournal:
    if name.endswith((".yaml", ".yml", ".json")):
        raise NotFound(f"Give the name of the fleet instead of its file {name!r}.")
    return FleetJournal.open(Home.open(), name)


def _warn_if_not_running(journal: FleetJournal) -> None:
    if not journal.has_controller():
        message(f"fairlead: the fleet {journal.directory.name} is not running; start it by `fairlead fleet run FILE`.")


def _row(run: "FleetRun", fleet_: Fleet) -> tuple[str, ...]:
    is_in_cluster = run.stage is FleetStage.PLACED or run.stage is FleetStage.ENDED
    step = "-" if run.step is None else f"{run.step}" + (f"/{run.total_steps}" if run.total_steps else "")
    rent = dollars_so_far(run, fleet_, time.time())
    return (
        run.spec.name, run.phase if is_in_cluster else run.stage, run.cluster or "-", step, f"${rent:.2f}", run.reason,
    )  # fmt: skip


def _run_json(run: "FleetRun", fleet_: Fleet) -> Mapping[str, Any]:
    return {
        "name": run.spec.name, "uid": run.uid, "stage": run.stage, "phase": run.phase, "reason": run.reason,
        "cluster": run.cluster, "target": run.target, "child": run.child, "submitted_at": run.submitted_at,
        "started_at": run.started_at, "step": run.step, "total_steps": run.total_steps,
        "checkpoint_step": run.checkpoint_step, "checkpoints": run.origin,
        "rent": round(dollars_so_far(run, fleet_, time.time()), 6),
    }  # fmt: skip
