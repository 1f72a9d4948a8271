"""All of a gang or none of it, and sentences with the numbers."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from fairlead.errors import ClusterError
from fairlead.policy.placement.free_capacity import rooms
from fairlead.policy.placement.placement import place, why_never, why_waiting
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.snapshot import Gpu, Grant, Node, Pod, PodPhase

GIB = 1024**3


def machine(name: str = "a", *, gpus: int = 0, model: str = "A100") -> Node:
    devices = tuple(Gpu(uuid=f"{name}-{i}", model=model, memory_bytes=40 * GIB) for i in range(gpus))
    return Node(name=name, cpu_milli=8000, memory_bytes=32 * GIB, gpus=devices)


def gang(nodes: int = 1, *, gpu: GpuRequest | None = None, cpu: int | None = None) -> Training:
    resources = Resources(gpu=gpu, cpu_milli=None if cpu is None else cpu * 1000)
    return Training(name="train", run="x", nodes=nodes, resources=resources)


def holder(grant: Grant, phase: PodPhase = PodPhase.RUNNING) -> Pod:
    return Pod(
        uid="h-0-0", workload_uid="h", attempt=0, index=0, node="a", grant=grant, phase=phase, created_at=0.0
    )  # fmt: skip


def test_members_spill_over_to_the_next_node() -> None:
    placed = place(gang(3, cpu=4), rooms((machine("a"), machine("b")), ()))
    assert placed is not None
    assert sorted(Counter(item.node for item in placed).values()) == [1, 2]


def test_a_gang_that_does_not_fit_whole_takes_nothing() -> None:
    free = rooms((machine("a"),), ())
    assert place(gang(3, cpu=4), free) is None
    assert place(gang(cpu=8), free) is not None


def test_a_pod_holds_its_grant_until_it_is_over() -> None:
    grant = Grant(cpu_milli=8000)
    assert place(gang(cpu=1), rooms((machine(),), (holder(grant),))) is None
    assert place(gang(cpu=1), rooms((machine(),), (holder(grant, PodPhase.LOST),))) is not None


def test_gpus_are_chosen_by_model_and_memory_and_never_given_twice() -> None:
    free = rooms((machine("a", gpus=2, model="NVIDIA A100-SXM4-40GB"),), ())
    assert place(gang(gpu=GpuRequest(model="H100")), free) is None
    assert place(gang(gpu=GpuRequest(min_memory_bytes=48 * GIB)), free) is None
    first = place(gang(gpu=GpuRequest(model="a100")), free)
    second = place(gang(gpu=GpuRequest()), free)
    assert first is not None
    assert second is not None
    assert {first[0].grant.gpu_uuids, second[0].grant.gpu_uuids} == {("a-0",), ("a-1",)}
    assert place(gang(gpu=GpuRequest()), free) is None


def test_shares_gather_on_one_device_so_that_others_stay_whole() -> None:
    free = rooms((machine("a", gpus=2),), ())
    half = gang(gpu=GpuRequest(milli=500))
    assert [placed[0].grant.gpu_uuids for _ in range(2) if (placed := place(half, free))] == [("a-0",), ("a-0",)]
    assert place(gang(gpu=GpuRequest()), free) is not None


def test_what_can_never_fit_is_told_with_the_numbers() -> None:
    reason = why_never(gang(gpu=GpuRequest(milli=8000)), (machine("a", gpus=2),))
    assert reason is not None
    assert "8 GPU requested on one node, the largest node has 2" in reason.message
    assert reason.remedy == "Ask for less (`resources.gpu`), or run it on a larger cluster."


def test_what_waits_is_told_what_is_free_and_who_holds_the_rest() -> None:
    free = rooms((machine("a"),), (holder(Grant(cpu_milli=6000)),))
    reason = why_waiting(gang(cpu=4), free, "other", "other")
    assert reason.message == "needs 1 node with 4 CPU; a has 2 of 8 CPU free; held by other"
    assert reason.remedy == "It starts when other ends; `fairlead suspend other` would free it now."


def test_a_gang_that_fits_only_without_others_waits_and_a_larger_one_can_never_fit() -> None:
    machines = (machine("a", gpus=2), machine("b", gpus=2))
    assert why_never(gang(4, gpu=GpuRequest()), machines) is None
    assert why_never(gang(4, gpu=GpuRequest(milli=600)), machines) is None
    assert why_never(gang(5, gpu=GpuRequest(milli=600)), machines) is not None
    assert why_never(gang(8, gpu=GpuRequest(milli=500)), machines) is None


def test_among_many_nodes_those_with_most_room_are_named() -> None:
    machines = tuple(machine(name, gpus=1) for name in "abcd")
    free = rooms(machines, [holder(Grant(cpu_milli=1000, gpu_uuids=("a-0",), gpu_milli=1000))])
    reason = why_waiting(gang(gpu=GpuRequest(milli=2000)), free)
    assert "b has 1 of 1 GPUs free; c has 1 of 1 GPUs free; d has 1 of 1 GPUs free" in reason.message


def test_one_node_is_decided_without_numpy() -> None:
    program = """
import sys
import fairlead.cli.main
from fairlead.policy.placement.free_capacity import rooms
from fairlead.policy.placement.placement import place
from fairlead.policy.decide import decide
from fairlead.specs.training import Training
from fairlead.state.snapshot import Node
node = Node(name="a", cpu_milli=8000, memory_bytes=1 << 30)
assert place(Training(name="train", run="x"), rooms((node,), ())) is not None
assert "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_small_installation_says_what_several_nodes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    for module in ("packed_capacity", "packing", "fleet_arrays", "capacity_value", "node_ranking"):
        monkeypatch.delitem(sys.modules, f"fairlead.policy.placement.{module}", raising=False)
    nodes = tuple(Node(name=name, cpu_milli=1000, memory_bytes=2**30) for name in "ab")
    with pytest.raises(
        ClusterError, match=r"needs numpy, which a small installation leaves out; `pip install 'fairlead\[cluster\]'`"
    ):
        rooms(nodes, ())


def test_a_closed_node_with_such_devices_is_told_before_open_ones_without() -> None:
    away = replace(machine("z", gpus=8), closed="cordoned")
    nodes = (machine("a"), machine("b"), machine("c"), machine("d"), away)
    reason = why_waiting(gang(gpu=GpuRequest(milli=8000)), rooms(nodes, []))
    assert "; z is cordoned; " in reason.message
