"""The spec of a pool: nodes of one kind, with hardware, price and capacity type."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated, ClassVar

from fairlead.frozen import dataclass
from fairlead.specs.constraints import MODEL, NAME, BrokenRules, Limit, Text, enforce, quote
from fairlead.specs.cron import TIMEZONE, parse_cron, timezone_problem
from fairlead.specs.field_types import (
    CPU,
    DOLLARS,
    DURATION,
    SHARE,
    SIZE,
    ListField,
    MapField,
    Named,
    Single,
    Tag,
    pattern,
)
from fairlead.specs.key import Key, broken
from fairlead.specs.sharing import Handing
from fairlead.specs.workload import Kind

PEAKS_MOST = 20

LAYOUTS_MOST = 20

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
        enforce(broken(self))


def _parse_taint(text: str) -> Taint:
    rest, colon, effect = text.rpartition(":")
    if not colon or effect not in set(TaintEffect):
        raise ValueError(f"does not end in a colon and one of {', '.join(TaintEffect)}")
    key, _, value = rest.partition("=")
    try:
        return Taint(key=key, value=value, effect=TaintEffect(effect))
    except BrokenRules as error:
        raise ValueError(f"is not a taint: {error}") from error


def _render_taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


TAINT = Single(
    what="a taint",
    tags=frozenset({Tag.TEXT}),
    parse=_parse_taint,
    render=_render_taint,
    schema=pattern(f"[^:=]+(?:=[^:=]*)?:(?:{'|'.join(TaintEffect)})"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGpu:
    """The GPUs of one node: ``count`` devices of one model with ``memory_bytes`` each (None if unknown)."""

    model: Annotated[
        str,
        Key("model", rule=MODEL, example="A100", also="type name kind"),
        "Model of the GPUs.",
    ]
    count: Annotated[
        int,
        Key("count", rule=Limit(low=1, high=1_000, whole=True), example="8", also="number num gpus"),
        "GPUs of one node.",
    ] = 1
    memory_bytes: Annotated[
        int | None,
        Key("memory", SIZE, Limit(low=1, high=2**50, whole=True), example="80GB", also="mem vram"),
        "Memory of each GPU.",
    ] = None
    sharing: Annotated[
        Handing | None,
        Key("sharing", example="mps", also="share gpu_sharing mig mps sharing_strategy"),
        "How a GPU is handed out: whole, or shared by mps or by time-slicing.",
    ] = None
    instances: Annotated[
        Mapping[str, str],
        Key(
            "instances",
            MapField(names=PROFILE, values=INSTANCES, most=PROFILES_MOST),
            example="{1g.10gb: 7}",
            also="mig_devices profiles slices partitions mig_instances",
        ),
        "MIG instances of each GPU, as numbers by profile; none when left out.",
    ] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
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

    cpu_milli: Annotated[
        int,
        Key("cpu", CPU, Limit(low=1, high=100_000_000, whole=True), example="96", also="cpus cores vcpus"),
        "Cores of one node.",
    ]
    memory_bytes: Annotated[
        int,
        Key("memory", SIZE, Limit(low=1, high=2**50, whole=True), example="1Ti", also="mem ram"),
        "Memory of one node.",
    ]
    gpu: Annotated[
        PoolGpu | None,
        Key("gpu", example="{model: A100, count: 8}", also="gpus accelerator accelerators"),
        "The GPUs of one node; none when left out.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewarm:
    """Keeps nodes ready based on a forecast of demand."""

    confidence: Annotated[
        float,
        Key(
            "confidence",
            SHARE,
            Limit(low=0.5, high=0.999),
            example="90%",
            also="quantile percentile target",
            alone=True,
        ),
        "Share of times at which the forecast nodes must be enough.",
    ] = 0.8
    most_nodes: Annotated[
        int | None,
        Key("max_nodes", rule=Limit(low=1, high=100_000, whole=True), example="8", also="most_nodes limit maximum"),
        "Most nodes for a forecast; as many as the pool has when left out.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A recurring time at which nodes are needed, known in advance."""

    at: Annotated[
        str,
        Key("at", rule=Text(max_length=200), example="'0 8 * * 1-5'", also="cron schedule start when"),
        "When the nodes must be ready, as for cron.",
    ]
    nodes: Annotated[
        int,
        Key("nodes", rule=Limit(low=1, high=100_000, whole=True), example="4", also="size count num_nodes"),
        "How many nodes, in use and free together.",
    ]
    for_s: Annotated[
        float,
        Key("for", DURATION, Limit(low=60, high=7 * 86400), example="2h", also="duration lasts length"),
        "For how long they are kept.",
    ] = 3600.0
    timezone: Annotated[
        str,
        Key("timezone", rule=TIMEZONE, example="Europe/Berlin", also="tz time_zone zone"),
        "Time zone of `at`.",
    ] = "UTC"

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        try:
            parse_cron(self.at)
        except ValueError as error:
            yield "at", f"{quote(self.at)} {error}"
        problem = timezone_problem(self.timezone)
        if problem is not None:
            yield "timezone", problem


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLayout:
    """A layout of all GPUs of a node; whole GPUs if neither partitioning nor sharing is given."""

    instances: Annotated[
        Mapping[str, str],
        Key(
            "instances",
            MapField(names=PROFILE, values=INSTANCES, most=PROFILES_MOST),
            example="{1g.5gb: 7}",
            also="mig_devices profiles slices",
        ),
        "MIG instances of each GPU, as numbers by profile.",
    ] = field(default_factory=dict, hash=False)
    replicas: Annotated[
        int | None,
        Key("replicas", rule=Limit(low=2, high=100, whole=True), example="4", also="shares time_slices slots"),
        "Runs that share each GPU.",
    ] = None
    sharing: Annotated[
        Handing | None,
        Key("sharing", example="mps", also="isolation strategy sharing_strategy"),
        "How `replicas` share a GPU: mps or time-slicing, the default.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        yield from _instance_problems(self.instances)
        if self.instances and self.replicas is not None:
            yield "replicas", "a GPU is partitioned by `instances` or shared by `replicas`; give one of them"
        if self.sharing is not None and (self.replicas is None or self.sharing is Handing.WHOLE):
            yield "sharing", "it says how `replicas` are kept apart; give `mps` or `time-slicing` beside `replicas`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """Lets nodes be repartitioned as the load changes."""

    layouts: Annotated[
        Mapping[str, GpuLayout],
        Key(
            "layouts",
            Named(LAYOUT_NAME, LAYOUTS_MOST),
            example="{all-1g.5gb: {instances: {1g.5gb: 7}}, all-disabled: {}}",
            also="configs configurations options mig_configs",
        ),
        "Layouts to choose from, by their names in NVIDIA's MIG manager or device plugin.",
    ] = field(hash=False)
    reconfigure_s: Annotated[
        float,
        Key(
            "reconfigure",
            DURATION,
            Limit(low=1, high=86400),
            example="2m",
            also="takes duration delay reconfiguration_time",
        ),
        "How long it takes to repartition a node.",
    ] = 180.0

    @property
    def by_device_plugin(self) -> bool:
        """Return whether the device plugin changes layouts, rather than the MIG manager."""
        return any(layout.replicas is not None for layout in self.layouts.values())

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if len(self.layouts) < 2:
            yield "layouts", f"{len(self.layouts)} leaves nothing to choose; give at least 2"
        if len(self.layouts) > LAYOUTS_MOST:
            yield "layouts", f"{len(self.layouts)} layouts; give at most {LAYOUTS_MOST}"
        for name in self.layouts:
            if (problem := LAYOUT_NAME.problem(name)) is not None:
                yield "layouts", problem
        if self.by_device_plugin and any(layout.instances for layout in self.layouts.values()):
            yield "layouts", "some have `instances` and some `replicas`, which two programs change; give one kind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes of one kind.

    Attributes:
        name: A DNS label of at most 50 characters.
    """

    kind: ClassVar[str] = Kind.POOL

    name: Annotated[
        str,
        Key("name", rule=NAME, example="a100-spot", metadata="name"),
        "Lower-case letters, digits and dashes, at most 50.",
    ]
    hardware: Annotated[
        Hardware,
        Key("hardware", example="{cpu: 96, memory: 1Ti}", also="node machine resources instance_type"),
        "What one node has.",
    ]
    nodes: Annotated[
        int,
        Key(
            "nodes",
            rule=Limit(low=1, high=100_000, whole=True),
            example="4",
            also="num_nodes size count max_nodes replicas",
        ),
        "Maximum number of nodes in the pool.",
    ] = 1
    capacity_type: Annotated[
        CapacityType,
        Key("capacity_type", example="spot", also="capacity spot type"),
        "How nodes are paid for: on-demand, spot, reserved or owned.",
    ] = CapacityType.ON_DEMAND
    price_per_hour: Annotated[
        float | None,
        Key(
            "price_per_hour",
            DOLLARS,
            Limit(low=0.000001, high=1_000_000, zero=True),
            example="3.5",
            also="price cost hourly_price",
        ),
        "Dollars per hour for one node.",
    ] = None
    labels: Annotated[
        Mapping[str, str],
        Key(
            "labels",
            MapField(names=LABEL_NAME, values=LABEL_VALUE, most=LABELS_MOST),
            example="{zone: a}",
            also="label node_labels tags",
        ),
        "Labels of the nodes.",
    ] = field(default_factory=dict)
    taints: Annotated[
        tuple[Taint, ...],
        Key(
            "taints",
            ListField(item=TAINT, most=TAINTS_MOST),
            example='["dedicated=ml:NoSchedule"]',
            also="taint node_taints",
        ),
        "Taints of the nodes, as for kubectl: key=value:NoSchedule.",
    ] = ()
    prewarm: Annotated[
        Prewarm | None,
        Key("prewarm", example="90%", also="forecast warm headroom predictive buffer"),
        "Keeps nodes ready before they are needed, by a forecast of demand; a lone share is `confidence`.",
    ] = None
    peaks: Annotated[
        Mapping[str, Peak],
        Key(
            "peaks",
            Named(NAME, PEAKS_MOST),
            example="{morning: {at: '0 8 * * 1-5', nodes: 4, for: 2h}}",
            also="peak schedule calendar scheduled_scaling",
        ),
        "Times at which nodes must be ready, by name.",
    ] = field(default_factory=dict)
    partitions: Annotated[
        Partitions | None,
        Key(
            "partitions",
            example="{layouts: {all-1g.5gb: {instances: {1g.5gb: 7}}, all-disabled: {}}}",
            also="partitioning mig repartition mig_layouts layouts",
        ),
        "Repartitions the GPUs of nodes as the load changes.",
    ] = None

    @property
    def is_ahead(self) -> bool:
        """Return whether it provisions nodes ahead of demand."""
        return self.prewarm is not None or bool(self.peaks)

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
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
