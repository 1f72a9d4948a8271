"""``fairlead plan``: the decision that ``run`` would get, without the run."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from fairlead.cli.commands.run import RequestedRun, requested_runs
from fairlead.cli.outlook import (
    cost_forecasts,
    describe_expectation,
    describe_forecast,
    describe_length,
    describe_start,
    estimated,
    expectation,
    new_run_forecast,
)
from fairlead.cli.overrides import Overrides, override_options
from fairlead.cli.show import as_json, json_option, message, table
from fairlead.cli.specfiles import files_type
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import CheckPrograms, ClusterClient
from fairlead.cluster.local.home import Home
from fairlead.control.admission import IGNORABLE, Admission, admit, free_name
from fairlead.control.pipelines.command import UNSEEN, is_pipeline
from fairlead.deferred import deferred
from fairlead.errors import CannotFit, NameTaken, NotAllowed
from fairlead.policy.gpu.cuda_support import GpuSupport, Support, describe_support
from fairlead.policy.kinds.preflights import describe_plan
from fairlead.policy.kinds.right_sizing import is_unsized, requests_of
from fairlead.policy.kinds.table import runs_of
from fairlead.policy.placement.networks import describe_network
from fairlead.policy.start_outlook import outlook
from fairlead.specs.formats.differences import differences as of_specs
from fairlead.specs.formats.rendering import render, to_yaml
from fairlead.specs.formats.secret_values import conceal
from fairlead.specs.serving import Serving
from fairlead.specs.training import Training
from fairlead.specs.workload import Kind, WorkloadSpec, renamed
from fairlead.state.reasons import JUST_SUBMITTED, Code, Reason
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Snapshot, Status, Workload, is_leaf, with_requests

if TYPE_CHECKING:
    from fairlead.cli import federated, plan_differences, splits, text_answers
    from fairlead.cluster.local.packages import submission_support
    from fairlead.control import data_forecast, revisions, site_fit
    from fairlead.control.data_forecast import DataForecast
    from fairlead.control.pipelines import submission
    from fairlead.control.pipelines.preview import Preview
    from fairlead.control.revisions import PlannedRevision
    from fairlead.control.site_fit import SiteFit
    from fairlead.specs.federation import Federation
    from fairlead.specs.sweep import Sweep
else:
    data_forecast = deferred("fairlead.control.data_forecast")
    revisions = deferred("fairlead.control.revisions")
    federated = deferred("fairlead.cli.federated")
    plan_differences = deferred("fairlead.cli.plan_differences")
    splits = deferred("fairlead.cli.splits")
    text_answers = deferred("fairlead.cli.text_answers")
    submission_support = deferred("fairlead.cluster.local.packages.submission_support")
    submission = deferred("fairlead.control.pipelines.submission")
    site_fit = deferred("fairlead.control.site_fit")

CHANGES = REFUSED = 1
UNKNOWN = Code.SUBMITTED


def _tokens(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, int]:
    prompt, comma, answer = (text or "512,256").partition(",")
    if not (comma and prompt.isascii() and prompt.isdigit() and answer.isascii() and answer.isdigit()):
        raise click.BadParameter(f"{text!r} is not two numbers with a comma, such as 512,256.")
    if int(prompt) < 1 or int(answer) < 1:
        raise click.BadParameter(f"{text!r} is not a length; give at least 1,1.")
    return int(prompt), int(answer)


@click.command()
@click.argument("files", nargs=-1, type=files_type, required=True)
@override_options
@click.option("--ignore", multiple=True, type=click.Choice(IGNORABLE), help="Ignore this field on this cluster.")
@click.option("--diff", is_flag=True, help="Show only how FILES differ from what ran last.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "markdown")),
    help="With --diff: text, or a table for a pull request.",
)
@click.option(
    "--verify", is_flag=True, help="Trace steps of a Training's program, and count the memory that they allocate."
)
@click.option(
    "--exec/--no-exec",
    "may_exec",
    default=None,
    help="Check commands and places of checkpoints by programs of this machine, or start none [where CI=true: none].",
)
@click.option(
    "--tokens",
    metavar="PROMPT,ANSWER",
    callback=_tokens,
    help="Typical number of tokens of a request to a text server and of its answer (default 512,256).",
)
@click.option(
    "--served",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON lines of requests that a text server has served, used in place of the GPU's data sheet.",
)
@json_option
@cluster_options
def plan(
    target: Target,
    files: tuple[str, ...],
    overrides: Overrides,
    ignore: tuple[str, ...],
    diff: bool,
    form: str | None,
    verify: bool,
    may_exec: bool | None,
    tokens: tuple[int, int],
    served: Path | None,
    json_: bool,
) -> int:
    """Show what `fairlead run FILES` would do, with the defaults that it would choose.

    A FILE of `-` is standard input. For a running endpoint it shows which keys and code differ, and how a new revision
    would take over. For a Pipeline it shows whether each step would run, and why. For a Serving that runs a text server
    with a local Hugging Face model it shows how fast it would answer. For a Federation whose sites have `expect` it
    simulates rounds, and shows their time and cost, and the best `sample` and `deadline`. For a run on this machine's
    GPUs with an `environment` it resolves the packages, and shows whether they work with the driver and the GPUs.
    --verify runs two steps of a Training's program on this machine with fake tensors, without memory and GPUs. Else
    nothing of FILES is run.

    Exit code 0: `run` would take the files, though they may have to wait, or would change nothing; 1: it would refuse
    one of them, or with --diff something differs; other codes: an error.
    """
    if form is not None and not diff:
        raise click.UsageError("--format is for --diff: add it.")
    if diff and verify:
        raise click.UsageError("--verify counts and --diff compares: give one of them.")
    if diff and json_:
        raise click.UsageError("--json tells all, --diff what differs: give one of them.")
    probing = _probing(may_exec)
    if verify and probing is CheckPrograms.NONE:
        raise click.UsageError(
            "--verify runs the program, as --no-exec or CI=true forbids: leave it out, or add --exec."
        )
    cluster = target.open()
    requests = requested_runs(files, None, overrides)
    try:
        wanted = [
            admit(cluster, request.spec, request.directory, ignore=frozenset(ignore), probing=probing)
            for request in requests
        ]
    except CannotFit:
        # What it needs is worth knowing before GPUs are bought for it.
        for request in requests if not json_ and not diff else ():
            _print_splits(cluster, request)
            _text(request.spec, request, tokens, served)
            if verify:
                _print_traces(request.spec, request)
        raise
    if diff:
        differences = [plan_differences.difference_of(cluster, admission) for admission in wanted]
        print("\n\n".join(difference.shown(form or "text") for difference in differences))
        return CHANGES if any(difference.rows for difference in differences) else 0

    def has_steps(spec: WorkloadSpec) -> bool:
        """Return whether what each step would do can be told here."""
        return is_pipeline(spec) and not cluster.has_containers

    now = time.time()
    going = [_under_way(cluster, admission, now) for admission in wanted]
    new = [_named(cluster, admission) for admission, revision in zip(wanted, going, strict=True) if revision is None]
    outcomes = _decide(cluster, [admission.spec for admission in new])
    coming = iter(zip(new, outcomes, strict=True))
    is_refused = False
    for request, admission, revision in zip(requests, wanted, going, strict=True):
        run = None if revision is None else revision.run
        admitted, (status, starts_at) = (admission, (run.status, None)) if run is not None else next(coming)
        spec = admitted.spec
        new_run = spec if run is None and isinstance(spec, Training) else None
        expected = None if new_run is None else expectation(cluster, new_run)
        costs = () if new_run is None else cost_forecasts(cluster, new_run)
        takes = None if new_run is None else new_run_forecast(cluster, new_run)
        network = None if new_run is None else _network(cluster, new_run)
        support = None if run is not None else _gpu_support(cluster, spec, probing)
        data = [] if new_run is None else _data_forecasts(cluster, new_run, probing)
        fails = support is not None and support.support is Support.REFUSED
        is_refused = is_refused or fails
        if json_:
            change = "submit" if revision is None else "revise" if revision.differences else "none"
            phase = None if status.reason.code is UNKNOWN else status.phase.value
            fields = {"phase": phase, "reason": asdict(status.reason), "chosen": list(admitted.notes)}
            waits = status.phase is Phase.PENDING
            print(
                as_json(
                    {
                        "name": spec.name,
                        "change": change,
                        **(
                            {}
                            if revision is None or not revision.differences
                            else {"revision": _revision_json(revision)}
                        ),
                        **fields,
                        "starts_at": starts_at if waits else None,
                        **({} if status.measured.requests is None else {"requests": asdict(status.measured.requests)}),
                        **({} if expected is None else {"expected": asdict(expected)}),
                        "costs": [asdict(cost) for cost in costs],
                        "forecast": None if takes is None else asdict(takes),
                        **({"data": [forecast.plain() for forecast in data]} if data else {}),
                        **({} if network is None else {"network": network}),
                        **(
                            {}
                            if new_run is None or new_run.preflight is None
                            else {"preflight_longest_s": new_run.preflight.longest_s}
                        ),
                        **({} if support is None else {"gpu_support": asdict(support)}),
                        "spec": conceal(render(_shown(spec))),
                        **_sites_json(spec),
                        **_splits_json(cluster, spec, request),
                        **_text(spec, request, tokens, served, json_),
                        **_rounds(cluster, spec, json_),
                        **(_traces_json(spec, request) if verify else {}),
                        **({"steps": [asdict(step) for step in _steps(spec)]} if has_steps(spec) else {}),
                    }
                )
            )
            continue
        print(to_yaml(_shown(spec), form="short", shows_secrets=False))
        for note in () if is_pipeline(spec) else admitted.notes:  # they are of the driver, which nobody has written
            print(f"chosen: {note}")
        if status.measured.requests is not None:
            print(f"chosen: {status.measured.requests.why}")
        for forecast in data:
            print(f"{spec.name}: {forecast}")
        if network is not None:
            print(f"{spec.name}: {network}")
        if new_run is not None and new_run.preflight is not None:
            print(f"{spec.name}: {describe_plan(new_run)}")
        if support is not None and support.message:
            print(f"{spec.name}: {describe_support(support)}")
        if isinstance(spec, Serving) and spec.sites:
            print(table([("SITE", "FITS", "DEVICE", "WHY"), *map(_site_row, _site_fits(spec))]))
        _print_splits(cluster, replace(request, spec=spec))
        _text(spec, request, tokens, served)
        _rounds(cluster, spec, json_)
        if verify:
            _print_traces(spec, request)
        if revision is not None and revision.differences:
            print("\n".join(_describe_revision(revision)))
        elif revision is not None:
            print(f"{spec.name}: nothing to do: it is {status.phase.value}: {status.reason.message}")
            follow = f"`fairlead attach {cluster.named(revision.run)}` follows it"
            again = "would change nothing" if revision.is_standing else "would refuse a second one of that name"
            print(f"{spec.name}: {follow}; `fairlead run` {again}")
        elif fails and new_run is not None:
            print(f"{spec.name}: it would fail before anything is installed")
        else:
            if is_pipeline(spec) and not has_steps(spec):
                print(f"{spec.name}: {UNSEEN}")
            if has_steps(spec):
                steps = _steps(spec)
                print(table([("STEP", "WOULD", "WHY"), *((step.task, step.foreseen, step.why) for step in steps)]))
            print("\n".join(describe_outcome(spec.name, status, starts_at)))
            if expected is not None:
                print(f"{spec.name}: {describe_expectation(expected)}")
            if takes is not None:
                print(f"{spec.name}: takes {describe_length(takes)}")
            for cost in costs:
                print(f"{spec.name}: {describe_forecast(cost)}")
    return REFUSED if is_refused or any(status.phase is Phase.FAILED for status, _ in outcomes) else 0


def _site_fits(spec: Serving) -> "tuple[SiteFit, ...]":
    """Return whether an endpoint fits the devices of its sites."""
    return site_fit.fit_sites(spec)


def _site_row(fit: "SiteFit") -> tuple[str, str, str, str]:
    return fit.site, {True: "yes", False: "no", None: "unknown"}[fit.fits], fit.device or "-", fit.why or "-"


def _sites_json(spec: WorkloadSpec) -> dict[str, object]:
    """Return the same for --json; nothing for what has no sites."""
    if not isinstance(spec, Serving) or not spec.sites:
        return {}
    return {"sites": [asdict(fit) for fit in _site_fits(spec)]}


def _network(cluster: ClusterClient, spec: Training) -> str | None:
    """Return which fast networks a gang finds on the cluster's nodes; None if there is nothing to say."""
    if not cluster.has_containers or spec.nodes < 2:
        return None
    try:
        return describe_network(spec, cluster.nodes())
    except NotAllowed:
        return None


