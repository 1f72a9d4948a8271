"""A machine's processors are measured by ranks that meet, and estimates go by what was measured."""

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.local.home import Home
from fairlead.control.gpu_measurement import measure, measured_on, read_measured
from fairlead.errors import ClusterError, Conflict
from fairlead.policy.strategy.gpus import MeasuredGpu, coefficients, find, find_measured
from fairlead.policy.strategy.memory import GIB
from fairlead.policy.strategy.resolution import hardware_of, ranked
from fairlead.specs.parallel import ModelShape
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from tests.builders import training

OURS = MeasuredGpu(
    name="Quick 3000", memory_bytes=48 * GIB, processors=100, tflops=150.0, depth=200.0, memory_gb_s=900.0,
    launch_ms=2.0, link_gb_s=40.0, latency_ms=0.02, at=1_790_000_000.0,
)  # fmt: skip


def spec_on(model: str, num: int = 8) -> Training:
    shape = ModelShape(layers=24, hidden=2048, heads=16, vocabulary=32_000, sequence=2048)
    return training(
        run="train",
        ranks_per_node=None,
        model=shape,
        resources=Resources(gpu=GpuRequest(model=model, milli=1000 * num)),
    )


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.long
def test_two_ranks_measure_a_processor_and_an_all_reduce(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[torch]'")
    found = measured_on(sys.executable, "cpu", 2, os.environ, 1_790_000_000.0)
    assert found.name == "cpu"
    assert 1e-4 < found.tflops < 20
    assert 0.1 < found.memory_gb_s < 2000
    assert found.link_gb_s is not None
    assert found.latency_ms is not None
    assert 0.001 < found.link_gb_s < 1000
    assert all(math.isfinite(value) and value >= 0 for value in (found.depth, found.launch_ms, found.latency_ms))
    on = hardware_of(spec_on("cpu", 2), measured=(found,))
    assert on.gpu.memory_bytes == found.memory_bytes
    assert on.coefficients.tflops == found.tflops


@pytest.mark.slow
@pytest.mark.torch
def test_a_device_that_is_too_busy_to_be_measured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[torch]'")
    from fairlead.runtime.parallelism import measuring

    monkeypatch.setattr(measuring._Meter, "products", lambda _: [(64, 0.02), (512, 0.01)])
    with pytest.raises(RuntimeError, match="larger matrix products took no longer than small ones"):
        measuring.measure(torch.device("cpu"), 1)


def test_an_estimate_goes_by_what_was_measured() -> None:
    spec = spec_on("Quick 3000")
    with pytest.raises(Conflict, match=r"nothing is known of the GPU Quick 3000; `fairlead doctor --gpu`"):
        ranked(spec, None, None)
    best = ranked(spec, None, None, (OURS,)).splits[0]
    slower = ranked(spec, None, None, (replace(OURS, tflops=75.0),)).splits[0]
    assert slower.time.layers > 1.5 * best.time.layers
    assert best.memory.needed < OURS.memory_bytes


def test_a_device_is_known_by_its_longer_name_and_its_memory() -> None:
    h100 = find("H100")
    assert h100 is not None
    device = replace(OURS, name="H100 80GB HBM3", memory_bytes=79.1 * GIB, processors=132)
    smaller = replace(device, name="H100 NVL", memory_bytes=94 * GIB)
    assert find_measured("H100", h100, (smaller, device)) is device
    assert find_measured("H100", h100, (smaller,)) is None
    assert coefficients(h100, device).tflops == 150.0
    assert coefficients(h100, replace(device, link_gb_s=None)).link_gb_s == coefficients(h100).link_gb_s
    assert "measured here on 2026-09" in coefficients(h100, device).source


def test_without_torch_or_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    def python(script: str) -> dict[str, str]:
        path = tmp_path / "bin" / "python"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return {"PATH": f"{path.parent}:{os.environ['PATH']}"}

    home = Home.open(tmp_path / "home")
    with pytest.raises(Conflict, match=r"torch is not in .*bin/python, the Python that runs use; `pip install torch`"):
        measure(home, python("echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1"), 0.0)
    with pytest.raises(Conflict, match="finds no GPU on this machine"):
        measure(home, python("echo 0"), 0.0)
    with pytest.raises(Conflict, match="measuring failed: out of memory"):
        measure(home, python('[ "$1" = -c ] && echo 2 && exit; echo out of memory >&2; exit 1'), 0.0)
    assert read_measured(home) == ()


def test_a_measurement_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home")
    raw = {
        "name": "Quick 3000", "memory_bytes": 1e9, "processors": 10, "rows": 1280, "columns": 2560,
        "seconds_per_depth": 1e-6, "depth": 100.0, "memory_gb_s": 100.0, "launch_ms": 1.0,
    }  # fmt: skip
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo 1 && exit\necho \'{json.dumps(raw)}\' > "$3"\n')
    path.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for at in (1.0, 2.0):
        found = measure(home, env, at)
        # 100 tiles in ten waves on ten processors.
        assert found.tflops == pytest.approx(2 * 10 * 10 * 128 * 256 / 1e-6 / 1e12)
        assert read_measured(home) == (found,)
    home.gpus.write_text("{")
    with pytest.raises(ClusterError, match="Remove it and measure again"):
        read_measured(home)
