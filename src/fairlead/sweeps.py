"""Sweeps from Python: ``fairlead.Sweep(parameters={...}, trial={...}).run().best()``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.api import WorkloadHandle, submit
from fairlead.cluster.client import ClusterClient
from fairlead.control.admission import admit
from fairlead.control.opening import open_named
from fairlead.deferred import deferred
from fairlead.errors import InvalidSpec, NotFound
from fairlead.policy.kinds.lifecycle import check_intent
from fairlead.policy.kinds.parents import child_name
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.sweep import trials_of
from fairlead.policy.search.trials import TrialRecord, TrialState, front, ranked
from fairlead.python_keys import read_keys
from fairlead.specs.sweep import Sweep as SweepSpec
from fairlead.state.snapshot import Intent, Workload

if TYPE_CHECKING:
    from fairlead.control import updates as spec_updates
    from fairlead.specs.formats import settings as spec_settings
else:
    spec_updates = deferred("fairlead.control.updates")
    spec_settings = deferred("fairlead.specs.formats.settings")


class Sweep:
    """A search over parameters to be submitted; takes the keys of a spec file as keyword arguments.

    Raises:
        InvalidSpec: A key or value is wrong; the message lists every mistake at once.
    """

    def __init__(self, **keys: Any) -> None:
        spec = read_keys({"kind": "Sweep", **keys}, source="Sweep", default_name="sweep")
        if not isinstance(spec, SweepSpec):
            raise InvalidSpec((f"Sweep: kind: {type(spec).__name__} is another kind; leave `kind` out.",))
        self.spec = spec

    def run(self, *, context: str | None = None, namespace: str | None = None) -> "SweepHandle":
        """Submit it and return at once.

        Args:
            context: Context of the kubeconfig; with neither this nor ``namespace``, this machine is used.

        Raises:
            CannotFit: A trial would not fit even if nothing else ran.
            NameTaken: An unfinished workload has its name.
        """
        cluster = open_named(context, namespace)
        return SweepHandle(cluster, submit(cluster, admit(cluster, self.spec, Path.cwd())).uid)


class SweepHandle(WorkloadHandle[SweepSpec]):
    """A submitted sweep. Not thread-safe: use it in one thread."""

    def trials(self) -> list[TrialRecord]:
        """Return its trials by number: parameters, state, last value of the objective, and last step."""
        return trials_in(self._cluster, self.workload)

    def best(self) -> TrialRecord:
        """Return the succeeded trial with the best value.

        Raises:
            NotFound: No trial has succeeded yet, or the sweep has no objective.
        """
        return best_of(self.workload, self.trials())

    def front(self) -> list[TrialRecord]:
        """Return the Pareto front of a sweep with several objectives: succeeded trials, sorted by the first objective.

        Raises:
            NotFound: No trial has succeeded yet, or the sweep does not have several objectives.
        """
        return front_of(self.workload, self.trials())

    def resume(self, **changes: Any) -> None:
        """Resume a suspended, stopped or failed sweep, with the trials that failed or were stopped with it.

        Args:
            **changes: New values of ``trials``, ``parallel``, ``stop`` and ``max_failed``, as in ``resume(trials=40)``,
                with which also a sweep that has succeeded continues.

        Raises:
            InvalidSpec: A key or value is wrong; nothing was changed.
            Conflict: Another key is given, or it has succeeded and would end at once.
        """
        if not changes:
            self._want(Intent.RUN)
            return

        settings = [setting for key, value in changes.items() for setting in spec_settings.setting_of(key, value)]
        update = spec_updates.plan_sweep_update(self._cluster, self.workload, settings, source="resume()")
        if update.is_empty:
            check_intent(self.workload, Intent.RUN)
        spec_updates.carry_out(self._cluster, update)
        self._cluster.set_intent(self.uid, Intent.RUN)
        self._cluster.nudge()


def trials_in(cluster: ClusterClient, sweep: Workload[SweepSpec]) -> list[TrialRecord]:
    """Return the trials of a sweep by number."""
    prefix = child_name(sweep, "")
    children = {child.spec.name.removeprefix(prefix): child for child in cluster.children(sweep.uid)}
    return trials_of(sweep, Family(children=children))


def best_of(sweep: Workload[SweepSpec], trials: list[TrialRecord]) -> TrialRecord:
    """Return the best succeeded trial.

    Raises:
        NotFound: There is none.
    """
    objective, name = sweep.spec.objective, sweep.spec.name
    if sweep.spec.objectives:
        raise NotFound(f"{name} has several objectives, so that many trials may be unbeaten: ask for its front.")
    if objective is None:
        raise NotFound(f"{name} has no objective, so that none of its runs is better than another.")
    ended = [trial for trial in ranked(trials, objective.goal) if trial.state is TrialState.SUCCEEDED]
    if not ended:
        raise NotFound(f"No trial of {name} has succeeded yet.")
    return ended[0]


def front_of(sweep: Workload[SweepSpec], trials: list[TrialRecord]) -> list[TrialRecord]:
    """Return the succeeded trials that no other dominates.

    Raises:
        NotFound: There is none, or the sweep does not have several objectives.
    """
    name = sweep.spec.name
    if not sweep.spec.objectives:
        raise NotFound(f"{name} does not have several objectives; ask for its best trial.")
    unbeaten = front(trials)
    if not unbeaten:
        raise NotFound(f"No trial of {name} has succeeded yet.")
    return unbeaten
