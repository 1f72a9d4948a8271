"""The demand for the nodes of pools, and how many of them are to be there before somebody waits."""

from fairlead.frozen import dataclass
from fairlead.specs.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDemand:
    """A pool for which nodes are to be ready ahead of time.

    Attributes:
        nodes: Names of its nodes that are here.
        needed: The most of them that were needed in each past minute, oldest first.
        lead_s: How long its nodes take to come.
    """

    pool: Pool
    nodes: frozenset[str] = frozenset()
    needed: tuple[int, ...] = ()
    lead_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """So many nodes a pool is to have, in use and free together; ``why`` says it in a sentence."""

    pool: str
    nodes: int
    why: str
