"""Which resource of a node meets a GPU request."""

import pytest

from fairlead.cluster.kubernetes.devices import DeviceResource, device_resource, is_device
from fairlead.specs.resources import GpuRequest

MIG = {"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-3g.40gb": 2, "nvidia.com/mig-1g.20gb": 1}


@pytest.mark.parametrize(
    ("request_", "allocatable", "expected"),
    [
        (GpuRequest(milli=2000), {"nvidia.com/gpu": 8}, ("nvidia.com/gpu", 2)),
        (GpuRequest(milli=2000), {"nvidia.com/gpu": 1, "amd.com/gpu": 4}, ("amd.com/gpu", 2)),
        (GpuRequest(milli=1000), {"habana.ai/gaudi": 8}, ("habana.ai/gaudi", 1)),
        (GpuRequest(milli=1000), {"gpu.intel.com/i915": 1}, ("gpu.intel.com/i915", 1)),
        (GpuRequest(milli=2000), {"nvidia.com/gpu": 1}, None),
        (GpuRequest(milli=100), MIG, ("nvidia.com/mig-1g.10gb", 1)),
        (GpuRequest(milli=100, min_memory_bytes=16 * 10**9), MIG, ("nvidia.com/mig-1g.20gb", 1)),
        (GpuRequest(milli=400), MIG, ("nvidia.com/mig-3g.40gb", 1)),
        (GpuRequest(milli=500), MIG, None),
        (GpuRequest(milli=500), {**MIG, "nvidia.com/gpu.shared": 4}, ("nvidia.com/gpu.shared", 1)),
        (GpuRequest(milli=100), {"nvidia.com/gpu": 8}, None),
    ],
)
def test_a_request_is_met_by_the_smallest_resource_that_is_enough(
    request_: GpuRequest, allocatable: dict[str, int], expected: tuple[str, int] | None
) -> None:
    found = device_resource(request_, allocatable)
    assert found == (None if expected is None else DeviceResource(name=expected[0], count=expected[1]))


def test_only_gpus_and_their_parts_count_as_devices() -> None:
    assert is_device("nvidia.com/gpu")
    assert is_device("nvidia.com/mig-1g.5gb")
    assert not is_device("rdma/hca")
    assert not is_device("cpu")
