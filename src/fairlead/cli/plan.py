"""``fairlead plan``: the decision that ``run`` would get, without the run."""

import time
from dataclasses import replace

import click

from fairlead.cli.run import specs_of
from fairlead.cli.show import as_json
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.admission import IGNORABLE, check
from fairlead.policy.training import decide
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Status, Workload


@click.command()
@click.argument("files", nargs=-1, type=click.Path(), required=True)
@click.option("--ignore", multiple=True, type=click.Choice(IGNORABLE), help="Plan without honouring this field here.")
@click.option("--json", "json_", is_flag=True, help="A JSON object for each run.")
def plan(files: tuple[str, ...], ignore: tuple[str, ...], json_: bool) -> int:
    """Show what `fairlead run FILES` would do. Exit code 1: there are changes, as for any new run."""
    from fairlead.specs.rendering import to_yaml

    cluster = LocalCluster.open()
    for spec in specs_of(files, None, ()):
        admitted = check(spec, (cluster.node(),), ignore=frozenset(ignore))
        now = time.time()
        fresh = Status(phase=Phase.PENDING, reason=Reason(code=Code.SUBMITTED, message="submitted"), since=now)
        asked = Workload(
            uid="planned", spec=admitted.spec, intent=Intent.RUN, status=fresh, version=1, created_at=now
        )  # fmt: skip
        snapshot = cluster.snapshot()
        changes = decide(replace(snapshot, workloads=(*snapshot.workloads, asked)), now).changes
        outcome = next(change.status for change in changes if change.workload_uid == "planned" and change.status)
        if json_:
            notes, phase = list(admitted.notes), outcome.phase.value
            print(as_json({"name": spec.name, "phase": phase, "reason": outcome.reason.message, "chosen": notes}))
            continue
        print(to_yaml(admitted.spec, form="short").rstrip())
        print()
        for note in admitted.notes:
            print(f"chosen: {note}")
        verb = "it would start at once" if outcome.phase is Phase.STARTING else "it would wait"
        print(f"{spec.name}: {verb}: {outcome.reason.message}")
    return 1
