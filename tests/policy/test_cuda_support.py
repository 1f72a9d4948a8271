"""Packages of an environment against drivers and GPUs, as vendors list them; what nobody lists is unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.gpu.cuda_support import (
    LEAST_DRIVERS,
    TOOLKIT_DRIVERS,
    GpuPlatform,
    Support,
    Version,
    describe_support,
    format_driver,
    judge,
    newest_major,
    parse_driver,
)

Packages = tuple[tuple[str, str], ...]
A100, H100, V100, P100, K80, T4, RTX_5090 = (8, 0), (9, 0), (7, 0), (6, 0), (3, 7), (7, 5), (12, 0)
TORCH_2_8: Packages = (
    ("torch", "2.8.0"),
    ("nvidia-cuda-runtime-cu12", "12.8.90"),
    ("nvidia-cuda-nvrtc-cu12", "12.8.93"),
)
TORCH_2_11: Packages = (("torch", "2.11.0"), ("nvidia-cuda-runtime", "13.0.96"), ("nvidia-cuda-nvrtc", "13.0.88"))
TORCH_2_15: Packages = (("torch", "2.15.0"), ("nvidia-cuda-runtime", "13.2.86"))
JAX_12: Packages = (("jax-cuda12-plugin", "0.12.0.1"), ("nvidia-cuda-runtime-cu12", "12.9.79"))
JAX_13: Packages = (("jax-cuda13-plugin", "0.12.0.1"), ("nvidia-cuda-runtime", "13.5.37"))
TENSORFLOW: Packages = (("tensorflow", "2.21.0"), ("nvidia-cuda-runtime-cu12", "12.9.79"))
VLLM: Packages = (("vllm", "0.14.0"), ("torch", "2.9.0"), ("nvidia-cuda-runtime-cu12", "12.8.90"))


def on(driver: str | None, *capabilities: Version) -> GpuPlatform:
    return GpuPlatform(driver=parse_driver(driver), capabilities=capabilities)


@pytest.mark.parametrize(
    ("packages", "platform", "support"),
    [
        # CUDA release notes: 13.x from 580 on, 12.x from 525, 11.x from 450.
        (TORCH_2_11, on("580.65.06", H100), Support.WORKS),
        (TORCH_2_11, on("575.57.08", H100), Support.REFUSED),
        (TORCH_2_8, on("525.60.13", A100), Support.WORKS),
        (TORCH_2_8, on("520.61.05", A100), Support.REFUSED),
        ((("torch", "2.7.1+cu118"),), on("450.80.02", A100), Support.WORKS),
        # PyTorch's matrix: Volta in CUDA 12.8 until 2.10, not in 2.11; Blackwell not in CUDA 12.6.
        ((("torch", "2.10.0+cu128"),), on("570.26", V100), Support.WORKS),
        ((("torch", "2.11.0+cu128"),), on("570.26", V100), Support.REFUSED),
        ((("torch", "2.11.0+cu126"),), on("580.65.06", RTX_5090), Support.REFUSED),
        # JAX: 525 for CUDA 12 and 580 for CUDA 13, there from 7.5 on.
        (JAX_12, on("535.54.03", P100), Support.WORKS),
        (JAX_13, on("580.95.05", V100), Support.REFUSED),
        # TensorFlow brings CUDA 12; vLLM needs 7.0.
        (TENSORFLOW, on("550.54.14", T4), Support.WORKS),
        (VLLM, on("550.54.14", P100), Support.REFUSED),
    ],
)
def test_listed_pairs_are_answered_as_their_vendors_do(
    packages: Packages, platform: GpuPlatform, support: Support
) -> None:
    assert judge(packages, platform).support is support


@pytest.mark.parametrize(
    ("packages", "platform"),
    [
        ((("nvidia-cuda-runtime", "14.0.12"),), on("650.10.01", H100)),  # a major release of which nothing is known
        (TORCH_2_15, on("595.45.04", H100)),  # a torch without a published matrix
        (TORCH_2_11, on("580.65.06", (13, 0))),  # a GPU of which nothing is known
        ((("nvidia-cuda-runtime-cu12", "12.4.127"),), on("570.26", RTX_5090)),  # CUDA 12.4 is older than Blackwell
        (TORCH_2_11, on(None, H100)),
        (TORCH_2_11, on("580.65.06")),
        ((("torch", "1.10.0"),), on("580.65.06", T4)),  # CUDA is in the wheel, unnamed
        ((("tensorflow", "2.21.0"),), on("580.65.06", T4)),  # with a CUDA of the system
        ((("torch", "2.11.0+xpu"),), on("580.65.06", T4)),
    ],
)
def test_what_nobody_lists_is_unknown(packages: Packages, platform: GpuPlatform) -> None:
    answer = judge(packages, platform)
    assert (answer.support, answer.remedy) == (Support.UNKNOWN, None)
    assert describe_support(answer).startswith("unknown whether")


DRIVERS = st.tuples(st.integers(440, 640), st.integers(0, 220), st.integers(0, 20))
CAPABILITIES = st.lists(
    st.sampled_from([K80, P100, V100, T4, A100, (8, 9), H100, (10, 3), RTX_5090, (13, 0)]), max_size=3
)
LOCKS = st.sampled_from(
    [TORCH_2_8, TORCH_2_11, TORCH_2_15, JAX_12, JAX_13, TENSORFLOW, VLLM, (*TORCH_2_8, *JAX_13)]
    + [
        (("torch", f"2.{minor}.0+{build}"),)
        for minor in range(4, 15)
        for build in ("cu118", "cu126", "cu130", "rocm6.4")
    ]
)


@given(packages=LOCKS, driver=DRIVERS, newer=DRIVERS, capabilities=CAPABILITIES)
def test_a_newer_driver_refuses_nothing_that_an_older_one_runs(
    packages: Packages, driver: Version, newer: Version, capabilities: list[Version]
) -> None:
    driver, newer = min(driver, newer), max(driver, newer)
    before = judge(packages, GpuPlatform(driver=driver, capabilities=tuple(capabilities))).support
    after = judge(packages, GpuPlatform(driver=newer, capabilities=tuple(capabilities))).support
    assert (before, after) != (Support.WORKS, Support.REFUSED)
    assert not (before is Support.WORKS and after is not Support.WORKS)
    if before is Support.UNKNOWN:
        assert after is not Support.REFUSED


@given(packages=LOCKS, driver=DRIVERS, capabilities=CAPABILITIES)
def test_nothing_is_said_to_work_below_the_least_driver_or_without_a_known_gpu(
    packages: Packages, driver: Version, capabilities: list[Version]
) -> None:
    answer = judge(packages, GpuPlatform(driver=driver, capabilities=tuple(capabilities)))
    if answer.support is Support.WORKS:
        assert capabilities
        assert newest_major(driver) is not None


def test_the_sentence_names_package_cuda_driver_and_the_nearest_build_that_works() -> None:
    answer = judge(TORCH_2_11, on("535.54.03", A100))
    assert answer.message == (
        "torch 2.11.0 brings CUDA 13.0, which needs driver 580.65.06 or newer; this machine has 535.54.03"
    )
    assert answer.remedy == (
        "Take torch built for CUDA 12.8, from the index https://download.pytorch.org/whl/cu128 or by "
        "UV_TORCH_BACKEND=cu128, or install driver 580.65.06 or newer."
    )


@pytest.mark.parametrize(
    ("packages", "platform", "nearest"),
    [
        (TORCH_2_11, on("535.54.03", V100), "Take torch built for CUDA 12.6,"),
        (TORCH_2_11, on("470.82.01", A100), "Take torch 2.7 built for CUDA 11.8,"),
        (TORCH_2_15, on("550.54.14", P100), "Take torch 2.14 built for CUDA 12.6,"),
        (TORCH_2_11, on("580.65.06", V100), "Take torch built for CUDA 12.6,"),
        ((("torch", "2.11.0+rocm6.4"),), on("580.65.06", H100), "Take torch built for CUDA 13.0,"),
        (JAX_13, on("550.54.14", A100), "Take jax[cuda12], or install driver 580.65.06"),
        (JAX_13, on("470.82.01", A100), "Install driver 580.65.06 or newer."),
        # vLLM was built for its torch, so that another one is no way out.
        (VLLM, on("470.82.01", A100), "Install driver 525.60.13 or newer."),
    ],
)
def test_the_nearest_combination_is_one_that_works(packages: Packages, platform: GpuPlatform, nearest: str) -> None:
    answer = judge(packages, platform)
    assert answer.support is Support.REFUSED
    assert (answer.remedy or "").startswith(nearest)


def test_an_older_driver_of_the_same_major_runs_a_toolkit_by_minor_version_compatibility() -> None:
    assert judge(TORCH_2_8, on("535.54.03", A100)).message == (
        "torch 2.8.0 brings CUDA 12.8, which driver 535.54.03 runs by minor version compatibility; from 570.26 on it "
        "runs in full"
    )
    assert judge(TORCH_2_8, on("570.26", A100)).message == "torch 2.8.0 brings CUDA 12.8, which driver 570.26 runs"


def test_packages_without_code_for_gpus_need_no_driver() -> None:
    assert judge([("six", "1.17.0")], on(None)).support is Support.UNUSED
    answer = judge([("torch", "2.11.0+cpu")], on("535.54.03", A100))
    assert (answer.support, answer.message) == (
        Support.UNUSED,
        "torch 2.11.0+cpu is built for processors and uses no GPU",
    )


def test_the_worst_of_several_packages_counts_and_gpus_that_differ_are_unknown() -> None:
    assert judge((*TORCH_2_8, *JAX_13), on("550.54.14", A100)).message.startswith("jax 0.12.0.1 brings CUDA 13.5")
    assert judge(TORCH_2_11, on("580.65.06", A100, V100)).support is Support.UNKNOWN
    elsewhere = GpuPlatform(driver=(580, 65, 6), capabilities=(T4,), processor="aarch64")
    assert judge(TORCH_2_11, elsewhere).support is Support.UNKNOWN


def test_versions_of_drivers_are_read_and_written_as_nvidia_does() -> None:
    assert parse_driver("535.54.03") == (535, 54, 3)
    assert [parse_driver(text) for text in (None, "", "535", "535.x", "5.4.3.2", "99999.1")] == [None] * 6
    assert [format_driver(version) for version in ((570, 26), (580, 65, 6), (450, 80, 2))] == [
        "570.26",
        "580.65.06",
        "450.80.02",
    ]
    for toolkit, driver in TOOLKIT_DRIVERS.items():
        # 11.0 came with an older driver than the one that all of 11 need.
        assert driver >= LEAST_DRIVERS[toolkit[0]] or toolkit == (11, 0)
