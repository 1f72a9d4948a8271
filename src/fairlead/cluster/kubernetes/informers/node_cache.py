"""Keeps nodes with the GPUs that ResourceSlices offer there, and the claims to them."""

from collections.abc import Callable, Iterable
from typing import Any

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.objects import NodeObject, read_node
from fairlead.cluster.kubernetes.api.resource_slices import (
    CLAIMS,
    SLICES,
    ClaimObject,
    Device,
    SliceObject,
    offered_gpus,
    read_claim,
    read_slice,
    with_slices,
)
from fairlead.cluster.kubernetes.api.watching import IDLE_S, ObjectCache

NODES = "/api/v1/nodes"


class SlicedNodes:
    """The slices of each node and the claims to their devices.

    The objects of a place are replaced and never changed, since other threads read them.

    Args:
        changed: Called with the names of nodes whose offer or whose claims changed.
    """

    def __init__(self, client: Client, changed: Callable[[Iterable[str]], None], *, idle_s: float = IDLE_S) -> None:
        self._changed = changed
        self.caches: tuple[ObjectCache[SliceObject], ObjectCache[ClaimObject]] = (
            ObjectCache(client, SLICES, read_slice, self._slice_changed, idle_s=idle_s),
            ObjectCache(client, CLAIMS, read_claim, self._claim_changed, idle_s=idle_s),
        )
        self._slices: dict[str, dict[str, SliceObject]] = {}
        self._pools: dict[str, dict[str, SliceObject]] = {}
        self._claims: dict[str, dict[str, ClaimObject]] = {}

    @property
    def has_any(self) -> bool:
        """Return whether any node has slices."""
        return bool(self._slices)

    def slices_of(self, node: str) -> tuple[SliceObject, ...]:
        """Return the slices of a node."""
        return tuple(self._slices.get(node, {}).values())

    def claims_on(self, node: str) -> list[tuple[ClaimObject, list[Device]]]:
        """Return the claims to whole GPUs of a node, each with its GPUs."""
        slices = self.slices_of(node)
        if not slices:
            return []
        offered = offered_gpus(slices)
        pools = {slice_object.pool for slice_object in slices}
        claims = {key: claim for pool in pools for key, claim in self._claims.get(pool, {}).items()}
        claimed = ((claim, [device for device in claim.devices if device in offered]) for claim in claims.values())
        return [(claim, devices) for claim, devices in claimed if devices]

    def _slice_changed(self, before: SliceObject | None, after: SliceObject | None) -> None:
        self._note(self._slices, before, after, lambda slice_object: {slice_object.node})
        self._note(self._pools, before, after, lambda slice_object: {slice_object.pool})
        self._changed({slice_object.node for slice_object in (before, after) if slice_object is not None})

    def _claim_changed(self, before: ClaimObject | None, after: ClaimObject | None) -> None:
        if before is not None and after is not None and before.devices == after.devices:
            return
        self._note(self._claims, before, after, lambda claim: {pool for pool, _ in claim.devices})
        pools = {pool for claim in (before, after) if claim is not None for pool, _ in claim.devices}
        self._changed({slice_object.node for pool in pools for slice_object in self._pools.get(pool, {}).values()})

    @staticmethod
    def _note(by_place: dict[str, dict[str, Any]], before: Any, after: Any, places: Callable[[Any], set[str]]) -> None:
        """Move an object from its previous places to its new ones."""
        current, gone = places(after) if after is not None else set(), places(before) if before is not None else set()
        for place in current | gone:
            own = {key: entry for key, entry in by_place.get(place, {}).items() if before is None or key != before.key}
            if place in current:
                own[after.key] = after
            if own:
                by_place[place] = own
            else:
                by_place.pop(place, None)


class NodeCache(ObjectCache[NodeObject]):
    """Nodes, each with the GPUs that slices offer there.

    A node stays the same object while it and its slices are unchanged.
    """

    def __init__(
        self,
        client: Client,
        sliced: SlicedNodes,
        changed: Callable[[NodeObject | None, NodeObject | None], None],
        *,
        idle_s: float = IDLE_S,
    ) -> None:
        super().__init__(client, NODES, read_node, changed, idle_s=idle_s)
        self.sliced = sliced
        self._merged: dict[str, tuple[NodeObject, tuple[SliceObject, ...], NodeObject]] = {}

    def get(self, key: str) -> NodeObject | None:
        """Return one node as it was last seen."""
        node = super().get(key)
        return None if node is None else self._with_slices(node)

    def all(self) -> tuple[NodeObject, ...]:
        """Return all nodes as they were last seen."""
        nodes = super().all()
        return tuple(map(self._with_slices, nodes)) if self.sliced.has_any else nodes

    def _with_slices(self, node: NodeObject) -> NodeObject:
        slices = self.sliced.slices_of(node.key)
        if not slices:
            self._merged.pop(node.key, None)
            return node
        known = self._merged.get(node.key)
        if known is None or known[0] is not node or known[1] != slices:
            known = self._merged[node.key] = node, slices, with_slices(node, slices)
        return known[2]
