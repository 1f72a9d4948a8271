"""An endpoint as the engine that serves it tells it."""

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEndpoint:
    """An endpoint's object at an engine, or that there is none.

    Attributes:
        kind: Of the object, as people call it.
        is_there: It exists, or may, where nobody has looked yet.
        given: The name of the revision that it was given last; empty where it has none.
        ready: The engine says so, of what it was given last.
        url: Where it is asked; None while that is not known.
        replicas: Pods that serve.
        message: Why it is not ready, or was not taken, as a clause without its full stop; empty where nobody says.
    """

    kind: str
    is_there: bool = False
    given: str = ""
    ready: bool = False
    url: str | None = None
    replicas: int = 0
    message: str = ""