def _data_forecasts(cluster: ClusterClient, spec: Training, probing: CheckPrograms) -> "list[DataForecast]":
    """Return how much of its data the run reads from the store, and for how long."""
    if not spec.data:
        return []
    home = Home.at()
    named = cluster.datasets(spec.team) if any(source.dataset for source in spec.data.values()) else ()
    measures = probing is not CheckPrograms.NONE
    is_here = not cluster.has_containers
    return list(
        data_forecast.forecast_data(dict(spec.data), home.data, home.secrets, named, is_here=is_here, measures=measures)
    )


def _gpu_support(cluster: ClusterClient, spec: WorkloadSpec, probing: CheckPrograms) -> GpuSupport | None:
    """Return how environments stand to this machine's GPUs, of several the worst; None if there is nothing to say."""
    runs = [run for run in runs_of(spec) if run.environment is not None]
    if cluster.has_containers or not runs or probing is CheckPrograms.NONE:
        return None

    home = Home.at()
    answers = [answer for run in runs if (answer := submission_support.foresee(run, home, os.environ)) is not None]
    order = (Support.REFUSED, Support.UNKNOWN, Support.WORKS, Support.UNUSED)
    return min(answers, key=lambda answer: order.index(answer.support), default=None)


def _probing(may_exec: bool | None) -> CheckPrograms:
    """Return the programs that may be started: by default none in CI, where the author of a spec may be anybody."""
    if may_exec is None:
        may_exec = os.environ.get("CI", "").lower() not in ("true", "1")
    return CheckPrograms.INSTALLED if may_exec else CheckPrograms.NONE


