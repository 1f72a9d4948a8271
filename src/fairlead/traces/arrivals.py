"""A run as a trace describes it."""

from fairlead.frozen import dataclass
from fairlead.policy.data.caching import ReadDemand
from fairlead.policy.gpu.stage_interleaving import StageProfile
from fairlead.specs.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A run of a trace, its time of submission and its duration.

    Attributes:
        at_s: Time of submission, seconds after the beginning of the trace.
        duration_s: Seconds of work on the resources that it requests, without neighbours or failures.
        start_up_s: Seconds from placement until its ranks work; None for the simulation's default.
        checkpoint_s: Seconds of stall for each regular checkpoint; None for the simulation's default.
        save_s: Seconds of the checkpoint at a stop notice; None for the simulation's default.
        profile: Stages of its iterations, where they were measured.
        reads: What it reads from a store; None where the trace does not say.
    """

    at_s: float
    duration_s: float
    spec: Training
    start_up_s: float | None = None
    checkpoint_s: float | None = None
    save_s: float | None = None
    profile: StageProfile | None = None
    reads: ReadDemand | None = None

    @property
    def num_gpus(self) -> float:
        """Return the GPUs of the whole gang; a share of a GPU counts as its fraction."""
        gpu = self.spec.resources.gpu
        return 0.0 if gpu is None else self.spec.nodes * gpu.num_devices * min(gpu.milli, 1000) / 1000
