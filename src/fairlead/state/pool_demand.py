"""The demand for the nodes of pools, and how many of them should exist before runs wait for them."""

from fairlead.frozen import dataclass
from fairlead.specs.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDemand:
    """A pool whose nodes should be ready ahead of demand.

    Attributes:
        nodes: Names of its existing nodes.
        needed: The maximum number of them needed in each past minute, oldest first.
        lead_s: The provisioning time of its nodes.
    """

    pool: Pool
    nodes: frozenset[str] = frozenset()
    needed: tuple[int, ...] = ()
    lead_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """The number of nodes that a pool should have, used and free together; ``why`` explains it in a sentence."""

    pool: str
    nodes: int
    why: str
