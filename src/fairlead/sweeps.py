"""Sweeps from Python: ``fairlead.Sweep(parameters={...}, trial={...}).run().best()``."""

import time
from pathlib import Path
from typing import Any

from fairlead.api import submit
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.port import EventRecord
from fairlead.control.admission import admit
from fairlead.control.opening import open_named
from fairlead.errors import FairleadError, InvalidSpec, NotFound
from fairlead.policy.kinds.lifecycle import check_intent
from fairlead.policy.kinds.parents import child_name
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.sweep import trials_of
from fairlead.policy.search.trials import TrialRecord, TrialState, ranked
from fairlead.specs.sweep import Sweep as SweepSpec
from fairlead.state.snapshot import Intent, Status, Workload


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


class SweepHandle:
    """A submitted sweep. Belongs to one thread."""

    def __init__(self, cluster: ClusterClient, uid: str) -> None:
        self._cluster = cluster
        self.uid = uid

    def __repr__(self) -> str:
        try:
            sweep = self.workload
        except FairleadError as error:  # it was deleted
            return f"SweepHandle(uid={self.uid!r}: {error})"
        return f"SweepHandle(name={sweep.spec.name!r}, uid={self.uid!r}, phase={sweep.status.phase.value!r})"

    @property
    def workload(self) -> Workload[SweepSpec]:
        """All that is known of it now."""
        found: Workload[Any] = self._cluster.get(self.uid)
        return found

    @property
    def name(self) -> str:
        return self.workload.spec.name

    @property
    def status(self) -> Status:
        return self.workload.status

    def trials(self) -> list[TrialRecord]:
        """Its trials by number: values, state, the last value of the objective and the step that they came to."""
        return trials_in(self._cluster, self.workload)

    def best(self) -> TrialRecord:
        """The trial with the best value of those that succeeded.

        Raises:
            NotFound: None has yet, or the sweep has no objective.
        """
        return best_of(self.workload, self.trials())

    def wait(self, timeout: float | None = None) -> Status:
        """Wait for its end; the status then, or after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.status.phase.is_final and (end is None or time.monotonic() < end):
            self._cluster.nudge()
            self._cluster.wait(1.0 if end is None else max(0.0, min(1.0, end - time.monotonic())))
        return self.status

    def events(self) -> tuple[EventRecord, ...]:
        """What happened to it, oldest first; what happened to trials is told by theirs."""
        return self._cluster.events(self.uid)

    def stop(self) -> None:
        """Stop it and its trials, which save a checkpoint."""
        self._want(Intent.STOP)

    def resume(self) -> None:
        """Let a suspended, stopped or failed sweep go on, and those trials that failed or were stopped with it."""
        self._want(Intent.RUN)

    def delete(self) -> None:
        """Stop it and remove all that is kept of it and its trials."""
        self._want(Intent.DELETE)

    def _want(self, intent: Intent) -> None:
        check_intent(self.workload, intent)
        self._cluster.set_intent(self.uid, intent)
        self._cluster.nudge()


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
    if objective is None:
        raise NotFound(f"{name} has no objective, so that none of its runs is better than another.")
    ended = [each for each in ranked(trials, objective.goal) if each.state is TrialState.SUCCEEDED]
    if not ended:
        raise NotFound(f"No trial of {name} has succeeded yet.")
    return ended[0]
