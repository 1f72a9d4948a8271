"""Describes how idle a run leaves what it holds, as it was measured over the time that its spec's ``idle`` names."""

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Idleness:
    """That a run has used less of what it holds than its spec's ``idle`` allows.

    Attributes:
        busy: Mean utilisation over that time, from 0 to 1, to the hundredth.
        has_gpus: It is of GPUs; else of the cores that the run asks for.
        cores: Mean part of its processor cores that it used meanwhile, from 0 to 1; None where that is not known.
        steps: Steps that it completed meanwhile; None for a program that reports none.
        saving: Part of that time in which the program waited for its checkpoints.
        loading: Part of that time in which it waited for data, as ``run.batches`` measures it; None without that.
        is_silent: It gave no sign of progress in all that time.
    """

    busy: float
    has_gpus: bool = True
    cores: float | None = None
    steps: int | None = None
    saving: float = 0.0
    loading: float | None = None
    is_silent: bool = False