def _describe_revision(revision: "PlannedRevision") -> list[str]:
    """Tell what `run` would make of a workload that stays, in sentences and a table of what differs."""
    name, outlook = revision.run.spec.name, revision.outlook
    rows = table(
        [
            ("KEY", "WAS", "IS"),
            *((difference.key, difference.old, difference.new) for difference in revision.differences),
        ]
    )
    if outlook is None:
        return [f"{name}: `fairlead run` would give it this spec, by which it continues from then", rows]

    return [
        f"{name}: {plan_differences.describe_revision(outlook)}",
        rows,
        *(f"{name}: {sentence}" for sentence in outlook.rollout),
    ]


def _revision_json(revision: "PlannedRevision") -> dict[str, object]:
    return {
        **({} if revision.outlook is None else asdict(revision.outlook)),
        "differences": [asdict(difference) for difference in revision.differences],
    }


def _print_splits(cluster: ClusterClient, request: RequestedRun) -> None:
    """Print every split of the model that a spec describes, or why there is no estimate; nothing without a model."""
    if isinstance(request.spec, Training) and request.spec.model is not None:
        print("\n".join(splits.describe_splits(cluster, request.spec, request.directory)))


def _splits_json(cluster: ClusterClient, spec: WorkloadSpec, request: RequestedRun) -> dict[str, object]:
    if not isinstance(spec, Training) or spec.model is None:
        return {}

    return splits.splits_json(cluster, spec, request.directory)


