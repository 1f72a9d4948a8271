"""All of a gang or none of it, and sentences with the numbers."""

from collections import Counter

from fairlead.policy.placement import place, rooms, why_never, why_waiting
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
    assert "8 GPU asked for on one node, the most on any is 2" in reason.message
    assert reason.remedy == "Ask for less (`resources.gpu`), or run it on a larger cluster."


def test_what_waits_is_told_what_is_free_and_who_holds_the_rest() -> None:
    free = rooms((machine("a"),), (holder(Grant(cpu_milli=6000)),))
    reason = why_waiting(gang(cpu=4), free, {"other": Resources()})
    assert reason.message == "needs 1 node with 4 CPU each; a has 2 of 8 CPU free; held by other"
    assert reason.remedy == "It starts when other ends; `fairlead suspend other` would free it now."
