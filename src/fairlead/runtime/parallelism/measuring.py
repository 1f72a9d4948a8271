"""Measures the properties of this machine's GPUs that step-time estimates need, as one rank of all of its GPUs.

    python -m fairlead.runtime.parallelism.measuring RESULT RENDEZVOUS RANK RANKS DEVICE

It measures matrix products of increasing depth, a copy within memory, a layer so small that only kernel launches take
time, and all-reduces of small and large messages. Rank 0 writes the result. The same code runs on a CPU, in fp32 and
with smaller sizes.
"""

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

NUM_MEASUREMENTS = 3
"""Number of measurements of which each time is the median, after one that is not counted."""


class _Sizes(NamedTuple):
    """Sizes of the matrix products, copies and messages, and the number of repetitions."""

    rows: int
    columns: int
    depths: tuple[int, ...]
    copied_bytes: int
    sent_bytes: int
    repeats: int


GPU_SIZES = _Sizes(8192, 8192, (512, 1024, 2048, 4096, 8192), 1 << 30, 1 << 28, 20)
CPU_SIZES = _Sizes(256, 256, (128, 256, 512), 1 << 24, 1 << 20, 2)


class _Block(nn.Module):
    """A transformer layer that is too narrow for its computation to take time."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.gate, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply attention and a gated MLP, each with a residual connection."""
        normed = self.attention_norm(x)
        batch, length, width = x.shape
        parts = (layer(normed).view(batch, length, self.heads, -1) for layer in (self.query, self.key, self.value))
        query, key, value = (part.transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        normed = self.mlp_norm(x)
        output: torch.Tensor = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return output


class _Meter:
    def __init__(self, device: torch.device, sizes: _Sizes) -> None:
        self.device, self.sizes = device, sizes
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def seconds(self, call: Callable[[], object]) -> float:
        """Return the median seconds of one call among many consecutive ones."""
        seconds = []
        for number in range(NUM_MEASUREMENTS + 1):
            self._wait()
            begin = time.perf_counter()
            for _ in range(self.sizes.repeats):
                call()
            self._wait()
            if number:
                seconds.append((time.perf_counter() - begin) / self.sizes.repeats)
        return statistics.median(seconds)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def products(self) -> list[tuple[int, float]]:
        """Return each depth with the seconds of a matrix product of that depth."""
        rows, columns = self.sizes.rows, self.sizes.columns
        products = []
        for depth in self.sizes.depths:
            left = torch.randn(rows, depth, device=self.device, dtype=self.dtype)
            right = torch.randn(depth, columns, device=self.device, dtype=self.dtype)
            products.append((depth, self.seconds(lambda left=left, right=right: left @ right)))  # type: ignore[misc]
        return products

    def copied_gb_s(self) -> float:
        """Return the GB/s that a copy reads and writes in total."""
        source = torch.ones(self.sizes.copied_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * self.sizes.copied_bytes / self.seconds(lambda: target.copy_(source)) / 1e9

    def launch_ms(self) -> float:
        """Return the milliseconds of a layer's forward and backward pass with almost no computation."""
        layers = nn.Sequential(*(_Block() for _ in range(4))).to(self.device, self.dtype)
        block_input = torch.randn(1, 16, 64, device=self.device, dtype=self.dtype)
        return self.seconds(lambda: layers(block_input).sum().backward()) / len(layers) * 1000

    def all_reduce_s(self, size: int) -> float:
        """Return the seconds of an all-reduce of ``size`` bytes."""
        message = torch.zeros(size // 4, dtype=torch.float32, device=self.device)
        return self.seconds(lambda: dist.all_reduce(message))


def line_of(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Return slope and intercept of a line fitted by least squares of relative errors, so that short times count."""
    weights = [1 / value**2 for _, value in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    return slope, mean_y - slope * mean_x


def measure(device: torch.device, ranks: int) -> dict[str, object]:
    """Measure as one rank; values that do not involve several ranks are this rank's own.

    Raises:
        RuntimeError: Deeper matrix products took no longer, so no speed follows from them.
    """
    sizes = GPU_SIZES if device.type == "cuda" else CPU_SIZES
    meter = _Meter(device, sizes)
    figures: dict[str, object] = {"rows": sizes.rows, "columns": sizes.columns, "ranks": ranks}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        figures |= {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "processors": properties.multi_processor_count,
        }
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        figures |= {"name": "cpu", "memory_bytes": memory, "processors": 1}
    slope, intercept = line_of(meter.products())
    if slope <= 0:
        raise RuntimeError("larger matrix products took no longer than small ones; measure while the device is idle")
    figures |= {"seconds_per_depth": slope, "depth": max(intercept / slope, 0.0)}
    figures |= {"memory_gb_s": meter.copied_gb_s(), "launch_ms": meter.launch_ms()}
    if ranks > 1:
        moved_bytes = 2 * (ranks - 1) / ranks * sizes.sent_bytes
        figures["link_gb_s"] = moved_bytes / meter.all_reduce_s(sizes.sent_bytes) / 1e9
        # The estimate's model: the latency between two GPUs, plus half of it for each further doubling.
        figures["latency_ms"] = meter.all_reduce_s(1024) * 1000 / (1 + math.log2(ranks) / 2)
    return figures


def main(argv: list[str]) -> None:
    """Measure together with the other ranks; rank 0 writes the result."""
    result, rendezvous, rank, ranks, device_type = argv[0], argv[1], int(argv[2]), int(argv[3]), argv[4]
    device = torch.device("cuda", rank) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    if ranks > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    figures = measure(device, ranks)
    if rank == 0:
        Path(result).write_text(json.dumps(figures))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
