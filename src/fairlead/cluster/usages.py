"""Values for the resource usage of runs; each cluster measures it in its own way."""

from fairlead.frozen import dataclass
from fairlead.state.snapshot import PodPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """A GPU, or a part of one, that a pod holds.

    Attributes:
        name: UUID, with the instance of a part.
        busy: Share of the time in which it computes, from 0 to 1; None where not reported.
        memory_bytes: Memory in use; None where not reported.
        power_watts, temperature_celsius: Values of the whole device; None where not reported.
    """

    name: str
    model: str = ""
    busy: float | None = None
    memory_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUsage:
    """The usage of a pod that runs or starts; None for unknown values.

    Attributes:
        phase: ``Running`` or ``Starting``; a starting pod uses nothing yet.
        cpu_milli: Thousandths of a processor, over the last moments.
        granted_cpu_milli, granted_memory_bytes: Its limit or request; 0 for none.
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
    """The usage of pods, with one sentence for each thing that could not be measured, including the reason."""

    pods: tuple[PodUsage, ...]
    missing: tuple[str, ...] = ()
