"""What nodes of a pool hand out of their GPUs."""

import pytest

from fairlead.errors import InvalidSpec
from fairlead.policy.gpu.device_inventory import handed_out
from fairlead.specs.pool import PoolGpu
from fairlead.specs.sharing import Handing, Sharing

GB = 10**9


@pytest.mark.parametrize(
    ("sharing", "divisible", "way"),
    [
        (None, True, Sharing.TIME_SLICING),
        (Handing.TIME_SLICING, True, Sharing.TIME_SLICING),
        (Handing.MPS, True, Sharing.MPS),
        (Handing.WHOLE, False, None),
    ],
)
def test_gpus_are_handed_out_as_the_pool_says(sharing: Handing | None, divisible: bool, way: Sharing | None) -> None:
    gpus = handed_out(PoolGpu(model="A100", count=2, memory_bytes=80 * GB, sharing=sharing), "node")
    assert [gpu.uuid for gpu in gpus] == ["node-gpu-0", "node-gpu-1"]
    assert {(gpu.divisible, gpu.sharing, gpu.milli) for gpu in gpus} == {(divisible, way, 1000)}


def test_a_partitioned_gpu_hands_out_its_instances() -> None:
    pool = PoolGpu(model="A100", count=2, memory_bytes=80 * GB, instances={"3g.40gb": "1", "1g.10gb": "3"})
    gpus = handed_out(pool, "node")
    assert len(gpus) == len({gpu.uuid for gpu in gpus}) == 8
    assert sorted((gpu.milli, gpu.memory_bytes // GB) for gpu in gpus) == [(142, 10)] * 6 + [(428, 40)] * 2
    assert {(gpu.divisible, gpu.sharing) for gpu in gpus} == {(False, Sharing.MIG)}


@pytest.mark.parametrize(
    ("model", "memory_gb", "instances", "why"),
    [
        ("A100", 80, {"3g.40gb": "2", "1g.10gb": "1"}, "2 x 3g.40gb and 1 x 1g.10gb do not fit on one A100-80GB"),
        ("A100", 40, {"1g.10gb": "7"}, "7 x 1g.10gb do not fit on one A100-40GB"),
        ("A100", 80, {"1g.5gb": "1"}, "which has 1g.10gb, 1g.10gb+me, 1g.20gb,"),
        ("T4", 16, {"1g.5gb": "1"}, "T4 has no known MIG profiles; give `model` and `memory` of one of A30-24GB,"),
    ],
)
def test_what_hardware_cannot_be_partitioned_into_is_refused(
    model: str, memory_gb: int, instances: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidSpec, match=why.replace("+", r"\+")):
        handed_out(PoolGpu(model=model, memory_bytes=memory_gb * GB, instances=instances), "node")
