"""``fairlead status``: list runs, or show one in full with the reason of its state."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from fairlead.cli.families import with_descendants
from fairlead.cli.names import RunName, find
from fairlead.cli.outlook import describe_end, describe_length, describe_start, latest_start, run_forecast
from fairlead.cli.pipelines import describe_steps, step_lines, steps_json
from fairlead.cli.selecting import selection_options
from fairlead.cli.show import (
    as_json,
    describe_event,
    describe_reason,
    describe_time,
    json_option,
    message,
    run_json,
    run_rows,
    table,
)  # fmt: skip
from fairlead.cli.suggestions import suggest
from fairlead.cli.target import Target, cluster_options
from fairlead.cli.watching import watch
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.listing import Listing, PagedClient
from fairlead.cluster.output import describe_dropped
from fairlead.cluster.port import EventRecord
from fairlead.cluster.selection import FINISHED, RunSelection
from fairlead.control.pipelines.command import is_pipeline
from fairlead.deferred import deferred
from fairlead.policy.kinds.progress import describe_progress, progress_of, warning_of
from fairlead.specs.formats.rendering import render
from fairlead.specs.formats.secret_values import conceal
from fairlead.specs.training import Training
from fairlead.specs.workload import Kind, WorkloadSpec
from fairlead.state.run_times import active_until
from fairlead.state.snapshot import AnyWorkload, Phase, Pod, PodPhase, Progress, RankExit, Workload, is_leaf
from fairlead.text.money import describe_microusd
from fairlead.text.quantities import (
    describe_cpu,
    describe_duration,
    describe_memory,
    describe_nodes,
    describe_resources,
    plural,
)

if TYPE_CHECKING:
    from fairlead.cli import endpoints, federated
    from fairlead.control import budget_balances
    from fairlead.control.pipelines import submission
    from fairlead.ledger.goodput import Goodput
    from fairlead.policy.queue.run_forecast import RunForecast
    from fairlead.policy.selection import slowdowns
    from fairlead.policy.selection.slowdowns import Company
    from fairlead.policy.strategy import probing
else:
    endpoints = deferred("fairlead.cli.endpoints")
    federated = deferred("fairlead.cli.federated")
    budget_balances = deferred("fairlead.control.budget_balances")
    submission = deferred("fairlead.control.pipelines.submission")
    slowdowns = deferred("fairlead.policy.selection.slowdowns")
    probing = deferred("fairlead.policy.strategy.probing")

RECENT = 15
# The rows of a table that nobody asked to be longer.
MOST_ROWS = 200
NEWEST_EVENTS = 5


@click.command()
@click.argument("name", required=False, type=RunName())
@selection_options()
@click.option("--all", "everything", is_flag=True, help="All runs and children, not only unfinished and recent runs.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"Maximum number of runs; unfinished ones and {RECENT} others by default, a table with at most {MOST_ROWS}.",
)
@click.option("--watch", "-w", "watches", is_flag=True, help="Watch for changes until Ctrl-C.")
@json_option
@cluster_options
def status(
    target: Target,
    name: str | None,
    selection: RunSelection,
    everything: bool,
    limit: int | None,
    watches: bool,
    json_: bool,
) -> None:
    """List unfinished and recent runs, or show the state of NAME with its reasons.

    Children, such as trials and replicas, are listed with `status PARENT`, --all, --phase or --label.

    With --watch the listing is updated in place on a terminal; elsewhere each change is printed as a line, with --json
    as an object.
    """
    if name is not None and (everything or limit is not None or selection != RunSelection()):
        raise click.UsageError(
            "NAME is one run, and --all, --limit, --phase and --label are for listings: give one of them."
        )
    if name is not None and watches:
        raise click.UsageError(f"--watch is for listings; `fairlead attach {name}` follows one run.")
    if everything and limit is not None:
        raise click.UsageError("--all has no bound, and --limit is one: give one of them.")
    cluster = target.open()
    if name is not None:
        workload = find(cluster, name)
        if is_leaf(workload):
            print(as_json(_full_json(cluster, workload)) if json_ else _full(cluster, workload))
        else:
            print(as_json(_parent_json(cluster, workload)) if json_ else _full_parent(cluster, workload))
        return
    if watches:
        watch(cluster, lambda: _listed(cluster, selection, everything=everything, limit=limit)[0], json_=json_)
    runs, is_cut = _listed(cluster, selection, everything=everything, limit=limit)
    if json_:
        print(as_json([run_json(run) for run in runs]))
    elif runs:
        most = len(runs) if everything or limit is not None else MOST_ROWS
        print(table(run_rows(runs[:most])))
        if is_cut or len(runs) > most:
            message("There are more: --all lists them, --limit, --phase and --label choose.")
    elif selection != RunSelection():
        message(f"No run with {selection}.")
    else:
        print("No runs yet. `fairlead run FILE` or `fairlead run -- python train.py` starts one.")


def _listed(
    cluster: ClusterClient, selection: RunSelection, *, everything: bool, limit: int | None
) -> tuple[list[AnyWorkload], bool]:
    """Return matching runs, unfinished ones oldest first, then others newest first; and whether some were cut off.

    With neither ``everything`` nor a selection, children are left out, which ``status PARENT`` lists.
    """
    going = [run for run in cluster.unfinished() if selection.matches(run)]
    over = (selection.phases or FINISHED) & FINISHED
    top_only = not everything and selection == RunSelection()
    if top_only:
        uids = {run.uid for run in going}
        going = [run for run in going if run.parent not in uids]
    most = None if everything else max(0, limit - len(going)) if limit is not None else RECENT
    past: tuple[AnyWorkload, ...] = ()
    if top_only and most is not None:
        past = cast(PagedClient, cluster).page(Listing(is_over=True, top_only=True, limit=most + 1))
    elif over:
        wanted = RunSelection(phases=over, labels=selection.labels)
        past = cluster.select(wanted, limit=None if most is None else most + 1)
    runs = [*going, *past[:most]][:limit]
    return runs, len(runs) < len(going) + len(past)


def _parent_json(cluster: ClusterClient, parent: AnyWorkload) -> dict[str, Any]:
    children = [run_json(child) for child in cluster.children(parent.uid)]
    where = {} if cluster.has_containers else {"directory": cluster.kept_at(parent)}
    steps = {"steps": steps_json(cluster, parent)} if is_pipeline(parent.spec) else {}
    return {
        "name": parent.spec.name,
        "spec": conceal(render(_shown(parent.spec))),  # before the state, as in Kubernetes
        **run_json(parent),
        **steps,
        "children": children,
        **where,
        **_endpoint(cluster, parent),
        **({"crossed": federated.crossed_bytes(cluster, parent)} if parent.spec.kind == Kind.FEDERATION else {}),
    }


def _shown(spec: WorkloadSpec) -> WorkloadSpec:
    if not is_pipeline(spec):
        return spec

    return submission.shown_spec(spec)


def _endpoint(cluster: ClusterClient, parent: AnyWorkload) -> dict[str, Any]:
    if parent.spec.kind != Kind.SERVING:
        return {}

    return {"endpoint": endpoints.endpoint_json(cluster, parent)}


def _full_parent(cluster: ClusterClient, parent: AnyWorkload) -> str:
    spec, state = parent.spec, parent.status
    children = cluster.children(parent.uid)
    events = [event for workload in with_descendants(cluster, parent) for event in cluster.events(workload.uid)]
    events.sort(key=lambda event: event.id)
    facts = [("kind", type(spec).__name__), *_common_facts(parent)]
    facts += [("submitted", describe_time(parent.created_at)), ("progress", progress_of(parent))]
    if spec.kind == Kind.SERVING:
        facts += endpoints.endpoint_facts(cluster, parent)
    facts.append(("more" if cluster.has_containers else "files", cluster.kept_at(parent)))
    sections = [
        [f"{spec.name} is {state.phase.value}: {describe_reason(state.reason, cluster.named())}"],
        [f"  {what:<12} {says}" for what, says in facts],
        [f"  {line}" for line in step_lines(cluster, parent)],
        [f"  {line}" for line in table(run_rows(children)).splitlines()] if children else [],
        [f"  {line}" for line in federated.crossed_lines(cluster, parent)] if spec.kind == Kind.FEDERATION else [],
        [f"  {describe_time(event.at)}  {event.run}  {_event(event)}" for event in events[-NEWEST_EVENTS:]],
        [f"Next: {_next(cluster, parent)}"],
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _full_json(cluster: ClusterClient, workload: Workload) -> dict[str, Any]:
    pods = [_pod_json(pod) for pod in cluster.pods(workload.uid)]
    spec = conceal(render(_shown(workload.spec)))
    fields: dict[str, Any] = {"pods": pods, "starts_at": latest_start(cluster, workload)}
    fields["cost_microusd"] = spent_microusd = cluster.cost_of(workload)
    ahead = run_forecast(cluster, workload, spent_microusd)
    fields["forecast"] = None if ahead is None else asdict(ahead)
    spent = cluster.goodput_of(workload)
    fields["goodput"] = None if spent is None else asdict(spent)
    shared = _company(cluster, workload)
    if shared is not None:
        fields["shares"] = asdict(shared)
    fields["dropped_output"] = [asdict(drop) for drop in cluster.dropped_output(workload)]
    if is_pipeline(workload.spec):
        fields["steps"] = steps_json(cluster, workload)
    where = {} if cluster.has_containers else {"directory": cluster.kept_at(workload)}
    return {"name": workload.spec.name, "spec": spec, **run_json(workload), **fields, **where}


def _pod_json(pod: Pod) -> dict[str, Any]:
    """Return a pod as a JSON object, in which ``uid`` is that of the run, as everywhere."""
    fields = asdict(pod)
    return {"pod_uid": fields.pop("uid"), "uid": fields.pop("workload_uid"), **fields}


def _full(cluster: ClusterClient, workload: Workload) -> str:
    spec, state = workload.spec, workload.status
    events = cluster.events(workload.uid)
    start = latest_start(cluster, workload)
    sections = [
        [f"{spec.name} is {state.phase.value}: {describe_reason(state.reason, cluster.named())}"],
        [f"  {what:<12} {says}" for what, says in _facts(cluster, workload, start)],
        [f"  {line}" for line in step_lines(cluster, workload)],
        [line for pod in _latest(cluster.pods(workload.uid)) for line in _pod(pod, spec)],
        [f"  {describe_time(event.at)}  {_event(event)}" for event in events[-NEWEST_EVENTS:]],
        [f"Next: {_next(cluster, workload)}"],
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _facts(cluster: ClusterClient, workload: Workload, starts_at: float | None) -> list[tuple[str, str]]:
    spec, state = workload.spec, workload.status
    what = (
        ("pipeline", describe_steps(workload)) if is_pipeline(spec) else ("run", spec.run.strip().replace("\n", "; "))
    )
    facts = [what, *_common_facts(workload)]
    resources = describe_resources(spec.resources)
    facts.append(("ranks", f"{_size(workload)} with {resources}; attempt {state.attempt}"))
    if state.measured.requests is not None:
        facts.append(("asks for", state.measured.requests.why))
    if state.measured.usage is not None:
        gpu = state.measured.usage.gpu_memory_bytes
        used = [] if gpu is None else [f"{describe_memory(gpu)} of a GPU"]
        used += [describe_memory(state.measured.usage.memory_bytes), describe_cpu(state.measured.usage.cpu_milli)]
        facts.append(("used", f"{', '.join(used)} at most"))
    facts.append(("submitted", describe_time(workload.created_at)))
    if starts_at is not None:
        facts.append(("will start", describe_start(starts_at)))
    if state.started_at is not None:
        facts.append(("started", describe_time(state.started_at)))
    now = time.time() if state.finished_at is None else state.finished_at
    ran_s, known_s = active_until(state, now), describe_duration(max(0.0, now - workload.created_at))
    if ran_s or state.phase is Phase.RUNNING:
        over = "over" if state.phase.is_final else "now"
        ran = f"{describe_duration(ran_s)}, {over} {known_s} after submission"
        facts.append(("running" if state.phase is Phase.RUNNING else "ran", ran))
    facts.append(("progress", describe_progress(workload.progress)))
    shared = _company(cluster, workload)
    if shared is not None:
        facts.append(("shares", _shares(shared)))
    amount = cluster.cost_of(workload)
    ahead = run_forecast(cluster, workload, amount)
    if ahead is not None:
        holds = state.phase in (Phase.STARTING, Phase.RUNNING)
        facts.append(("ends", describe_end(ahead, time.time())) if holds else ("takes", describe_length(ahead)))
    if amount is not None:
        facts.append(("cost", _cost(amount, ahead, state.phase)))
    facts += _budgets(cluster, workload)
    spent = cluster.goodput_of(workload)
    if spent is not None and spent.ratio is not None:
        facts.append(("goodput", _goodput(spent)))
    wrong = warning_of(workload, time.time())
    if wrong is not None:
        remedy = "" if wrong.remedy is None else f"\n{'':<15}{suggest(wrong.remedy, cluster.named())}"
        facts.append(("warning", f"{wrong.message}{remedy}"))
    if state.failures.last is not None:
        counts = f"{plural(state.failures.program, 'failure')} of the program, `retry` allows {spec.retry.program}"
        facts.append(("last failure", f"{state.failures.last.message} ({counts})"))
    dropped = cluster.dropped_output(workload)
    if dropped:
        facts.append(("output", describe_dropped(dropped)))
    facts += _splits(workload)
    own = "the operator's place for checkpoints" if cluster.has_containers else "its own directory"
    facts.append(("checkpoints", _checkpoints(spec, own, workload.progress)))
    facts.append(("more" if cluster.has_containers else "files", cluster.kept_at(workload)))
    return facts


def _splits(workload: Workload) -> list[tuple[str, str]]:
    """Describe the progress of a run with the splits that it tries, a line for each."""
    spec = workload.spec
    if spec.parallel is None or not spec.parallel.candidates:
        return []

    return [("split", f"\n{'':<15}".join(probing.describe_probing(spec, workload.status.measured.probing)))]


def _company(cluster: ClusterClient, workload: Workload) -> "Company | None":
    """Return the runs that share the GPUs of a run with colocation; None for other runs."""
    if not workload.spec.resources.colocate:
        return None

    return slowdowns.company_of(workload, cluster.snapshot())


def _shares(company: "Company") -> str:
    """Describe with which runs a run shares its GPUs, and its slowdown."""
    if not company.beside:
        return "its GPUs with no run now; others may join it"
    text = f"its GPUs with {', '.join(company.beside)}"
    if company.speed is None:
        return text
    how = "as such runs report" if company.is_measured else "is expected"
    return f"{text}; {company.speed:.0%} of its speed alone, {how}"


def _budgets(cluster: ClusterClient, workload: Workload) -> list[tuple[str, str]]:
    """Describe the budgets that a run is charged to; on Kubernetes, its Team and `fairlead cost` show them instead."""
    machine = cluster.machine
    if workload.status.phase.is_final or machine is None or not machine.home.teams.exists():
        return []
    budgets = budget_balances.balances(cluster, time.time()) if machine.prices() else []
    return [("budget", str(budget)) for budget in budgets if budget.account.charges(workload.spec)]


def _cost(amount: int, ahead: "RunForecast | None", phase: Phase) -> str:
    """Describe the cost of a run so far, and the range of its total."""
    if phase.is_final:
        return f"{describe_microusd(amount)} in all"
    bounds = (None, None) if ahead is None else (ahead.microusd(ahead.low_s), ahead.microusd(ahead.high_s))
    low, high = bounds
    if low is None or high is None:
        return f"{describe_microusd(amount)} so far"
    return f"{describe_microusd(amount)} so far, {describe_microusd(low)} to {describe_microusd(high)} at its end"


def _goodput(spent: "Goodput") -> str:
    """Describe the useful part of the held time, the uses of the rest, and the time waited."""
    held_s, useful_s = sum(spent.seconds.values()), spent.seconds.get("productive", 0.0)
    rest = {use: seconds for use, seconds in spent.seconds.items() if use != "productive"}
    lost = [f"{describe_duration(seconds)} {use}" for use, seconds in rest.items()]
    waited = [f"waited {describe_duration(spent.waiting_s)}"] if spent.waiting_s >= 0.5 else []
    parts = "; ".join([", ".join(lost), *waited] if lost else waited)
    useful = f"{spent.ratio:.1%}, {describe_duration(useful_s)} of {describe_duration(held_s)}"
    return f"{useful} ({parts})" if parts else useful


def _common_facts(workload: AnyWorkload) -> list[tuple[str, str]]:
    """Return facts that workloads of all kinds have."""
    spec, state = workload.spec, workload.status
    team = "" if spec.team == "default" else f", team {spec.team}"
    facts = [("id", f"{workload.uid}{team}")]
    if spec.labels:
        facts.append(("labels", ", ".join(f"{name}={value}" for name, value in sorted(spec.labels.items()))))
    if workload.intent.value != "run" and not state.phase.is_final:
        facts.append(("wanted", workload.intent.value))
    return facts


def _size(workload: Workload) -> str:
    """Format the numbers of ranks and nodes; for an elastic gang also their range."""
    spec, gang = workload.spec, workload.gang
    if spec.most_nodes is None:
        return f"{gang.world_size} on {describe_nodes(spec)}"
    if workload.status.phase in (Phase.PENDING, Phase.RESTARTING, Phase.SUSPENDED):
        return f"{spec.world_size}..{spec.most_nodes * spec.ranks_on_each_node} on {describe_nodes(spec)}"
    return f"{gang.world_size} on {gang.nodes} of {describe_nodes(spec)}"


def _checkpoints(spec: Training, own: str, progress: Progress | None) -> str:
    wish = spec.checkpoint
    when = "only at a stop notice"
    if wish.every_s is not None:
        when = f"every {describe_duration(wish.every_s)}"
    elif wish.every_steps is not None:
        when = f"every {plural(wish.every_steps, 'step')}"
    elif wish.every_auto:
        when = "at an interval that is chosen once a save was made"
        if progress is not None and progress.checkpoint_interval_s is not None:
            when = f"every {describe_duration(progress.checkpoint_interval_s)} ({progress.checkpoint_interval_why})"
    where = f"{when}, {wish.keep} kept, in {wish.to or own}"
    if not wish.is_in_memory:
        return where
    steps, seconds = wish.memory_every_steps, wish.memory_every_s
    often = plural(steps, "step") if steps is not None else describe_duration(seconds or 0.0)
    newest = "" if progress is None or progress.memory_step is None else f", now of step {progress.memory_step}"
    return f"{where}; in memory every {often}{newest}"


def _latest(pods: tuple[Pod, ...]) -> list[Pod]:
    """Return the pods of the newest attempt with pods, without those that were replaced."""
    newest = max((pod.attempt for pod in pods), default=0)
    last = {pod.index: pod for pod in sorted(pods, key=lambda pod: pod.replacement) if pod.attempt == newest}
    return [last[index] for index in sorted(last)]


def _pod(pod: Pod, spec: Training) -> list[str]:
    first = pod.index * spec.ranks_on_each_node
    last = first + spec.ranks_on_each_node - 1
    ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
    ending = ", told to stop" if pod.terminating_since is not None and not pod.phase.is_final else ""
    name = f"{pod.index}r{pod.replacement}" if pod.replacement else str(pod.index)
    lines = [f"  pod {name:<8} {pod.phase.value} on {pod.node}, {ranks}{ending}"]
    if pod.message:
        lines.append(f"    {pod.message}")
    if pod.phase in (PodPhase.FAILED, PodPhase.LOST):
        lines += [f"    rank {exit_.rank} {_exit(exit_)}" for exit_ in pod.exits if not exit_.ok]
    return lines


def _exit(exit_: RankExit) -> str:
    if exit_.out_of_memory:
        return "was killed at its memory limit"
    return f"ended with exit code {exit_.exit_code}" if exit_.signal is None else f"was ended by signal {exit_.signal}"


def _event(event: EventRecord) -> str:
    return describe_event(event.type, event.reason)


def _next(cluster: ClusterClient, workload: AnyWorkload) -> str:
    name = cluster.named(workload)
    if not workload.status.phase.is_final:
        return f"`fairlead attach {name}`, `fairlead events {name}`, `fairlead stop {name}`"
    again = "" if workload.status.phase.value == "Succeeded" else f", `fairlead resume {name}`"
    return f"`fairlead logs {name}`, `fairlead events {name}`{again}"
