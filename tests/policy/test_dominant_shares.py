"""How much of a cluster a run counts for, where it asks for a part of a GPU by its memory."""

from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.devices import gpus_of
from fairlead.policy.decide import decide
from fairlead.policy.gpu.device_inventory import handed_out
from fairlead.policy.gpu.mig import GB
from fairlead.policy.queue.dominant_shares import Amounts, ClusterCapacity, asked, capacity
from fairlead.specs.pool import PoolGpu
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.sharing import Sharing
from fairlead.specs.team import Quota, Team
from fairlead.specs.training import Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Gpu, Intent, Snapshot, Workload
from tests.builders import node, status, training

NOW = 1_000_000_000.0
MODEL, LABELS = "NVIDIA-A100-SXM4-80GB", {"nvidia.com/gpu.replicas": "4"}
# Instances with 10, 20 and 40 GB, as a simulated pool hands them out and as a node of Kubernetes offers them.
POOLED = handed_out(
    PoolGpu(model="A100", memory_bytes=80 * GB, instances={"1g.10gb": "2", "2g.20gb": "1", "3g.40gb": "1"}), "n"
)
OFFERED = gpus_of(
    [("nvidia.com/mig-1g.10gb", 2), ("nvidia.com/mig-2g.20gb", 1), ("nvidia.com/mig-3g.40gb", 1)], {}, MODEL, 80 * GB
)
SLICES = gpus_of([("nvidia.com/gpu", 4)], LABELS, MODEL, 80 * GB)


def by_memory(gb: int, *ways: Sharing, nodes: int = 1, team: str = "vision", name: str = "part") -> Training:
    gpu = GpuRequest(milli=1000, min_memory_bytes=gb * GB)
    return training(name, team=team, nodes=nodes, resources=Resources(gpu=gpu, sharing=ways or tuple(Sharing)))


def with_devices(*gpus: Gpu) -> ClusterCapacity:
    return capacity((replace(node("n"), gpus=gpus),))


@pytest.mark.parametrize("gpus", [POOLED, OFFERED], ids=["simulated", "kubernetes"])
def test_a_part_counts_as_the_smallest_that_has_the_memory(gpus: tuple[Gpu, ...]) -> None:
    whole = with_devices(*gpus)
    counted = {gb: asked(by_memory(gb), whole).gpu_milli for gb in (8, 10, 11, 24, 40)}
    assert counted == {8: 142, 10: 142, 11: 285, 24: 428, 40: 428}
    assert asked(by_memory(24, nodes=3), whole) == Amounts(gpu_milli=3 * 428)


def test_only_parts_that_are_kept_apart_as_asked_for_count() -> None:
    whole = with_devices(*POOLED, *SLICES)
    assert asked(by_memory(20, Sharing.TIME_SLICING), whole).gpu_milli == 250
    assert asked(by_memory(20, Sharing.MIG), whole).gpu_milli == 285


def test_what_no_part_here_has_counts_as_a_whole_gpu() -> None:
    for whole in (with_devices(*POOLED), with_devices(Gpu(uuid="d", model="A100", memory_bytes=80 * GB)), capacity(())):
        assert asked(by_memory(41), whole).gpu_milli == 1000


def test_what_is_no_part_counts_as_it_was_asked_for() -> None:
    whole = with_devices(*POOLED)
    for milli, gb in ((500, None), (1000, 24), (2000, None)):
        gpu = GpuRequest(milli=milli, min_memory_bytes=None if gb is None else gb * GB)
        assert asked(training("x", resources=Resources(gpu=gpu)), whole).gpu_milli == milli


def test_a_quota_counts_parts_and_a_refusal_says_how() -> None:
    nodes = tuple(replace(node(f"n{index}"), gpus=POOLED) for index in range(4))
    waiting = tuple(
        Workload(
            uid=name, spec=by_memory(24, name=name), intent=Intent.RUN, status=status(), version=1,
            created_at=NOW + number,
        )
        for number, name in enumerate(("first", "second", "third"))
    )  # fmt: skip
    team = Team(name="vision", quota=Quota(gpu_milli=1000))
    changes = decide(Snapshot(nodes=nodes, workloads=waiting, pods=(), teams=(team,)), NOW + 9).changes
    assert {change.workload_uid: len(change.create) for change in changes} == {"first": 1, "second": 1, "third": 0}
    (refused,) = (change.status for change in changes if change.workload_uid == "third")
    assert refused is not None
    assert refused.reason.code is Code.OVER_QUOTA
    assert refused.reason.message == (
        "needs 0.428 GPUs, as the smallest part with 22.4 GiB counts here; team vision holds 0.856 GPUs and may hold "
        "1 GPU at most"
    )
