"""Estimates the main memory taken by a run's checkpoints in the memory of its nodes."""

from fairlead.policy.strategy.transformer import Transformer
from fairlead.specs.training import Training
from fairlead.text.quantities import describe_memory

STATE_BYTES = 12
"""A parameter with the two moments of Adam, in fp32, as saved."""


def states_held(nodes: int) -> int:
    """Return how many copies of the saved state are in memory at most, over all nodes, besides that of the ranks.

    While a checkpoint is made, it and the previous one exist, each on its node and, with several nodes, also on a
    neighbour; in addition, the ranks make a copy so that training continues meanwhile.
    """
    copies = 2 if nodes > 1 else 1
    return 2 * copies + 1


def memory_note(spec: Training, model: Transformer | None) -> str:
    """Return the plan's note on the memory taken by a run's checkpoints."""
    times = states_held(spec.most_nodes or spec.nodes)
    note = f"checkpoint.memory_every: at most {times} times the state that is saved is in memory beside the ranks"
    limit = spec.resources.memory_bytes
    counts = (
        "" if limit is None else f"; each node's part counts towards `resources.memory` of {describe_memory(limit)}"
    )
    if model is None:
        return f"{note}{counts}"
    size = describe_memory(times * STATE_BYTES * model.parameters)
    return f"{note}, {size} in all with Adam's moments in fp32{counts}"
