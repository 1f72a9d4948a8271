"""The spec of a workspace: an interactive run of one process that does not end."""

from collections.abc import Iterable
from dataclasses import field, replace
from enum import StrEnum
from typing import Annotated, ClassVar

from fairlead.frozen import dataclass
from fairlead.specs.constraints import PATH, Limit, Text, enforce, quote
from fairlead.specs.cron import TIMEZONE, parse_cron, timezone_problem
from fairlead.specs.field_types import CPU, DURATION, SIZE, Section
from fairlead.specs.key import Key, SameKey, broken
from fairlead.specs.resources import Resources
from fairlead.specs.sections import part_of, with_keys, without
from fairlead.specs.training import DAY_S, Checkpoint, Idle, Launch, Retry, Training
from fairlead.specs.workload import Kind

STORAGE_CLASS = Text(
    max_length=253, pattern=r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", what="the name of a StorageClass, such as `fast-ssd`"
)
HOME_IS_CLAIM = (
    "a path is of one machine, and on Kubernetes the home is a claim; leave it out, or give `size` and `class` instead"
)
SERVER = "python -m fairlead.runtime.workspace"
"""The command of every workspace, which starts the server of its `ide` and reports activity."""


class Ide(StrEnum):
    """The servers of a workspace."""

    JUPYTER = "jupyter"
    VSCODE = "vscode"
    SSH = "ssh"


PROBES = {Ide.JUPYTER: "/api", Ide.VSCODE: "/healthz", Ide.SSH: None}
"""The path that a server answers well once it is ready; None for a server without HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceIdle(Idle):
    """The time without activity after which a workspace is suspended."""

    OBJECT_KEYS: ClassVar = ("after",)

    after_s: Annotated[
        float,
        Key(
            "after",
            DURATION,
            Limit(low=10, high=30 * DAY_S),
            example="1h",
            also="timeout stop_after shutdown_after culling inactivity",
            alone=True,
        ),
        "It is suspended after this long without a busy kernel, a command, input, a saved file or GPU use.",
    ] = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendTimes:
    """The times at which a workspace is suspended, such as every evening."""

    at: Annotated[
        str,
        Key("at", rule=Text(max_length=200), example="0 20 * * *", also="cron schedule", alone=True),
        "Minute, hour, day of the month, month and day of the week.",
    ]
    timezone: Annotated[
        str,
        Key("timezone", rule=TIMEZONE, example="Europe/Berlin", also="tz time_zone zone"),
        "Time zone of these times.",
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
class WorkspaceHome:
    """The directory that outlives a workspace, and is its HOME: on a cluster a claim, elsewhere a directory."""

    path: Annotated[
        str | None,
        Key("path", rule=PATH, example="~/work", also="dir directory folder", alone=True),
        "Directory on this machine; one for the workspace's name in the state directory when left out.",
    ] = None
    size_bytes: Annotated[
        int | None,
        Key("size", SIZE, Limit(low=1024**2, high=2**60, whole=True), example="20Gi", also="storage capacity disk"),
        "On Kubernetes, size of the claim when it is made; 10Gi when left out.",
    ] = None
    storage_class: Annotated[
        str | None,
        Key("class", rule=STORAGE_CLASS, example="fast", also="storage_class storageclass storageClassName type"),
        "On Kubernetes, StorageClass of the claim; that of the cluster when left out.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))


def _resources() -> Section:
    """Return the resources of a workspace, of whose use nothing is learnt and which shares no GPU by pace."""
    whole = without(part_of(Resources), "colocate", "shm")
    fixed = {"cpu": CPU, "memory": SIZE}
    keys = (
        replace(key, kind=fixed[key.name], doc=f"{key.doc.partition('; `auto`')[0]}.", attributes=key.attributes[:1])
        for key in whole.keys
        if key.name in fixed
    )
    return with_keys(whole, *keys)


def _checkpoint() -> Section:
    """Return where a workspace begins: its programs save to places of their own."""
    return without(part_of(Checkpoint), "to", "every", "keep", "memory_every")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace(Training):
    """A place to work interactively: a notebook, an editor or a shell with resources, data and a home directory.

    It is a run of one process, which waits in the same queue as all others, and is suspended while nobody works in it.

    Attributes:
        run: The command of the process; not a key.
    """

    kind: ClassVar[str] = Kind.WORKSPACE

    OBJECT_KEYS: ClassVar = (
        "name", "team", "labels", "ide", "home", "image", "workdir", "setup", "environment", "env", "secrets",
        "resources", "data", "checkpoint", "idle", "suspend_at", "max_duration", "max_cost", "priority", "grace",
        "logs", "kubernetes",
    )  # fmt: skip

    run: str = SERVER
    workdir: Annotated[
        str | None,
        SameKey(Training, "workdir"),
        "Directory that it opens: the live files here, a copy in its home on Kubernetes; its home when left out.",
    ] = None
    resources: Annotated[Resources, SameKey(Training, "resources", {"kind": _resources}), "What it gets."] = field(
        default_factory=Resources
    )
    checkpoint: Annotated[
        Checkpoint,
        SameKey(Training, "checkpoint", {"kind": _checkpoint, "example": "{from: train}"}),
        "The checkpoint at which a program that is started in it stands.",
    ] = field(default_factory=Checkpoint)
    idle: Annotated[
        WorkspaceIdle,
        Key("idle", example="1h", also="idleness idle_timeout auto_stop idle_policy culling"),
        "When it is suspended for lack of activity; a duration alone is `after`.",
    ] = field(default_factory=WorkspaceIdle)
    ide: Annotated[
        Ide,
        Key("ide", example="jupyter", also="editor interface app server"),
        "The server that it runs: JupyterLab or jupyter-server, an editor in the browser, or sshd.",
    ] = Ide.JUPYTER
    home: Annotated[
        WorkspaceHome,
        Key("home", example="~/work", also="home_dir volume storage persistent_volume disk"),
        "What outlives it, and is its HOME; a text alone is `path`.",
    ] = field(default_factory=WorkspaceHome)
    suspend_at: Annotated[
        SuspendTimes | None,
        Key("suspend_at", example="0 20 * * *", also="stop_at off off_hours shutdown_at schedule night"),
        "When it is suspended whatever goes on in it, such as every evening; a text alone is `at`.",
    ] = None
    launch: Launch = Launch.EXEC
    snapshot: bool = False
    ranks_per_node: int | None = 1
    retry: Retry = field(default_factory=lambda: Retry(max_backoff_s=60.0))

    @property
    def probe(self) -> str | None:
        """Return the path that its server answers once it is ready; None for a server without HTTP."""
        return PROBES[self.ide]
