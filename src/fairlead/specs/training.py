"""The spec of a distributed training run."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, PATH, Constraints, Limit, Text, broken, enforce, quote
from fairlead.specs.engines import Engine, engine_problems
from fairlead.specs.overlay import FOREIGN_LABEL, OWN_DOMAIN, SET_BY_FAIRLEAD, SET_BY_US, Overlay
from fairlead.specs.parallel import ModelShape, Parallel
from fairlead.specs.pool import LABEL_NAME, LABEL_VALUE
from fairlead.specs.resources import ONLY_FIXED, Resources
from fairlead.specs.workload import LABELS_MOST

DEFAULT_TEAM = "default"
DAY_S = 86_400.0
DECADE_S = 3_650 * DAY_S
MIB = 1024 * 1024

CAPACITY_RULES: Constraints = {"max_price": Limit(low=0.000001, high=1_000_000, zero=True)}

CHECKPOINT_RULES: Constraints = {
    "to": PATH,
    "origin": PATH,
    "every_s": Limit(low=0.001, high=DECADE_S),
    "every_steps": Limit(low=1, high=10**12, whole=True),
    "memory_every_s": Limit(low=0.001, high=DECADE_S),
    "memory_every_steps": Limit(low=1, high=10**12, whole=True),
    "keep": Limit(low=1, high=100_000, whole=True),
}

RETRY_RULES: Constraints = {
    "program": Limit(low=0, high=1_000_000, whole=True),
    "infrastructure": Limit(low=0, high=1_000_000, whole=True),
    "backoff_s": Limit(low=0.001, high=DAY_S, zero=True),
    "max_backoff_s": Limit(low=0.001, high=DAY_S, zero=True),
}

# Matches every pair of a name and a number in a line of output, the default of Katib's collector.
NAME_VALUE = "name=value"

METRICS_RULES: Constraints = {"pattern": Text(max_length=1_000)}

IDLE_RULES: Constraints = {
    "below": Limit(low=0.01, high=1),
    "for_s": Limit(low=10, high=30 * DAY_S),
}

LOGS_RULES: Constraints = {"max_bytes": Limit(low=4 * MIB, high=1024 * 1024 * MIB, whole=True)}

TRAINING_RULES: Constraints = {
    "name": NAME,
    "team": NAME,
    "run": Text(max_length=65_536, lines=True),
    "setup": Text(max_length=65_536, lines=True),
    "workdir": PATH,
    "image": Text(max_length=512, pattern=r"[^\s]+", what="an image; it has no spaces, such as `python:3.12`"),
    "nodes": Limit(low=1, high=10_000, whole=True),
    "most_nodes": Limit(low=1, high=10_000, whole=True),
    "ranks_per_node": Limit(low=1, high=1_024, whole=True),
    "priority": Limit(low=-1, high=1_000, whole=True),
    "max_duration_s": Limit(low=0.001, high=DECADE_S),
    "max_cost": Limit(low=0.01, high=1_000_000_000),
    "expected_duration_s": Limit(low=0.001, high=DECADE_S),
    "deadline_s": Limit(low=0.001, high=DECADE_S),
    "stall_timeout_s": Limit(low=0.001, high=DECADE_S),
    "grace_s": Limit(low=0.001, high=DAY_S, zero=True),
    "queue": Text(max_length=63, pattern=r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", what="a queue's name"),
}

ENV_NAME = Text(
    max_length=256,
    pattern=r"[A-Za-z_][-A-Za-z0-9_.]*",
    what="the name of a variable; use letters, digits, `_`, `.` and `-`, not starting with a digit",
)
ENV_VALUE = Text(max_length=65_536, lines=True, blank=True)
ENV_TOTAL = 262_144
ENV_MOST = 250
# Valid values of `FAIRLEAD_TRACKERS`, as in the runtime.
TRACKERS = ("mlflow", "wandb", "tensorboard")
# Label of every object of Fairlead.
MANAGED_BY = "app.kubernetes.io/managed-by"


class Launch(StrEnum):
    """The methods of starting ranks.

    ``TORCHRUN`` sets the rendezvous variables for a single rank too; several ranks get them in any case.
    """

    AUTO = "auto"
    EXEC = "exec"
    TORCHRUN = "torchrun"


class Elastic(StrEnum):
    """The handling of a killed rank: all ranks restart from a checkpoint, or the others continue at once."""

    RESTART = "restart"
    IN_PLACE = "in_place"


class Framework(StrEnum):
    """The frameworks with a supported rendezvous; all get torchrun's variables besides their own."""

    TORCH = "torch"
    LIGHTNING = "lightning"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    TENSORFLOW = "tensorflow"
    JAX = "jax"
    XGBOOST = "xgboost"
    LIGHTGBM = "lightgbm"
    MPI = "mpi"
    RAY = "ray"


