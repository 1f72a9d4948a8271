"""Selects runs by phases and labels instead of names; all conditions must hold."""

from fairlead.frozen import dataclass
from fairlead.state.snapshot import AnyWorkload, Phase

UNFINISHED = frozenset(phase for phase in Phase if not phase.is_final)
FINISHED = frozenset(phase for phase in Phase if phase.is_final)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSelection:
    """A selection of runs.

    Attributes:
        phases: Any of these; all phases when empty.
        labels: Name and value, or None for a label of any value; all must match.
    """

    phases: frozenset[Phase] = frozenset()
    labels: tuple[tuple[str, str | None], ...] = ()

    def matches(self, run: AnyWorkload) -> bool:
        """Return whether a run matches."""
        if self.phases and run.status.phase not in self.phases:
            return False
        own = run.spec.labels
        return all(name in own and value in (None, own[name]) for name, value in self.labels)

    @property
    def label_selector(self) -> str:
        """Return the labels as a label selector of an API server; empty for any."""
        return ",".join(name if value is None else f"{name}={value}" for name, value in self.labels)

    def __str__(self) -> str:
        phases = "" if not self.phases else f"phase {' or '.join(phase for phase in Phase if phase in self.phases)}"
        labels = self.label_selector and f"label {self.label_selector.replace(',', ' and ')}"
        return " and ".join(part for part in (phases, labels) if part)
