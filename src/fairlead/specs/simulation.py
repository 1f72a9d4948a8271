"""The spec of a simulation: assumptions on nodes and programs besides the trace, for ``fairlead simulate`` alone."""

from collections.abc import Iterable
from typing import Annotated, ClassVar

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, Limit, enforce, quote
from fairlead.specs.field_types import DURATION, FACTOR, SHARE, SIZE, TEXT, ListField
from fairlead.specs.key import Key, broken
from fairlead.specs.workload import Kind

LONGEST_S = 10 * 366 * 86400.0
_SPAN = Limit(low=0.001, high=LONGEST_S)
_SPAN_OR_NONE = Limit(low=0.001, high=LONGEST_S, zero=True)
_FACTOR = Limit(low=1, high=100)

POOLS_MOST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Lemons:
    """Nodes that fail far more often than others, until they are taken out and repaired."""

    mtbf_s: Annotated[
        float,
        Key("mtbf", DURATION, _SPAN, example="60h", also="every mean_time_between_failures interval"),
        "Mean time between failures of such a node.",
    ]
    share: Annotated[
        float,
        Key("share", SHARE, Limit(low=0, high=1), example="1.2%", also="fraction part"),
        "Share of the nodes that are such from the beginning.",
    ] = 0.012
    yearly: Annotated[
        float,
        Key("yearly", SHARE, Limit(low=0, high=1), example="4%", also="per_year arising new"),
        "Share of the other nodes that become such within a year.",
    ] = 0.0
    cured: Annotated[
        float,
        Key("cured", SHARE, Limit(low=0, high=1), example="90%", also="success repaired fixed"),
        "Share of them that are healthy when they are given back.",
    ] = 0.9

    def __post_init__(self) -> None:
        enforce(broken(self))


