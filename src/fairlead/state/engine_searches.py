"""The search of a sweep as reported by the engine that proposes the values of its trials."""

from collections.abc import Mapping

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Values that an engine proposes for a trial.

    Attributes:
        name: The name that the engine gave it.
        values: The values of the parameters as text.
    """

    name: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSearch:
    """A sweep's object at an engine, or its absence.

    Attributes:
        proposals: Those of which the engine was not told an end yet, oldest first.
        is_over: The engine proposes no more.
        has_failed: It does so because it failed.
        message: Why it proposes nothing, or was rejected, as a clause without full stop; empty if unknown.
    """

    proposals: tuple[Proposal, ...] = ()
    is_over: bool = False
    has_failed: bool = False
    message: str = ""