# Frameworks whose ranks get all addresses in one variable, which Linux limits to 128 KiB.
LISTING = frozenset((Framework.TENSORFLOW, Framework.LIGHTGBM))
LISTED_MOST = 512

# Variables that make a process a member of its group; `env` cannot override them.
SET_BY_FRAMEWORK: Mapping[str, tuple[str, ...]] = {
    Framework.TENSORFLOW: ("TF_CONFIG",),
    Framework.JAX: (
        "JAX_COORDINATOR_ADDRESS",
        "JAX_COORDINATOR_BIND_ADDRESS",
        "JAX_NUM_PROCESSES",
        "JAX_PROCESS_ID",
        "OMPI_MCA_orte_hnp_uri",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    Framework.XGBOOST: ("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_NUM_WORKER", "DMLC_TASK_ID", "DMLC_ROLE"),
    Framework.LIGHTGBM: ("LIGHTGBM_MACHINES", "LIGHTGBM_NUM_MACHINES", "LIGHTGBM_LOCAL_LISTEN_PORT"),
    Framework.MPI: ("PMI_PORT", "PMI_ID", "PMI_RANK", "PMI_SIZE"),
    Framework.RAY: ("RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"),
}


class Tier(StrEnum):
    """The tier of an endpoint's replica: base, on on-demand nodes, or overflow, on spot nodes if these have room."""

    BASE = "base"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The kind of capacity that the run may use.

    Attributes:
        spot: Whether reclaimable capacity is allowed.
        auto: Use spot while it saves money and the ``deadline_s`` permits it, else on-demand; implies ``spot``.
        only_spot: Decision for a run with ``auto``: spot only, or none; None for either. Not a key.
        max_price: Maximum price of a node in dollars per hour; None for no limit.
        tier: Tier of a replica whose endpoint has a base; None for any other run. A key of replicas only.
        avoided: Nodes that failed to start its pods. Not a key.
    """

    spot: bool = False
    auto: bool = False
    only_spot: bool | None = None
    max_price: float | None = None
    tier: Tier | None = None
    avoided: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        enforce(broken(self, CAPACITY_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The place and the interval of the run's checkpoints.

    Attributes:
        to: Directory or URL, to which the run's name is appended. None for the run's own directory.
        origin: Run of the same team, directory or URL from whose newest checkpoint a run without its own starts;
            None to start from scratch.
        every_s: Seconds between checkpoints; None with an interval in steps, or to save only at a stop notice.
        every_steps: Steps between checkpoints; excludes ``every_s``.
        every_auto: The run chooses the seconds between checkpoints itself; None if not; excludes both.
        keep: Number of complete checkpoints to keep.
        memory_every_s: Seconds between saves to the memory of the nodes; None with an interval in steps, or for none.
        memory_every_steps: Steps between such saves; excludes ``memory_every_s``.
    """

    to: str | None = None
    origin: str | None = None
    every_s: float | None = None
    every_steps: int | None = None
    every_auto: bool | None = None
    keep: int = 3
    memory_every_s: float | None = None
    memory_every_steps: int | None = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def is_periodic(self) -> bool:
        """Return whether an interval is given or chosen, so that the program has to keep checkpoints."""
        return self.every_s is not None or self.every_steps is not None or bool(self.every_auto)

    @property
    def is_in_memory(self) -> bool:
        """Return whether the nodes also hold checkpoints in memory."""
        return self.memory_every_s is not None or self.memory_every_steps is not None

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, CHECKPOINT_RULES)
        if self.memory_every_s is not None and self.memory_every_steps is not None:
            yield "memory_every_steps", "it is either a duration or a number of steps, not both"
        for kind in ("every_s", "every_steps"):
            disk, memory = getattr(self, kind), getattr(self, f"memory_{kind}")
            if disk is not None and memory is not None and memory >= disk:
                yield (
                    f"memory_{kind}",
                    "it is not shorter than `every`, so the checkpoints on disk are as recent; give less, or remove it",
                )
        if self.every_s is not None and self.every_steps is not None:
            yield "every_steps", "it is either a duration or a number of steps, not both"
        if self.every_auto is False:
            yield "every_auto", "give True, or None where the interval is not chosen"
        if self.every_auto and (self.every_s is not None or self.every_steps is not None):
            yield "every_auto", "the interval is either given or chosen, not both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The limits of retries of a failed run.

    Attributes:
        program: Maximum restarts after failures of the program, over the lifetime of the run.
        infrastructure: Maximum consecutive restarts after failures of the platform, without progress in between. A
            checkpoint is progress, or a report if nothing is saved; before a lost pod or node, so is a minute of
            running.
        backoff_s: Wait before a repeated restart; doubles each time. The first restart after progress is immediate.
        max_backoff_s: Maximum of that wait.
    """

    program: int = 0
    infrastructure: int = 10
    backoff_s: float = 1.0
    max_backoff_s: float = 300.0

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, RETRY_RULES)
        if self.max_backoff_s < self.backoff_s:
            yield (
                "max_backoff_s",
                f"{self.max_backoff_s:g} s is less than backoff, the first wait, {self.backoff_s:g} s; "
                "give as much or more",
            )


class WhenIdle(StrEnum):
    """The actions on an idle run."""

    NOTIFY = "notify"
    SHRINK = "shrink"
    SUSPEND = "suspend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The threshold below which a run counts as idle, and the action.

    Attributes:
        then: ``NOTIFY`` reports it; ``SHRINK`` reduces an elastic gang to its minimum; ``SUSPEND`` suspends it.
        below: Mean utilisation of its GPUs, from 0 to 1; without GPUs, of its cores if it has more than one per rank.
        for_s: Seconds over which the mean is taken.
    """

    then: WhenIdle = WhenIdle.NOTIFY
    below: float = 0.5
    for_s: float = 900.0

    def __post_init__(self) -> None:
        enforce(broken(self, IDLE_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The limit of stored output.

    Attributes:
        max_bytes: Maximum size of the newest output of each pod; on Kubernetes the kubelets of the nodes limit it.
    """

    max_bytes: int = 64 * MIB

    def __post_init__(self) -> None:
        enforce(broken(self, LOGS_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The extraction of metrics from the program's output.

    Attributes:
        pattern: ``name=value`` for every such pair of a name and a number, or a Python regular expression to search in
            each line, whose named groups are numbers: ``step``, ``epoch``, ``total`` and ``loss`` as in
            ``run.progress``, any other name is a metric.
    """

    pattern: str

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def regular_expression(self) -> str | None:
        """Return the pattern; None for ``name=value``."""
        return None if self.pattern == NAME_VALUE else self.pattern

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, METRICS_RULES)
        if self.regular_expression is None or METRICS_RULES["pattern"].problem(self.pattern) is not None:
            return
        try:
            groups = re.compile(self.pattern.encode()).groupindex
        except re.error as error:
            yield "pattern", f"{quote(self.pattern)} is not a regular expression: {error}"
            return
        if not set(groups) - {"step", "epoch", "total"}:
            found = f"names only {', '.join(sorted(groups))}" if groups else "names no group"
            yield (
                "pattern",
                f"{quote(self.pattern)} {found}; name the number of a metric, such as `loss (?P<loss>\\S+)`, "
                f"or give `{NAME_VALUE}`",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A gang of ranks that runs one program to its end.

    Attributes:
        name: Lower-case letters, digits and dashes (a DNS label of at most 50 characters).
        run: Shell command. A plain ``python script.py ...`` starts fastest.
        setup: Shell commands that run once per node before the first start.
        workdir: Working directory of the command; None for the directory of the spec file.
        image: Container image; needs a cluster with containers.
        env: Variables added to the environment.
        labels: User labels by which runs are selected; on Kubernetes also set on its pods.
        nodes: Number of pods of the gang, each on one node; the minimum if ``most_nodes`` is larger.
        most_nodes: Maximum pods of an elastic gang, which uses as many nodes as are free; None for ``nodes``.
        ranks_per_node: Processes per node; None for one per GPU, or 1 without GPUs.
        priority: Higher starts first, 0 to 1000; -1 uses only idle resources and yields to any other run.
        max_duration_s: Seconds since its first start after which it is stopped, with a checkpoint; None for no limit.
        max_cost: Dollars before which the run is stopped, with a checkpoint; None for no limit.
        expected_duration_s: Approximate duration without waits on ``nodes`` nodes; None if not given.
        deadline_s: Seconds after submission by which its work must be done; None for no deadline.
        stall_timeout_s: Seconds without progress that count as a hang; None to disable.
        idle: Threshold and action for an idle run.
        grace_s: Seconds between the stop notice (SIGTERM) and SIGKILL.
        framework: Framework whose rendezvous variables are set, also for a single rank; None for torchrun's only.
        launch: ``exec`` disables fast forking of ranks; ``torchrun`` sets torchrun's variables for a single rank.
        elastic: Handling of a killed rank; ``IN_PLACE`` requires a program that iterates over ``run.steps``.
        terminate_on_nan: A reported loss that is NaN or infinite ends the run at that step.
        metrics: Extraction of metrics from its output; None for none.
        model: Transformer that it trains, for estimates; None if not given.
        parallel: Split of a step over its ranks; None if the program decides.
        engine: Controller of the cluster that places the run; None for Fairlead's placement.
        queue: Queue of the engine, or of Kueue, that admits the run; None for none.
        kubernetes: Fields merged into each pod on Kubernetes.
    """

    name: str
    run: str
    team: str = DEFAULT_TEAM
    setup: str | None = None
    workdir: str | None = None
    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    most_nodes: int | None = None
    ranks_per_node: int | None = None
    resources: Resources = field(default_factory=Resources)
    capacity: Capacity = field(default_factory=Capacity)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    retry: Retry = field(default_factory=Retry)
    logs: Logs = field(default_factory=Logs)
    metrics: Metrics | None = None
    model: ModelShape | None = None
    parallel: Parallel | None = None
    priority: int = 0
    max_duration_s: float | None = None
    max_cost: float | None = None
    expected_duration_s: float | None = None
    deadline_s: float | None = None
    stall_timeout_s: float | None = None
    idle: Idle = field(default_factory=Idle)
    grace_s: float = 30.0
    framework: Framework | None = None
    launch: Launch = Launch.AUTO
    snapshot: bool = True
    elastic: Elastic = Elastic.RESTART
    terminate_on_nan: bool = True
    engine: Engine | None = None
    queue: str | None = None
    kubernetes: Overlay = field(default_factory=Overlay)

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def ranks_on_each_node(self) -> int:
        """Return ``ranks_per_node`` or its default: one per GPU, or 1 without GPUs and for Ray."""
        if self.ranks_per_node is not None:
            return self.ranks_per_node
        gpu = self.resources.gpu
        return 1 if gpu is None or self.framework is Framework.RAY else gpu.num_devices

    @property
    def world_size(self) -> int:
        """Return the total number of ranks; for an elastic gang the minimum."""
        return self.nodes * self.ranks_on_each_node

    @property
    def has_rendezvous(self) -> bool:
        """Return whether its processes get the variables that torchrun sets, such as ``RANK`` and ``MASTER_ADDR``.

        Programs take these variables as a sign of several ranks, so a single rank gets them only on request.
        """
        is_asked_for = self.launch is Launch.TORCHRUN or self.framework is not None
        return is_asked_for or self.most_nodes is not None or self.world_size > 1

    @property
    def may_fork(self) -> bool:
        """Return whether ranks may be forked from a process with their imports loaded."""
        # With these, a helper beside rank 0 becomes its program by exec, which a fork cannot.
        return self.launch is not Launch.EXEC and self.framework not in (
            Framework.XGBOOST,
            Framework.MPI,
            Framework.RAY,
        )

    def at(self, num_nodes: int) -> "Training":
        """Return the same run with a number of nodes, from 1 to its maximum."""
        # Skips validation, which was done at creation, since decisions call this for every elastic gang.
        made = object.__new__(Training)
        for each in self.__slots__:
            object.__setattr__(made, each, getattr(self, each))
        object.__setattr__(made, "nodes", num_nodes)
        object.__setattr__(made, "most_nodes", None)
        return made

    def on(self, *, spot: bool) -> "Training":
        """Return the same run on spot nodes only, or on none."""
        own = self.capacity
        return self._within(Capacity(spot=spot, only_spot=spot, max_price=own.max_price, avoided=own.avoided))

    def away_from(self, names: tuple[str, ...]) -> "Training":
        """Return the same run on any nodes except these."""
        return self._within(replace(self.capacity, avoided=names))

    def _within(self, capacity: Capacity) -> "Training":
        made = object.__new__(Training)
        for each in Training.__slots__:
            object.__setattr__(made, each, getattr(self, each))
        object.__setattr__(made, "capacity", capacity)
        return made

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, TRAINING_RULES)
        yield from self._deadline_problems()
        if self.most_nodes is not None and self.most_nodes <= self.nodes:
            yield (
                "most_nodes",
                f"{self.most_nodes} is no more than nodes, which is {self.nodes}; give more, or leave it out",
            )
        if self.idle.then is WhenIdle.SHRINK and self.most_nodes is None:
            yield (
                "idle",
                "only an elastic gang can shrink; give `nodes` a span, such as 1..4, or `idle: suspend` or `notify`",
            )
        if self.resources.colocate and (self.most_nodes is not None or self.capacity.auto or self.engine is not None):
            yield "resources", ONLY_FIXED
        if self.elastic is Elastic.IN_PLACE:
            yield from self._in_place_problems()
        yield from env_problems(self.env)
        if self.framework is not None:
            yield from self._framework_problems(self.framework)
        if self.labels:
            yield from labels_problems(self.labels)
        yield from engine_problems(self)

    def _in_place_problems(self) -> Iterable[tuple[str, str]]:
        framework = self.framework
        if (self.most_nodes or self.nodes) * self.ranks_on_each_node < 2:
            yield (
                "elastic",
                "with `in_place` the other ranks go on, and there are none; give `nodes` more",
            )
        if framework not in (None, Framework.TORCH):
            yield "elastic", f"`in_place` is for ranks that meet by torch alone, not by `framework: {framework}`"
        if self.checkpoint.is_in_memory:
            yield "elastic", "with `in_place` the other ranks hold the state; leave `checkpoint.memory_every` out"
        if self.parallel is not None:
            yield "elastic", "`in_place` divides a step anew when ranks go, and `parallel` fixes that; leave one out"

    def _framework_problems(self, framework: Framework) -> Iterable[tuple[str, str]]:
        ranks = (self.most_nodes or self.nodes) * self.ranks_on_each_node
        if framework in LISTING and ranks > LISTED_MOST:
            yield (
                "framework",
                f"{framework} gives every rank the addresses of all, and {ranks} do not fit into a variable; "
                f"give at most {LISTED_MOST} ranks",
            )
        if framework is Framework.RAY and self.ranks_on_each_node > 1:
            yield (
                "ranks_per_node",
                f"{self.ranks_per_node} with `framework: ray`, which has one node of Ray in each pod and starts "
                "its own processes there; leave it out, and ask for more by `nodes` or `resources`",
            )
        for name in SET_BY_FRAMEWORK.get(framework, ()):
            if name in self.env:
                yield "env", f"{quote(name)} is set by `framework: {framework}`; leave one of the two out"

    def _deadline_problems(self) -> Iterable[tuple[str, str]]:
        if not self.capacity.auto:
            if self.deadline_s is not None:
                yield "deadline_s", "only `capacity: {spot: auto}` uses it; give that too, or leave it out"
            return
        if self.deadline_s is None:
            yield "capacity", "`spot: auto` needs to know by when the work is to be done; give `deadline`, such as 24h"
        if self.expected_duration_s is None:
            yield "capacity", "`spot: auto` needs to know how long the work takes; give `expected_duration`, such as 8h"
        elif self.deadline_s is not None and self.deadline_s < self.expected_duration_s:
            yield "deadline_s", "it is before the work can be done, which takes its `expected_duration`; give more"
        if self.most_nodes is not None:
            yield "most_nodes", "an elastic gang has no `spot: auto`; give `nodes` one number, or leave that out"


def env_problems(env: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield the problems of a spec's environment variables."""
    for name, value in env.items():
        if (problem := ENV_NAME.problem(name)) is not None:
            yield "env", problem
        elif SET_BY_FAIRLEAD.fullmatch(name) is not None:
            yield "env", f"{quote(name)}{SET_BY_US}"
        if (problem := ENV_VALUE.problem(value)) is not None:
            yield "env", f"the value of {quote(name)}: {problem}"
        elif name == "FAIRLEAD_TRACKERS" and (strange := _strange_tracker(value)) is not None:
            known = ", ".join(TRACKERS)
            yield "env", f"FAIRLEAD_TRACKERS: {quote(strange)} is not a tracker; give some of {known}, or none"
    if len(env) > ENV_MOST:
        yield "env", f"{len(env)} variables; give at most {ENV_MOST}"
    if sum(len(name) + len(value) for name, value in env.items()) > ENV_TOTAL:
        yield "env", f"more than {ENV_TOTAL} characters in all; put large values in a file"


def _strange_tracker(value: str) -> str | None:
    """Return the first unknown tracker in a list; None if all are known."""
    words = [word.strip() for word in value.split(",")]
    return None if value.strip() in ("", "none") else next((word for word in words if word not in TRACKERS), None)


def label_problem(name: str, value: str) -> str | None:
    """Return the problem of a run's label by Kubernetes' rules for labels; None if it is valid."""
    if (problem := LABEL_NAME.problem(name)) is not None:
        return problem
    if name.startswith(OWN_DOMAIN):
        return f"{quote(name)}: {FOREIGN_LABEL}"
    if name == MANAGED_BY:
        return f"{quote(name)}{SET_BY_US}"
    problem = LABEL_VALUE.problem(value)
    return None if problem is None else f"the value of {quote(name)}: {problem}"


def labels_problems(labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield the problems of a spec's labels."""
    found = (label_problem(name, value) for name, value in labels.items())
    yield from (("labels", problem) for problem in found if problem is not None)
    if len(labels) > LABELS_MOST:
        yield "labels", f"{len(labels)} labels; give at most {LABELS_MOST}"
