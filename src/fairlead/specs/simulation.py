"""The spec of a simulation: assumptions on nodes and programs besides the trace, for ``fairlead simulate`` alone."""

from collections.abc import Iterable

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, Constraints, Limit, broken, enforce, quote

LONGEST_S = 10 * 366 * 86400.0
_SPAN = Limit(low=0.001, high=LONGEST_S)
_SPAN_OR_NONE = Limit(low=0.001, high=LONGEST_S, zero=True)
_FACTOR = Limit(low=1, high=100)

FAILURES_RULES: Constraints = {"mtbf_s": _SPAN, "repair_s": _SPAN}
RECLAIMS_RULES: Constraints = {"every_s": _SPAN, "notice_s": _SPAN_OR_NONE, "away_s": _SPAN}
PROVISIONING_RULES: Constraints = {
    "min_nodes": Limit(low=0, high=100_000, whole=True),
    "delay_s": _SPAN_OR_NONE,
    "delay_p90_s": _SPAN_OR_NONE,
    "idle_s": _SPAN_OR_NONE,
}
PROGRAMS_RULES: Constraints = {
    "start_up_s": _SPAN_OR_NONE,
    "checkpoint_every_s": _SPAN,
    "checkpoint_s": _SPAN_OR_NONE,
    "save_s": _SPAN_OR_NONE,
    "step_s": _SPAN,
}
INTERFERENCE_RULES: Constraints = {"two": _FACTOR, "three": _FACTOR, "four": _FACTOR, "neighbour": _FACTOR}
SIMULATION_RULES: Constraints = {"name": NAME}
POOLS_MOST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Independent failures of nodes: exponentially distributed times, then a fixed time of repair."""

    mtbf_s: float
    repair_s: float = 3600.0

    def __post_init__(self) -> None:
        enforce(broken(self, FAILURES_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaims:
    """Independent reclaims of spot nodes.

    Attributes:
        every_s: Mean of the exponentially distributed lifetime of a node.
        notice_s: Time from the notice until the node is removed.
        away_s: Time until it returns, without an autoscaler.
    """

    every_s: float
    notice_s: float = 120.0
    away_s: float = 600.0

    def __post_init__(self) -> None:
        enforce(broken(self, RECLAIMS_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioning:
    """An autoscaler: nodes are added on request, up to the ``nodes`` of their pool, and removed when idle.

    Attributes:
        min_nodes: Number of permanent nodes.
        delay_s: Median time from the request until a node is ready; lognormally distributed with ``delay_p90_s``.
        delay_p90_s: 90th percentile of that time; None for always ``delay_s``.
        idle_s: Time after which a node without pods is removed.
    """

    min_nodes: int = 0
    delay_s: float = 240.0
    delay_p90_s: float | None = None
    idle_s: float = 600.0

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, PROVISIONING_RULES)
        if self.delay_p90_s is not None and self.delay_p90_s < self.delay_s:
            yield "delay_p90_s", f"{self.delay_p90_s:g} s is less than delay, {self.delay_s:g} s; give as much or more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The costs of starting and saving for every run whose line of the trace does not give them.

    Attributes:
        start_up_s: Time from the placement of a gang until its ranks start work.
        checkpoint_every_s: Seconds of work between checkpoints of runs whose spec gives no interval in seconds.
        checkpoint_s: Seconds for which work pauses for each checkpoint.
        save_s: Seconds that a checkpoint at a stop notice takes.
        step_s: Seconds of work per step that runs report, with their checkpoints; None if they report nothing, so
            that preemption counts all of their work as lost.
    """

    start_up_s: float = 0.0
    checkpoint_every_s: float = 600.0
    checkpoint_s: float = 0.0
    save_s: float = 10.0
    step_s: float | None = None

    def __post_init__(self) -> None:
        enforce(broken(self, PROGRAMS_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Measured slowdown factors of runs beside others, relative to running alone; 1 for none.

    Attributes:
        two: Two runs share a device.
        three: Three runs share a device.
        four: Four or more runs share a device.
        neighbour: Factor for each other active run on the same node.
    """

    two: float = 1.0
    three: float = 1.0
    four: float = 1.0
    neighbour: float = 1.0

    def __post_init__(self) -> None:
        enforce(broken(self, INTERFERENCE_RULES))

    def on_device(self, num_runs: int) -> float:
        """Return the factor for a number of runs on one device."""
        return (1.0, 1.0, self.two, self.three, self.four)[min(num_runs, 4)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The assumptions of a simulation.

    Attributes:
        pools: Names of the pools to which it applies; all pools of the file if empty.
        failures: None for nodes that never fail.
        reclaims: None for spot nodes that are never reclaimed.
        provisioning: None for permanent nodes.
        programs, interference: Apply to the whole cluster, so never together with ``pools``.
    """

    name: str
    pools: tuple[str, ...] = ()
    failures: Failures | None = None
    reclaims: Reclaims | None = None
    provisioning: Provisioning | None = None
    programs: Programs | None = None
    interference: Interference | None = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, SIMULATION_RULES)
        if len(self.pools) > POOLS_MOST:
            yield "pools", f"{len(self.pools)} pools; give at most {POOLS_MOST}"
        seen: set[str] = set()
        for pool in self.pools:
            if (problem := NAME.problem(pool)) is not None:
                yield "pools", problem
            elif pool in seen:
                yield "pools", f"{quote(pool)} is listed twice; name each pool once"
            seen.add(pool)
        for name in ("programs", "interference"):
            if self.pools and getattr(self, name) is not None:
                yield name, "it holds for the whole cluster; move it to a Simulation without pools"
