"""Runs on a real GPU are placed, share it, are measured by NVML, billed, killed and served, as on a played one."""

import json
import os
import shutil
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pynvml
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.cluster.local.machine import gpu_driver, gpu_platform, gpus
from fairlead.policy.gpu.cuda_support import format_driver
from fairlead.text.quantities import describe_memory
from tests.gpu.conftest import ROOT, Call
from tests.waiting import until

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

BUSY = """
import fairlead, torch, time
with fairlead.run() as run:
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    begin = time.time()
    step = 0
    while time.time() < begin + 600:
        for _ in range(20):
            left @ left
        torch.cuda.synchronize()
        step += 1
        run.progress(step)
"""
HOLDER = """
import time, torch
held = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
time.sleep(600)
"""


def status(call: Call, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("status", name, "--json"))
    return found


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            found.setdefault(each.name, []).append((each.labels, each.value))
    return found


def points(call: Call, name: str, metric: str) -> list[float]:
    """The values of a metric of a run over time."""
    (run,) = json.loads(call("compare", name, "--metric", metric, "--json"))["runs"]
    return [value for _step, _at, value in run["metrics"][metric]["points"]]


def computing_pids() -> set[int]:
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpus()[0].uuid)
        return {each.pid for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    finally:
        pynvml.nvmlShutdown()


def test_the_machine_is_a_node_with_its_gpu(call: Call) -> None:
    gpu = gpus()[0]
    assert gpu.model
    assert gpu.memory_bytes > 1 << 30
    assert f"{gpu.model}, driver {gpu_driver()}" in call("doctor")
    platform = gpu_platform()
    assert platform.driver is not None
    assert format_driver(platform.driver) == gpu_driver()
    assert len(platform.capabilities) == 1
    assert json.loads(call("top", "--json")) is not None


def test_two_runs_share_a_gpu_and_each_is_measured_by_its_own_processes(call: Call, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    (tmp_path / "holder.py").write_text(HOLDER)
    call("prices", "set", "localhost", "3600")
    share = "resources: {gpu: 0.5}\n"
    (tmp_path / "busy.yaml").write_text("name: busy\nrun: python busy.py\n" + share)
    idle = "idle: {then: notify, below: 30%, for: 10s}\n"
    (tmp_path / "holder.yaml").write_text("name: holder\nrun: python holder.py\n" + share + idle)
    (tmp_path / "third.yaml").write_text("name: third\nrun: python holder.py\nresources: {gpu: 1}\n")
    call("run", "-d", "busy.yaml", "holder.yaml", "third.yaml")
    for name in ("busy", "holder"):
        until(lambda name=name: status(call, name)["phase"] == "Running", timeout_s=120)  # type: ignore[misc]
    waits = status(call, "third")
    print(waits["reason"]["message"])
    assert waits["phase"] == "Pending"
    until(lambda: "Idle" in call("events", "holder"), timeout_s=120)
    until(lambda: points(call, "busy", "system/gpu_utilization")[-1] > 0.9, timeout_s=60)
    print(call("events", "holder"))
    assert "Idle" not in call("events", "busy")
    used = {name: points(call, name, "system/gpu_utilization") for name in ("busy", "holder")}
    print(used)
    assert max(used["holder"]) < 0.1
    assert max(points(call, "busy", "system/gpu_power_watts")) > 50
    print(call("top"), call("status"))
    told = {pod["run"]: pod["gpus"][0] for pod in json.loads(call("top", "--json"))["pods"]}
    assert told["busy"]["busy"] > 0.9
    assert told["holder"]["busy"] < 0.1
    assert told["holder"]["memory_bytes"] > 1 << 30
    metrics = samples(call("metrics"))
    (_, utilization), *_ = metrics["fairlead_gpu_utilization_ratio"]
    assert utilization > 0.9
    shares = {labels["run"]: value for labels, value in metrics["fairlead_run_gpu_share"]}
    assert shares == {"busy": 0.5, "holder": 0.5}
    bill = json.loads(call("cost", "--json"))
    assert sum(row["microusd"] for row in bill["rows"]) == bill["billed_microusd"]
    print(call("cost"))
    call("stop", "busy", "holder")
    until(lambda: status(call, "third")["phase"] == "Running", timeout_s=120)
    call("stop", "third")
    until(lambda: not computing_pids(), timeout_s=60)


def test_a_killed_rank_goes_on_from_its_checkpoint_on_the_gpu(call: Call, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "language_model.py", tmp_path)
    (tmp_path / "train.yaml").write_text(
        "name: language-model\nrun: python language_model.py --steps 1500\nresources: {gpu: 1}\n"
        "checkpoint: {every: 2s}\nretry: {program: 3}\n"
    )
    call("run", "-d", "train.yaml")
    until(lambda: "CheckpointSaved" in call("events", "language-model"), timeout_s=180)
    (pid,) = computing_pids()
    os.kill(pid, signal.SIGKILL)
    until(lambda: status(call, "language-model")["phase"] == "Succeeded", timeout_s=180)
    told = call("logs", "language-model")
    print(told[-600:], call("events", "language-model"))
    assert "steps 0 to" not in told, "it went on from a checkpoint"
    assert not computing_pids()

    for name in ("serve.yaml", "language_model_predictor.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    served = (tmp_path / "serve.yaml").read_text().replace("{cpu: 1}", "{cpu: 1, gpu: 0.5}").replace("5m", "5s")
    (tmp_path / "serve.yaml").write_text(served)
    call("run", "-d", "serve.yaml")
    url = status(call, "writer")["endpoint"]["url"]

    def ask() -> float:
        body = json.dumps({"model": "writer", "prompt": "def ", "max_tokens": 20, "temperature": 0}).encode()
        request = urllib.request.Request(f"{url}v1/completions", body, {"Content-Type": "application/json"})
        begin = time.perf_counter()
        with urllib.request.urlopen(request, timeout=120) as answer:
            print(json.loads(answer.read())["choices"][0]["text"])
        return time.perf_counter() - begin

    print(f"first answer {ask():.2f} s, then {ask():.3f} s")
    until(lambda: not computing_pids(), timeout_s=60)
    print(f"first answer after sleeping {ask():.2f} s")
    call("stop", "writer")
    until(lambda: not computing_pids(), timeout_s=60)


def test_what_a_run_used_of_its_gpu_is_what_the_next_asks_for(call: Call, tmp_path: Path) -> None:
    (tmp_path / "fill.py").write_text(
        "import fairlead, time, torch\n"
        "with fairlead.run() as run:\n"
        "    held = torch.ones(5 << 30, dtype=torch.uint8, device='cuda')\n"
        "    torch.ones(64, 64, device='cuda') @ torch.ones(64, 64, device='cuda')\n"
        "    torch.cuda.synchronize()\n"
        "    run.progress(1)\n"
        "    time.sleep(8)\n"
    )
    spec = "name: fill\nrun: python fill.py\nresources: {gpu: auto}\n"
    (tmp_path / "fill.yaml").write_text(spec)
    call("run", "-d", "fill.yaml")
    (gpu,) = gpus()
    until(lambda: status(call, "fill")["progress"] is not None, "progress", timeout_s=90)
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        (held,) = (each.usedGpuMemory for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    finally:
        pynvml.nvmlShutdown()
    until(lambda: status(call, "fill")["phase"] == "Succeeded", "its end", timeout_s=90)
    told = status(call, "fill")["used"]["gpu_memory_bytes"]
    print(f"NVML {held}, told {told}")
    assert held <= told <= held + (1 << 30)
    (tmp_path / "fill.yaml").write_text(spec.replace("name: fill", "name: fill-2"))
    call("run", "-d", "fill.yaml")
    until(lambda: status(call, "fill-2")["phase"] == "Succeeded", "its end", timeout_s=90)
    asked = status(call, "fill-2")
    assert f"GPUs with {describe_memory(asked['requests']['gpu_memory_bytes'])}: 1.2 times" in asked["requests"]["why"]
    assert 1.2 * told <= asked["requests"]["gpu_memory_bytes"] <= 1.25 * told
