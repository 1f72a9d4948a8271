"""Trains one and the same small model on each device for a few steps, and compares the losses of like devices.

Weights and data come from one seed, drawn on the CPU, and every operation adds in a fixed order. So devices of one
model with one version of torch come to the same loss in every bit, and one that differs from most of them computes
wrongly. In contrast to single products (``gpu_burn``) it takes the whole way of a step: forward, backward, optimizer.
"""

import os
import platform
from collections import Counter
from dataclasses import dataclass

WIDTH, DEPTH, BATCH, CLASSES = 512, 4, 256, 64
LEAST_PEERS = 3
"""Devices of a kind of which one can be named as odd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    """The losses of one device.

    Attributes:
        device: Its number on the node; 0 for the processors.
        kind: Its model and the version of torch; only results of one kind can be compared.
        losses: The loss of each step, in the shortest spelling that gives the same number.
    """

    device: int
    kind: str
    losses: list[str]


def train(num_steps: int) -> list[LossResult]:
    """Return the results of all GPUs of this process, or of the processors if torch sees none.

    Raises:
        ImportError: Torch is not there.
        RuntimeError: A device fails.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else sums of cuBLAS have no fixed order
    import torch

    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)  # the order of sums on processors follows from the number of threads
    torch.use_deterministic_algorithms(True)
    try:
        num = torch.cuda.device_count() if torch.cuda.is_available() else 0
        kinds = [torch.cuda.get_device_name(number) for number in range(num)] or [_processor()]
        return [
            LossResult(
                device=number,
                kind=f"{kind}, torch {torch.__version__}",
                losses=_losses(f"cuda:{number}" if num else "cpu", num_steps),
            )
            for number, kind in enumerate(kinds)
        ]
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def odd_devices(results: list[tuple[int, LossResult]]) -> dict[tuple[int, int], str]:
    """Return what is odd about each device whose losses differ from those of more than half of its kind.

    Args:
        results: Results with the number of the pod of each.

    Returns:
        Clauses by pod and device.
    """
    odd = {}
    for kind in {result.kind for _, result in results}:
        peers = [(pod, result) for pod, result in results if result.kind == kind]
        ((usual, count), *_) = Counter(tuple(result.losses) for _, result in peers).most_common()
        if len(peers) < LEAST_PEERS or 2 * count <= len(peers):
            continue
        for pod, result in peers:
            if tuple(result.losses) == usual:
                continue
            step = next(
                (at for at, pair in enumerate(zip(result.losses, usual, strict=False)) if pair[0] != pair[1]), 0
            )
            odd[pod, result.device] = (
                f"has a loss of {result.losses[step]} in step {step + 1}, and {count} others of its kind {usual[step]}"
            )
    return odd


def _losses(name: str, num_steps: int) -> list[str]:
    import torch

    draws = torch.Generator().manual_seed(1)
    layers = [torch.randn(WIDTH, WIDTH, generator=draws) / WIDTH**0.5 for _ in range(DEPTH)]
    weights = [*layers, torch.randn(WIDTH, CLASSES, generator=draws) / WIDTH**0.5]
    parameters = [weight.to(name).requires_grad_() for weight in weights]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    losses = []
    for _ in range(num_steps):
        hidden = torch.randn(BATCH, WIDTH, generator=draws).to(name)
        labels = torch.randint(0, CLASSES, (BATCH,), generator=draws).to(name)
        for weight in parameters[:-1]:
            hidden = hidden + torch.nn.functional.gelu(hidden @ weight)
        loss = torch.nn.functional.cross_entropy(hidden @ parameters[-1], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(repr(loss.item()))
    return losses


def _processor() -> str:
    """Return what the kernels that torch chooses follow from: a model alone has several generations in clouds."""
    import torch

    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":") for line in file.read(1 << 16).splitlines()]
    except OSError:
        lines = []
    known = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    model = known.get("model name") or platform.machine()
    version = "/".join(known.get(name, "-") for name in ("cpu family", "model", "stepping"))
    return f"{model} {version} with {torch.backends.cpu.get_cpu_capability()}"