def _text(
    spec: WorkloadSpec, request: RequestedRun, tokens: tuple[int, int], served: Path | None, json_: bool = False
) -> dict[str, object]:
    """Print how fast a text server would answer, or return it for JSON; nothing of others."""
    if not isinstance(spec, Serving) or spec.model is None:
        return {}

    config = text_answers.text_config(spec, request.directory)
    if config is not None and json_:
        return {"answers": text_answers.text_json(spec, config, tokens, served)}
    if config is not None:
        print("\n".join(text_answers.describe_text(spec, config, tokens, served)))
    return {}


def _rounds(cluster: ClusterClient, spec: WorkloadSpec, json_: bool) -> dict[str, object]:
    """Print time and cost of a federation's rounds, or return them for JSON; nothing of others."""
    if spec.kind != Kind.FEDERATION:
        return {}

    if json_:
        return federated.federation_json(cluster, cast("Federation", spec))
    for line in federated.describe_federation(cluster, cast("Federation", spec)):
        print(line)
    return {}


def _print_traces(spec: WorkloadSpec, request: RequestedRun) -> None:
    print("\n".join(splits.describe_traces(_traceable(spec), _working_directory(request))))


def _traces_json(spec: WorkloadSpec, request: RequestedRun) -> dict[str, object]:
    return {"traced": splits.traces_json(_traceable(spec), _working_directory(request))}


