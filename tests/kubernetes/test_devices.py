"""What a node hands out of its GPUs."""

import pytest

from fairlead.cluster.kubernetes.devices import DeviceResource, gpus_of, is_device, resource_of
from fairlead.specs.sharing import Sharing

GB, H100 = 10**9, "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    ("resource", "labels", "milli", "memory_gb"),
    [
        ("nvidia.com/gpu", {}, 1000, 80),
        ("habana.ai/gaudi", {}, 1000, 80),
        ("nvidia.com/gpu", {"nvidia.com/gpu.replicas": "1"}, 1000, 80),
        ("nvidia.com/gpu", {"nvidia.com/gpu.replicas": "4"}, 250, 20),
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": f"{H100}-MIG-2g.20gb"}, 285, 20),
        ("nvidia.com/gpu.shared", {"nvidia.com/gpu.replicas": "10"}, 100, 8),
        ("nvidia.com/gpu.shared", {}, 500, 40),
        ("nvidia.com/mig-1g.10gb", {}, 142, 10),
        ("nvidia.com/mig-1g.10gb.me", {}, 142, 10),
        ("nvidia.com/mig-3g.40gb", {}, 428, 40),
    ],
)
def test_a_device_is_as_large_as_its_resource_and_its_node_say(
    resource: str, labels: dict[str, str], milli: int, memory_gb: int
) -> None:
    gpus = gpus_of([(resource, 2)], labels, H100, 80 * GB)
    assert [gpu.uuid for gpu in gpus] == [f"{resource}#0", f"{resource}#1"]
    assert {(gpu.milli, gpu.memory_bytes, gpu.divisible, gpu.model) for gpu in gpus} == {
        (milli, memory_gb * GB, False, H100)
    }


@pytest.mark.parametrize(
    ("resource", "labels", "sharing"),
    [
        ("nvidia.com/gpu", {}, None),
        ("habana.ai/gaudi", {}, None),
        ("nvidia.com/mig-1g.10gb", {}, Sharing.MIG),
        ("nvidia.com/mig-1g.10gb.me", {}, Sharing.MIG),
        ("nvidia.com/mig-1g.10gb.shared", {}, Sharing.TIME_SLICING),
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": f"{H100}-MIG-2g.20gb"}, Sharing.MIG),
        ("nvidia.com/gpu", {"nvidia.com/gpu.replicas": "4"}, Sharing.TIME_SLICING),
        ("nvidia.com/gpu.shared", {"nvidia.com/gpu.replicas": "4"}, Sharing.TIME_SLICING),
        ("nvidia.com/gpu", {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "mps"}, Sharing.MPS),
        (
            "nvidia.com/gpu.shared",
            {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
            Sharing.TIME_SLICING,
        ),
    ],
)
def test_a_node_says_how_parts_of_its_gpus_are_kept_apart(
    resource: str, labels: dict[str, str], sharing: Sharing | None
) -> None:
    assert {gpu.sharing for gpu in gpus_of([(resource, 2)], labels, H100, 80 * GB)} == {sharing}


def test_an_a30_has_four_slices_of_which_one_is_a_quarter() -> None:
    (gpu,) = gpus_of([("nvidia.com/mig-1g.6gb", 1)], {}, "NVIDIA-A30", 24 * GB)
    assert (gpu.milli, gpu.memory_bytes) == (250, 6 * GB)


def test_a_grant_says_what_to_ask_the_node_for() -> None:
    gpus = gpus_of([("nvidia.com/gpu", 1), ("nvidia.com/mig-1g.10gb", 7)], {}, H100, 80 * GB)
    assert resource_of([gpus[3].uuid]) == DeviceResource(name="nvidia.com/mig-1g.10gb", count=1)
    assert resource_of(["amd.com/gpu#4", "amd.com/gpu#6"]) == DeviceResource(name="amd.com/gpu", count=2)
    assert resource_of([]) is None


def test_only_gpus_and_their_parts_count_as_devices() -> None:
    assert is_device("nvidia.com/gpu")
    assert is_device("nvidia.com/mig-1g.5gb")
    assert not is_device("rdma/hca")
    assert not is_device("cpu")
