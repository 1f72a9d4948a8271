"""The Python API: ``fairlead.Training(run="python train.py", nodes=2).run().wait()``."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.home import Home
from fairlead.cluster.output import LogQuery, parse_moment
from fairlead.cluster.port import EventRecord, LogLine
from fairlead.cluster.port import Spec as AnySpec
from fairlead.control.admission import Admission, admit, free_name, with_images
from fairlead.control.opening import open_named
from fairlead.deferred import deferred
from fairlead.errors import Conflict, FairleadError, InvalidArgument, InvalidSpec, NameTaken, NotFound
from fairlead.policy.kinds.lifecycle import check_intent, is_over
from fairlead.policy.kinds.table import KINDS, leaf
from fairlead.python_keys import read_keys
from fairlead.specs.training import Training as TrainingSpec
from fairlead.specs.workload import Kind, WorkloadSpec, renamed
from fairlead.state.snapshot import Intent, Progress, Status, Workload

if TYPE_CHECKING:
    from fairlead.control import updates as spec_updates
    from fairlead.control.pipelines import submission
    from fairlead.specs.formats import reading
    from fairlead.specs.formats import settings as spec_settings
    from fairlead.specs.keys import Spec
    from fairlead.specs.pipeline import Pipeline
else:
    submission = deferred("fairlead.control.pipelines.submission")
    spec_updates = deferred("fairlead.control.updates")
    reading = deferred("fairlead.specs.formats.reading")
    spec_settings = deferred("fairlead.specs.formats.settings")

SpecT = TypeVar("SpecT", bound=WorkloadSpec)


class Training:
    """A training run to be submitted; takes the keys of a spec file as keyword arguments.

    Raises:
        InvalidSpec: A key or value is wrong; the message lists every mistake at once.
    """

    def __init__(self, **keys: Any) -> None:
        self.spec = _only((read_keys(keys, source="Training", default_name="training"),), "Training")
        self._directory: Path | None = None

    def __repr__(self) -> str:
        return f"Training(name={self.spec.name!r}, run={self.spec.run!r})"

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Training":
        """Read the one training run of a file; its ``workdir`` is relative to the file."""
        made = cls.__new__(cls)
        made.spec = _only(read(path), os.fspath(path))
        made._directory = Path(path).parent.absolute()
        return made

    def plan(self, *, context: str | None = None, namespace: str | None = None) -> Admission:
        """Return the spec as this machine, or a Kubernetes cluster, would run it, and the choices made for it.

        Args:
            context: Context of the kubeconfig; with neither this nor ``namespace``, this machine is used.

        Raises:
            CannotFit: It would not fit even if nothing else ran.
            Conflict: A field cannot be honoured there.
        """
        cluster = open_named(context, namespace)
        try:
            return self._admitted(cluster)
        finally:
            cluster.close()

    def run(self, *, context: str | None = None, namespace: str | None = None) -> "RunHandle":
        """Submit it and return at once. If a run has its name, a number is appended.

        Args:
            context: Context of the kubeconfig; with neither this nor ``namespace``, this machine is used.

        Raises:
            CannotFit: It would not fit even if nothing else ran.
        """
        cluster = open_named(context, namespace)
        return RunHandle(cluster, submit(cluster, self._admitted(cluster)).uid)

    def _admitted(self, cluster: ClusterClient) -> Admission:
        return admit(cluster, self.spec, self._directory or Path.cwd())


class WorkloadHandle(Generic[SpecT]):
    """A submitted workload. Not thread-safe: use it in one thread."""

    def __init__(self, cluster: ClusterClient, uid: str) -> None:
        self._cluster = cluster
        self.uid = uid

    def __repr__(self) -> str:
        kind = type(self).__name__
        try:
            workload = self.workload
        except FairleadError as error:  # it was deleted, or its cluster does not answer
            return f"{kind}(uid={self.uid!r}: {error})"
        phase = workload.status.phase.value
        return f"{kind}(name={workload.spec.name!r}, uid={self.uid!r}, phase={phase!r})"

    @property
    def workload(self) -> Workload[SpecT]:
        """All that is known of it now."""
        workload: Workload[Any] = self._cluster.get(self.uid)
        return workload

    @property
    def name(self) -> str:
        return self.workload.spec.name

    @property
    def status(self) -> Status:
        return self.workload.status

    def wait(self, timeout: float | None = None) -> Status:
        """Wait for its end and return the status then, or after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while not is_over(self.workload) and (end is None or time.monotonic() < end):
            self._cluster.nudge()
            self._cluster.wait(1.0 if end is None else max(0.0, min(1.0, end - time.monotonic())))
        return self.status

    def events(self) -> tuple[EventRecord, ...]:
        """Return its events, oldest first; children have events of their own."""
        return self._cluster.events(self.uid)

    def stop(self) -> None:
        """Stop it and its children; each saves a checkpoint of its current step."""
        self._want(Intent.STOP)

    def suspend(self) -> None:
        """Suspend it; it holds no resources until it is resumed.

        Raises:
            Conflict: It has finished.
        """
        self._want(Intent.SUSPEND)

    def delete(self) -> None:
        """Stop it, and delete its records and files and those of its children."""
        self._want(Intent.DELETE)

    def _want(self, intent: Intent) -> None:
        check_intent(self.workload, intent)
        self._cluster.set_intent(self.uid, intent)
        self._cluster.nudge()


