"""``fairlead run``: submit and follow runs."""

import os
import shlex
import time
from dataclasses import field, replace
from pathlib import Path

import click

from fairlead.api import submit
from fairlead.cli.overrides import Overrides, override_options
from fairlead.cli.show import as_json, message, run_json
from fairlead.cli.specfiles import ENDINGS, directory_of, files_type, is_spec_file, refuse_twice, workloads
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.control.admission import IGNORABLE, Admission, admit
from fairlead.control.pipelines.command import is_pipeline
from fairlead.errors import Conflict, FairleadError, NameTaken, NotFound
from fairlead.frozen import dataclass
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec, renamed
from fairlead.state.snapshot import AnyWorkload, Phase

DETACHED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
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
            found = self._there(self.cluster, left[0].spec) if left else None
        except FairleadError:
            doubt = f" Whether {left[0].spec.name} was submitted is not known; `fairlead status` tells."
            found, left = None, left[1:]
        runs = self.submitted if found is None else [*self.submitted, found]
        missing = [each.spec.name for each in left[len(runs) - len(self.submitted) :]]
        if not runs:
            return f"Interrupted; {'no other run' if doubt else 'nothing'} was submitted.{doubt}"
        names, again = ", ".join(run.spec.name for run in runs), self.cluster.named(*runs)
        lacking = f"; not submitted: {', '.join(missing)}" if missing else ""
        told = f"Interrupted; submitted: {names}{lacking}.{doubt}"
        return f"{told} `fairlead attach {again}` follows, `fairlead stop {again}` stops."

    def _there(self, cluster: ClusterClient, spec: WorkloadSpec) -> AnyWorkload | None:
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
@click.option("--ignore", multiple=True, type=click.Choice(IGNORABLE), help="Ignore this field on this cluster.")
@click.option("-d", "--detach", is_flag=True, help="Submit and return.")
@click.option("--json", "json_", is_flag=True, help="As `attach --json`; with --detach, the submitted runs as JSON.")
@cluster_options
def run(
    target: Target,
    files: tuple[str, ...],
    name: str | None,
    overrides: Overrides,
    ignore: tuple[str, ...],
    detach: bool,
    json_: bool,
) -> int:
    """Submit the runs in FILES and follow them, or run a command: `fairlead run -- python train.py`.

    Ctrl-C detaches: submitted runs continue. If it interrupts the submission, the message lists which runs were
    submitted. The exit code is 130.

    A FILE of `-` is standard input, with paths relative to the current directory.
    """
    submission = _Submission()
    try:
        return _run(target, asked_of(files, name, overrides), submission, ignore=ignore, detach=detach, json_=json_)
    except KeyboardInterrupt:
        message(f"\n{submission.say()}")
        return DETACHED


def _run(
    target: Target, asked: list[Asked], submission: "_Submission", *, ignore: tuple[str, ...], detach: bool, json_: bool
) -> int:
    cluster = submission.cluster = target.open(is_to_submit=True)
    # All are admitted before any is submitted, so that an error in one submits none.
    admitted = [admit(cluster, each.spec, each.directory, ignore=frozenset(ignore)) for each in asked]
    _refuse_taken(cluster, [wanted.spec for wanted in admitted])
    submission.wanted, submitted = admitted, submission.submitted
    for wanted in admitted:
        if wanted.taken is not None and not json_:
            message(wanted.taken)
        before = _before(cluster, wanted.spec)
        workload = submit(cluster, wanted)
        submitted.append(workload)
        if before is not None and not json_:
            what = "Changed" if before.spec != workload.spec else "Nothing has changed of"
            message(f"{what} {workload.spec.name}{cluster.where(workload)}.")
        elif not json_:
            renamed = "" if workload.spec.name == wanted.spec.name else f" (a finished run is named {wanted.spec.name})"
            message(f"Submitted {workload.spec.name}{cluster.where(workload)}{renamed}.")
            _tell_checkpoints(cluster, wanted.spec, workload)
            if is_pipeline(wanted.spec):
                _tell_triggers(wanted.spec)
    if detach:
        if json_:
            print(as_json([run_json(workload) for workload in submitted]))
        return 0
    endpoints = [each for each in submitted if _is_endpoint(each.spec)]
    others = [each for each in submitted if not _is_endpoint(each.spec)]
    code = 0
    if endpoints:
        from fairlead.cli.endpoints import await_ready  # here, since few runs are endpoints, which never end

        code = await_ready(cluster, endpoints, json_=json_)
    if not others:
        if json_:
            print(as_json([run_json(cluster.get(each.uid)) for each in endpoints]))
        return code
    from fairlead.cli.follow import follow  # here, since neither `plan` nor `run -d` follows anything

    return follow(cluster, others, json_=json_) or code


