"""Estimates how much main memory a run's checkpoints take that its nodes hold in memory."""

from fairlead.policy.strategy.transformer import Transformer
from fairlead.specs.training import Training
from fairlead.text.quantities import describe_memory

STATE_BYTES = 12
"""A parameter with the two moments of Adam, in fp32, as they are saved."""


def states_held(nodes: int) -> int:
    """Return how many times the state that is saved is in memory at most, over all nodes and beside the ranks' own.

    While a checkpoint is made there are that one and the one before, each on its node and, of several nodes, on a
    neighbour too; and the copy that the ranks make so that the training goes on meanwhile.
    """
    copies = 2 if nodes > 1 else 1
    return 2 * copies + 1


def memory_note(spec: Training, model: Transformer | None) -> str:
    """Return what a run is told of the memory that its checkpoints take."""
    times = states_held(spec.most_nodes or spec.nodes)
    told = f"checkpoint.memory_every: at most {times} times the state that is saved is in memory beside the ranks"
    limit = spec.resources.memory_bytes
    counts = (
        "" if limit is None else f"; each node's part counts towards `resources.memory` of {describe_memory(limit)}"
    )
    if model is None:
        return f"{told}{counts}"
    size = describe_memory(times * STATE_BYTES * model.parameters)
    return f"{told}, {size} in all with Adam's moments in fp32{counts}"
