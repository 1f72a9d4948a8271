"""Describes how one training step is divided among GPUs."""

from enum import StrEnum

from fairlead.frozen import dataclass


class Recompute(StrEnum):
    """The activations that backward recomputes instead of keeping them."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class PipelineSchedule(StrEnum):
    """The order of micro-batches in a pipeline.

    ``ONE_F_ONE_B`` is PipeDream-Flush, ``INTERLEAVED`` gives each stage several parts (arXiv 2104.04473, sec. 2.2).
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The division of a step. The number of GPUs is ``data * tensor * pipeline * context``.

    Attributes:
        data: Replicas, each with its own samples.
        zero: ZeRO stage over ``data`` and ``context`` (arXiv 1910.02054, sec. 3): 0 whole copies, 1 sharded optimizer
            states, 2 gradients too, 3 parameters too (FSDP).
        tensor: Parts of each layer, with sequence parallelism between them.
        pipeline: Pipeline stages.
        context: Parts of each sequence.
        expert: GPUs of ``data`` among which experts are distributed.
        virtual: Parts of the model on each stage; more than 1 only with the interleaved schedule.
        micro_batch: Samples processed at once.
        micro_batches: Micro-batches per step.
    """

    data: int = 1
    zero: int = 0
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    virtual: int = 1
    micro_batch: int = 1
    micro_batches: int = 1
    recompute: Recompute = Recompute.NONE

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return self.data * self.tensor * self.pipeline * self.context

    def in_flight(self, stage: int) -> float:
        """Return the micro-batches with activations on a stage, in whole stages (arXiv 2104.04473, sec. 2.2)."""
        if self.schedule is PipelineSchedule.GPIPE:
            return self.micro_batches
        if self.virtual == 1:
            return min(self.pipeline - stage, self.micro_batches)
        warm_up = 2 * (self.pipeline - stage - 1) + (self.virtual - 1) * self.pipeline + 1
        return min(warm_up, self.micro_batches * self.virtual) / self.virtual

    def layers_of(self, stage: int, layers: int) -> list[int]:
        """Return the layers of a stage, counted from 0; with a remainder the first parts have one more."""
        parts = self.pipeline * self.virtual
        size, more = divmod(layers, parts)
        indices: list[int] = []
        for turn in range(self.virtual):
            part = turn * self.pipeline + stage
            first = part * size + min(part, more)
            indices += range(first, first + size + (part < more))
        return indices
