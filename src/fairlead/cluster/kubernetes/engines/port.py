"""The port to an engine: pure functions from a run to the object that its controller takes, and from that to our words.

An object stands for one start of the run. It is named by the run and the start's number, so that an operator that is
killed and started again finds the one there is; it is deleted to stop the run; and it never tries again by itself, as
``retry`` of the run says when there is another start, with an object of its own. See docs/decisions/0054.
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
    """The part of its life in which an engine's object is."""

    WAITING = "Waiting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The life of an object, as its status tells it.

    Attributes:
        message: Why it waits or has failed, as a sentence without its full stop; empty where nobody says.
    """

    stage: Stage
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One start of a run, as it is handed over.

    Attributes:
        settings: What the cluster decides for all pods.
        device: What each pod asks a node for; None for a run without GPUs.
        models: Alternatives of key and value of labels, one of which a node must have; none for any node.
    """

    workload: Workload
    attempt: int
    settings: PodSettings
    device: DeviceResource | None = None
    models: tuple[tuple[str, str], ...] = ()


class Driver(Protocol):
    """The port; a module of this package has one as ``DRIVER``."""

    engine: Engine
    api: str
    """Its API's group and version, as in an object's ``apiVersion``."""
    kind: str
    plural: str
    launches: bool
    """The engine starts the program itself: how it ended is what the object says, and not what its pods say."""
    beside: tuple[str, ...]
    """Kinds of objects that are rendered before the one that is observed, and go with it."""

    def render(self, start: Submission) -> tuple[Object, ...]:
        """The objects of a start; the last is the one that is observed, and those before it are what it refers to.

        All have the same name, and labels and owner of the run.
        """
        ...

    def observe(self, content: Mapping[str, Any]) -> Observation:
        """Read what an object's status says, whatever is missing of it."""
        ...


def condition(content: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    """A condition of an object, where it is true."""
    found = (content.get("status") or {}).get("conditions") or ()
    return next((each for each in found if each.get("type") == type_ and each.get("status") == "True"), None)


def words(found: Mapping[str, Any], *, fallback: str) -> str:
    """Somebody else's reason and message as a clause of ours."""
    message = " ".join(str(found.get("message") or found.get("reason") or "").split()).rstrip(".")
    return message[:400] or fallback