TAKEN_OUT_S = 432_000.0
"""Seconds for which a node is away that is taken out, where a Simulation does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Independent failures of nodes: exponentially distributed times, then a fixed time of repair."""

    mtbf_s: Annotated[
        float,
        Key("mtbf", DURATION, _SPAN, example="30d", also="every mean_time_between_failures interval"),
        "Mean time between failures of one node, exponentially distributed.",
    ]
    repair_s: Annotated[
        float,
        Key("repair", DURATION, _SPAN, example="1h", also="mttr repair_time down downtime"),
        "How long a failed node is away.",
    ] = 3600.0
    known: Annotated[
        float,
        Key("known", SHARE, Limit(low=0, high=1), example="70%", also="attributed visible"),
        "Share of failures by which the node is lost; the others kill the runs on it without naming it.",
    ] = 1.0
    taken_out_s: Annotated[
        float,
        Key("taken_out", DURATION, _SPAN, example="5d", also="out test withdrawn"),
        "How long a node is away that is taken out because it failed too often.",
    ] = TAKEN_OUT_S
    lemons: Annotated[
        Lemons | None,
        Key("lemons", example="{share: 1.2%, mtbf: 60h}", also="bad_nodes unreliable"),
        "Nodes that fail more often than the others; none when left out.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaims:
    """Independent reclaims of spot nodes."""

    every_s: Annotated[
        float,
        Key("every", DURATION, _SPAN, example="8h", also="mtbf mtbr mean_time_between_reclaims interval"),
        "Mean time that a node stays, exponentially distributed.",
    ]
    notice_s: Annotated[
        float,
        Key("notice", DURATION, _SPAN_OR_NONE, example="30s", also="grace warning notice_time"),
        "Time from the notice until the node is gone.",
    ] = 120.0
    away_s: Annotated[
        float,
        Key("away", DURATION, _SPAN, example="10m", also="back repair down"),
        "How long the node is away, in a pool without provisioning.",
    ] = 600.0

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioning:
    """An autoscaler: nodes are added on request, up to the ``nodes`` of their pool, and removed when idle."""

    min_nodes: Annotated[
        int,
        Key("min_nodes", rule=Limit(low=0, high=100_000, whole=True), example="1", also="min minimum initial"),
        "Nodes that always exist; the maximum is the pool's.",
    ] = 0
    delay_s: Annotated[
        float,
        Key("delay", DURATION, _SPAN_OR_NONE, example="4m", also="boot startup delay_p50 median"),
        "Median time from the request of a node until it is ready.",
    ] = 240.0
    delay_p90_s: Annotated[
        float | None,
        Key("delay_p90", DURATION, _SPAN_OR_NONE, example="9m", also="p90 slow tail"),
        "90th percentile of that time; `delay` when left out.",
    ] = None
    idle_s: Annotated[
        float,
        Key(
            "idle",
            DURATION,
            _SPAN_OR_NONE,
            example="10m",
            also="idle_after idle_timeout scale_down_after consolidate_after",
        ),
        "A node without pods is removed after this time.",
    ] = 600.0

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.delay_p90_s is not None and self.delay_p90_s < self.delay_s:
            yield "delay_p90_s", f"{self.delay_p90_s:g} s is less than delay, {self.delay_s:g} s; give as much or more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The costs of starting and saving for every run whose line of the trace does not give them."""

    start_up_s: Annotated[
        float,
        Key("start_up", DURATION, _SPAN_OR_NONE, example="2m", also="startup start start_up_time warmup"),
        "Time from the placement of a gang until its ranks work.",
    ] = 0.0
    checkpoint_every_s: Annotated[
        float,
        Key("checkpoint_every", DURATION, _SPAN, example="10m", also="checkpoint_interval every interval"),
        "Work between checkpoints, where the spec of a run does not say.",
    ] = 600.0
    checkpoint_s: Annotated[
        float,
        Key("checkpoint", DURATION, _SPAN_OR_NONE, example="15s", also="checkpoint_cost checkpoint_time"),
        "How long the work pauses for each checkpoint.",
    ] = 0.0
    save_s: Annotated[
        float,
        Key("save", DURATION, _SPAN_OR_NONE, example="10s", also="final_checkpoint save_time"),
        "How long the checkpoint at a stop notice takes.",
    ] = 10.0
    step_s: Annotated[
        float | None,
        Key("step", DURATION, _SPAN, example="30s", also="step_time report_every progress_every step_s"),
        "Work of each reported step; runs report no steps and no checkpoints when left out.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Measured slowdown factors of runs beside others, relative to running alone; 1 for none."""

    two: Annotated[
        float,
        Key("two", FACTOR, _FACTOR, example="1.31", also="pair"),
        "Factor by which runs take longer when two have parts of one device.",
    ] = 1.0
    three: Annotated[
        float,
        Key("three", FACTOR, _FACTOR, example="1.48"),
        "The same factor for three runs.",
    ] = 1.0
    four: Annotated[
        float,
        Key("four", FACTOR, _FACTOR, example="1.35"),
        "The same factor for four or more.",
    ] = 1.0
    neighbour: Annotated[
        float,
        Key("neighbour", FACTOR, _FACTOR, example="1.02", also="neighbor node"),
        "Factor for each other run that works on the same node.",
    ] = 1.0

    def __post_init__(self) -> None:
        enforce(broken(self))

    def on_device(self, num_runs: int) -> float:
        """Return the factor for a number of runs on one device."""
        return (1.0, 1.0, self.two, self.three, self.four)[min(num_runs, 4)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """One store from which runs read, and caches of the nodes in front of it that all nodes share."""

    rate: Annotated[
        int,
        Key("rate", SIZE, Limit(low=1_000, high=10**15, whole=True), example="1GB", also="bandwidth egress throughput"),
        "Bytes a second that the store serves to all nodes together.",
    ]
    cache: Annotated[
        int,
        Key("cache", SIZE, Limit(low=0, high=10**15, whole=True), example="300GB", also="cache_size disk nvme"),
        "Bytes of each node that keep what was read.",
    ] = 0

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The assumptions of a simulation."""

    kind: ClassVar[str] = Kind.SIMULATION

    name: Annotated[
        str,
        Key("name", rule=NAME, example="cloud", metadata="name"),
        "Lower-case letters, digits and dashes, at most 50.",
    ]
    pools: Annotated[
        tuple[str, ...],
        Key("pools", ListField(item=TEXT, most=POOLS_MOST, rule=NAME), example="[spot]", also="pool for"),
        "Pools that this applies to; all when left out.",
    ] = ()
    failures: Annotated[
        Failures | None,
        Key("failures", example="{mtbf: 30d}", also="failure node_failures"),
        "How nodes fail; never when left out.",
    ] = None
    reclaims: Annotated[
        Reclaims | None,
        Key("reclaims", example="{every: 8h, notice: 30s}", also="spot preemption reclaim interruptions"),
        "How nodes of spot pools are reclaimed; never when left out.",
    ] = None
    provisioning: Annotated[
        Provisioning | None,
        Key("provisioning", example="{min_nodes: 0, delay: 4m}", also="autoscaling autoscaler growing scaling"),
        "How nodes are provisioned on request; all nodes always exist when left out.",
    ] = None
    programs: Annotated[
        Programs | None,
        Key("programs", example="{start_up: 2m}", also="runs program costs checkpointing"),
        "Time that starting and saving cost each run.",
    ] = None
    interference: Annotated[
        Interference | None,
        Key("interference", example="{two: 1.31}", also="sharing colocation slowdown"),
        "How much sharing a device or a node slows runs down; not at all when left out.",
    ] = None

    store: Annotated[
        Store | None,
        Key("store", example="{rate: 1GB, cache: 300GB}", also="data bucket storage object_store cache egress"),
        "The store that runs of the trace with `data` read from; reading takes no time when left out.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if len(self.pools) > POOLS_MOST:
            yield "pools", f"{len(self.pools)} pools; give at most {POOLS_MOST}"
        seen: set[str] = set()
        for pool in self.pools:
            if (problem := NAME.problem(pool)) is not None:
                yield "pools", problem
            elif pool in seen:
                yield "pools", f"{quote(pool)} is listed twice; name each pool once"
            seen.add(pool)
        for name in ("programs", "interference", "store"):
            if self.pools and getattr(self, name) is not None:
                yield name, "it holds for the whole cluster; move it to a Simulation without pools"
