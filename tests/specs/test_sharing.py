"""How runs and pools say that GPUs are shared."""

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.reading import parse
from fairlead.specs.pool import Pool
from fairlead.specs.sharing import Handing, Sharing
from fairlead.specs.training import Training


def resources_of(text: str) -> Training:
    (spec,) = parse(f"name: a\nrun: work\nresources: {text}")
    assert isinstance(spec, Training)
    return spec


def gpu_of(text: str) -> Pool:
    (spec,) = parse(f"kind: Pool\nname: a\nhardware: {{cpu: 8, memory: 64Gi, gpu: {text}}}")
    assert isinstance(spec, Pool)
    return spec


@pytest.mark.parametrize("gpu", ["0.5", "A100:0.5", "24GB", "A100:24GB", "24GB:0.5"])
def test_a_part_of_a_gpu_may_be_kept_apart_in_the_ways_that_are_named(gpu: str) -> None:
    spec = resources_of(f"{{gpu: {gpu}, sharing: [mps, mig]}}")
    assert spec.resources.sharing == (Sharing.MPS, Sharing.MIG)


@pytest.mark.parametrize("gpu", ["1", "2", "A100", "A100:8", "24GB:2"])
def test_whole_gpus_are_not_shared(gpu: str) -> None:
    with pytest.raises(InvalidSpec, match=r"resources\.sharing: it is for a part of one GPU"):
        resources_of(f"{{gpu: {gpu}, sharing: [mig]}}")


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ("resources: {gpu: 0.5, colocate: true}", "it is for runs on whole GPUs"),
        ("resources: {cpu: 4, colocate: true}", "it is for runs on whole GPUs"),
        ("resources: {gpu: 1, colocate: true}\nnodes: 1..4\ncheckpoint: {every: 10m}", "on one number of nodes"),
        ("resources: {gpu: 1, colocate: true}\nengine: jobset\nimage: a", "on one number of nodes"),
    ],
)
def test_only_gangs_on_so_many_whole_gpus_share_them(rest: str, why: str) -> None:
    with pytest.raises(InvalidSpec, match=rf"colocate.*{why}|{why}"):
        parse(f"name: a\nrun: work\n{rest}")


def test_a_way_is_named_once_and_is_one_of_three() -> None:
    with pytest.raises(InvalidSpec, match="mig is listed twice"):
        resources_of("{gpu: 0.5, sharing: [mig, mig]}")
    with pytest.raises(InvalidSpec, match="is not one of mig, mps, time-slicing"):
        resources_of("{gpu: 0.5, sharing: [whole]}")


def test_a_pool_says_how_its_gpus_are_handed_out() -> None:
    shared, partitioned = gpu_of("{model: A100, sharing: mps}"), gpu_of("{model: A100, instances: {1g.10gb: 7}}")
    assert shared.hardware.gpu is not None
    assert shared.hardware.gpu.sharing is Handing.MPS
    assert partitioned.hardware.gpu is not None
    assert partitioned.hardware.gpu.instances == {"1g.10gb": "7"}


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        ("{model: A100, sharing: mps, instances: {1g.10gb: 7}}", "so that `sharing` has no say; give one of them"),
        ("{model: A100, instances: {8g.10gb: 1}}", "is not a MIG profile"),
        ("{model: A100, instances: {1g.10gb: 8}}", "is not a number of instances of one GPU; give 1 to 7"),
    ],
)
def test_a_pool_that_contradicts_itself_is_refused(gpu: str, why: str) -> None:
    with pytest.raises(InvalidSpec, match=why):
        gpu_of(gpu)
