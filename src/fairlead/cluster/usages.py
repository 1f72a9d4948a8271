"""Values for what runs use of the machines that they are on; how it is found out is each cluster's own."""

from fairlead.frozen import dataclass
from fairlead.state.snapshot import PodPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """A GPU, or a part of one, that a pod holds.

    Attributes:
        name: UUID, with the instance of a part.
        busy: Share of the time in which it computes, from 0 to 1; None when it is not told.
        memory_bytes: In use; None when it is not told.
        power_watts, temperature_celsius: Of the whole device; None when they are not told.
    """

    name: str
    model: str = ""
    busy: float | None = None
    memory_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUsage:
    """A pod that runs or starts; None is what is not known.

    Attributes:
        phase: ``Running`` or ``Starting``; one that starts uses nothing yet.
        cpu_milli: Thousandths of a processor, over the last moments.
        granted_cpu_milli, granted_memory_bytes: What it may use at most, or asked for; 0 for nothing said.
    """

    run: str
    team: str
    pod: str
    index: int
    node: str
    phase: str = PodPhase.RUNNING.value
    cpu_milli: float | None = None
    memory_bytes: int | None = None
    granted_cpu_milli: int = 0
    granted_memory_bytes: int = 0
    gpus: tuple[GpuUsage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usages:
    """Pods, and what could not be found out and why, a sentence each."""

    pods: tuple[PodUsage, ...]
    missing: tuple[str, ...] = ()
