"""The table of engines: the driver of each, imported on first use."""

import importlib
from collections.abc import Mapping
from functools import cache
from typing import cast

from fairlead.cluster.kubernetes.engines.endpoint_port import EndpointDriver
from fairlead.cluster.kubernetes.engines.port import Driver
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.engines import Engine
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.specs.training import Training

_PACKAGE = "fairlead.cluster.kubernetes.engines"
_HOMES: Mapping[Engine, tuple[str, str]] = {
    Engine.JOBSET: ("jobset", "DRIVER"),
    Engine.KUEUE: ("kueue", "DRIVER"),
    Engine.PYTORCHJOB: ("training_operator", "PYTORCH"),
    Engine.TFJOB: ("training_operator", "TENSORFLOW"),
    Engine.XGBOOSTJOB: ("training_operator", "XGBOOST"),
    Engine.MPIJOB: ("training_operator", "MPI"),
    Engine.KUBEFLOW_TRAINER: ("trainer", "DRIVER"),
    Engine.RAYJOB: ("rayjob", "DRIVER"),
    Engine.VOLCANO: ("volcano", "DRIVER"),
}
"""The module and the name of each driver."""


@cache
def driver_of(engine: Engine) -> Driver:
    """Return the driver of an engine."""
    module, name = _HOMES[engine]
    return cast("Driver", getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name))


_ENDPOINT_HOMES: Mapping[EndpointEngine, str] = {
    EndpointEngine.KSERVE: "kserve",
    EndpointEngine.KNATIVE: "knative",
    EndpointEngine.SELDON: "seldon",
}


@cache
def endpoint_driver_of(engine: EndpointEngine) -> EndpointDriver:
    """Return the driver of an engine of endpoints."""
    module = importlib.import_module(f"{_PACKAGE}.{_ENDPOINT_HOMES[engine]}")
    return cast("EndpointDriver", module.DRIVER)


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


def missing(engine: Engine | EndpointEngine | SweepEngine, kind: str, api: str) -> str:
    """Return a sentence, without its full stop, that the cluster lacks an API that an engine needs."""
    return (
        f"this cluster has no {kind} ({api}), which `engine: {engine}` needs: install it, choose another engine "
        "(`fairlead doctor` lists those that are there), or leave `engine` out"
    )


def path_of(driver: Driver, namespace: str | None = None, name: str | None = None, kind: str | None = None) -> str:
    """Return the path of all objects of an engine, of those in a namespace, or of one object.

    Args:
        kind: Kind of an object that the observed one refers to, if that is wanted; its plural is the kind with an s.
    """
    plural = driver.plural if kind in (None, driver.kind) else f"{str(kind).lower()}s"
    if namespace is None:
        return f"/apis/{driver.api}/{plural}"
    place = f"/apis/{driver.api}/namespaces/{namespace}/{plural}"
    return place if name is None else f"{place}/{name}"
