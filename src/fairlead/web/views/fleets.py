"""Shows the fleets that this machine controls: their clusters, the place of each run, and moves with their reasons."""

from contextlib import closing
from typing import Any

from fairlead.cluster.local.home import Home
from fairlead.control.fleets.journal import ClusterNote, FleetJournal, fleet_names
from fairlead.errors import FairleadError
from fairlead.policy.fleet.placement import dollars_so_far
from fairlead.specs.fleet import Fleet, Member
from fairlead.state.fleets import FleetRun, FleetStage
from fairlead.web.view import Answer, Question

MOST_UNFINISHED, MOST_ENDED, MOST_EVENTS = 200, 50, 50
LOOK_AGAIN_S = 3.0  # what a controller notes is no change of this machine's runs


def fleets(question: Question) -> Answer:
    """Show each fleet of this machine; on a cluster there are none."""
    cluster = question.cluster
    home = None if cluster.machine is None else cluster.machine.home
    rows = [] if home is None else [_fleet(home, name, question.now) for name in fleet_names(home)]
    values = {"fleets": rows, "is_local": home is not None}
    return Answer(title="Fleets", template="fleets.html", values=values, look_again_s=LOOK_AGAIN_S)


def _fleet(home: Home, name: str, now: float) -> dict[str, Any]:
    """Return a fleet as its journal has it, or the reason why that cannot be read."""
    try:
        with closing(FleetJournal.open(home, name)) as journal:
            fleet, notes = journal.fleet(), journal.clusters()
            unfinished, ended = journal.runs(unfinished=True), journal.ended()[::-1]
            return {
                "name": name,
                "trouble": None,
                "is_led": journal.has_controller(),
                "wait_s": fleet.wait_s,
                "clusters": [
                    _cluster(cluster, member, notes.get(cluster), unfinished)
                    for cluster, member in fleet.clusters.items()
                ],
                "num_unfinished": len(unfinished),
                "unfinished": [_row(run, fleet, now) for run in unfinished[:MOST_UNFINISHED]],
                "ended": [_row(run, fleet, now) for run in ended[:MOST_ENDED]],
                "rent": sum(dollars_so_far(run, fleet, now) for run in (*ended, *unfinished)),
                "events": journal.newest_events(MOST_EVENTS),
            }
    except FairleadError as error:
        return {"name": name, "trouble": str(error)}


def _cluster(name: str, member: Member, note: ClusterNote | None, runs: tuple[FleetRun, ...]) -> dict[str, Any]:
    own = [run for run in runs if run.cluster == name]
    return {
        "name": name,
        "place": "this machine" if member.context is None else member.context,
        "namespace": member.namespace,
        "prices": _prices(member),
        "num_runs": len(own),
        "gpus": sum(run.units for run in own if run.has_gpus),
        "most_gpus": member.most_gpus,
        "cpus": sum(run.units for run in own if not run.has_gpus),
        "most_cpus": member.most_cpus,
        "note": note,
    }


def _prices(member: Member) -> str:
    priced = ((member.gpu_price, "GPU"), (member.cpu_price, "core"))
    return ", ".join(f"${price:g} a {unit} hour" for price, unit in priced if price) or "own"


def _row(run: FleetRun, fleet: Fleet, now: float) -> dict[str, Any]:
    member = fleet.clusters.get(run.cluster or "")
    is_there = run.stage in (FleetStage.PLACED, FleetStage.ENDED)
    steps = "-" if run.step is None else f"{run.step}/{run.total_steps}" if run.total_steps else str(run.step)
    return {
        "run": run,
        "state": run.phase.value if is_there else run.stage.value,
        # Its copy here is a run of this page.
        "uid": run.child if is_there and member is not None and member.context is None else None,
        "steps": steps,
        "rent": dollars_so_far(run, fleet, now),
    }
