"""Sources of more nodes for a cluster, and what has become of requests to them. Times are Unix seconds."""

from dataclasses import field

from fairlead.frozen import dataclass

PATIENCE_S = 600.0  # clouds take 3 to 8 minutes for a GPU node, most of it for its drivers
PAUSE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """So much in all; None where there is no bound."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source of nodes of one kind.

    Attributes:
        name: As people know it, such as ``NodePool gpu``.
        models: The GPU models that it says it brings; empty when it does not say.
        price_per_hour: Dollars for one of its nodes; None when it does not say.
        most: What its nodes may be together.
        left: What of that is not there yet.
    """

    name: str
    models: tuple[str, ...] = ()
    price_per_hour: float | None = None
    most: Amount = field(default_factory=Amount)
    left: Amount = field(default_factory=Amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A cluster's autoscaler.

    Attributes:
        by: Its name.
        look: A command that shows what it makes of things.
        patience_s: Without a node for so long, it is taken not to bring any.
        pause_s: After that nothing is asked for so long.
    """

    by: str
    look: str
    sources: tuple[Source, ...]
    patience_s: float = PATIENCE_S
    pause_s: float = PAUSE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """The state of a request for a run's nodes.

    Attributes:
        bound_at: When a placeholder of it last found a place; None before.
        refused: Why there can be no placeholders; None when there can.
        said: Why the autoscaler brings no node for one that has no place; None while it does not say that it cannot.
    """

    workload_uid: str
    bound_at: float | None = None
    refused: str | None = None
    said: str | None = None
