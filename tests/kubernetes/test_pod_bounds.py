"""What the operator holds in memory of pods, which anybody who may create them fills as he likes."""

import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.objects import MOST_KINDS, digest, read_pod
from fairlead.cluster.kubernetes.names import FAMILY
from fairlead.specs.keys import API_VERSION

LONG = "x" * 200_000
MOST_HELD_BYTES = 48 * 1024
"""Five messages of 4 KiB, the name of an image, an owner and a hundred kinds of devices."""


def pod(owner: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    owner = {"apiVersion": API_VERSION, "kind": "Training", "name": "a", "uid": "u", "controller": True} | (owner or {})
    return {
        "metadata": {
            "name": "a-0-0", "namespace": "t", "uid": "p", "resourceVersion": "1",
            "creationTimestamp": "2026-11-24T12:00:00Z", "labels": {}, "annotations": {}, "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "ranks", "image": "i"}]},
        "status": {"phase": "Pending"},
        **changes,
    }  # fmt: skip


def held_bytes(value: object) -> int:
    """The size of a value with all that only it refers to, as far as the operator's kinds go."""
    parts: Iterator[object] = iter(())
    if isinstance(value, dict):
        parts = (part for pair in value.items() for part in pair)
    elif isinstance(value, tuple):
        parts = iter(value)
    elif hasattr(value, "__slots__"):
        parts = (getattr(value, name) for name in value.__slots__)
    return sys.getsizeof(value) + sum(map(held_bytes, parts))


def long_status() -> dict[str, Any]:
    state = {"waiting": {"reason": LONG, "message": LONG}}
    conditions = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": LONG},
        {"type": "DisruptionTarget", "status": "True", "reason": LONG, "message": LONG},
    ]
    return {
        "phase": "Pending", "reason": LONG, "message": LONG, "conditions": conditions,
        "containerStatuses": [{"name": "ranks", "state": state}],
    }  # fmt: skip


def long_family() -> dict[str, Any]:
    content = pod()
    content["metadata"]["annotations"][FAMILY] = LONG
    return content


def many_devices(amount: str) -> dict[str, Any]:
    requests = {f"nvidia.com/mig-1g.{number}gb": amount for number in range(10_000)}
    return pod(spec={"containers": [{"name": "ranks", "image": "i", "resources": {"requests": requests}}]})


HOSTILE = {
    "an image": pod(spec={"containers": [{"name": "ranks", "image": LONG}]}),
    "messages of its status": pod(status=long_status()),
    "what a driver is told": long_family(),
    "kinds of devices": many_devices("1"),
    "kinds of devices that it does not get": many_devices("0"),
    **{f"{part} of its owner": pod({part: LONG}) for part in ("apiVersion", "kind", "name", "uid")},
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_pod_of_anybody_takes_little_memory_whatever_it_holds(content: dict[str, Any]) -> None:
    assert held_bytes(read_pod(content)) < MOST_HELD_BYTES


def test_devices_that_a_pod_requests_none_of_are_not_held_and_others_are_as_many_as_a_node_may_have() -> None:
    assert read_pod(many_devices("0")).requests.devices == ()
    assert len(read_pod(many_devices("1")).requests.devices) == MOST_KINDS


def test_an_owner_that_is_longer_than_any_real_one_is_none() -> None:
    assert read_pod(pod()).run_uid == "u"
    assert read_pod(pod({"uid": LONG})).claim == ""


def test_what_a_driver_was_told_is_compared_by_its_digest() -> None:
    content = long_family()
    assert read_pod(content).family == digest(LONG) != digest(LONG + "y")
    assert read_pod(pod()).family == digest("") == ""


@pytest.mark.parametrize(
    ("content", "counts"),
    [
        (pod(), True),
        (pod({"controller": False}), False),
        (pod({"controller": False}, spec={"nodeName": "n", "containers": []}), True),
        (pod({"controller": False}, spec={"nodeName": "n", "containers": []}, status={"phase": "Succeeded"}), False),
        (pod({"controller": False}, spec={"nodeName": "n", "containers": []}, status={"phase": "Failed"}), False),
        (pod(status={"phase": "Succeeded"}), True),
        (pod({"name": "other"}), True),  # the run that it names is told of it
    ],
)
def test_pods_of_others_count_only_while_they_take_room(content: dict[str, Any], counts: bool) -> None:
    assert read_pod(content).counts == counts


def test_a_thousand_hostile_pods_fill_no_memory() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        held = [read_pod(long_family()) for _ in range(1_000)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(held) == 1_000
    assert (after - before) / 1_000 < 4_000
