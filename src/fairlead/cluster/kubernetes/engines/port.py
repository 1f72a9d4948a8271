"""The port to an engine: pure functions that render a run's objects and read their status.

An object represents one attempt of the run. Its name consists of the run's name and the attempt, so that an operator
that is killed and restarted finds the existing object. It is deleted to stop the run. It never retries by itself,
because the run's ``retry`` decides about another attempt, which has a separate object. See docs/decisions/0054.
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


class Stage(StrEnum):
    """The stage of an engine's object."""

    WAITING = "Waiting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The state of an object, read from its status.

    Attributes:
        message: Why it is pending or has failed, as a sentence without its full stop; empty if no reason is given.
        started_at: When its pods were started, where only the object says it.
        index: The pod that failed first, where only the object says it; ``exit_code`` is how its container ended.
        ended_at: When that was.
    """

    stage: Stage
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


class Driver(Protocol):
    """The port; a module of this package implements it as ``DRIVER``."""

    engine: Engine
    api: str
    """Group and version of its API, as in an object's ``apiVersion``."""
    kind: str
    plural: str
    launches: bool
    """The engine itself starts the program, so the outcome is that of the object and not of its pods."""
    reports_end: bool
    """The container of the program outlives it, and the first pod's reporter tells how it ended."""
    beside: tuple[str, ...]
    """Kinds of objects that are rendered before the observed one and deleted with it."""

    def render(self, start: Submission) -> tuple[Object, ...]:
        """Render the objects of an attempt; the last one is observed, and refers to those before it.

        All have the same name, and the labels and owner of the run.
        """
        ...

    def observe(self, content: Mapping[str, Any]) -> Observation:
        """Read an object's status; any part may be missing."""
        ...


def condition(content: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    """Return a condition of an object if it is true; otherwise None."""
    found = (content.get("status") or {}).get("conditions") or ()
    return next((each for each in found if each.get("type") == type_ and each.get("status") == "True"), None)


def words(found: Mapping[str, Any], *, fallback: str) -> str:
    """Return the message or reason of another controller as a clause of at most 400 characters."""
    message = " ".join(str(found.get("message") or found.get("reason") or "").split()).rstrip(".")
    return message[:400] or fallback
