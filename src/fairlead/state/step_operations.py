"""Operations of the steps of a distributed training: who computed or communicated when, and for how long."""

from typing import TYPE_CHECKING

from fairlead.frozen import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOperations:
    """Operations of all workers, in columns of one length.

    Attributes:
        data_rank, stage: The worker.
        step: The number of the step.
        kind: Index into ``kinds``.
        start_s: Seconds since the start of the step.
        duration_s: Seconds, with waits for others.
        number: The number among the worker's operations of this kind in the step, from 0.
        chunk: The model chunk among those of all stages, from 0; -1 for communication.
        kinds: Names of the kinds of operations.
    """

    data_rank: "NDArray[np.int64]"
    stage: "NDArray[np.int64]"
    step: "NDArray[np.int64]"
    kind: "NDArray[np.int64]"
    start_s: "NDArray[np.float64]"
    duration_s: "NDArray[np.float64]"
    number: "NDArray[np.int64]"
    chunk: "NDArray[np.int64]"
    kinds: tuple[str, ...]
