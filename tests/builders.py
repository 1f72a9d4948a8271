"""Values for tests, with defaults, so that a test shows only what matters to it."""

from dataclasses import fields, replace
from typing import Any

from fairlead.specs.training import Training
from fairlead.state.plan import Change, CreatePod, Event, Plan, TerminatePod
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Gpu, Grant, Node, Phase, Status, Workload

GIB = 1024**3
BECAUSE = Reason(code=Code.REPORTED, message="the test says so")


def training(name: str = "train", **changes: Any) -> Training:
    """A run of one rank."""
    return Training(**{"name": name, "run": "work", "ranks_per_node": 1, **changes})


def node(name: str = "node-0", *, gpus: int = 0, **changes: Any) -> Node:
    """Four cores, 32 GiB, and so many devices of 80 GB."""
    devices = tuple(Gpu(uuid=f"{name}-gpu-{i}", model="A100", memory_bytes=80 * 10**9) for i in range(gpus))
    return Node(**{"name": name, "cpu_milli": 4000, "memory_bytes": 32 * GIB, "gpus": devices, **changes})


def status(phase: Phase = Phase.PENDING, **changes: Any) -> Status:
    return changed(Status(phase=phase, reason=BECAUSE, since=1_000_000_000.0), **changes)


def changed(before: Status, **changes: Any) -> Status:
    """A status with other fields, also of its parts, each by the name under which clusters store it."""
    own: dict[str, Any] = {}
    for attribute in fields(Status):
        if not attribute.metadata.get("flat"):
            if attribute.name in changes:
                own[attribute.name] = changes.pop(attribute.name)
            continue
        part = getattr(before, attribute.name)
        names = {inner.metadata.get("stored", inner.name): inner.name for inner in fields(part)}
        values = {names[stored]: changes.pop(stored) for stored in tuple(changes) if stored in names}
        own[attribute.name] = replace(part, **values)
    assert not changes, f"a status has no {', '.join(changes)}"
    return replace(before, **own)


def event(type_: str = "Noted", message: str = BECAUSE.message) -> Event:
    return Event(type=type_, reason=replace(BECAUSE, message=message))


def change(workload: Workload, **changes: Any) -> Change:
    """A change of the workload as it was seen."""
    return Change(workload_uid=workload.uid, version=workload.version, **changes)


def plan(*changes: Change) -> Plan:
    return Plan(changes=changes)


def members(spec: Training, node_name: str, *, attempt: int = 0) -> tuple[CreatePod, ...]:
    """The whole gang on one node, each member with a thousandth of a core."""
    grant = Grant(cpu_milli=1)
    return tuple(CreatePod(attempt=attempt, index=index, node=node_name, grant=grant) for index in range(spec.nodes))


def notices(*pod_uids: str, grace_s: float) -> tuple[TerminatePod, ...]:
    return tuple(TerminatePod(pod_uid=uid, grace_s=grace_s) for uid in pod_uids)
