"""The split that a program finds in `run.parallel`."""

import json

import pytest

from fairlead.runtime.errors import Misuse
from fairlead.runtime.parallelism.split import ParallelSplit, read_split


def test_without_a_word_it_is_plain_data_parallelism() -> None:
    assert read_split(None, 4) == ParallelSplit(data=4, batch=4)


def test_a_split_is_read_and_what_is_left_open_filled_in() -> None:
    text = json.dumps({"choose": None, "tensor": 2, "shard": "parameters", "data": None, "micro_batch": 2})
    assert read_split(text, 8) == ParallelSplit(data=4, tensor=2, shard="parameters", micro_batch=2, batch=8)
    assert read_split(json.dumps({"data": 2, "batch": 16, "micro_batch": 2}), 2).micro_batches == 4


def test_a_split_of_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(Misuse, match="numbers whose product is 2"):
        read_split(json.dumps({"data": 8}), 2)


def test_one_that_nobody_has_chosen_is_refused() -> None:
    with pytest.raises(Misuse, match="submit it with `fairlead run`"):
        read_split(json.dumps({"choose": "auto"}), 2)
