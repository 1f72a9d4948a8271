"""The state of an endpoint as reported by the engine that serves it."""

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEndpoint:
    """An endpoint's object at an engine, or its absence.

    Attributes:
        kind: The display name of the object's kind.
        is_there: Whether the object exists, or may exist because it was not read yet.
        applied_revision: The name of the revision that was last applied; empty if there is none.
        ready: Whether the engine reports what was last applied as ready.
        url: The address for requests; None while unknown.
        replicas: The number of serving pods.
        message: Why it is not ready or was rejected, as a clause without full stop; empty if unknown.
    """

    kind: str
    is_there: bool = False
    applied_revision: str = ""
    ready: bool = False
    url: str | None = None
    replicas: int = 0
    message: str = ""
