"""The price of a node and the pool that it belongs to, from its labels, the Pool objects and the catalogue. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from fairlead.frozen import dataclass
from fairlead.ledger.catalogue import CatalogueEntry, bundled, read_catalogue
from fairlead.policy.placement.node_eligibility import price_label
from fairlead.specs.pool import CapacityType, Pool
from fairlead.text.money import MICROUSD

POOL_LABEL = "fairlead.dev/pool"
# The labels by which clouds and autoscalers name a node's group.
GROUP_LABELS = (
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
)
INSTANCE_TYPE, REGION = "node.kubernetes.io/instance-type", "topology.kubernetes.io/region"
SPOT_LABELS = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePrice:
    """The price of an hour of a node.

    Attributes:
        rate: Micro-dollars an hour; None if unknown.
        source: The source of the price, in a few words.
    """

    rate: int | None
    pool: str
    source: str


def price_of(labels: Mapping[str, str], pools: Iterable[Pool], catalogue: Sequence[CatalogueEntry]) -> NodePrice:
    """Return the price of a node: from its own label, its Pool, or its instance type in the catalogue."""
    pool = _pool_of(labels, pools)
    name = pool.name if pool is not None else _group(labels)
    own = price_label(labels)
    if own is not None:
        return NodePrice(rate=round(own * MICROUSD), pool=name, source="label of the node")
    if pool is not None and pool.price_per_hour is not None:
        return NodePrice(rate=round(pool.price_per_hour * MICROUSD), pool=name, source=f"Pool {pool.name}")
    price = _listed(labels, catalogue)
    if price is not None:
        return NodePrice(rate=price[0], pool=name, source=price[1])
    return NodePrice(rate=None, pool=name, source="no label, Pool or row of the catalogue says it")


def is_spot(labels: Mapping[str, str]) -> bool:
    """Return whether labels mark a node as interruptible at short notice."""
    return any(labels.get(name) == value for name, value in SPOT_LABELS.items())


@lru_cache(maxsize=1)
def catalogue() -> tuple[CatalogueEntry, ...]:
    """Return the table that is part of Fairlead."""
    return read_catalogue(bundled())


def _pool_of(labels: Mapping[str, str], pools: Iterable[Pool]) -> Pool | None:
    """Return the Pool that a node's label names, or the one with the most labels, all of which the node has."""
    named = labels.get(POOL_LABEL)
    ordered = sorted(pools, key=lambda pool: (-len(pool.labels), pool.name))
    if named is not None:
        return next((pool for pool in ordered if pool.name == named), None)
    return next((pool for pool in ordered if pool.labels and _has(labels, pool)), None)


def _has(labels: Mapping[str, str], pool: Pool) -> bool:
    spot = pool.capacity_type is CapacityType.SPOT
    return spot is is_spot(labels) and all(labels.get(name) == value for name, value in pool.labels.items())


def _group(labels: Mapping[str, str]) -> str:
    return next((labels[name] for name in (POOL_LABEL, *GROUP_LABELS) if name in labels), "")


def _listed(labels: Mapping[str, str], rows: Sequence[CatalogueEntry]) -> tuple[int, str] | None:
    """Return the price of an instance type in its region; the cheapest if the region is not listed or has several."""
    type_, region, spot = labels.get(INSTANCE_TYPE), labels.get(REGION), is_spot(labels)
    if type_ is None:
        return None
    same = [
        (rate, row) for row in rows if row.type == type_ and (rate := row.spot_price if spot else row.price) is not None
    ]
    near = [offer for offer in same if offer[1].region == region] or same
    if not near:
        return None
    rate, best = min(near, key=lambda offer: (offer[0], offer[1].region, offer[1].zone))
    return rate, f"{type_}, {'spot' if spot else 'on demand'}, {best.region or 'any region'}, list price"
