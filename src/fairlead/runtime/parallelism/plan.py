"""Says where a model can be divided, for models whose names ``run.parallelize`` does not know."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """The places where a model is divided. What is left out is found by the model's shape.

    Attributes:
        blocks: Path of the ``ModuleList`` or ``Sequential`` of its blocks, such as ``model.layers``. The longest list
            of modules of one class when left out.
        before: Modules that forward goes through before the blocks though they are registered after them, by path.
        after: Modules that it goes through after the blocks though they are registered before them, by path.
        columns: Linear layers of a block that are divided by their outputs, by path within the block.
        rows: Linear layers of a block that are divided by their inputs, which those of ``columns`` give them.
        fused: Those of ``columns`` whose outputs are queries, keys and values, one third each.
        divided: Numbers of a block that count what a rank has, by path within the block, such as ``attention.heads``.
    """

    blocks: str | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    divided: tuple[str, ...] = ()
