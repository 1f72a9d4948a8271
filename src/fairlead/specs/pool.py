"""The spec of a pool: nodes of one kind, with hardware, price and capacity type."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.specs.constraints import MODEL, NAME, Constraints, Limit, Text, broken, enforce, quote
from fairlead.specs.cron import TIMEZONE, is_timezone, parse_cron
from fairlead.specs.sharing import Handing

POOL_GPU_RULES: Constraints = {
    "model": MODEL,
    "count": Limit(low=1, high=1_000, whole=True),
    "memory_bytes": Limit(low=1, high=2**50, whole=True),
}

HARDWARE_RULES: Constraints = {
    "cpu_milli": Limit(low=1, high=100_000_000, whole=True),
    "memory_bytes": Limit(low=1, high=2**50, whole=True),
}

PEAKS_MOST = 20

PREWARM_RULES: Constraints = {
    "confidence": Limit(low=0.5, high=0.999),
    "most_nodes": Limit(low=1, high=100_000, whole=True),
}

PEAK_RULES: Constraints = {
    "at": Text(max_length=200),
    "nodes": Limit(low=1, high=100_000, whole=True),
    "for_s": Limit(low=60, high=7 * 86400),
    "timezone": TIMEZONE,
}

LAYOUT_RULES: Constraints = {"replicas": Limit(low=2, high=100, whole=True)}

PARTITIONS_RULES: Constraints = {"reconfigure_s": Limit(low=1, high=86400)}

LAYOUTS_MOST = 20

POOL_RULES: Constraints = {
    "name": NAME,
    "nodes": Limit(low=1, high=100_000, whole=True),
    "price_per_hour": Limit(low=0.000001, high=1_000_000, zero=True),
}

LABEL_NAME = Text(
    max_length=317,
    pattern=r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    what="a label name; use letters, digits, `-`, `_` and `.`, 63 at most, such as `zone` or `example.com/zone`",
)
LABEL_VALUE = Text(
    max_length=63,
    pattern=r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
    what="a label value; use letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
    blank=True,
)
PROFILE = Text(
    max_length=16,
    pattern=r"[1-7]g\.[1-9][0-9]{0,2}gb(\+me)?",
    what="a MIG profile; it is as `nvidia-smi mig -lgip` has it, such as `1g.10gb`",
)
INSTANCES = Text(max_length=1, pattern="[1-7]", what="a number of instances of one GPU; give 1 to 7, such as `7`")
PROFILES_MOST = 7
LAYOUT_NAME = Text(
    max_length=63,
    pattern=r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?",
    what="the name of a layout; it is as NVIDIA's MIG manager or device plugin has it, such as `all-1g.10gb`",
)
LABELS_MOST = 200
TAINTS_MOST = 40
TAINT_RULES: Constraints = {"key": LABEL_NAME, "value": LABEL_VALUE}


EITHER = "each instance goes to one run, so that `sharing` has no say; give one of them"


class CapacityType(StrEnum):
    """The way in which nodes are paid for, which determines whether they can be reclaimed."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"
    OWNED = "owned"


