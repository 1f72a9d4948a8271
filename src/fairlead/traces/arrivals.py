"""A run as a trace describes it."""

from dataclasses import dataclass

from fairlead.policy.gpu.stage_interleaving import Profile
from fairlead.specs.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A run, when it is asked for and how long its work takes.

    Attributes:
        at_s: Seconds after the beginning of the trace.
        duration_s: Seconds of work on what it asks for, alone and with nothing going wrong.
        start_up_s: From its placement until its ranks work; None for what the simulation assumes of all.
        checkpoint_s: How long work stands still for each regular checkpoint; None as before.
        save_s: How long the checkpoint at a stop notice takes; None as before.
        profile: What its iterations are made of, where that was measured.
    """

    at_s: float
    duration_s: float
    spec: Training
    start_up_s: float | None = None
    checkpoint_s: float | None = None
    save_s: float | None = None
    profile: Profile | None = None

    @property
    def num_gpus(self) -> float:
        """GPUs of the whole gang; a share of one counts as its part."""
        gpu = self.spec.resources.gpu
        return 0.0 if gpu is None else self.spec.nodes * gpu.num_devices * min(gpu.milli, 1000) / 1000