def _traceable(spec: WorkloadSpec) -> Training:
    if not isinstance(spec, Training) or is_pipeline(spec):
        raise click.UsageError("--verify traces the program of a Training; leave it out for others.")
    return spec


def _working_directory(request: RequestedRun) -> Path:
    """Return where the command of a run finds its program, on this machine."""
    own = request.spec.workdir if isinstance(request.spec, Training) else None
    return request.directory / Path(own or ".").expanduser()


def _shown(spec: WorkloadSpec) -> WorkloadSpec:
    if not is_pipeline(spec):
        return spec

    return submission.shown_spec(spec)


def _steps(spec: WorkloadSpec) -> "tuple[Preview, ...]":
    return plan_differences.steps_of(spec)


def _under_way(cluster: ClusterClient, admitted: Admission[WorkloadSpec], now: float) -> "PlannedRevision | None":
    """Tell what becomes of the unfinished run of the name: nothing, or a change of one that stays; None without one.

    Raises:
        NameTaken: An unfinished run has the name, is another one and stays as it is.
    """
    spec = admitted.spec
    going = cluster.unfinished(spec.team)
    run = next((run for run in going if (run.spec.team, run.spec.name) == (spec.team, spec.name)), None)
    if run is None or isinstance(spec, Training):
        return None
    revision = revisions.plan_revision(cluster, run, admitted, now)
    if revision is not None:
        return revision
    if run.spec == spec:
        return revisions.PlannedRevision(run=run)
    raise NameTaken(
        f"{spec.name} is {run.status.phase.value}, a {type(run.spec).__name__} with other keys. Stop it first with "
        f"`fairlead stop {spec.name}`, or give the file another `name`."
    )


def _named(cluster: ClusterClient, admitted: Admission[WorkloadSpec]) -> Admission[WorkloadSpec]:
    if admitted.spec.kind == Kind.SWEEP:
        space = cast("Sweep", admitted.spec).space
        understood = (f"parameters.{parameter.name}: {parameter.describe()}" for parameter in space)
        admitted = replace(admitted, notes=(*admitted.notes, *understood))
    name = free_name(cluster, admitted.spec, beside_unfinished=True)
    if name == admitted.spec.name:
        return admitted
    note = f"name: {name} ({_taken_by(cluster, admitted)})"
    return replace(admitted, spec=renamed(admitted.spec, name), notes=(*admitted.notes, note))


