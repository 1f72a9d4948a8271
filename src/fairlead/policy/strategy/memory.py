"""Estimates the peak memory of a GPU, by part and by pipeline stage.

    peak of a stage = states + buffers + activations in flight + what the largest single moment adds

The supported stack is ``torch_memory`` (plain PyTorch with FSDP2); benchmarks also model Megatron-LM's. Each term gives
its source where it is computed.
"""

from fairlead.frozen import dataclass

GIB = 1024**3

# The allocator's reserve relative to tensors: the maximum over 32 measured rows (8 B200, Llama-3 and DeepSeek,
# SimuMax's b200_release_v1.2: 1.03 to 1.07).
RESERVED_OVER_ALLOCATED = 1.07
# The CUDA context, NCCL's buffers and cuBLAS handles outside the allocator.
OUTSIDE_ALLOCATOR = 1.5 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of one GPU of a pipeline stage at its peak.

    Attributes:
        parameters: Weights in the precision of computing.
        gradients: Gradients kept between micro-batches.
        optimizer: Master copy and moments.
        activations: Activations kept for backward, of all micro-batches in flight.
        logits: The part of the peak moment that grows with the vocabulary.
        temporaries: The rest of the peak moment.
        buffers: Workspaces, and buffers of communication and of parameters for computing.
        pools: Memory in separate pools of the communicating streams, which no tensor uses at the peak.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    temporaries: float
    buffers: float
    pools: float = 0.0

    @property
    def allocated(self) -> float:
        """Return the sum of all tensors at the peak."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.activations
            + self.logits
            + self.temporaries
            + self.buffers
        )

    @property
    def reserved(self) -> float:
        """Return the bytes that the allocator reserves on the GPU."""
        return (self.allocated + self.pools) * RESERVED_OVER_ALLOCATED

    @property
    def needed(self) -> float:
        """Return the memory the GPU needs: the allocator's reserve, and memory outside it."""
        return self.reserved + OUTSIDE_ALLOCATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """A moment that may be the peak, with its memory on top of all that is kept."""

    temporaries: float
    logits: float = 0.0

    @property
    def total(self) -> float:
        """Return the sum of both."""
        return self.temporaries + self.logits


def worst(stages: tuple[StageMemory, ...]) -> StageMemory:
    """Return the stage with the highest need."""
    return max(stages, key=lambda stage: stage.reserved)
