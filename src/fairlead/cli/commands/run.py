"""``fairlead run``: submit and follow runs."""

import os
import re
import shlex
import time
from dataclasses import field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from fairlead.api import submit
from fairlead.cli.overrides import Overrides, override_options
from fairlead.cli.show import as_json, message, run_json
from fairlead.cli.specfiles import ENDINGS, directory_of, files_type, is_spec_file, refuse_twice, workloads
from fairlead.cli.target import Target, cluster_options
from fairlead.cli.workspaces import await_workspaces
from fairlead.cluster.client import ClusterClient
from fairlead.control.admission import IGNORABLE, Admission, admit, with_images
from fairlead.control.pipelines.command import is_pipeline
from fairlead.deferred import deferred
from fairlead.errors import Conflict, FairleadError, NameTaken, NotFound
from fairlead.frozen import dataclass
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.training import Training
from fairlead.specs.workload import Kind, WorkloadSpec, renamed
from fairlead.state.snapshot import AnyWorkload, Phase, Workload

if TYPE_CHECKING:
    from fairlead.cli import edits, env_file
    from fairlead.cli import endpoints as endpoint_views
    from fairlead.cli import follow as run_following
    from fairlead.control.pipelines import submission as pipeline_submission
    from fairlead.specs.formats import reading
else:
    edits = deferred("fairlead.cli.edits")
    endpoint_views = deferred("fairlead.cli.endpoints")
    env_file = deferred("fairlead.cli.env_file")
    run_following = deferred("fairlead.cli.follow")
    pipeline_submission = deferred("fairlead.control.pipelines.submission")
    reading = deferred("fairlead.specs.formats.reading")

