"""The port to an engine: pure functions that render a workload's objects and read their status.

An engine is one file of this package and one entry of ``table.HOMES``. It has a kind of object, and the capability to
take runs (``Driver``), endpoints (``endpoint_port.EndpointDriver``) or the proposals of a sweep's trials
(``search_port.SearchDriver``). What few engines of a capability need has a default there.

An object of a run represents one attempt. Its name consists of the run's name and the attempt, so that an operator
that is killed and restarted finds the existing object. It is deleted to stop the run. It never retries by itself,
because the run's ``retry`` decides about another attempt, which has a separate object. See decisions 54 and 222.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.frozen import dataclass
from fairlead.specs.engines import Engine
from fairlead.state.snapshot import Workload

Object = dict[str, Any]


class EngineStage(StrEnum):
    """The stage of an engine's object."""

    WAITING = "Waiting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """The state of an object, read from its status.

    Attributes:
        message: Why it is pending or has failed, as a sentence without its full stop; empty if no reason is given.
        started_at: When its pods were started, where only the object says it.
        index: The pod that failed first, where only the object says it; ``exit_code`` is how its container ended.
        ended_at: When that was.
    """

    stage: EngineStage
    message: str = ""
    started_at: float | None = None
    index: int | None = None
    exit_code: int = 0
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One attempt of a run, as it is submitted to an engine.

    Attributes:
        settings: Settings of the cluster for all pods.
        device: The resource that each pod requests; None for a run without GPUs.
        models: Alternative labels as key and value, one of which a node must have; empty for any node.
    """

    workload: Workload
    attempt: int
    settings: PodSettings
    device: DeviceResource | None = None
    models: tuple[tuple[str, str], ...] = ()


class EngineKind(Protocol):
    """The part that every engine has: the kind of the objects that its controller handles."""

    @property
    def api(self) -> str:
        """Return group and version of its API, as in an object's ``apiVersion``."""
        ...

    @property
    def kind(self) -> str:
        """Return the kind of its objects."""
        ...

    @property
    def plural(self) -> str:
        """Return the name of their resource."""
        ...


class Driver(EngineKind, Protocol):
    """The capability to take runs: an object for each attempt."""

    @property
    def engine(self) -> Engine:
        """Return its name in specs."""
        ...

    @property
    def launches(self) -> bool:
        """Return whether it starts the program itself, so that the outcome is its object's and not that of its pods."""
        return False

    @property
    def reports_end(self) -> bool:
        """Return whether the program's container outlives it, and the first pod's reporter tells how it ended."""
        return False

    @property
    def beside(self) -> tuple[str, ...]:
        """Return kinds of objects that are rendered before the observed one and deleted with it."""
        return ()

    def render(self, start: Submission) -> tuple[Object, ...]:
        """Render the objects of an attempt; the last one is observed, and refers to those before it.

        All have the same name, and the labels and owner of the run.
        """
        ...

    def observe(self, content: Mapping[str, Any]) -> EngineStatus:
        """Read an object's status; any part may be missing."""
        ...


def condition(content: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    """Return a condition of an object if it is true; otherwise None."""
    conditions = (content.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == type_ and item.get("status") == "True"), None)


def words(report: Mapping[str, Any], *, fallback: str) -> str:
    """Return the message or reason of another controller as a clause of at most 400 characters."""
    message = " ".join(str(report.get("message") or report.get("reason") or "").split()).rstrip(".")
    return message[:400] or fallback
