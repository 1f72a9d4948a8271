"""Defines where a model can be divided, for models whose layer names ``run.parallelize`` does not know."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """The places at which a model is divided. Omitted ones are found by the model's structure.

    Attributes:
        blocks: Path of the ``ModuleList`` or ``Sequential`` of its blocks, such as ``model.layers``. The longest list
        of modules of one class if omitted.
        before: Paths of modules that forward calls before the blocks although they are registered after them.
        after: Paths of modules that forward calls after the blocks although they are registered before them.
        columns: Linear layers of a block that are divided by their outputs, as paths within the block.
        rows: Linear layers of a block that are divided by their inputs, which are the outputs of ``columns``.
        fused: Those of ``columns`` whose outputs are queries, keys and values, one third each.
        divided: Integer attributes of a block that become a rank's share, as paths within the block, such as
        ``attention.heads``.
    """

    blocks: str | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    divided: tuple[str, ...] = ()
