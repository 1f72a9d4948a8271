"""``fairlead plan``: the decision that ``run`` would get, without the run."""

import time
from dataclasses import asdict, replace

import click

from fairlead.api import free_name
from fairlead.cli.commands.run import asked_of
from fairlead.cli.outlook import describe_start
from fairlead.cli.overrides import Overrides, override_options
from fairlead.cli.show import as_json, json_option
from fairlead.cli.specfiles import files_type
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.control.admission import IGNORABLE, Admission, admit
from fairlead.errors import NameTaken, NotAllowed
from fairlead.policy.queue.start_outlook import outlook
from fairlead.specs.formats.differences import differences as of_specs
from fairlead.specs.training import Training
from fairlead.state.reasons import JUST_SUBMITTED, Code, Reason
from fairlead.state.snapshot import Intent, Phase, Status, Workload

CHANGES = 1
UNKNOWN = Code.SUBMITTED


@click.command()
@click.argument("files", nargs=-1, type=files_type, required=True)
@override_options
@click.option("--ignore", multiple=True, type=click.Choice(IGNORABLE), help="Ignore this field on this cluster.")
@json_option
@cluster_options
def plan(target: Target, files: tuple[str, ...], overrides: Overrides, ignore: tuple[str, ...], json_: bool) -> int:
    """Show what `fairlead run FILES` would do, and what it would choose where FILES leave it open.

    A FILE of `-` is the standard input.

    Exit code 0: nothing to do, all of them are under way already; 1: there are changes; any other: an error.
    """
    from fairlead.specs.formats.rendering import render, to_yaml

    cluster = target.open()
    asked = asked_of(files, None, overrides)
    wanted = [admit(cluster, each.spec, each.directory, ignore=frozenset(ignore)) for each in asked]
    going = [_under_way(cluster, each) for each in wanted]
    new = [_named(cluster, each) for each, run in zip(wanted, going, strict=True) if run is None]
    outcomes = _decide(cluster, [each.spec for each in new])
    coming = iter(zip(new, outcomes, strict=True))
    for each, run in zip(wanted, going, strict=True):
        admitted, (status, starts_at) = (each, (run.status, None)) if run is not None else next(coming)
        spec = admitted.spec
        if json_:
            change = "none" if run is not None else "submit"
            phase = None if status.reason.code is UNKNOWN else status.phase.value
            said = {"phase": phase, "reason": asdict(status.reason), "chosen": list(admitted.notes)}
            waits = status.phase is Phase.PENDING
            print(
                as_json(
                    {
                        "name": spec.name,
                        "change": change,
                        **said,
                        "starts_at": starts_at if waits else None,
                        "spec": render(spec),
                    }
                )
            )
            continue
        print(to_yaml(spec, form="short"))
        for note in admitted.notes:
            print(f"chosen: {note}")
        if run is not None:
            print(f"{spec.name}: nothing to do: it is {status.phase.value}: {status.reason.message}")
            follow = f"`fairlead attach {cluster.named(run)}` follows it"
            print(f"{spec.name}: {follow}; `fairlead run` would refuse a second one of that name")
        else:
            print("\n".join(describe_outcome(spec.name, status, starts_at)))
    return CHANGES if new else 0


def _under_way(cluster: ClusterClient, admitted: Admission) -> Workload | None:
    """The unfinished run that is just what is asked for; None when none has the name.

    Raises:
        NameTaken: An unfinished run has the name and is another one.
    """
    spec = admitted.spec
    going = cluster.unfinished(spec.team)
    run = next((run for run in going if (run.spec.team, run.spec.name) == (spec.team, spec.name)), None)
    if run is None:
        return None
    # Others may put labels on a run that is under way.
    labels = run.spec.labels if spec.labels.items() <= run.spec.labels.items() else spec.labels
    differences = [str(each) for each in of_specs(run.spec, replace(spec, labels=labels))]
    if admitted.directory is not None and not cluster.has_files_of(run, admitted.directory):
        differences.append(f"the files of `workdir` (they have changed in {admitted.directory})")
    if not differences:
        return run
    raise NameTaken(
        f"{spec.name} is {run.status.phase.value} with another spec: {', '.join(differences)}. "
        f"`fairlead suspend {spec.name}`, then `fairlead resume {spec.name}` with the file gives it this one; or give "
        "the file another `name`."
    )


def _named(cluster: ClusterClient, admitted: Admission) -> Admission:
    name = free_name(cluster, admitted.spec)
    if name == admitted.spec.name:
        return admitted
    note = f"name: {name} (a finished run is {admitted.spec.name})"
    return replace(admitted, spec=replace(admitted.spec, name=name), notes=(*admitted.notes, note))


def _decide(cluster: ClusterClient, specs: list[Training]) -> list[tuple[Status, float | None]]:
    """What the loop would decide on new runs at its next pass, and when they would start at the latest."""
    now = time.time()
    fresh = _fresh(JUST_SUBMITTED.message, now)
    # Submitted one after the other, as `run` would, so that each waits behind those before it.
    return decide_on(
        cluster,
        [
            Workload(
                uid=f"planned-{n}", spec=spec, intent=Intent.RUN, status=fresh, version=1, created_at=now + n / 1e6
            )
            for n, spec in enumerate(specs)
        ],
        now,
    )


def decide_on(cluster: ClusterClient, asked: list[Workload], now: float) -> list[tuple[Status, float | None]]:
    """What the loop would decide on runs that wait, in place of those of their uids, and when they would start."""
    try:
        snapshot = cluster.snapshot()
    except NotAllowed as error:
        return [(_fresh(str(error), now), None)] * len(asked)
    uids = {run.uid for run in asked}
    others = (run for run in snapshot.workloads if run.uid not in uids)
    snapshot = replace(snapshot, workloads=(*others, *asked))
    told = outlook(snapshot, now)
    starts = {each.run.uid: each.start for each in told.queue}
    return [(told.statuses.get(run.uid, run.status), starts.get(run.uid)) for run in asked]


def describe_outcome(name: str, status: Status, starts_at: float | None) -> list[str]:
    """What would happen to a run that is asked for, in sentences."""
    if status.reason.code is UNKNOWN:
        return [f"{name}: its start cannot be predicted: {status.reason.message}"]
    verb = "it would start at once" if status.phase is Phase.STARTING else "it would wait"
    told = [f"{name}: {verb}: {status.reason.message}"]
    if status.phase is Phase.PENDING and starts_at is not None:
        told.append(f"{name}: it would start {describe_start(starts_at)}")
    return told


def _fresh(message: str, now: float) -> Status:
    return Status(phase=Phase.PENDING, reason=Reason(code=UNKNOWN, message=message), since=now)