DETACHED = 130
SCRIPT = re.compile(r"(?!-)[^;\n]*\.(py|sh|R|jl|pl|rb|js|lua|ipynb)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRun:
    """A requested run, and the base of its relative working directory."""

    spec: WorkloadSpec
    directory: Path


@dataclass(slots=True, kw_only=True)
class _Submission:
    """The state of a submission, reported after an interruption.

    Attributes:
        wanted: All runs to submit, set when all are admitted.
    """

    began_at: float = field(default_factory=time.time)
    cluster: ClusterClient | None = None
    wanted: list[Admission[WorkloadSpec]] = field(default_factory=list)
    submitted: list[AnyWorkload] = field(default_factory=list)

    def say(self) -> str:
        """Describe which runs were submitted and which were not."""
        if self.cluster is None or not self.wanted:
            return "Interrupted; nothing was submitted."
        doubt, left = "", self.wanted[len(self.submitted) :]
        try:
            # The interruption may have come between a submission and its response.
            last_run = self._existing_run(self.cluster, left[0].spec) if left else None
        except FairleadError:
            doubt = f" Whether {left[0].spec.name} was submitted is not known; `fairlead status` tells."
            last_run, left = None, left[1:]
        runs = self.submitted if last_run is None else [*self.submitted, last_run]
        missing = [request.spec.name for request in left[len(runs) - len(self.submitted) :]]
        if not runs:
            return f"Interrupted; {'no other run' if doubt else 'nothing'} was submitted.{doubt}"
        names, again = ", ".join(run.spec.name for run in runs), self.cluster.named(*runs)
        lacking = f"; not submitted: {', '.join(missing)}" if missing else ""
        text = f"Interrupted; submitted: {names}{lacking}.{doubt}"
        return f"{text} `fairlead attach {again}` follows, `fairlead stop {again}` stops."

    def _existing_run(self, cluster: ClusterClient, spec: WorkloadSpec) -> AnyWorkload | None:
        own = cluster.another()
        try:
            for run in own.unfinished(spec.team):
                is_of_name = run.spec.name == spec.name or run.spec.name.startswith(f"{spec.name[:45]}-")
                if is_of_name and run.created_at >= self.began_at and run.uid not in {r.uid for r in self.submitted}:
                    own.nudge()
                    return run
        finally:
            own.close()
        return None


@click.command()
@click.argument("files", nargs=-1, type=files_type)
@click.option("--name", help="Name of the run instead of the file's.")
@override_options
@click.option(
    "--env-file",
    "env_files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File of NAME=VALUE lines for the program on this machine, such as secrets; not part of the spec.",
)
@click.option("--ignore", multiple=True, type=click.Choice(IGNORABLE), help="Ignore this field on this cluster.")
@click.option("-d", "--detach", is_flag=True, help="Submit and return.")
@click.option("-q", "--quiet", is_flag=True, help="With --detach: print the names of the submitted runs alone.")
@click.option("--follow-edits", is_flag=True, help="Restart the run with each saved edit of its code, on this machine.")
@click.option("--json", "json_", is_flag=True, help="As `attach --json`; with --detach, the submitted runs as JSON.")
@cluster_options
def run(
    target: Target,
    files: tuple[str, ...],
    name: str | None,
    overrides: Overrides,
    env_files: tuple[Path, ...],
    ignore: tuple[str, ...],
    detach: bool,
    quiet: bool,
    follow_edits: bool,
    json_: bool,
) -> int:
    """Submit the runs in FILES and follow them, or run a command: `fairlead run -- python train.py`.

    Ctrl-C detaches: submitted runs continue. If it interrupts the submission, the message lists which runs were
    submitted. The exit code is 130.

    With --follow-edits a saved edit in the working directory restarts the run, which continues from its last
    checkpoint as its next attempt; one that has failed starts again.

    A FILE of `-` is standard input, with paths relative to the current directory.
    """
    submission = _Submission()
    if quiet and (json_ or not detach):
        raise click.UsageError("-q is for runs that are submitted alone: give it with -d, and without --json.")
    if env_files:
        if target.is_kubernetes:
            raise click.UsageError(
                "--env-file is for runs on this machine; on Kubernetes put the values into a Secret and name it in "
                "`secrets`, see docs/secrets.md."
            )
        os.environ.update(env_file.read_env_files(env_files))  # which the run gets, as it gets those of the shell
    try:
        requests = requested_runs(files, name, overrides)
        if follow_edits:
            _refuse_edits(target, requests, detach=detach or quiet)
        if quiet:
            _run(target, requests, submission, ignore=ignore, detach=True, says=False)
            print(*(workload.spec.name for workload in submission.submitted), sep="\n")
            return 0
        return _run(
            target, requests, submission, ignore=ignore, detach=detach, json_=json_, says=not json_,
            with_edits=follow_edits,
        )  # fmt: skip
    except KeyboardInterrupt:
        message(f"\n{submission.say()}")
        return DETACHED


def _run(
    target: Target,
    requests: list[RequestedRun],
    submission: "_Submission",
    *,
    ignore: tuple[str, ...],
    detach: bool,
    says: bool,
    json_: bool = False,
    with_edits: bool = False,
) -> int:
    cluster = submission.cluster = target.open(is_to_submit=True)
    # All are admitted before any is submitted, so that an error in one submits none.
    admitted = [admit(cluster, request.spec, request.directory, ignore=frozenset(ignore)) for request in requests]
    _refuse_taken(cluster, [wanted.spec for wanted in admitted])
    tell = message if says else lambda _: None
    admitted = [with_images(cluster, wanted, tell) for wanted in admitted]
    submission.wanted, submitted = admitted, submission.submitted
    for wanted in admitted:
        if wanted.taken is not None and says:
            message(wanted.taken)
        for note in wanted.notes if says else ():
            if note.startswith("run: "):  # what the plan says of the command, which few look at first
                message(note)
        before = _before(cluster, wanted.spec)
        workload = submit(cluster, wanted)
        submitted.append(workload)
        if before is not None and says:
            what = "Changed" if before.spec != workload.spec else "Nothing has changed of"
            message(f"{what} {workload.spec.name}{cluster.where(workload)}.")
        elif says:
            renamed = "" if workload.spec.name == wanted.spec.name else f" (another run is named {wanted.spec.name})"
            message(f"Submitted {workload.spec.name}{cluster.where(workload)}{renamed}.")
            _tell_checkpoints(cluster, wanted.spec, workload)
            if is_pipeline(wanted.spec):
                _tell_triggers(wanted.spec)
    if detach:
        if json_:
            print(as_json([run_json(workload) for workload in submitted]))
        return 0
    if with_edits:
        return edits.follow_edits(cluster, cast("Workload", submitted[0]), json_=json_)
    endpoints = [run for run in submitted if _is_endpoint(run.spec)]
    workspaces = [run for run in submitted if run.spec.kind == Kind.WORKSPACE]
    others = [run for run in submitted if run.spec.kind not in (Kind.SERVING, Kind.WORKSPACE)]
    code = 0
    if endpoints:
        code = endpoint_views.await_ready(cluster, endpoints, json_=json_)
    if workspaces:
        await_workspaces(cluster, workspaces)
    if not others:
        if json_:
            print(as_json([run_json(cluster.get(run.uid)) for run in (*endpoints, *workspaces)]))
        return code

    return run_following.follow(cluster, others, json_=json_) or code


def _refuse_edits(target: Target, requests: list[RequestedRun], *, detach: bool) -> None:
    """Refuse to follow edits where nothing would follow them."""
    if target.is_kubernetes:
        raise click.UsageError("--follow-edits is for runs on this machine; pods get the files of their submission.")
    if detach:
        raise click.UsageError("--follow-edits ends with this command, so that --detach would follow none.")
    if len(requests) != 1 or requests[0].spec.kind != Kind.TRAINING or is_pipeline(requests[0].spec):
        raise click.UsageError("--follow-edits is for one Training.")
    spec = requests[0].spec
    if isinstance(spec, Training) and not spec.snapshot:
        raise click.UsageError("--follow-edits compares with the kept code, and the spec has `snapshot: false`.")


def _is_endpoint(spec: WorkloadSpec) -> bool:
    return spec.kind == Kind.SERVING


def _before(cluster: ClusterClient, spec: WorkloadSpec) -> AnyWorkload | None:
    """Return the endpoint of a spec's name before its change; None without one."""
    going = cluster.unfinished(spec.team) if _is_endpoint(spec) else ()
    return next((run for run in going if run.spec.name == spec.name and _is_endpoint(run.spec)), None)


def _tell_triggers(spec: WorkloadSpec) -> None:
    """Print a hint that running a pipeline with triggers does not apply it."""
    pipeline = pipeline_submission.pipeline_of(spec)
    if pipeline is not None and (pipeline.schedule is not None or pipeline.on is not None):
        message("It runs once now; `fairlead apply` lets it run by itself.")


def _tell_checkpoints(cluster: ClusterClient, spec: WorkloadSpec, workload: AnyWorkload) -> None:
    """Print a hint if an earlier run of the name has checkpoints and the new one starts from scratch."""
    if not isinstance(spec, Training) or workload.spec.name == spec.name or spec.checkpoint.origin is not None:
        return
    try:
        before = cluster.find(spec.name, workload.spec.team)
    except (NotFound, Conflict):  # just deleted
        return
    step = None if before.progress is None else before.progress.checkpoint_step
    if step is None:
        return
    again = f"`--set checkpoint.from={spec.name}` starts from it"
    if before.status.phase is not Phase.SUCCEEDED:
        again = f"`fairlead resume {cluster.named(before)}` continues that run, {again}"
    message(f"{workload.spec.name} starts at step 0; {spec.name} has a checkpoint of step {step}: {again}.")


def _refuse_taken(cluster: ClusterClient, specs: list[WorkloadSpec]) -> None:
    """Refuse all specs if one, not a Training, has the name of an unfinished run; a single one is refused when it is
    submitted."""
    num = len(specs)
    if num < 2:
        return
    specs = [spec for spec in specs if not isinstance(spec, Training)]
    going = (run for team in {spec.team for spec in specs} for run in cluster.unfinished(team))
    taken = {(run.spec.team, run.spec.name) for run in going}
    names = [spec.name for spec in specs if (spec.team, spec.name) in taken and _before(cluster, spec) is None]
    if names:
        raise NameTaken(
            f"{', '.join(names)}: not finished under that name, so that none of the {num} runs was submitted. "
            f"Stop it first (`fairlead stop {' '.join(names)}`), or choose another name."
        )


def requested_runs(files: tuple[str, ...], name: str | None, overrides: Overrides) -> list[RequestedRun]:
    """Return every workload of the arguments, which are files by their extension, or else a command."""
    if not files:
        raise click.UsageError("give a spec file, or a command after `--`.")
    if is_spec_file(files[0]):
        strange = [file for file in files if not is_spec_file(file)]
        if strange:
            raise click.UsageError(f"{strange[0]!r} does not end like a spec file: {', '.join(ENDINGS)}.")
        refuse_twice(files)
        requests = [
            RequestedRun(spec=spec, directory=directory_of(file))
            for file in files
            for spec in workloads(file, overrides.of_pipeline)
        ]
        requests = [replace(request, spec=_overridden(request.spec, overrides)) for request in requests]
        names = [(request.spec.team, request.spec.name) for request in requests]
        twice = next((name for team, name in names if names.count((team, name)) > 1), None)
        if twice is not None:
            raise click.UsageError(f"several of these runs are named {twice!r}; give each its own name.")
    else:
        requests = [RequestedRun(spec=overrides.of(_command(files)), directory=Path.cwd())]
    if name is not None:
        if any(setting.partition("=")[0].strip() == "name" for setting in overrides.settings):
            raise click.UsageError("--set name and --name say the same key: give one of them.")
        if len(requests) != 1:
            raise click.UsageError(f"--name names one run; these are {len(requests)}.")
        try:
            requests = [replace(requests[0], spec=renamed(requests[0].spec, name))]
        except BrokenRules as error:
            raise click.UsageError(f"--name: {error.problems[0][1]}") from error
    return requests


def _overridden(spec: WorkloadSpec, overrides: Overrides) -> WorkloadSpec:
    """Return the spec with the overrides, which a pipeline has already got."""
    return spec if is_pipeline(spec) else overrides.of(spec)


def _command(words: tuple[str, ...]) -> Training:
    program = words[0]
    if program.endswith(".py") and os.path.isfile(program) and not os.access(program, os.X_OK):
        raise click.UsageError(f"{program} is not executable; give `fairlead run -- python {shlex.join(words)}`.")
    if len(words) == 1 and os.path.isdir(program):
        specs = sorted(path.name for path in Path(program).iterdir() if is_spec_file(path.name))
        hint = f"; its spec files: {', '.join(specs[:5])}" if specs else ", without a spec file in it"
        raise click.UsageError(f"{program} is a directory, no command{hint}.")
    try:
        return Training(name=reading.name_from(_named_after(words)) or "run", run=shlex.join(words))
    except BrokenRules as error:
        raise click.UsageError(f"the command: {error}") from error


def _named_after(words: tuple[str, ...]) -> str:
    """Return what a command is named after: its first script, or else its module (`-m`), or else its program."""
    for before, word in pairwise(("", *words)):
        if before == "-m":
            return word.rpartition(".")[2]
        if SCRIPT.fullmatch(word):
            return Path(word).stem
    return Path(words[0]).name
