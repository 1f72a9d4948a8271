"""Environments against the drivers and GPUs of a cluster's nodes: what is taken, left out, refused and unknown."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.devices import gpu_platform
from fairlead.control.image.pool_matching import MatchedLock, match_pools
from fairlead.errors import Conflict
from fairlead.policy.gpu.cuda_support import TorchBuild
from fairlead.policy.placement.node_eligibility import doors_of
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.state.snapshot import Gpu, Node
from tests.builders import node, training

PYTHON, MACHINE = "3.12.7", "x86_64"
TORCH_2_11 = {None: ("2.11.0", "13.0.96"), "cu128": ("2.11.0+cu128", "12.8.93"), "cu126": ("2.11.0+cu126", "12.6.77")}


def gpu_node(name: str, driver: str, capability: str = "8.0", **labels: str) -> Node:
    major, minor = capability.split(".")
    known = {
        "nvidia.com/cuda.driver-version.full": driver,
        "nvidia.com/gpu.compute.major": major,
        "nvidia.com/gpu.compute.minor": minor,
    }
    return node(name, gpus=8, labels={**known, **labels} if driver else labels)


def locks(builds: Mapping[str | None, tuple[str, str]] = TORCH_2_11) -> Callable[[TorchBuild | None], str]:
    """Resolve torch as an index with some builds does."""

    def resolve(build: TorchBuild | None) -> str:
        backend = None if build is None else build.backend
        if backend not in builds:
            raise Conflict("no index has it")
        torch, runtime = builds[backend]
        name = "nvidia-cuda-runtime" if runtime.startswith("13") else "nvidia-cuda-runtime-cu12"
        packages = {"torch": torch, name: runtime}
        return "".join(f'[[packages]]\nname = "{name}"\nversion = "{of}"\n' for name, of in packages.items())

    return resolve


RUN = training(name="a", resources=Resources(gpu=GpuRequest()))


def match(
    *nodes: Node, may_choose: bool = True, builds: Mapping[str | None, tuple[str, str]] = TORCH_2_11
) -> MatchedLock:
    return match_pools(RUN, nodes, PYTHON, MACHINE, locks(builds), may_choose=may_choose)


def test_packages_that_fit_the_driver_of_every_pool_are_taken_as_they_are() -> None:
    matched = match(gpu_node("h100-1", "580.95.05", "9.0"))
    assert 'version = "2.11.0"' in matched.lock
    assert matched.spec == RUN
    assert matched.notes == ("environment: on pool h100 torch 2.11.0 brings CUDA 13.0, which driver 580.95.05 runs",)


def test_an_older_driver_gets_the_newest_build_of_the_same_torch_that_it_runs() -> None:
    matched = match(gpu_node("a100-1", "535.54.03"), gpu_node("h100-1", "580.95.05", "9.0"))
    assert 'version = "2.11.0+cu128"' in matched.lock
    assert matched.notes[0] == (
        "environment: torch 2.11.0 brings CUDA 13.0, which needs driver 580.65.06 or newer; pool a100 has 535.54.03, "
        "so that torch built for CUDA 12.8 is taken, by UV_TORCH_BACKEND=cu128"
    )
    assert "by minor version compatibility" in matched.notes[1]


def test_gpus_without_code_get_the_build_that_has_it() -> None:
    matched = match(gpu_node("v100-1", "580.95.05", "7.0"))
    assert 'version = "2.11.0+cu126"' in matched.lock, "cu128 has no Volta from torch 2.11 on"


def test_a_build_that_no_index_has_is_passed_over() -> None:
    builds = {build: torch for build, torch in TORCH_2_11.items() if build != "cu128"}
    assert 'version = "2.11.0+cu126"' in match(gpu_node("a100-1", "535.54.03"), builds=builds).lock


@pytest.mark.parametrize("may_choose", [False, True])
def test_packages_that_work_nowhere_are_refused_with_the_nearest_that_do(may_choose: bool) -> None:
    builds: Mapping[str | None, tuple[str, str]] = {None: TORCH_2_11[None]} if may_choose else TORCH_2_11
    with pytest.raises(Conflict) as caught:
        match(gpu_node("a100-1", "535.54.03"), may_choose=may_choose, builds=builds)
    assert str(caught.value) == (
        "a: environment: it cannot work on the nodes that may get it: torch 2.11.0 brings CUDA 13.0, which needs "
        "driver 580.65.06 or newer; pool a100 has 535.54.03. Take torch built for CUDA 12.8, from the index "
        "https://download.pytorch.org/whl/cu128 or by UV_TORCH_BACKEND=cu128, or install driver 580.65.06 or newer."
    )


def test_a_pool_that_no_build_of_that_torch_serves_is_left_out() -> None:
    new, old = gpu_node("h100-1", "580.95.05", "9.0"), gpu_node("k80-1", "470.42.01", "3.7")
    matched = match(new, old)
    assert 'version = "2.11.0"' in matched.lock, "nobody gets torch 2.7 for the sake of another pool"
    assert doors_of((new, old)).barred_for_good(matched.spec).keys() == {"k80-1"}
    assert matched.notes[0].endswith("pool k80 has 470.42.01, so that its nodes are left out")


def test_an_affinity_of_the_run_is_kept_beside_the_pool_that_is_left_out() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchExpressions": []}]}
    own = {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}}
    nodes = (gpu_node("h100-1", "580.95.05", "9.0"), gpu_node("k80-1", "470.42.01", "3.7"))
    run = replace(RUN, kubernetes=overlay(own))
    spec = match_pools(run, nodes, PYTHON, MACHINE, locks(), may_choose=True).spec
    affinity = spec.kubernetes.pod["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    out = {"key": "nvidia.com/cuda.driver-version.full", "operator": "NotIn", "values": ["470.42.01"]}
    assert terms == [{"matchExpressions": [zone, out]}, {"matchExpressions": [out]}]


def test_amds_nodes_are_left_out_of_a_run_whose_packages_bring_cuda() -> None:
    gpu = Gpu(uuid="amd.com/gpu#0", model="MI300X", memory_bytes=192 << 30)
    amd = node("mi300-1", labels={"kubernetes.io/hostname": "mi300-1"}, gpus=0)
    amd = replace(amd, gpus=(gpu,))
    nvidia = gpu_node("h100-1", "580.95.05", "9.0", **{"kubernetes.io/hostname": "h100-1"})
    assert doors_of((amd, nvidia)).barred_for_good(match(amd, nvidia).spec).keys() == {"mi300-1"}
    with pytest.raises(Conflict, match=r"pool mi300 has AMD's GPUs. Take a build for AMD's ROCm"):
        match(amd)


def test_nodes_that_no_label_tells_apart_are_a_refusal() -> None:
    amd = replace(node("mi300-1"), gpus=(Gpu(uuid="amd.com/gpu#0", model="MI300X", memory_bytes=192 << 30),))
    with pytest.raises(Conflict, match="no label tells its nodes from those on which it works"):
        match(amd, gpu_node("h100-1", "580.95.05", "9.0"))


def test_nodes_without_labels_are_unknown_and_stop_nothing() -> None:
    matched = match(gpu_node("plain-1", ""))
    assert matched.spec == RUN
    assert matched.notes[0].startswith("environment: unknown whether it works on pool plain: torch 2.11.0 brings CUDA")


def test_nodes_that_the_run_cannot_get_do_not_count() -> None:
    assert match(node("cpu-1")).notes == ()
    run = replace(RUN, resources=Resources(gpu=GpuRequest(model="H100")))
    matched = match_pools(run, (gpu_node("a100-1", "470.42.01"),), PYTHON, MACHINE, locks(), may_choose=True)
    assert matched.notes == ()
    chosen = replace(RUN, kubernetes=overlay({"spec": {"nodeSelector": {"fairlead.dev/pool": "new"}}}))
    nodes = (gpu_node("x", "470.42.01"), gpu_node("y", "580.95.05", **{"fairlead.dev/pool": "new"}))
    assert "pool new" in match_pools(chosen, nodes, PYTHON, MACHINE, locks(), may_choose=True).notes[0]


@pytest.mark.parametrize("label", ["9" * 40, "x", "", "²"])
def test_damaged_labels_are_unknown(label: str) -> None:
    labels = {"nvidia.com/gpu.compute.major": label, "nvidia.com/gpu.compute.minor": "0"}
    assert gpu_platform(node("a", labels=labels), MACHINE).capabilities == ()