class RunHandle(WorkloadHandle[TrainingSpec]):
    """A submitted run. Not thread-safe: use it in one thread."""

    @property
    def workload(self) -> Workload:
        """All that is known of it now."""
        return leaf(self._cluster.get(self.uid))

    @property
    def progress(self) -> Progress | None:
        return self.workload.progress

    def logs(
        self,
        *,
        follow: bool = False,
        rank: int | Iterable[int] | None = None,
        attempt: int | None = None,
        since: str | float | datetime | None = None,
        until: str | float | datetime | None = None,
        grep: str | re.Pattern[str] | None = None,
        tail: int | None = None,
    ) -> Iterator[LogLine]:
        """Yield output lines in order of attempts and time; a line of the stream ``f`` reports output no longer kept.

        Args:
            follow: Continue until the run has finished.
            rank: Only lines of this rank, or of these.
            attempt: Only lines of this attempt of the run, from 0.
            since: Only lines from this time on: a text as for ``fairlead logs --since``, a Unix time or a datetime.
            until: Only lines up to this time.
            grep: Only lines that contain a match of this regular expression.
            tail: Only the last lines, this many, 1 or more; when following, new lines too.

        Raises:
            InvalidArgument: An argument is no time, no rank, no number of lines or no regular expression.
        """
        ranks = None if rank is None else frozenset([rank] if isinstance(rank, int) else rank)
        if ranks is not None and min(ranks, default=0) < 0:
            raise InvalidArgument(f"rank: {min(ranks)} is not a rank; they count from 0.")
        if tail is not None and tail < 1:
            raise InvalidArgument(f"tail: {tail} is not a number of lines; give 1 or more.")
        try:
            pattern = None if grep is None else re.compile(grep)
        except re.error as error:
            raise InvalidArgument(
                f"grep: {grep!r} is not a regular expression: {error}. For a plain text give re.escape({grep!r})."
            ) from error
        begin, end = _unix_time("since", since), _unix_time("until", until)
        query = LogQuery(ranks=ranks, attempt=attempt, since=begin, until=end, pattern=pattern, tail=tail)
        return self._cluster.logs(self.uid, query, follow=follow)

    def resume(self, **changes: Any) -> None:
        """Resume a suspended, stopped or failed run from its newest verified checkpoint.

        Args:
            **changes: New values of spec keys, as in ``resume(resources={"memory": "2Gi"}, max_duration="2h")``.
                Keys that a mapping does not name keep their values; None removes a key.

        Raises:
            InvalidSpec: A key or value is wrong; nothing was changed.
            CannotFit: With the changes it would not fit even if nothing else ran.
            Conflict: It has succeeded, is about to fail, or still has pods and cannot change.
        """
        if changes:
            settings = [setting for key, value in changes.items() for setting in spec_settings.setting_of(key, value)]
            directory = Path.cwd() if "workdir" in changes else None
            update = spec_updates.plan_update(
                self._cluster, self.workload, settings, directory=directory, source="resume()"
            )
            spec_updates.carry_out(self._cluster, update)
        self._want(Intent.RUN)