class TaintEffect(StrEnum):
    """The effect of a taint on pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """Repels pods that do not tolerate it, as on a Kubernetes node."""

    key: str
    value: str = ""
    effect: TaintEffect = TaintEffect.NO_SCHEDULE

    def __post_init__(self) -> None:
        enforce(broken(self, TAINT_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGpu:
    """The GPUs of one node: ``count`` devices of one model with ``memory_bytes`` each (None if unknown).

    Attributes:
        sharing: Sharing method; None for time slices, or for MIG instances if there are any.
        instances: Number of MIG instances of each GPU by profile; empty if it is not partitioned.
    """

    model: str
    count: int = 1
    memory_bytes: int | None = None
    sharing: Handing | None = None
    instances: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, POOL_GPU_RULES)
        if self.sharing is not None and self.instances:
            yield "instances", EITHER
        yield from _instance_problems(self.instances)


def _instance_problems(instances: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    for profile, number in instances.items():
        if (problem := PROFILE.problem(profile) or INSTANCES.problem(number)) is not None:
            yield "instances", problem
    if len(instances) > PROFILES_MOST:
        yield "instances", f"{len(instances)} profiles; give at most {PROFILES_MOST}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The hardware of one node of a pool; ``gpu`` is None for no GPU."""

    cpu_milli: int
    memory_bytes: int
    gpu: PoolGpu | None = None

    def __post_init__(self) -> None:
        enforce(broken(self, HARDWARE_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewarm:
    """Keeps nodes ready based on a forecast of demand.

    Attributes:
        confidence: Share of times at which the forecast suffices; a higher one means less waiting and more idle time.
        most_nodes: Maximum nodes for a forecast; None for the size of the pool.
    """

    confidence: float = 0.8
    most_nodes: int | None = None

    def __post_init__(self) -> None:
        enforce(broken(self, PREWARM_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A recurring time at which nodes are needed, known in advance.

    Attributes:
        at: Minute, hour, day of the month, month and day of the week at which the nodes must be ready.
        nodes: Number of nodes, used and free ones together.
        for_s: Duration of the peak in seconds.
        timezone: Time zone of the IANA database, such as Europe/Berlin.
    """

    at: str
    nodes: int
    for_s: float = 3600.0
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, PEAK_RULES)
        try:
            parse_cron(self.at)
        except ValueError as error:
            yield "at", f"{quote(self.at)} {error}"
        if not is_timezone(self.timezone):
            yield "timezone", f"{quote(self.timezone)} is not a time zone; give one such as `Europe/Berlin`"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLayout:
    """A layout of all GPUs of a node; whole GPUs if neither partitioning nor sharing is given.

    Attributes:
        instances: Number of MIG instances of each GPU by profile.
        replicas: Number of runs that share each GPU; None for no sharing.
        sharing: Sharing method; time slices if omitted.
    """

    instances: Mapping[str, str] = field(default_factory=dict, hash=False)
    replicas: int | None = None
    sharing: Handing | None = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, LAYOUT_RULES)
        yield from _instance_problems(self.instances)
        if self.instances and self.replicas is not None:
            yield "replicas", "a GPU is partitioned by `instances` or shared by `replicas`; give one of them"
        if self.sharing is not None and (self.replicas is None or self.sharing is Handing.WHOLE):
            yield "sharing", "it says how `replicas` are kept apart; give `mps` or `time-slicing` beside `replicas`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """Lets nodes be repartitioned as the load changes.

    Attributes:
        layouts: Available layouts, by their names in the file of NVIDIA's MIG manager, or of its device plugin for
            layouts with `replicas`.
        reconfigure_s: Seconds that repartitioning a node takes.
    """

    layouts: Mapping[str, GpuLayout] = field(default_factory=dict, hash=False)
    reconfigure_s: float = 180.0

    @property
    def by_device_plugin(self) -> bool:
        """Return whether the device plugin changes layouts, rather than the MIG manager."""
        return any(each.replicas is not None for each in self.layouts.values())

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, PARTITIONS_RULES)
        if len(self.layouts) < 2:
            yield "layouts", f"{len(self.layouts)} leaves nothing to choose; give at least 2"
        if len(self.layouts) > LAYOUTS_MOST:
            yield "layouts", f"{len(self.layouts)} layouts; give at most {LAYOUTS_MOST}"
        for name in self.layouts:
            if (problem := LAYOUT_NAME.problem(name)) is not None:
                yield "layouts", problem
        if self.by_device_plugin and any(each.instances for each in self.layouts.values()):
            yield "layouts", "some have `instances` and some `replicas`, which two programs change; give one kind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes of one kind.

    Attributes:
        name: A DNS label of at most 50 characters.
        nodes: Maximum number of nodes.
        price_per_hour: Dollars per node-hour; None if unknown.
        labels: Node labels.
        taints: Node taints, each key and effect once.
        prewarm: Settings for keeping nodes ready by a forecast; None for none.
        peaks: Times at which nodes must be ready, by name.
        partitions: Settings for repartitioning its GPUs; None for none.
    """

    name: str
    hardware: Hardware
    nodes: int = 1
    capacity_type: CapacityType = CapacityType.ON_DEMAND
    price_per_hour: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    prewarm: Prewarm | None = None
    peaks: Mapping[str, Peak] = field(default_factory=dict)
    partitions: Partitions | None = None

    @property
    def is_ahead(self) -> bool:
        """Return whether it provisions nodes ahead of demand."""
        return self.prewarm is not None or bool(self.peaks)

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, POOL_RULES)
        if len(self.labels) > LABELS_MOST:
            yield "labels", f"{len(self.labels)} labels; give at most {LABELS_MOST}"
        for name, value in self.labels.items():
            if (problem := LABEL_NAME.problem(name)) is not None:
                yield "labels", problem
            if (problem := LABEL_VALUE.problem(value)) is not None:
                yield "labels", f"the value of {quote(name)}: {problem}"
        for name, peak in self.peaks.items():
            if (problem := NAME.problem(name)) is not None:
                yield "peaks", problem
            if peak.nodes > self.nodes:
                yield "peaks", f"{quote(name)} has {peak.nodes} nodes, more than `nodes` of the pool, {self.nodes}"
        if self.partitions is not None and self.hardware.gpu is None:
            yield "partitions", "its nodes have no GPU; give `hardware.gpu`, or leave it out"
        if len(self.taints) > TAINTS_MOST:
            yield "taints", f"{len(self.taints)} taints; give at most {TAINTS_MOST}"
        seen: set[tuple[str, TaintEffect]] = set()
        for taint in self.taints:
            if (taint.key, taint.effect) in seen:
                yield "taints", f"{quote(taint.key)} with {taint.effect} is listed twice; list each once"
            seen.add((taint.key, taint.effect))
