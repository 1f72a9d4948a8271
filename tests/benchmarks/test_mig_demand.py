"""Which MIG instances runs wish for."""

import pytest

from benchmarks.candidates.mig.demand import profiles_for, wishes_of
from benchmarks.candidates.mig.layouts import Wish, choose
from benchmarks.candidates.mig.partitions import Device
from fairlead.policy.gpu.mig import MODELS
from fairlead.specs.resources import Resources, parse_gpu
from fairlead.specs.sharing import Sharing
from fairlead.specs.training import Training

A30, A100, H100 = MODELS["A30-24GB"], MODELS["A100-40GB"], MODELS["H100-80GB"]


def asks(gpu: str, *sharing: Sharing) -> Resources:
    return Resources(gpu=parse_gpu(gpu), sharing=sharing)


@pytest.mark.parametrize(
    ("gpu", "sharing", "profiles"),
    [
        ("0.1", (), {"1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"}),
        ("0.4", (), {"3g.20gb", "4g.20gb", "7g.40gb"}),
        ("0.5", (), {"4g.20gb", "7g.40gb"}),
        ("8GB:0.1", (), {"1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"}),
        ("20GB", (Sharing.MIG,), {"3g.20gb", "4g.20gb", "7g.40gb"}),
        ("A100:0.5", (), {"4g.20gb", "7g.40gb"}),
        ("H100:0.5", (), set()),
        ("0.1", (Sharing.MPS,), set()),
        ("20GB", (), set()),
        ("1", (), set()),
    ],
)
def test_profiles_that_are_large_enough_would_do(gpu: str, sharing: tuple[Sharing, ...], profiles: set[str]) -> None:
    assert profiles_for(asks(gpu, *sharing), [A100]) == profiles


def test_a_name_that_is_a_smaller_part_of_another_gpu_is_not_wished_for() -> None:
    assert "1g.10gb" in profiles_for(asks("A100:0.1"), [A100])
    assert "1g.10gb" not in profiles_for(asks("A100:0.1"), [A100, H100])
    assert "1g.6gb" in profiles_for(asks("0.25"), [A30, A100])


def test_runs_that_ask_for_the_same_wish_together() -> None:
    runs = [
        Training(name="one", run="work", resources=asks("0.4")),
        Training(name="two", run="work", nodes=2, resources=asks("0.4")),
        Training(name="three", run="work", resources=asks("20GB", Sharing.MIG)),
        Training(name="whole", run="work", resources=asks("2")),
    ]
    large = frozenset({"3g.20gb", "4g.20gb", "7g.40gb"})
    wishes = wishes_of(runs, [A100])
    assert wishes == (Wish(profiles=large, count=1, weight=3 / 7), Wish(profiles=large, count=3, weight=0.4))
    gpus = [Device(id=f"gpu-{i}", model=A100) for i in range(2)]
    assert choose(gpus, wishes).served == (1, 3)
