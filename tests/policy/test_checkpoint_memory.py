"""The memory that checkpoints take which nodes hold in memory, as a run is told of it."""

from fairlead.policy.strategy.checkpoint_memory import memory_note, states_held
from fairlead.policy.strategy.transformer import Transformer
from fairlead.specs.resources import Resources
from fairlead.specs.training import Checkpoint
from tests.builders import GIB, training

SAVED = Checkpoint(every_s=600.0, memory_every_steps=5)
MODEL = Transformer(
    layers=2, hidden=1024, heads=8, key_value_heads=8, head=128, width=4096, vocabulary=1000, sequence=8
)


def test_several_nodes_hold_each_state_twice_and_while_one_is_made_two_of_them() -> None:
    assert (states_held(1), states_held(2), states_held(8)) == (3, 5, 5)


def test_it_is_told_in_bytes_where_the_model_is_known_and_that_it_counts_to_a_limit() -> None:
    told = "checkpoint.memory_every: at most 3 times the state that is saved is in memory beside the ranks"
    assert memory_note(training(checkpoint=SAVED), None) == told
    known = memory_note(training(checkpoint=SAVED), MODEL)
    assert known.startswith(f"{told}, 1.")
    assert known.endswith(" GiB in all with Adam's moments in fp32")
    limited = training(checkpoint=SAVED, resources=Resources(memory_bytes=64 * GIB))
    assert memory_note(limited, MODEL) == f"{known}; each node's part counts towards `resources.memory` of 64 GiB"