def _is_endpoint(spec: WorkloadSpec) -> bool:
    return type(spec).__name__ == "Serving"


def _before(cluster: ClusterClient, spec: WorkloadSpec) -> AnyWorkload | None:
    """Return the endpoint of a spec's name before its change; None without one."""
    going = cluster.unfinished(spec.team) if _is_endpoint(spec) else ()
    return next((each for each in going if each.spec.name == spec.name and _is_endpoint(each.spec)), None)


def _tell_triggers(spec: WorkloadSpec) -> None:
    """Print a hint that running a pipeline with triggers does not apply it."""
    from fairlead.control.pipelines.submission import pipeline_of  # here, since few runs are pipelines

    pipeline = pipeline_of(spec)
    if pipeline is not None and (pipeline.schedule is not None or pipeline.on is not None):
        message("It runs once now; `fairlead apply` lets it run by itself.")


def _tell_checkpoints(cluster: ClusterClient, asked: WorkloadSpec, workload: AnyWorkload) -> None:
    """Print a hint if an earlier run of the name has checkpoints and the new one starts from scratch."""
    if not isinstance(asked, Training) or workload.spec.name == asked.name or asked.checkpoint.origin is not None:
        return
    try:
        before = cluster.find(asked.name, workload.spec.team)
    except (NotFound, Conflict):  # just deleted
        return
    step = None if before.progress is None else before.progress.checkpoint_step
    if step is None:
        return
    again = f"`--set checkpoint.from={asked.name}` starts from it"
    if before.status.phase is not Phase.SUCCEEDED:
        again = f"`fairlead resume {cluster.named(before)}` continues that run, {again}"
    message(f"{workload.spec.name} starts at step 0; {asked.name} has a checkpoint of step {step}: {again}.")


def _refuse_taken(cluster: ClusterClient, specs: list[WorkloadSpec]) -> None:
    """Refuse all specs if one has the name of an unfinished run; a single one is refused when it is submitted."""
    if len(specs) < 2:
        return
    going = (run for team in {spec.team for spec in specs} for run in cluster.unfinished(team))
    taken = {(run.spec.team, run.spec.name) for run in going}
    names = [spec.name for spec in specs if (spec.team, spec.name) in taken and _before(cluster, spec) is None]
    if names:
        raise NameTaken(
            f"{', '.join(names)}: not finished under that name, so that none of the {len(specs)} runs was submitted. "
            f"Stop it first (`fairlead stop {' '.join(names)}`), or choose another name."
        )


def asked_of(files: tuple[str, ...], name: str | None, overrides: Overrides) -> list[Asked]:
    """Return every workload of the arguments, which are files by their extension, or else a command."""
    if not files:
        raise click.UsageError("give a spec file, or a command after `--`.")
    if is_spec_file(files[0]):
        strange = [file for file in files if not is_spec_file(file)]
        if strange:
            raise click.UsageError(f"{strange[0]!r} does not end like a spec file: {', '.join(ENDINGS)}.")
        refuse_twice(files)
        asked = [
            Asked(spec=spec, directory=directory_of(file))
            for file in files
            for spec in workloads(file, overrides.of_pipeline)
        ]
        asked = [replace(each, spec=_overridden(each.spec, overrides)) for each in asked]
        names = [(each.spec.team, each.spec.name) for each in asked]
        twice = next((name for team, name in names if names.count((team, name)) > 1), None)
        if twice is not None:
            raise click.UsageError(f"several of these runs are named {twice!r}; give each its own name.")
    else:
        asked = [Asked(spec=overrides.of(_command(files)), directory=Path.cwd())]
    if name is not None:
        if len(asked) != 1:
            raise click.UsageError(f"--name names one run; these are {len(asked)}.")
        try:
            asked = [replace(asked[0], spec=renamed(asked[0].spec, name))]
        except BrokenRules as error:
            raise click.UsageError(f"--name: {error.problems[0][1]}") from error
    return asked


def _overridden(spec: WorkloadSpec, overrides: Overrides) -> WorkloadSpec:
    """Return the spec with the overrides, which a pipeline has already got."""
    return spec if is_pipeline(spec) else overrides.of(spec)


def _command(words: tuple[str, ...]) -> Training:
    from fairlead.specs.formats.reading import name_from

    program = words[0]
    if program.endswith(".py") and os.path.isfile(program) and not os.access(program, os.X_OK):
        raise click.UsageError(f"{program} is not executable; give `fairlead run -- python {shlex.join(words)}`.")
    script = next((word for word in words[1:] if not word.startswith("-")), program)
    try:
        return Training(name=name_from(Path(script).stem) or "run", run=shlex.join(words))
    except BrokenRules as error:
        raise click.UsageError(f"the command: {error}") from error
