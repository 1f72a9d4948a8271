"""The capability of an engine to take endpoints: pure functions that render an endpoint's object and read its status.

An endpoint has one object, named like the endpoint, which contains the revision to serve; the engine rolls it out. The
object is deleted to stop the endpoint, and created again to resume it.

See decision 82.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.engines.port import EngineKind, Object, words
from fairlead.cluster.kubernetes.manifests.endpoints import endpoint_name
from fairlead.frozen import dataclass
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.serving import Serving
from fairlead.state.engine_endpoints import EngineEndpoint
from fairlead.state.snapshot import Workload

GIVEN = f"{names.DOMAIN}/given"
"""Annotation of an object: a hash of its rendered content, by which a change is detected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A revision of an endpoint, with the endpoint's complete spec at that revision."""

    name: str
    spec: Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """An endpoint as it is submitted to an engine.

    Attributes:
        target: The revision to serve.
        beside: The previous revision while it gets a share of the requests; None if the target gets all.
        percent: Percentage of the requests for the target.
        device: The resource that each pod requests; None without GPUs.
        models: Alternative labels as key and value, one of which a node must have; empty for any node.
    """

    workload: Workload[Serving]
    target: Version
    beside: Version | None = None
    percent: int = 100
    device: DeviceResource | None = None
    models: tuple[tuple[str, str], ...] = ()


class EndpointDriver(EngineKind, Protocol):
    """The capability to take endpoints."""

    @property
    def engine(self) -> EndpointEngine:
        """Return its name in specs."""
        ...

    @property
    def made(self) -> tuple[str, str]:
        """Return API and plural of the objects that it makes from its own and that count pods; they have its labels."""
        ...

    def render(self, handover: Handover) -> Object:
        """Render the object."""
        ...

    def observe(self, content: Mapping[str, Any], made: Iterable[Mapping[str, Any]]) -> EngineEndpoint:
        """Read the status of an object and of the objects created from it; any part may be missing."""
        ...


def rendered(driver: EndpointDriver, handover: Handover) -> Object:
    """Render the object with an annotation that has the hash of its content."""
    content = driver.render(handover)
    content["metadata"].setdefault("annotations", {})[GIVEN] = digest(content)
    return content


def digest(content: Object) -> str:
    """Return a short hash of an object."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def metadata(handover: Handover, engine: EndpointEngine) -> Object:
    """Return the metadata of an endpoint's object."""
    run = handover.workload
    return {
        "name": endpoint_name(run.spec),
        "namespace": run.spec.team,
        "labels": labels(handover.workload, handover.target, engine),
        "ownerReferences": [names.owner(run)],
    }


def labels(workload: Workload[Serving], version: Version, engine: EndpointEngine) -> dict[str, str]:
    """Return the labels of a revision's object and of the objects created from it."""
    return {
        **version.spec.labels,
        names.MANAGED_BY: names.MANAGER,
        names.RUN: workload.spec.name,
        names.ENDPOINT_UID: workload.uid,
        names.REVISION: version.name,
        names.ENGINE: engine.value,
    }


def environment(version: Version, *, model: str) -> dict[str, str]:
    """Return the environment of a revision's program, without ``PORT``, which differs by engine.

    Args:
        model: Path or URL of the model for the program.
    """
    replica = version.spec.replica(version.name)
    own = {
        "HOST": "0.0.0.0",
        "FAIRLEAD_MODEL": model,
        "FAIRLEAD_PREDICTOR": replica.predictor,
        "FAIRLEAD_SERVICE": replica.service,
        "FAIRLEAD_REVISION": replica.revision,
        "FAIRLEAD_BATCHING": replica.batching,
        "FAIRLEAD_GRACE": f"{replica.grace_s:g}",
        "FAIRLEAD_MAX_QUEUE": str(replica.max_queue),
    }
    return {"HOME": "/tmp", **version.spec.env, **own}


def falsity(content: Mapping[str, Any], type_: str = "Ready") -> str:
    """Return why a condition is not true, as a clause; empty if no reason is given."""
    conditions = (content.get("status") or {}).get("conditions") or ()
    false = (item for item in conditions if item.get("type") == type_ and item.get("status") != "True")
    condition = next(false, None)
    return "" if condition is None else words(condition, fallback="")
