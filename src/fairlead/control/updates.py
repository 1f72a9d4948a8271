"""Plans a change of an existing run's spec, admitted like that of a new run."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.cluster.client import ClusterClient
from fairlead.control.admission import Admission, admit, left_open, with_images
from fairlead.control.pipelines.command import is_pipeline
from fairlead.errors import Conflict
from fairlead.frozen import dataclass
from fairlead.policy.kinds.lifecycle import check_intent, check_not_ending
from fairlead.policy.kinds.spec_updates import check_phase, check_update, updated_status
from fairlead.specs.formats.differences import Difference
from fairlead.specs.formats.settings import Setting, with_settings
from fairlead.specs.sweep import Sweep
from fairlead.specs.training import DEFAULT_TEAM, Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.snapshot import Intent, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A planned change of a run.

    Attributes:
        run: The run as observed.
        differences: Differences between its spec and the admitted one; empty if they are equal.
        new_files: Directory whose files replace its own, because they have changed; None if it keeps its own.
    """

    run: Workload[Any]
    admitted: Admission[Any]
    differences: tuple[Difference, ...]
    new_files: Path | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether nothing changes."""
        return not self.differences and self.new_files is None

    def updated(self) -> Workload[Any]:
        """Return the run after the change."""
        status = updated_status(self.run.status) if self.differences else self.run.status
        return replace(self.run, spec=self.admitted.spec, status=status)


def plan_update(
    cluster: ClusterClient,
    run: Workload,
    settings: Iterable[Setting],
    *,
    spec: Training | None = None,
    directory: Path | None = None,
    ignore: frozenset[str] = frozenset(),
    source: str = "--set",
) -> Update:
    """Plan the change of a run that continues; sends nothing.

    Args:
        settings: Keys with new values.
        spec: New spec from a file, before the settings; None for the run's own.
        directory: Base of a relative ``workdir`` of the new spec; None if the run keeps its files.
        ignore: As for ``admit``.
        source: Origin of the settings, for error messages.

    Raises:
        InvalidSpec: A setting is wrong.
        Conflict: The run's phase does not allow it, an immutable field differs, or a field cannot be honoured.
        CannotFit: It would not fit even on an empty cluster.
    """
    check_intent(run, Intent.RUN)
    texts = tuple(settings)
    if texts or spec is not None:
        refuse_pipeline(run.spec)
    if spec is None:
        spec = left_open(cluster, run.spec)
    else:
        # A file without a team means the run's team; and labels may have been added to the run by others.
        team = run.spec.team if spec.team == DEFAULT_TEAM else spec.team
        labels = run.spec.labels if spec.labels.items() <= run.spec.labels.items() else spec.labels
        spec = replace(spec, team=team, labels=labels)
    spec = with_settings(spec, texts, source=source) if texts else spec
    admitted = admit(cluster, spec, directory, ignore=ignore)
    new = admitted.directory
    if new is not None and cluster.has_files_of(run, new):
        new = None
    differences = check_update(run, admitted.spec)
    if new is not None and not differences:
        check_phase(run)
    return Update(run=run, admitted=admitted, differences=differences, new_files=new)


def refuse_pipeline(spec: WorkloadSpec) -> None:
    """Refuse to change a pipeline that is resumed: its succeeded steps would keep results of other commands.

    Raises:
        Conflict: The workload is a pipeline.
    """
    if is_pipeline(spec):
        raise Conflict(
            f"{spec.name} is a Pipeline, which is resumed without changes: `fairlead resume {spec.name}` runs what has "
            "failed. `fairlead run FILE` runs what has changed, and takes the results of unchanged steps."
        )


def plan_sweep_update(
    cluster: ClusterClient,
    sweep: Workload[Sweep],
    settings: Iterable[Setting],
    *,
    spec: Sweep | None = None,
    directory: Path | None = None,
    source: str = "--set",
) -> Update:
    """Plan the change of a sweep, which may go on also if it has succeeded; its files stay. Sends nothing.

    Args:
        settings, spec, directory, source: As for ``plan_update``.

    Raises:
        InvalidSpec: A setting is wrong.
        Conflict: A key differs that must stay, or the sweep would end at once.
    """
    check_not_ending(sweep)
    old = new = sweep.spec
    if spec is not None:
        labels = old.labels if spec.labels.items() <= old.labels.items() else spec.labels
        team = old.team if spec.team == DEFAULT_TEAM else spec.team
        new = admit(cluster, replace(spec, name=old.name, team=team, labels=labels), directory).spec
    changes = tuple(settings)
    new = with_settings(new, changes, source=source) if changes else new
    return Update(run=sweep, admitted=Admission(spec=new, notes=()), differences=check_update(sweep, new))


def carry_out(cluster: ClusterClient, update: Update) -> Workload[Any]:
    """Apply a planned change if the run has not changed since.

    Raises:
        Conflict: The run has changed.
    """
    if update.is_empty:
        return update.run
    admitted = with_images(cluster, update.admitted)
    return cluster.change(update.run, admitted.spec, directory=update.new_files)
