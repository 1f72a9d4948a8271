"""Another spec for a run that is there, admitted like that of a new one."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.client import ClusterClient
from fairlead.control.admission import Admission, admit, left_open
from fairlead.control.pipelines.command import is_pipeline
from fairlead.errors import Conflict
from fairlead.frozen import dataclass
from fairlead.policy.kinds.lifecycle import check_intent
from fairlead.policy.kinds.spec_updates import check_phase, check_update, updated_status
from fairlead.specs.formats.differences import Difference
from fairlead.specs.formats.settings import Setting, with_settings
from fairlead.specs.training import DEFAULT_TEAM, Training
from fairlead.state.snapshot import Intent, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A change of a run that would be made.

    Attributes:
        run: As it was seen.
        differences: Between its spec and the admitted one; empty when they are the same.
        new_files: The directory whose files it gets, because they are others by now; None when it keeps its own.
    """

    run: Workload
    admitted: Admission
    differences: tuple[Difference, ...]
    new_files: Path | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether nothing changes."""
        return not self.differences and self.new_files is None

    def updated(self) -> Workload:
        """The run as it would be."""
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
    """Plan what a changed spec would change of a run that is to go on; nothing is sent.

    Args:
        settings: Keys given anew.
        spec: The new one of a file, before the settings; None for the run's own.
        directory: To which a relative ``workdir`` of the new spec is relative; None when it keeps its files.
        ignore: As for ``admit``.
        source: Who gives the settings, for problems.

    Raises:
        InvalidSpec: A setting is wrong.
        Conflict: The run's phase does not allow it, something differs that must stay, or cannot be honoured.
        CannotFit: It would not fit even if nothing else ran.
    """
    check_intent(run, Intent.RUN)
    given = tuple(settings)
    if given and is_pipeline(run.spec):
        raise Conflict(f"{run.spec.name} is a Pipeline; change its file and run it anew: what is unchanged is not run.")
    if spec is None:
        spec = left_open(cluster, run.spec)
    else:
        # A file that says nothing of its team means the one that the run has; and others may put labels on a run.
        team = run.spec.team if spec.team == DEFAULT_TEAM else spec.team
        labels = run.spec.labels if spec.labels.items() <= run.spec.labels.items() else spec.labels
        spec = replace(spec, team=team, labels=labels)
    spec = with_settings(spec, given, source=source) if given else spec
    admitted = admit(cluster, spec, directory, ignore=ignore)
    new = admitted.directory
    if new is not None and cluster.has_files_of(run, new):
        new = None
    found = check_update(run, admitted.spec)
    if new is not None and not found:
        check_phase(run)
    return Update(run=run, admitted=admitted, differences=found, new_files=new)


def carry_out(cluster: ClusterClient, update: Update) -> Workload:
    """Make a change that was planned, if the run is still as it was then.

    Raises:
        Conflict: It is not.
    """
    if update.is_empty:
        return update.run
    return cluster.change(update.run, update.admitted.spec, directory=update.new_files)
