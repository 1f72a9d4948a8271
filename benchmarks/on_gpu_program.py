"""Trains a Llama on one GPU and writes its peak of memory, the time of its steps and how long checkpoints kept it.

python on_gpu_program.py RESULT LAYERS HIDDEN HEADS WIDTH VOCABULARY SEQUENCE [--checkpoints]
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import fairlead
from fairlead.runtime.session import Run

WARM_UP, STEPS, SAVES = 4, 20, 5
IS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if IS_GPU else "cpu")


class Attention(nn.Module):
    """Attention with the names of Hugging Face's Llama; positions are left out, as they cost next to nothing."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend to what came before."""
        batch, length, _ = x.shape
        each = (layer(x) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in each)
        given = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        gathered: torch.Tensor = self.o_proj(given.transpose(1, 2).reshape(batch, length, -1))
        return gathered


class Mlp(nn.Module):
    """A gated network for each token."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, width, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        down: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Block(nn.Module):
    """A layer."""

    def __init__(self, hidden: int, heads: int, width: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.self_attn, self.mlp = Attention(hidden, heads), Mlp(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply attention and the network, each beside a residual connection."""
        x = x + self.self_attn(self.input_layernorm(x))
        added: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return added


class Llama(nn.Module):
    """Predicts the next token."""

    def __init__(self, layers: int, hidden: int, heads: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Block(hidden, heads, width) for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.output(self.norm(x))
        return logits


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy in fp32."""
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def wait() -> None:
    """Wait for what the GPU was given."""
    if IS_GPU:
        torch.cuda.synchronize()


def main(argv: list[str]) -> None:
    """Train, and write what was measured."""
    layers, hidden, heads, width, vocabulary, sequence = map(int, argv[1:7])
    found: dict[str, object] = {}
    with fairlead.run() as run:
        with DEVICE:
            model = run.parallelize(Llama(layers, hidden, heads, width, vocabulary), device=DEVICE.type)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        run.resume(model=model, optimizer=optimizer)
        tokens = torch.randint(vocabulary, (run.parallel.samples, sequence + 1), device=DEVICE)

        def step(number: int) -> tuple[float, float]:
            begin = time.perf_counter()
            loss = run.forward_backward(model, tokens[:, :-1], tokens[:, 1:], loss=loss_of)
            optimizer.step()
            optimizer.zero_grad()
            wait()
            done = time.perf_counter()
            run.progress(number, loss=loss, tokens=tokens.numel())
            return (done - begin) * 1000, (time.perf_counter() - done) * 1000

        for number in range(WARM_UP):
            step(number + 1)
        if "--checkpoints" in argv:
            found["saves"] = checkpoints(run, model, optimizer, lambda: step(WARM_UP))
        else:
            if IS_GPU:
                torch.cuda.reset_peak_memory_stats()
            times = [step(WARM_UP + number + 1) for number in range(STEPS)]
            found |= {
                "step_ms": statistics.median(time for time, _ in times),
                "reports_ms": statistics.mean(time for _, time in times),
                "allocated_bytes": torch.cuda.max_memory_allocated() if IS_GPU else None,
                "reserved_bytes": torch.cuda.max_memory_reserved() if IS_GPU else None,
            }
    Path(argv[0]).write_text(json.dumps(found))


def checkpoints(
    run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], object]
) -> dict[str, dict[str, list[float]]]:
    """Return how many milliseconds each save kept the training, and took: ours, and PyTorch's asynchronous one."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    def timed(save: Callable[[int], Callable[[], object]]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {"blocked": [], "complete": []}
        for number in range(1, SAVES + 1):
            step()
            begin = time.perf_counter()
            wait_until_complete = save(number)
            wait()
            found["blocked"].append((time.perf_counter() - begin) * 1000)
            wait_until_complete()
            found["complete"].append((time.perf_counter() - begin) * 1000)
        return found

    def ours(number: int) -> Callable[[], object]:
        run.checkpoint(number, force=True)
        return lambda: until_exists(Path(os.environ["FAIRLEAD_CHECKPOINT_TO"]) / f"step-{number:012d}/MANIFEST.json")

    found = {"fairlead": timed(ours)}
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-") as directory:
        backend = "cpu:gloo,cuda:nccl" if IS_GPU else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)

        def torchs(number: int) -> Callable[[], object]:
            state, moments = get_state_dict(model, optimizer)
            saving = dcp.async_save({"model": state, "optimizer": moments}, checkpoint_id=f"{directory}/{number}")
            return saving.result  # type: ignore[union-attr]

        found["torch"] = timed(torchs)
        dist.destroy_process_group()
    return found


def until_exists(path: Path) -> None:
    """Wait for a file."""
    while not path.exists():
        time.sleep(0.002)


if __name__ == "__main__":
    main(sys.argv[1:])
