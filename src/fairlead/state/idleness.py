"""The measured idleness of a run, over the time that ``idle`` of its spec names."""

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Idleness:
    """A finding that a run has used less of what it holds than ``idle`` of its spec allows.

    Attributes:
        busy: Mean utilisation over that time, from 0 to 1, rounded to hundredths.
        has_gpus: Whether utilisation is that of GPUs; else of the cores that the run requests.
        cores: Mean utilisation of its processor cores over that time, from 0 to 1; None if unknown.
        steps: Steps completed in that time; None for a program that reports none.
        saving: Part of that time in which the program waited for its checkpoints.
        loading: Part of that time in which it waited for data, as measured by ``run.batches``; None without that.
        is_silent: Whether it showed no sign of progress in all that time.
    """

    busy: float
    has_gpus: bool = True
    cores: float | None = None
    steps: int | None = None
    saving: float = 0.0
    loading: float | None = None
    is_silent: bool = False
