"""Defines how a training step is split over the ranks of a run, by its spec or by `parallel: auto`."""

import json
from dataclasses import dataclass

from fairlead.runtime.errors import Misuse


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSplit:
    """The split of a step; ``data * tensor * pipeline`` is the number of ranks.

    Attributes:
        data: Number of replicas, each with its own samples.
        shard: The state that replicas shard: ``none`` (DDP), ``gradients`` (ZeRO 2) or ``parameters`` (ZeRO 3, FSDP).
        tensor: Number of parts of each layer.
        pipeline: Number of stages.
        micro_batch: Samples of one forward and backward pass on each replica.
        recompute: Activations that backward recomputes: ``none``, ``selective`` or ``full``.
        batch: Samples of a step over all ranks.
    """

    data: int
    shard: str = "none"
    tensor: int = 1
    pipeline: int = 1
    micro_batch: int = 1
    recompute: str = "none"
    batch: int

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step on each replica, over which gradients are accumulated."""
        return self.batch // (self.data * self.micro_batch)

    @property
    def samples(self) -> int:
        """Samples of a step on each replica."""
        return self.micro_batches * self.micro_batch

    def replica_of(self, rank: int) -> int:
        """Return the index of a rank's replica, from 0; all ranks of a replica need the same samples."""
        return rank // self.tensor % self.data


def read_split(text: str | None, world_size: int) -> ParallelSplit:
    """Return the split from the environment's JSON; plain data parallelism over all ranks if it is None.

    Raises:
        Misuse: The split has another number of ranks, or has not been chosen yet.
    """
    if text is None:
        return ParallelSplit(data=world_size, batch=world_size)
    document = json.loads(text)
    if document.pop("choose", None) is not None:
        raise Misuse(
            "`parallel: auto` has not been chosen for this run; submit it with `fairlead run`, which does, or give "
            "`parallel` the numbers"
        )
    parts = {name: value for name, value in document.items() if value is not None}
    tensor, pipeline, micro = parts.get("tensor", 1), parts.get("pipeline", 1), parts.get("micro_batch", 1)
    data = parts.setdefault("data", max(1, world_size // (tensor * pipeline)))
    parts.setdefault("batch", data * micro)
    split = ParallelSplit(**parts)
    if split.data * split.tensor * split.pipeline != world_size:
        raise Misuse(
            f"the split has data {split.data} x tensor {split.tensor} x pipeline {split.pipeline} ranks, but "
            f"{world_size} run; give `parallel` numbers whose product is {world_size}"
        )
    return split
