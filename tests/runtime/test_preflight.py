"""Pods test their nodes together before the program starts, and the one that is named ends."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.workloads.pod_reports import read_ending
from fairlead.runtime import run_key
from fairlead.runtime.environment import Environment
from fairlead.runtime.network.measuring import NetworkReport
from fairlead.runtime.network.slow_links import SlowLink
from fairlead.runtime.preflight import gpu_burn
from fairlead.runtime.preflight.__main__ import (
    FAULTY,
    SLOW,
    NodeVerdict,
    gpu_lines,
    gpu_verdicts,
    loss_lines,
    loss_verdicts,
    network_verdicts,
    of_pod,
)
from fairlead.runtime.preflight.first_steps import LossResult, train
from fairlead.runtime.preflight.gpu_burn import BurnResult, burn, slow_gpus
from tests.kubernetes.test_runtime_bundle import Container
from tests.network_namespaces import FIRST_ADDRESS, lacking, namespaces
from tests.ports import free_port

WITHIN_S = 10.0
NUM_NODES, SLOW_NODE = 4, 2


def result(device: int, tflops: float, **changes: Any) -> BurnResult:
    return BurnResult(device=device, model="H100", tflops=tflops, num_products=100, **{"num_wrong": 0, **changes})


def test_right_products_are_counted_and_none_is_wrong() -> None:
    (only,) = burn(0.05, device="cpu", size=64)
    assert only.num_wrong == 0
    assert only.num_products > gpu_burn.PRODUCTS
    assert only.tflops > 0.0


def test_products_that_differ_now_and_then_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    multiply, calls = torch.mm, []

    def flips(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        multiply(a, b, out=out)
        calls.append(1)
        if len(calls) == 3:
            out[5, 7] += 1
        return out

    monkeypatch.setattr(torch, "mm", flips)
    (only,) = burn(0.01, device="cpu", size=64)
    assert only.num_wrong == 1


def test_products_that_are_always_wrong_alike_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    right = torch.Tensor.__matmul__

    def skewed(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        product = right(self, other)
        if self.dtype is torch.float32:
            product[0, 0] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", skewed)
    monkeypatch.setattr(torch, "mm", lambda a, b, *, out: out.copy_(skewed(a, b)))
    (only,) = burn(0.01, device="cpu", size=64)
    assert only.num_wrong == only.num_products


def test_a_gpu_is_slow_beside_those_of_its_model_and_of_few_none_is() -> None:
    results = [(pod, result(device, 700.0)) for pod in range(2) for device in range(2)]
    assert slow_gpus(results) == {}
    slower = [*results[:-1], (1, result(1, 500.0))]
    assert slow_gpus(slower) == {(1, 1): pytest.approx(1.4)}
    assert slow_gpus(slower[1:]) == {}, "of three nobody can say which one is odd"
    (verdict,) = gpu_verdicts(slower, {}).values()
    assert verdict == NodeVerdict(
        code=SLOW, says="its GPU 1 takes 1.4 times as long for a product as the others of its model"
    )
    assert gpu_lines(slower) == ["4 of H100: 500 to 700 TFLOP/s, 400 products checked"]


def test_wrong_products_outweigh_slow_ones_and_gpus_that_fail_are_faulty() -> None:
    results = [(pod, result(0, 500.0 if pod == 3 else 700.0, num_wrong=2 * (pod == 3))) for pod in range(4)]
    assert gpu_verdicts(results, {1: "CUDA error: an illegal memory access"}) == {
        1: NodeVerdict(code=FAULTY, says="its GPUs fail: CUDA error: an illegal memory access"),
        3: NodeVerdict(code=FAULTY, says="its GPU 0 gave 2 wrong products of 100"),
    }


def trained(*losses: str, device: int = 0, kind: str = "H100") -> LossResult:
    return LossResult(device=device, kind=kind, losses=list(losses))


def test_the_first_steps_give_the_same_losses_each_time_and_fall() -> None:
    first, second = (train(4)[0] for _ in range(2))
    assert first == second
    assert len(set(first.losses)) == 4


def test_a_processor_that_adds_wrongly_has_another_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    usual = train(2)[0]
    right = torch.nn.functional.gelu
    monkeypatch.setattr(torch.nn.functional, "gelu", lambda values: right(values) * (1 + 1e-6))
    (odd,) = train(2)
    assert [pod for pod, _ in [*loss_verdicts([(0, usual), (1, usual), (2, odd)], {}).items()]] == [2]


def test_the_node_whose_loss_differs_from_most_is_named_with_the_step() -> None:
    results = [(pod, trained("4.5", "4.25")) for pod in range(3)]
    odd = [*results[:2], (2, trained("4.5", "4.26", device=1))]
    assert loss_verdicts(odd, {0: "CUDA error: launch failed"}) == {
        0: NodeVerdict(code=FAULTY, says="its devices fail: CUDA error: launch failed"),
        2: NodeVerdict(code=FAULTY, says="its device 1 has a loss of 4.26 in step 2, and 2 others of its kind 4.25"),
    }
    assert loss_lines(odd) == ["3 of H100: 4.25 after 2 steps, and 1 other"]
    assert loss_verdicts(results, {}) == {}


def test_of_two_devices_or_of_different_kinds_none_is_named() -> None:
    assert loss_verdicts([(0, trained("1.0")), (1, trained("2.0"))], {}) == {}
    assert loss_verdicts([(pod, trained(str(pod), kind=str(pod))) for pod in range(3)], {}) == {}
    assert loss_verdicts([(pod, trained(str(pod % 2))) for pod in range(4)], {}) == {}, "there is no majority"


def test_the_pods_of_slow_and_cut_off_nodes_are_named() -> None:
    report = NetworkReport(
        num_nodes=4, num_rounds=6, median_gb_s=1.0, unreachable=(),
        slow=(SlowLink(node="c (pod 2)", factor=3.0, num_slow=6, num_pairs=6),),
        pods={"a (pod 0)": 0, "c (pod 2)": 2, "d (pod 3)": 3}, cut_off=("d (pod 3)",),
    )  # fmt: skip
    assert network_verdicts(report) == {
        2: NodeVerdict(code=SLOW, says="its network is 3 times as slow as that of the others, in 6 of 6 pairs"),
        3: NodeVerdict(code=SLOW, says="no other node can exchange data with it"),
    }


def test_a_pod_tests_once_whatever_its_ranks() -> None:
    own = of_pod(Environment(rank=0, world_size=8, local_size=4, node=1, run_dir=Path()))
    assert (own.rank, own.world_size, own.local_rank, own.local_size) == (1, 2, 0, 1)


class PodWithTest(Container):
    """A container of a gang whose nodes are tested."""

    def __init__(self, path: Path, index: int, tests: dict[str, float], *, num: int, **env: str) -> None:
        path.mkdir()
        super().__init__(path, sys.executable)
        self.program("print('trains', flush=True)")
        self.variables = {
            "FAIRLEAD_POD_DIR": str(self.pod_dir), "FAIRLEAD_RUN_DIR": str(path / "local" / "run"),
            "WORLD_SIZE": str(num), "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(index), "FAIRLEAD_RUN_UID": "u",
            "FAIRLEAD_PREFLIGHT": json.dumps(tests), **env,
        }  # fmt: skip

    def begin(self) -> subprocess.Popen[str]:
        return self.start("python program.py", env=self.variables)

    @property
    def message(self) -> str:
        return str(json.loads(self.termination_log.read_text())["message"])


def test_pods_on_one_node_have_nothing_to_measure_and_the_program_starts(tmp_path: Path) -> None:
    key = tmp_path / "key"
    run_key.write(key, run_key.new_key())
    shared = {"MASTER_ADDR": "127.0.0.1", "FAIRLEAD_AGREE_PORT": str(free_port()), "FAIRLEAD_KEY_FILE": str(key)}
    containers = [PodWithTest(tmp_path / f"pod-{i}", i, {"network_s": 5.0}, num=2, **shared) for i in range(2)]
    pods = [container.begin() for container in containers]
    output = [pod.communicate(timeout=120)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0]
    assert "all pods are on one node" in output[0]
    assert all("trains" in text for text in output)


def test_a_test_of_gpus_by_a_python_without_torch_fails_with_what_it_needs(tmp_path: Path) -> None:
    container = PodWithTest(tmp_path / "pod", 0, {"gpu_s": 1.0}, num=1)
    (container.path / "image" / "torch.py").write_text("raise ImportError('no torch here')")
    pod = container.begin()
    output, _ = pod.communicate(timeout=120)
    assert "trains" not in output
    assert container.message.startswith(
        "the test before the start failed with exit code 2: preflight.gpu and preflight.loss need torch"
    )


WRONG_BY_A_MILLIONTH = """
import os, sys
here = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]
del sys.modules["torch"]
import torch
right = torch.nn.functional.gelu
torch.nn.functional.gelu = lambda values: right(values) * (1 + 1e-6)
"""


@pytest.mark.slow
def test_the_pod_whose_processor_computes_otherwise_ends_and_is_faulty(tmp_path: Path) -> None:
    key = tmp_path / "key"
    run_key.write(key, run_key.new_key())
    shared = {"MASTER_ADDR": "127.0.0.1", "FAIRLEAD_AGREE_PORT": str(free_port()), "FAIRLEAD_KEY_FILE": str(key)}
    containers = [PodWithTest(tmp_path / f"pod-{i}", i, {"loss_steps": 2}, num=3, **shared) for i in range(3)]
    (containers[1].path / "image" / "torch.py").write_text(WRONG_BY_A_MILLIONTH)
    pods = [container.begin() for container in containers]
    pods[1].wait(timeout=240)
    others = [pods[0], pods[2]]
    assert all(pod.poll() is None for pod in others)
    for pod in others:
        pod.terminate()
    output = [pod.communicate(timeout=120)[0] for pod in pods]
    assert containers[1].message.startswith("preflight, faulty: its device 0 has a loss of ")
    assert "loss: 3 of " in output[0]
    assert not any("trains" in text for text in output)


@pytest.mark.slow
@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
def test_the_pod_with_a_slowed_link_ends_and_the_others_wait_to_be_stopped(tmp_path: Path) -> None:
    """Real pods in networks of their own: the very file that Kubernetes starts, within ten seconds of the test."""
    key = tmp_path / "key"
    run_key.write(key, run_key.new_key())
    shared = {"MASTER_ADDR": FIRST_ADDRESS, "FAIRLEAD_AGREE_PORT": str(free_port()), "FAIRLEAD_KEY_FILE": str(key)}
    with namespaces(NUM_NODES, SLOW_NODE) as names:
        containers = [
            PodWithTest(
                tmp_path / f"pod-{i}", i, {"network_s": WITHIN_S}, num=NUM_NODES, FAIRLEAD_NODE=f"node-{i}", **shared
            )
            for i in range(NUM_NODES)
        ]
        pods: list[subprocess.Popen[str]] = []
        for name, container in zip(names, containers, strict=True):
            container.prefix = ["ip", "netns", "exec", name]
            pods.append(container.begin())
        began = time.monotonic()
        pods[SLOW_NODE].wait(timeout=240)
        took_s = time.monotonic() - began
        others = [pod for number, pod in enumerate(pods) if number != SLOW_NODE]
        assert all(pod.poll() is None for pod in others)
        for pod in others:
            pod.terminate()
        output = [pod.communicate(timeout=120)[0] for pod in pods]
    print(f"named {took_s:.1f} s after the start of the pods")
    message = containers[SLOW_NODE].message
    assert message.startswith("preflight, slow: its network is ")
    assert not any("trains" in text for text in output)
    status = {"state": {"terminated": {"message": containers[SLOW_NODE].termination_log.read_text()}}, "name": "ranks"}
    ending = read_ending({"status": {"containerStatuses": [status]}}, ranks=range(SLOW_NODE, SLOW_NODE + 1))
    assert ending is not None
    assert ending.message == message