def _taken_by(cluster: ClusterClient, admitted: Admission[WorkloadSpec]) -> str:
    """Describe the run that has the name of a spec, and if it is unfinished, how its spec and files differ."""
    spec = admitted.spec
    run = next((run for run in cluster.unfinished(spec.team) if run.spec.name == spec.name), None)
    if run is None:
        return f"another run is named {spec.name}"
    state = f"{spec.name} is {run.status.phase.value}"
    if not (is_leaf(run) and isinstance(spec, Training)):
        return state
    # Others may put labels on a run that is under way.
    labels = run.spec.labels if spec.labels.items() <= run.spec.labels.items() else spec.labels
    differences = [str(difference) for difference in of_specs(run.spec, replace(spec, labels=labels))]
    if admitted.directory is not None and not cluster.has_files_of(run, admitted.directory):
        differences.append(f"the files of `workdir` (they have changed in {admitted.directory})")
    return f"{state} with another spec: {', '.join(differences)}" if differences else f"{state} with the same spec"


def _decide(cluster: ClusterClient, specs: list[WorkloadSpec]) -> list[tuple[Status, float | None]]:
    """Decide on new runs as the loop would at its next pass, and tell when they would start at the latest."""
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


def decide_on(cluster: ClusterClient, runs: Sequence[AnyWorkload], now: float) -> list[tuple[Status, float | None]]:
    """Decide as the loop would on runs that wait, in place of those of their uids, and tell when they would start."""
    try:
        snapshot = cluster.snapshot()
    except NotAllowed as error:
        return [(_fresh(str(error), now), None)] * len(runs)
    runs = [estimated("The requests of a run like others", partial(_sized, run, snapshot), run) for run in runs]
    uids = {run.uid for run in runs}
    others = (run for run in snapshot.workloads if run.uid not in uids)
    parents = (run for run in runs if not is_leaf(run))
    snapshot = replace(snapshot, workloads=(*others, *filter(is_leaf, runs)), parents=(*snapshot.parents, *parents))
    schedule = outlook(snapshot, now)
    starts = {expected.run.uid: expected.start for expected in schedule.queue}
    unknown = _fresh(schedule.problem, now) if schedule.problem else None
    if schedule.problem and uids <= schedule.statuses.keys():
        message(f"No start is known: {schedule.problem}.")
    return [(schedule.statuses.get(run.uid, unknown or run.status), starts.get(run.uid)) for run in runs]


def _sized(run: AnyWorkload, snapshot: Snapshot) -> AnyWorkload:
    """The run with what it would ask for by what others of its kind used, which the pass before its start decides."""
    if not is_leaf(run) or not is_unsized(run):
        return run
    requests = requests_of(run.spec, snapshot.completed, snapshot.nodes, snapshot.recommended)
    return replace(
        run,
        spec=with_requests(run.spec, requests),
        status=replace(run.status, measured=replace(run.status.measured, requests=requests)),
    )


def describe_outcome(name: str, status: Status, starts_at: float | None) -> list[str]:
    """Tell what would happen to a run that is asked for, in sentences."""
    if status.reason.code is UNKNOWN:
        return [f"{name}: its start cannot be predicted: {status.reason.message}"]
    verb = "it would start at once" if status.phase in (Phase.STARTING, Phase.RUNNING) else "it would wait"
    sentences = [f"{name}: {verb}: {status.reason.message}"]
    if status.phase is Phase.PENDING and starts_at is not None:
        sentences.append(f"{name}: it would start {describe_start(starts_at)}")
    return sentences


def _fresh(message: str, now: float) -> Status:
    return Status(phase=Phase.PENDING, reason=Reason(code=UNKNOWN, message=message), since=now)
