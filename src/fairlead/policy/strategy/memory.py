"""Peak memory of a GPU, by part and by pipeline stage.

    peak of a stage = states + buffers + activations in flight + what the largest single moment takes on top of them

The stack that runs is ``torch_memory`` (plain PyTorch with FSDP2); benchmarks also know Megatron-LM's. Each term names
its source where it is made.
"""

from fairlead.frozen import dataclass

GIB = 1024**3

# The allocator's reserve over what tensors take: the most that 32 measured rows have (8 B200, Llama-3 and DeepSeek,
# SimuMax's b200_release_v1.2: 1.03 to 1.07).
RESERVED_OVER_ALLOCATED = 1.07
# The CUDA context, NCCL's buffers and cuBLAS handles outside the allocator.
OUTSIDE_ALLOCATOR = 1.5 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of one GPU of a pipeline stage at its peak.

    Attributes:
        parameters: Weights as computed with.
        gradients: Gradients that are kept between micro-batches.
        optimizer: Master copy and moments.
        activations: What forward keeps for backward, of all micro-batches in flight.
        logits: The part of the peak moment that grows with the vocabulary.
        temporaries: The rest of the peak moment.
        buffers: Workspaces, and buffers of communication and of parameters as they are computed with.
        pools: What the streams that communicate have in pools of their own, which no tensor takes at the peak.
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
        """All tensors at the peak."""
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
        """Bytes that the allocator has of the GPU."""
        return (self.allocated + self.pools) * RESERVED_OVER_ALLOCATED

    @property
    def needed(self) -> float:
        """Return what the GPU must have: the allocator's reserve, and what lies outside it."""
        return self.reserved + OUTSIDE_ALLOCATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment that may be the peak: what it takes on top of all that is kept."""

    temporaries: float
    logits: float = 0.0

    @property
    def total(self) -> float:
        """Both together."""
        return self.temporaries + self.logits


def worst(stages: tuple[StageMemory, ...]) -> StageMemory:
    """The stage that takes the most."""
    return max(stages, key=lambda stage: stage.reserved)
