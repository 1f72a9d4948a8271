"""The port to an engine of endpoints: pure functions from an endpoint to the object that its controller takes, and from
that to our words.

An endpoint has one object there, of its own name, which is given the revision that is to serve; the engine brings it
about. It is deleted to stop the endpoint, and made anew to resume it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.engines.port import Object, words
from fairlead.cluster.kubernetes.manifests.endpoints import endpoint_name
from fairlead.frozen import dataclass
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.serving import Serving
from fairlead.state.engine_endpoints import EngineEndpoint
from fairlead.state.snapshot import Workload

GIVEN = f"{names.DOMAIN}/given"
"""Annotation of an object: a hash of all that it was given, so that it is known whether that is another by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A revision of an endpoint, with the endpoint's whole spec as of it."""

    name: str
    spec: Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """An endpoint as it is handed over.

    Attributes:
        target: The revision that is to serve.
        beside: The one before, where that gets a part of the requests; None where the target gets all.
        percent: Of the requests for the target.
        device: What each pod asks a node for; None without GPUs.
        models: Alternatives of key and value of labels, one of which a node must have; none for any node.
    """

    workload: Workload[Serving]
    target: Version
    beside: Version | None = None
    percent: int = 100
    device: DeviceResource | None = None
    models: tuple[tuple[str, str], ...] = ()


class EndpointDriver(Protocol):
    """The port; a module of this package has one as ``DRIVER``."""

    engine: EndpointEngine
    api: str
    """Its API's group and version, as in an object's ``apiVersion``."""
    kind: str
    plural: str
    made: tuple[str, str]
    """API and plural of what the engine makes of it that counts its pods; it has the object's labels."""

    def render(self, handover: Handover) -> Object:
        """The object."""
        ...

    def observe(self, content: Mapping[str, Any], made: Iterable[Mapping[str, Any]]) -> EngineEndpoint:
        """Read what an object's status says, and that of what was made of it, whatever is missing of them."""
        ...


def rendered(driver: EndpointDriver, handover: Handover) -> Object:
    """The object with what tells that it is ours, and what it was given."""
    content = driver.render(handover)
    content["metadata"].setdefault("annotations", {})[GIVEN] = digest(content)
    return content


def digest(content: Object) -> str:
    """A short hash of an object."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def metadata(handover: Handover, engine: EndpointEngine) -> Object:
    """The metadata of an endpoint's object."""
    run = handover.workload
    return {
        "name": endpoint_name(run.spec),
        "namespace": run.spec.team,
        "labels": labels(handover.workload, handover.target, engine),
        "ownerReferences": [names.owner(run)],
    }


def labels(workload: Workload[Serving], version: Version, engine: EndpointEngine) -> dict[str, str]:
    """The labels of a revision's object and of what is made of it."""
    return {
        **version.spec.labels,
        names.MANAGED_BY: names.MANAGER,
        names.RUN: workload.spec.name,
        names.ENDPOINT_UID: workload.uid,
        names.REVISION: version.name,
        names.ENGINE: engine.value,
    }


def environment(version: Version, *, model: str) -> dict[str, str]:
    """The variables that the program of a revision finds, but for ``PORT``, which is each engine's own.

    Args:
        model: Where the model is for the program.
    """
    replica = version.spec.replica(version.name)
    told = {
        "HOST": "0.0.0.0",
        "FAIRLEAD_MODEL": model,
        "FAIRLEAD_PREDICTOR": replica.predictor,
        "FAIRLEAD_SERVICE": replica.service,
        "FAIRLEAD_REVISION": replica.revision,
        "FAIRLEAD_BATCHING": replica.batching,
        "FAIRLEAD_GRACE": f"{replica.grace_s:g}",
        "FAIRLEAD_MAX_QUEUE": str(replica.max_queue),
    }
    return {"HOME": "/tmp", **version.spec.env, **told}


def falsity(content: Mapping[str, Any], type_: str = "Ready") -> str:
    """Return why a condition is not true, as a clause; empty where nobody says."""
    conditions = (content.get("status") or {}).get("conditions") or ()
    found = next((each for each in conditions if each.get("type") == type_ and each.get("status") != "True"), None)
    return "" if found is None else words(found, fallback="")
