"""The spec of a distributed training run."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Annotated, ClassVar

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, PATH, Limit, Text, enforce, quote
from fairlead.specs.data import DATA_MOST, DATA_NAME, DataSource, places_problems
from fairlead.specs.engines import Engine, engine_problems
from fairlead.specs.environment import PythonEnvironment
from fairlead.specs.field_types import (
    DOLLARS,
    DURATION,
    DURATION_OR_STEPS,
    EVERY,
    SHARE,
    SIZE,
    SPAN,
    SPOT,
    MapField,
    Named,
    OverlayField,
)
from fairlead.specs.key import Key, broken, rules_of
from fairlead.specs.network import Network
from fairlead.specs.overlay import FOREIGN_LABEL, OWN_DOMAIN, SET_BY_FAIRLEAD, SET_BY_US, Overlay
from fairlead.specs.parallel import ModelShape, Parallel
from fairlead.specs.pod_fields import POD
from fairlead.specs.pool import LABEL_NAME, LABEL_VALUE
from fairlead.specs.preflight import NO_GPUS, ONE_NODE, Preflight
from fairlead.specs.resources import ONLY_FIXED, Resources
from fairlead.specs.secret_reference import SECRETS, SecretReference, secrets_problems
from fairlead.specs.workload import LABELS_MOST, Kind

DEFAULT_TEAM = "default"
DAY_S = 86_400.0
DECADE_S = 3_650 * DAY_S
MIB = 1024 * 1024

# Matches every pair of a name and a number in a line of output, the default of Katib's collector.
NAME_VALUE = "name=value"

ENV_NAME = Text(
    max_length=256,
    pattern=r"[A-Za-z_][-A-Za-z0-9_.]*",
    what="the name of a variable; use letters, digits, `_`, `.` and `-`, not starting with a digit",
)
ENV_VALUE = Text(max_length=65_536, lines=True, blank=True)
ENV_TOTAL = 262_144
ENV_MOST = 250
ENV = MapField(names=ENV_NAME, values=ENV_VALUE, most=ENV_MOST)
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
        auto: Use spot while it saves money and the ``deadline_s`` permits it, else on-demand; implies ``spot``.
        only_spot: Decision for a run with ``auto``: spot only, or none; None for either. Not a key.
        tier: Tier of a replica whose endpoint has a base; None for any other run. A key of replicas only.
        avoided: Nodes that failed to start its pods. Not a key.
    """

    spot: Annotated[
        bool,
        Key("spot", SPOT, example="true", also="use_spot preemptible interruptible spot_policy", sets=("auto",)),
        "Whether capacity that can be reclaimed may be used; `auto` uses it while the `deadline` allows it.",
    ] = False
    auto: bool = False
    only_spot: bool | None = None
    max_price: Annotated[
        float | None,
        Key(
            "max_price",
            DOLLARS,
            Limit(low=0.000001, high=1_000_000, zero=True),
            example="3.5",
            also="price max_price_per_hour price_per_hour hourly_price bid",
        ),
        "Maximum dollars an hour of a node; nodes without a known price are not used.",
    ] = None
    tier: Tier | None = None
    avoided: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The place and the interval of the run's checkpoints.

    Attributes:
        every_steps: Steps between checkpoints; excludes ``every_s``.
        every_auto: The run chooses the seconds between checkpoints itself; None if not; excludes both.
        memory_every_steps: Steps between such saves; excludes ``memory_every_s``.
    """

    to: Annotated[
        str | None,
        Key(
            "to",
            rule=PATH,
            example="s3://bucket/checkpoints",
            also="path dir directory url uri bucket checkpoint_dir location output",
        ),
        "Directory or URL; the run's name is added to it. The run's own directory when left out.",
    ] = None
    origin: Annotated[
        str | None,
        Key(
            "from",
            rule=PATH,
            example="s3://bucket/checkpoints/base-1a2b3c",
            also="warm_start init_from resume_from load_from pretrained source from_run",
        ),
        "Run, model (NAME@STAGE), directory or URL with the checkpoint to start from while it has none.",
    ] = None
    every_s: Annotated[
        float | None,
        Key(
            "every",
            EVERY,
            Limit(low=0.001, high=DECADE_S),
            example="10m",
            also="interval frequency period every_steps every_s save_steps save_every",
            sets=("every_steps", "every_auto"),
        ),
        "Interval between checkpoints: a duration (10m), a count (200 steps) or `auto`, chosen by the run.",
    ] = None
    every_steps: Annotated[int | None, Limit(low=1, high=10**12, whole=True)] = None
    every_auto: bool | None = None
    keep: Annotated[
        int,
        Key(
            "keep",
            rule=Limit(low=1, high=100_000, whole=True),
            example="3",
            also="keep_last max_to_keep save_total_limit retain num_to_keep",
        ),
        "How many complete checkpoints are kept.",
    ] = 3
    memory_every_s: Annotated[
        float | None,
        Key(
            "memory_every",
            DURATION_OR_STEPS,
            Limit(low=0.001, high=DECADE_S),
            example="30s",
            also="memory in_memory memory_interval replicas local_interval peer neighbour",
            sets=("memory_every_steps",),
        ),
        "Interval of copies in the memory of the nodes, for fast recovery: 30s or 20 steps.",
    ] = None
    memory_every_steps: Annotated[int | None, Limit(low=1, high=10**12, whole=True)] = None
    trust: Annotated[
        bool,
        Key("trust", example="true", also="trusted unsafe allow_pickle trust_pickle"),
        "Load objects of any class from checkpoints: whoever can write them then runs programs as this run.",
    ] = False

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
        yield from broken(self)
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

    Restarts of the program count over the lifetime of the run. A checkpoint is progress, or a report if nothing is
    saved; before a lost pod or node, so is a minute of running. The first restart after progress is immediate.
    """

    program: Annotated[
        int,
        Key(
            "program",
            rule=Limit(low=0, high=1_000_000, whole=True),
            example="3",
            also="max_retries max_restarts backoff_limit attempts max_attempts limit count",
            alone=True,
        ),
        "Restarts after the program itself failed.",
    ] = 0
    infrastructure: Annotated[
        int,
        Key(
            "infrastructure",
            rule=Limit(low=0, high=1_000_000, whole=True),
            example="10",
            also="infra preemption preemptions platform node_failures",
        ),
        "Restarts in a row, without progress between them, after the platform failed the run.",
    ] = 10
    backoff_s: Annotated[
        float,
        Key(
            "backoff",
            DURATION,
            Limit(low=0.001, high=DAY_S, zero=True),
            example="1s",
            also="delay wait min_backoff initial_backoff backoff_s",
        ),
        "Wait before a repeated restart; it doubles each time.",
    ] = 1.0
    max_backoff_s: Annotated[
        float,
        Key(
            "max_backoff",
            DURATION,
            Limit(low=0.001, high=DAY_S, zero=True),
            example="5m",
            also="max_delay max_wait backoff_cap max_backoff_s",
        ),
        "Upper bound of that wait.",
    ] = 300.0

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
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
    """The threshold below which a run counts as idle, and the action."""

    then: Annotated[
        WhenIdle,
        Key("then", example="suspend", also="action do on_idle policy", alone=True),
        "`notify` reports it, `shrink` continues an elastic gang with its fewest nodes, `suspend` suspends it.",
    ] = WhenIdle.NOTIFY
    below: Annotated[
        float,
        Key(
            "below",
            SHARE,
            Limit(low=0.01, high=1),
            example="30%",
            also="threshold utilization utilisation under min_utilization",
        ),
        "Mean utilisation below which it counts as idle: of its GPUs, else of cores beyond one a rank.",
    ] = 0.5
    for_s: Annotated[
        float,
        Key(
            "for",
            DURATION,
            Limit(low=10, high=30 * DAY_S),
            example="30m",
            also="within window duration after period for_s",
        ),
        "The time over which that mean is taken.",
    ] = 900.0

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The limit of stored output."""

    max_bytes: Annotated[
        int,
        Key(
            "max",
            SIZE,
            Limit(low=4 * MIB, high=1024 * 1024 * MIB, whole=True),
            example="256Mi",
            also="max_size max_bytes size limit log_max_size rotate",
            alone=True,
        ),
        "How much of each node's newest output is kept; on Kubernetes kubelet's own limit holds.",
    ] = 64 * MIB

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The extraction of metrics from the program's output.

    A regular expression is searched in each line. Its named groups are numbers: ``step``, ``epoch``, ``total`` and
    ``loss`` as in ``run.progress``, any other name is a metric.
    """

    pattern: Annotated[
        str,
        Key(
            "pattern",
            rule=Text(max_length=1_000),
            example=r"'iter (?P<step>\d+): loss (?P<loss>\S+)'",
            also="regex regexp filter metrics_format format",
            alone=True,
        ),
        "A regular expression whose named groups are numbers, or `name=value` for every such pair in a line.",
    ]

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def regular_expression(self) -> str | None:
        """Return the pattern; None for ``name=value``."""
        return None if self.pattern == NAME_VALUE else self.pattern

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.regular_expression is None or rules_of(Metrics)["pattern"].problem(self.pattern) is not None:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of a set that a later Python may read otherwise
                groups = re.compile(self.pattern).groupindex
        except (re.error, OverflowError, RecursionError, MemoryError) as error:
            # Not only re.error: a count of repetitions may be too large, and groups nested too deeply.
            yield "pattern", f"{quote(self.pattern)} is not a regular expression: {str(error) or type(error).__name__}"
            return
        if not set(groups) - {"step", "epoch", "total"}:
            groups_text = f"names only {', '.join(sorted(groups))}" if groups else "names no group"
            yield (
                "pattern",
                f"{quote(self.pattern)} {groups_text}; name the number of a metric, such as `loss (?P<loss>\\S+)`, "
                f"or give `{NAME_VALUE}`",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A gang of ranks that runs one program to its end.

    Attributes:
        name: Lower-case letters, digits and dashes (a DNS label of at most 50 characters).
        labels: User labels by which runs are selected; on Kubernetes also set on its pods.
        most_nodes: Maximum pods of an elastic gang, which uses as many nodes as are free; None for ``nodes``.
    """

    kind: ClassVar[str] = Kind.TRAINING

    name: Annotated[
        str,
        Key("name", rule=NAME, example="train-llama", also="job_name run_name title id", metadata="name"),
        "Lower-case letters, digits and dashes, at most 50; a short form without it takes the file's name.",
    ]
    run: Annotated[
        str,
        Key(
            "run",
            rule=Text(max_length=65_536, lines=True),
            example="python train.py",
            also="command commands cmd script entrypoint entry_point args main exec",
        ),
        "The command, as for a shell. A plain `python script.py ...` starts fastest.",
    ]
    team: Annotated[
        str,
        Key("team", rule=NAME, example="research", also="namespace project queue tenant group", metadata="namespace"),
        "The team it belongs to; the namespace on Kubernetes.",
    ] = DEFAULT_TEAM
    setup: Annotated[
        str | None,
        Key(
            "setup",
            rule=Text(max_length=65_536, lines=True),
            example="pip install -r requirements.txt",
            also="setup_commands init before pre_run install prepare",
        ),
        "Shell commands run once for each node before the first start.",
    ] = None
    workdir: Annotated[
        str | None,
        Key("workdir", rule=PATH, example="src", also="working_dir working_directory cwd chdir work_dir"),
        "Directory the command runs in; the directory of the spec file when left out.",
    ] = None
    image: Annotated[
        str | None,
        Key(
            "image",
            rule=Text(max_length=512, pattern=r"[^\s]+", what="an image; it has no spaces, such as `python:3.12`"),
            example="python:3.12",
            also="container docker_image container_image image_id docker",
        ),
        "Container image; needs a cluster with containers.",
    ] = None
    environment: Annotated[
        PythonEnvironment | None,
        Key(
            "environment",
            example="requirements.txt",
            also="requirements dependencies packages pip python runtime_env conda virtualenv venv",
        ),
        "Packages and Python that the run needs, made before it starts; a text alone is `file`.",
    ] = None
    env: Annotated[
        Mapping[str, str],
        Key(
            "env",
            ENV,
            example="{SEED: 1}",
            also="envs env_vars environment_variables vars variables",
        ),
        "Variables added to the environment; values keep their exact text.",
    ] = field(default_factory=dict)
    secrets: Annotated[
        tuple[SecretReference, ...],
        Key("secrets", SECRETS, example="[hf]", also="secret env_from secret_refs env_secrets secret_env"),
        "Secrets by name, each entry a variable, or `VARIABLE=NAME/ENTRY` for the path of a file; see secrets.md.",
    ] = ()
    labels: Annotated[
        Mapping[str, str],
        Key(
            "labels",
            MapField(names=LABEL_NAME, values=LABEL_VALUE, most=LABELS_MOST),
            example="{experiment: a}",
            also="label tags tag",
            metadata="labels",
        ),
        "Names and values of your own, to find runs by (`--label`); on Kubernetes also of object and pods.",
    ] = field(default_factory=dict)
    nodes: Annotated[
        int,
        Key(
            "nodes",
            SPAN,
            Limit(low=1, high=10_000, whole=True),
            example="2",
            also="num_nodes nnodes node_count replicas workers num_workers instances instance_count num_pods machines",
            sets=("most_nodes",),
        ),
        "Pods of the gang, each on one node; `2..8` for as many as are free within these bounds.",
    ] = 1
    most_nodes: Annotated[int | None, Limit(low=1, high=10_000, whole=True)] = None
    ranks_per_node: Annotated[
        int | None,
        Key(
            "ranks_per_node",
            rule=Limit(low=1, high=1_024, whole=True),
            example="4",
            also="nproc_per_node nproc processes_per_node procs_per_node tasks_per_node ranks",
        ),
        "Processes on each node; one for each GPU, or 1 without GPUs, when left out.",
    ] = None
    resources: Annotated[
        Resources,
        Key("resources", example="{gpu: A100:8}", also="resource requests limits"),
        "What each node gets.",
    ] = field(default_factory=Resources)
    capacity: Annotated[
        Capacity,
        Key("capacity", example="{spot: true}", also="capacity_type provisioning"),
        "Kinds of capacity to use.",
    ] = field(default_factory=Capacity)
    data: Annotated[
        Mapping[str, DataSource],
        Key(
            "data",
            Named(DATA_NAME, DATA_MOST),
            example="{train: s3://bucket/imagenet}",
            also="dataset datasets inputs volumes mounts file_mounts storage buckets",
        ),
        "Data sets by name, which the program reads by `run.data(NAME)`; a text alone is `from`.",
    ] = field(default_factory=dict)
    checkpoint: Annotated[
        Checkpoint,
        Key("checkpoint", example="{every: 10m}", also="checkpoints checkpointing ckpt"),
        "Where and how often state is saved.",
    ] = field(default_factory=Checkpoint)
    retry: Annotated[
        Retry,
        Key("retry", example="3", also="retries restart restarts retry_policy restart_policy max_retries"),
        "Restarts of a failed run; a number alone is `program`.",
    ] = field(default_factory=Retry)
    logs: Annotated[
        Logs,
        Key("logs", example="256Mi", also="log output logging log_size max_log_size"),
        "Limit of kept output; a size alone is `max`.",
    ] = field(default_factory=Logs)
    metrics: Annotated[
        Metrics | None,
        Key("metrics", example="name=value", also="metric metrics_collector metrics_pattern metric_pattern"),
        "Reads progress and metrics from printed lines; a text alone is the pattern.",
    ] = None
    model: Annotated[
        ModelShape | None,
        Key("model", example="config.json", also="architecture model_config"),
        "The transformer to train, for `plan` and `parallel: auto`; a text alone is `config`.",
    ] = None
    parallel: Annotated[
        Parallel | None,
        Key("parallel", example="auto", also="parallelism split distributed mesh"),
        "Split of a step over the ranks, which the program finds in `run.parallel`; or `auto`.",
    ] = None
    priority: Annotated[
        int,
        Key(
            "priority",
            rule=Limit(low=-1, high=1_000, whole=True),
            example="100",
            also="priority_class priority_class_name prio",
        ),
        "Higher starts first, from 0 to 1000; -1 uses only idle resources and is preempted by every other run.",
    ] = 0
    max_duration_s: Annotated[
        float | None,
        Key(
            "max_duration",
            DURATION,
            Limit(low=0.001, high=DECADE_S),
            example="12h",
            also="timeout time_limit time active_deadline_seconds max_time max_runtime walltime max_duration_s",
        ),
        "The run is stopped, with a checkpoint, after this long since its first start.",
    ] = None
    max_cost: Annotated[
        float | None,
        Key(
            "max_cost",
            DOLLARS,
            Limit(low=0.01, high=1_000_000_000),
            example="25",
            also="budget cost cost_limit max_spend",
        ),
        "The run is stopped, with a checkpoint, before it costs this many dollars.",
    ] = None
    expected_duration_s: Annotated[
        float | None,
        Key(
            "expected_duration",
            DURATION,
            Limit(low=0.001, high=DECADE_S),
            example="6h",
            also="expected_time expected_runtime estimated_duration estimate expected_duration_s",
        ),
        "Estimated duration of its work, for backfill and forecasts; the run is not stopped after it.",
    ] = None
    deadline_s: Annotated[
        float | None,
        Key(
            "deadline",
            DURATION,
            Limit(low=0.001, high=DECADE_S),
            example="24h",
            also="due due_in finish_by complete_by deadline_s",
        ),
        "Time from submission until the work must be done, for `capacity: {spot: auto}`.",
    ] = None
    stall_timeout_s: Annotated[
        float | None,
        Key(
            "stall_timeout",
            DURATION,
            Limit(low=0.001, high=DECADE_S),
            example="30m",
            also="hang_timeout idle_timeout watchdog progress_timeout stall_timeout_s",
        ),
        "No progress for this long counts as a hang.",
    ] = None
    idle: Annotated[
        Idle,
        Key("idle", example="suspend", also="idleness when_idle on_idle idle_policy gpu_idle"),
        "Reaction to idle GPUs or cores; a word alone is `then`.",
    ] = field(default_factory=Idle)
    grace_s: Annotated[
        float,
        Key(
            "grace",
            DURATION,
            Limit(low=0.001, high=DAY_S, zero=True),
            example="30s",
            also="grace_period termination_grace_period_seconds stop_timeout stop_duration grace_s",
        ),
        "Time between the stop notice (SIGTERM) and SIGKILL.",
    ] = 30.0
    framework: Annotated[
        Framework | None,
        Key("framework", example="jax", also="backend library distributed distribution"),
        "Framework whose variables the ranks get, beside torchrun's; a single rank gets them too.",
    ] = None
    launch: Annotated[
        Launch,
        Key("launch", example="torchrun", also="launcher start_method"),
        "`torchrun` sets torchrun's variables for a single rank too; `exec` disables fast forking of ranks.",
    ] = Launch.AUTO
    snapshot: Annotated[
        bool,
        Key("snapshot", example="false", also="keep_code code_snapshot copy_code save_code"),
        "Run a copy of the code as of submission, so that later edits do not change the run.",
    ] = True
    elastic: Annotated[
        Elastic,
        Key("elastic", example="in_place", also="resize elasticity fault_tolerance on_rank_loss in_place"),
        "When a rank is killed, `restart` all from a checkpoint, or continue `in_place` until it is back.",
    ] = Elastic.RESTART
    terminate_on_nan: Annotated[
        bool,
        Key("terminate_on_nan", example="false", also="stop_on_nan fail_on_nan nan_check detect_nan check_nan"),
        "Fail the run when `run.progress` reports a loss that is NaN or infinite.",
    ] = True
    engine: Annotated[
        Engine | None,
        Key("engine", example="jobset", also="controller operator job_type runner managed_by"),
        "A controller of the cluster that gets the run instead of Fairlead's own placement; see engines.md.",
    ] = None
    queue: Annotated[
        str | None,
        Key(
            "queue",
            rule=Text(max_length=63, pattern=r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", what="a queue's name"),
            example="team-a",
            also="queue_name local_queue localqueue partition",
        ),
        "The queue that admits a run with an `engine`: Kueue's LocalQueue, or a Queue of Volcano's own.",
    ] = None
    network: Annotated[
        Network,
        Key("network", example="auto", also="network_tier interconnect fabric efa infiniband nccl"),
        "The network between its pods; a word alone is `profile`. Other clusters than Kubernetes have none to choose.",
    ] = field(default_factory=Network)
    preflight: Annotated[
        Preflight | None,
        Key("preflight", example="{network: 60s}", also="healthcheck health_check node_check burn_in sanity_check"),
        "Test of its nodes before the program first starts; those that it names are replaced, see preflight.md.",
    ] = None
    kubernetes: Annotated[
        Overlay,
        Key(
            "kubernetes",
            OverlayField(tree=POD),
            example="{spec: {nodeSelector: {disk: fast}}}",
            also="pod pod_template template pod_spec k8s pod_overrides",
        ),
        "Fields of Kubernetes that are merged into each pod; other clusters ignore them.",
    ] = field(default_factory=Overlay)

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
        for attribute in self.__slots__:
            object.__setattr__(made, attribute, getattr(self, attribute))
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
        for attribute in Training.__slots__:
            object.__setattr__(made, attribute, getattr(self, attribute))
        object.__setattr__(made, "capacity", capacity)
        return made

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
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
        if self.preflight is not None and self.preflight.gpu_s is not None and self.resources.gpu is None:
            yield "preflight", NO_GPUS
        if self.preflight is not None and self.preflight.network_s is not None and (self.most_nodes or self.nodes) < 2:
            yield "preflight", ONE_NODE
        yield from env_problems(self.env)
        yield from secrets_problems(self.secrets, self.env)
        yield from places_problems(self.data)
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
    problems = (label_problem(name, value) for name, value in labels.items())
    yield from (("labels", problem) for problem in problems if problem is not None)
    if len(labels) > LABELS_MOST:
        yield "labels", f"{len(labels)} labels; give at most {LABELS_MOST}"
