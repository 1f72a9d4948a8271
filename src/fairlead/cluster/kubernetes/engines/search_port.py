"""The capability of an engine to propose the values of a sweep's trials, which stay runs of Fairlead. Pure.

A start of a sweep has one object. The engine makes an object of its own for each trial that it proposes, into which is
written how the trial's run ended.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from fairlead.cluster.kubernetes.engines.port import EngineKind, Object
from fairlead.frozen import dataclass
from fairlead.policy.search.trials import TrialRecord
from fairlead.specs.sweep import Sweep
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.state.engine_searches import EngineSearch
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Phase, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedTrial:
    """An engine's object for a trial.

    Attributes:
        is_created: Its controller has taken it in, and follows its status.
        is_completed: Its end is written.
        status: As it was read.
    """

    name: str
    created: str
    values: Mapping[str, str]
    is_created: bool
    is_completed: bool
    status: Mapping[str, Any]


class SearchDriver(EngineKind, Protocol):
    """The capability to propose trials."""

    @property
    def engine(self) -> SweepEngine:
        """Return its name in specs."""
        ...

    @property
    def trial(self) -> tuple[str, str]:
        """Return kind and plural of its objects for trials."""
        ...

    @property
    def suggestions(self) -> str:
        """Return the plural of the objects, named like its own, that say why none is proposed."""
        ...

    def name_of(self, sweep: Workload[Sweep]) -> str:
        """Return the name of the object of a sweep's start, of which a resumed sweep has another."""
        ...

    def render(self, sweep: Workload[Sweep], num_trials: int) -> Object:
        """Render the object of a start of a sweep, with the number of trials that are still to be proposed."""
        ...

    def read_trial(self, content: Mapping[str, Any]) -> ProposedTrial:
        """Read its object for a trial; any part may be missing."""
        ...

    def observe(self, content: Mapping[str, Any], trials: Iterable[ProposedTrial]) -> EngineSearch:
        """Read the status of its object and its trials."""
        ...

    def ended_trial(
        self, trial: ProposedTrial, record: TrialRecord | None, metric: str, now: float, *, is_searching: bool
    ) -> Object:
        """Return the status of a trial whose run is over.

        Args:
            record: The run's; None for a trial that got none and is to get none any more.
            is_searching: It still proposes values, and gives this end to its algorithm.
        """
        ...

    def ended(self, content: Mapping[str, Any], phase: Phase, reason: Reason, now: float) -> Object:
        """Return the status of its object when the sweep is over."""
        ...

    def failure_of(self, content: Mapping[str, Any], suggestion: Mapping[str, Any]) -> str:
        """Return why its object failed, as a clause."""
        ...

    def warning_of(self, events: Iterable[Mapping[str, Any]], since: str) -> str:
        """Return the newest warning of its object, as a clause; empty if there is none since that time."""
        ...
