"""Chooses the node whose memory holds a copy of each node's part of a checkpoint. Pure.

The placement is the mixed one of Wang et al., "GEMINI: Fast Failure Recovery in Distributed Training with In-Memory
Checkpoints", SOSP 2023 (section 4), for two copies: nodes back each other up in pairs, and if their number is odd, the
last three do so in a ring. This minimizes the pairs of nodes whose simultaneous loss loses a part.
"""


def neighbour(node: int, num_nodes: int) -> int | None:
    """Return the node that holds a copy of this node's part; None if there is no other node."""
    if num_nodes < 2:
        return None
    ring = num_nodes - 3 if num_nodes % 2 else num_nodes
    return ring + (node - ring + 1) % 3 if node >= ring else node ^ 1
