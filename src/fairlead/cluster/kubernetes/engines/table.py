"""The table of engines: the driver of each, imported on first use.

See decision 222.
"""

import importlib
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, cast, overload

from fairlead.cluster.kubernetes.engines.port import Driver, EngineKind
from fairlead.cluster.kubernetes.names import segment
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.engines import Engine
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.specs.training import Training

if TYPE_CHECKING:  # few runs have an engine, and few of these are of endpoints or sweeps
    from fairlead.cluster.kubernetes.engines.endpoint_port import EndpointDriver
    from fairlead.cluster.kubernetes.engines.search_port import SearchDriver

AnyEngine: TypeAlias = Engine | EndpointEngine | SweepEngine
_HERE = "fairlead.cluster.kubernetes.engines"
HOMES: dict[AnyEngine, str] = {
    Engine.JOBSET: f"{_HERE}.jobset:DRIVER",
    Engine.KUEUE: f"{_HERE}.kueue:DRIVER",
    Engine.PYTORCHJOB: f"{_HERE}.training_operator:PYTORCH",
    Engine.TFJOB: f"{_HERE}.training_operator:TENSORFLOW",
    Engine.XGBOOSTJOB: f"{_HERE}.training_operator:XGBOOST",
    Engine.MPIJOB: f"{_HERE}.training_operator:MPI",
    Engine.KUBEFLOW_TRAINER: f"{_HERE}.trainer:DRIVER",
    Engine.RAYJOB: f"{_HERE}.rayjob:DRIVER",
    Engine.VOLCANO: f"{_HERE}.volcano:DRIVER",
    EndpointEngine.KSERVE: f"{_HERE}.kserve:DRIVER",
    EndpointEngine.KNATIVE: f"{_HERE}.knative:DRIVER",
    EndpointEngine.SELDON: f"{_HERE}.seldon:DRIVER",
    SweepEngine.KATIB: f"{_HERE}.katib:DRIVER",
}
"""The module and the name of the driver of each engine."""


@overload
def driver_of(engine: Engine) -> Driver: ...
@overload
def driver_of(engine: EndpointEngine) -> "EndpointDriver": ...
@overload
def driver_of(engine: SweepEngine) -> "SearchDriver": ...


def driver_of(engine: AnyEngine) -> "Driver | EndpointDriver | SearchDriver":
    """Return the driver of an engine."""
    module, _, name = HOMES[engine].partition(":")
    return cast("Driver | EndpointDriver | SearchDriver", _imported(module, name))


@cache
def _imported(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name)


KUEUE = ("Kueue", "kueue.x-k8s.io/v1beta2")


def needs_of(spec: Training) -> tuple[tuple[str, str], ...]:
    """Return the kinds, each with its API's group and version, that a run's engine and queue require."""
    if spec.engine is None:
        return ()
    driver = driver_of(spec.engine)
    own = (driver.kind, driver.api)
    return (own, KUEUE) if is_queued_by_kueue(spec) else (own,)


def is_queued_by_kueue(spec: Training) -> bool:
    """Return whether Kueue admits the run; Volcano has its own queues."""
    return spec.queue is not None and spec.engine is not Engine.VOLCANO


def missing(engine: AnyEngine, kind: str, api: str) -> str:
    """Return a sentence, without its full stop, that the cluster lacks an API that an engine needs."""
    return (
        f"this cluster has no {kind} ({api}), which `engine: {engine}` needs: install it, choose another engine "
        "(`fairlead doctor` lists those that are there), or leave `engine` out"
    )


def path_of(driver: EngineKind, namespace: str | None = None, name: str | None = None, kind: str | None = None) -> str:
    """Return the path of all objects of an engine, of those in a namespace, or of one object.

    Args:
        kind: Kind of an object that the observed one refers to, if that is wanted; its plural is the kind with an s.
    """
    plural = driver.plural if kind in (None, driver.kind) else f"{str(kind).lower()}s"
    if namespace is None:
        return f"/apis/{driver.api}/{plural}"
    place = f"/apis/{driver.api}/namespaces/{segment(namespace)}/{plural}"
    return place if name is None else f"{place}/{segment(name)}"
