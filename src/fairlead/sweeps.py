"""Sweeps from Python: ``fairlead.Sweep(parameters={...}, trial={...}).run().best()``."""

from pathlib import Path
from typing import Any

from fairlead.api import WorkloadHandle, submit
from fairlead.cluster.client import ClusterClient
from fairlead.control.admission import admit
from fairlead.control.opening import open_named
from fairlead.errors import InvalidSpec, NotFound
from fairlead.policy.kinds.parents import child_name
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.sweep import trials_of
from fairlead.policy.search.trials import TrialRecord, TrialState, front, ranked
from fairlead.specs.sweep import Sweep as SweepSpec
from fairlead.state.snapshot import Intent, Workload


class Sweep:
    """A search over parameters to be submitted; takes the keys of a spec file as keyword arguments.

    Raises:
        InvalidSpec: A key or value is wrong; every mistake is told at once.
    """

    def __init__(self, **keys: Any) -> None:
        import json

        from fairlead.specs.formats.reading import parse

        # JSON is YAML, and the reader's errors name keys and values in the same words as for a file.
        (spec,) = parse(json.dumps({"kind": "Sweep", **keys}), source="Sweep", default_name="sweep")
        if not isinstance(spec, SweepSpec):
            raise InvalidSpec((f"Sweep: kind: {type(spec).__name__} is another kind; leave `kind` out.",))
        self.spec = spec

    def run(self, *, context: str | None = None, namespace: str | None = None) -> "SweepHandle":
        """Submit it and return at once.

        Args:
            context: Of the kubeconfig; with neither this nor ``namespace`` this machine is meant.

        Raises:
            CannotFit: A trial would not fit even if nothing else ran.
            NameTaken: An unfinished workload has its name.
        """
        cluster = open_named(context, namespace)
        return SweepHandle(cluster, submit(cluster, admit(cluster, self.spec, Path.cwd())).uid)


class SweepHandle(WorkloadHandle[SweepSpec]):
    """A submitted sweep. Belongs to one thread."""

    def trials(self) -> list[TrialRecord]:
        """Its trials by number: values, state, the last value of the objective and the step that they came to."""
        return trials_in(self._cluster, self.workload)

    def best(self) -> TrialRecord:
        """The trial with the best value of those that succeeded.

        Raises:
            NotFound: None has yet, or the sweep has no objective.
        """
        return best_of(self.workload, self.trials())

    def front(self) -> list[TrialRecord]:
        """The trials of several objectives that succeeded and that no other beats, by their first objective.

        Raises:
            NotFound: None has yet, or the sweep does not have several objectives.
        """
        return front_of(self.workload, self.trials())

    def resume(self) -> None:
        """Let a suspended, stopped or failed sweep go on, and those trials that failed or were stopped with it."""
        self._want(Intent.RUN)


def trials_in(cluster: ClusterClient, sweep: Workload[SweepSpec]) -> list[TrialRecord]:
    """The trials of a sweep by number."""
    prefix = child_name(sweep, "")
    children = {child.spec.name.removeprefix(prefix): child for child in cluster.children(sweep.uid)}
    return trials_of(sweep, Family(children=children))


def best_of(sweep: Workload[SweepSpec], trials: list[TrialRecord]) -> TrialRecord:
    """The best trial of those that succeeded.

    Raises:
        NotFound: There is none.
    """
    objective, name = sweep.spec.objective, sweep.spec.name
    if sweep.spec.objectives:
        raise NotFound(f"{name} has several objectives, so that many trials may be unbeaten: ask for its front.")
    if objective is None:
        raise NotFound(f"{name} has no objective, so that none of its runs is better than another.")
    ended = [each for each in ranked(trials, objective.goal) if each.state is TrialState.SUCCEEDED]
    if not ended:
        raise NotFound(f"No trial of {name} has succeeded yet.")
    return ended[0]


def front_of(sweep: Workload[SweepSpec], trials: list[TrialRecord]) -> list[TrialRecord]:
    """The trials that succeeded and that no other beats.

    Raises:
        NotFound: There is none, or it does not have several objectives.
    """
    name = sweep.spec.name
    if not sweep.spec.objectives:
        raise NotFound(f"{name} does not have several objectives; ask for its best trial.")
    found = front(trials)
    if not found:
        raise NotFound(f"No trial of {name} has succeeded yet.")
    return found
