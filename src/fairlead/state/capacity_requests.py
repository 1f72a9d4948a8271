"""Sources of more nodes for a cluster, and the state of requests to them. Times are Unix seconds."""

from dataclasses import field

from fairlead.frozen import dataclass

PATIENCE_S = 600.0  # clouds take 3 to 8 minutes for a GPU node, most of it for its drivers
PAUSE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A total amount; None means unbounded."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source of nodes of one kind.

    Attributes:
        name: The display name, such as ``NodePool gpu``.
        models: The GPU models that it declares; empty if it declares none.
        price_per_hour: Dollars per hour for one of its nodes; None if not declared.
        most: The limit of all its nodes together.
        left: The part of that limit that is not used yet.
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
        look: A command that shows its state.
        patience_s: Without a node for this long, the request is given up.
        pause_s: The time before the next request after that.
        by_request: Whether it is asked by one ProvisioningRequest for each gang, for all of its nodes or none, and not
            by placeholder pods.
    """

    by: str
    look: str
    sources: tuple[Source, ...]
    by_request: bool = False
    patience_s: float = PATIENCE_S
    pause_s: float = PAUSE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """The state of a request for a run's nodes.

    Attributes:
        bound_at: When one of its placeholders was last scheduled, or its ProvisioningRequest fulfilled; None before.
        refused: Why placeholders cannot be created; None if they can.
        obstacle: Why the autoscaler brings no node; None while it reports no obstacle.
    """

    workload_uid: str
    bound_at: float | None = None
    refused: str | None = None
    obstacle: str | None = None
