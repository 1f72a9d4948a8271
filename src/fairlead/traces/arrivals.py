"""What a trace says of one run."""

from dataclasses import dataclass

from fairlead.specs.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A run, when it is asked for and how long its work takes.

    Attributes:
        at_s: Seconds after the beginning of the trace.
        duration_s: Seconds of work on what it asks for, with nothing going wrong.
    """

    at_s: float
    duration_s: float
    spec: Training

    @property
    def num_gpus(self) -> float:
        """GPUs of the whole gang; a share of one counts as its part."""
        gpu = self.spec.resources.gpu
        return 0.0 if gpu is None else self.spec.nodes * gpu.num_devices * min(gpu.milli, 1000) / 1000