def _unix_time(name: str, moment: str | float | datetime | None) -> float | None:
    if isinstance(moment, str):
        try:
            return parse_moment(moment, time.time())
        except ValueError as error:
            raise InvalidArgument(f"{name}: {error}") from None
    return moment.timestamp() if isinstance(moment, datetime) else moment


def submit(cluster: ClusterClient, admitted: Admission[AnySpec]) -> Workload[AnySpec]:
    """Submit an admitted spec and start a supervisor if needed.

    A name that another run has gets a number: of a Training any other run, else a finished one.

    Raises:
        NameTaken: An unfinished workload has the name, and this is no Training.
    """
    admitted = with_images(cluster, admitted)
    name = None
    while True:
        before, name = name, free_name(cluster, admitted.spec, beside_unfinished=True)
        try:
            return cluster.launch(renamed(admitted.spec, name), directory=admitted.directory)
        except NameTaken:
            if name == before or not isinstance(admitted.spec, TrainingSpec):
                raise
            # Another command has just taken the name.


def read(
    path: str | os.PathLike[str], changed: "Callable[[Pipeline], Pipeline] | None" = None
) -> tuple[WorkloadSpec, ...]:
    """Read every workload of a file; each pipeline becomes the run that executes it.

    Args:
        changed: Changes each pipeline first; None for no change.

    Raises:
        InvalidSpec: A document of it is invalid.
        NotFound: There is no such file.
        Conflict: It has a kind that this cluster does not support.
    """
    source = os.fspath(path)
    if not Path(path).exists():
        raise NotFound(f"There is no file {source!r} here ({Path.cwd()}).")
    return only_workloads(reading.load_file(path), source, changed)


def only_workloads(
    specs: tuple["Spec", ...], source: str, changed: "Callable[[Pipeline], Pipeline] | None" = None
) -> tuple[WorkloadSpec, ...]:
    """Return the specs of a source, each of which must be a workload, or a pipeline, which becomes one.

    Raises:
        Conflict: One has a kind that this cluster does not support.
    """
    workloads: list[WorkloadSpec] = []
    others = []
    for spec in specs:
        if spec.kind == Kind.PIPELINE:
            workloads.append(_driven(cast("Pipeline", spec), changed))
        elif type(spec).__name__ in KINDS:
            workloads.append(cast(WorkloadSpec, spec))
        else:
            others.append(f"{type(spec).__name__} {spec.name!r}")
    fleet = next((spec for spec in specs if spec.kind == Kind.FLEET), None)
    if fleet is not None:
        raise Conflict(
            f"{source}: Fleet {fleet.name!r}: `fairlead fleet run {source}` carries it out, and `fairlead fleet submit "
            f"{fleet.name} FILES` gives it runs. Keep it in a file of its own."
        )
    dataset = next((spec for spec in specs if spec.kind == Kind.DATASET), None)
    if dataset is not None:
        raise Conflict(
            f"{source}: Dataset {dataset.name!r}: `fairlead apply {source}` stores it, so that `data` of runs can use "
            "its name. Keep it in a file of its own."
        )
    if others:
        raise Conflict(
            f"{source}: {', '.join(others)}: these are no runs. Keep them in a file of their own, for "
            "`fairlead simulate --cluster FILE` or, on a cluster, `fairlead render FILE | kubectl apply --server-side "
            "-f -`; Teams of this machine go into `teams.yaml` of its state directory."
        )
    return tuple(workloads)


def _driven(pipeline: "Pipeline", changed: "Callable[[Pipeline], Pipeline] | None") -> WorkloadSpec:
    return submission.as_workload(pipeline if changed is None else changed(pipeline), Home.open())


def _only(specs: tuple[Any, ...], source: str) -> TrainingSpec:
    if len(specs) != 1 or not isinstance(specs[0], TrainingSpec):
        raise InvalidSpec((f"{source}: exactly one Training is expected here, {len(specs)} specs were found.",))
    return specs[0]
