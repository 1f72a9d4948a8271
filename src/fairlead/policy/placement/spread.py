"""Chooses another node for a replica of an endpoint, so that fewer of its replicas end with one node or zone.

Packing comes first. Another node than the one that packing prefers is taken only if it costs nothing: no node is held
that was empty unless packing would hold one too, as many devices of the node are idle before and after, and the score
differs by no more than the fixed order of the nodes weighs, by which packing chooses among equals. So no more nodes are
ever held, and no fewer places for pods with several devices are left, than without.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fairlead.policy.placement.fleet_arrays import FleetArrays
from fairlead.policy.placement.node_arrays import Ints, Mask
from fairlead.policy.placement.node_ranking import Scores
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.placement.topology import zone_of


def spread(
    shape: Shape, packed: int, peers: Sequence[str], fleet: FleetArrays, scores: Scores, tolerance: float
) -> int:
    """Return the node for one pod: of those that cost as little as ``packed``, the one with the fewest peers.

    Among those it is the one in whose zone the fewest peers are, and then the one that packing prefers.

    Args:
        packed: The node that packing prefers.
        peers: The nodes of the replicas of the same endpoint, one for each.
        scores: The score of each node; minus infinity without room (N).
        tolerance: The difference between scores that counts for nothing.
    """
    if not peers:
        return packed
    equals = np.flatnonzero(_are_equal(shape, packed, fleet, scores, tolerance))
    on_node, nodes = Counter(peers), fleet.nodes
    in_zone = Counter(zone_of(nodes[fleet.index[name]]) for name in peers if name in fleet.index)
    return min(
        map(int, equals),
        key=lambda node: (on_node[nodes[node].name], in_zone[zone_of(nodes[node])], -scores[node], node),
    )


def _are_equal(shape: Shape, packed: int, fleet: FleetArrays, scores: Scores, tolerance: float) -> Mask:
    """Return the nodes that cost no more than the one that packing prefers (N)."""
    has_gpus = fleet.frame.has_gpus
    equal: Mask = np.asarray((scores >= scores[packed] - tolerance) & (has_gpus == has_gpus[packed]))
    empty, idle = _are_empty(fleet), _num_idle(fleet)
    if not empty[packed]:
        equal &= ~empty
    equal &= idle == idle[packed]
    if shape.is_share:
        # A share on a device in use leaves the idle ones whole.
        used = (fleet.gpu_milli < WHOLE_GPU) & fleet.usable(np.arange(len(fleet)), shape)
        divided: Mask = np.asarray(used.any(axis=1))
        equal &= divided == divided[packed]
    return equal


def _are_empty(fleet: FleetArrays) -> Mask:
    """Return the nodes on which nothing is held (N)."""
    frame = fleet.frame
    whole: Mask = (fleet.gpu_milli == frame.capacity_milli).all(axis=1)
    return np.asarray(whole & (fleet.cpu_milli == frame.cpu_milli) & (fleet.memory_bytes == frame.memory_bytes))


def _num_idle(fleet: FleetArrays) -> Ints:
    """Return how many devices of each node are entirely free (N)."""
    return np.asarray((fleet.gpu_milli == WHOLE_GPU).sum(axis=1))
