"""Decides which nodes their runs leave because a detector reports a fault, and shows what is known of nodes as nodes.

Runs leave a node with their checkpoints, as one that is about to be removed. No more than ``MOST_SHARE`` of the nodes
of the same hardware are away at once for any reason, though one of several always may be: more faults at once mean that
something else is wrong, such as a detector. The others stay in use, and what they report is shown.

See decision 249.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace

from fairlead.policy.health.node_withdrawal import MOST_SHARE, hardware_of, is_away
from fairlead.state.node_health import Histories, NodeFault
from fairlead.state.snapshot import Leaving, Node

FAULTY = "faulty: "
TAKEN_OUT = "taken out: "

Faults = Mapping[str, tuple[NodeFault, ...]]
"""The faults of nodes by name, of each the oldest first; nodes without any are missing."""


def with_health(nodes: tuple[Node, ...], histories: Histories, faults: Faults) -> tuple[Node, ...]:
    """Return the nodes as placement sees them: closed if they were taken out, and leaving if they are faulty."""
    closed = with_outages(nodes, histories)
    return with_faults(closed, faults, leaving_by_fault(closed, faults))


def with_outages(nodes: tuple[Node, ...], histories: Histories) -> tuple[Node, ...]:
    """Return the nodes, those closed that were taken out."""
    out = {name: history.out for name, history in histories.items() if history.out is not None}
    if not out:
        return nodes
    return tuple(
        replace(node, closed=f"{TAKEN_OUT}{outage.why}", full=False)
        if (outage := out.get(node.name)) is not None and (node.closed is None or node.full)
        else node
        for node in nodes
    )


def with_faults(nodes: tuple[Node, ...], faults: Faults, going: Collection[str]) -> tuple[Node, ...]:
    """Return the nodes, those leaving that runs have to leave.

    Args:
        going: The result of ``leaving_by_fault``.
    """
    if not going:
        return nodes
    return tuple(_leaving(node, faults[node.name][0]) if node.name in going else node for node in nodes)


def _leaving(node: Node, fault: NodeFault) -> Node:
    why = describe(fault)
    closed = f"{FAULTY}{why}" if node.closed is None or node.full else node.closed
    return replace(node, leaving=node.leaving or Leaving(why=why), closed=closed, full=False)


def leaving_by_fault(nodes: Sequence[Node], faults: Faults) -> frozenset[str]:
    """Return the names of the faulty nodes that runs leave: first those that are away anyway, then by age."""
    faulty = [node for node in nodes if faults.get(node.name)]
    if not faulty:
        return frozenset()
    total, away = dict[Hashable, int](), dict[Hashable, int]()
    for node in nodes:
        kind = hardware_of(node)
        total[kind] = total.get(kind, 0) + 1
        away[kind] = away.get(kind, 0) + (is_away(node) and not faults.get(node.name))
    room = {kind: max(int(MOST_SHARE * num), 1 if num > 1 else 0) - away[kind] for kind, num in total.items()}
    going = set[str]()
    for node in sorted(faulty, key=lambda node: (not is_away(node), faults[node.name][0].since or 0.0, node.name)):
        kind = hardware_of(node)
        if room[kind] >= 1:
            room[kind] -= 1
            going.add(node.name)
    return frozenset(going)


def describe(fault: NodeFault) -> str:
    """Return a fault as a clause."""
    message = f": {fault.message}" if fault.message else ""
    return f"{fault.name} of {fault.detector}{message}"
