"""Programs that train a small Llama under a split, and what they must give."""

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import fairlead

HIDDEN, HEADS, WIDTH, VOCABULARY, SEQUENCE, BATCH, STEPS = 16, 4, 32, 24, 6, 8, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        each = (layer(x) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (part.view(batch, length, -1, HIDDEN // HEADS).transpose(1, 2) for part in each)
        given = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        gathered: torch.Tensor = self.o_proj(given.transpose(1, 2).reshape(batch, length, -1))
        return gathered


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(HIDDEN, WIDTH, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(WIDTH, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.output_norm = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_norm(x))
        added: torch.Tensor = x + self.mlp(self.output_norm(x))
        return added


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.output = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.output(x)
        return logits


class Tied(nn.Module):
    """A model whose embedding and output are one, with an attention of one layer for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(SEQUENCE, HIDDEN)
        self.blocks = nn.Sequential(*(Fused() for _ in range(3)))
        self.output = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.output.weight = self.embedding.weight
        nn.init.normal_(self.output.weight, std=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(self.blocks(self.embedding(tokens) + self.places(torch.arange(SEQUENCE))))
        return logits


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.network = nn.Sequential(nn.Linear(HIDDEN, WIDTH), nn.GELU(), nn.Linear(WIDTH, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        given = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(given.transpose(1, 2).reshape(batch, length, -1))
        added: torch.Tensor = x + self.network(x)
        return added


PLAN = fairlead.ParallelPlan(
    columns=("qkv", "network.0"), rows=("out", "network.2"), fused=("qkv",), divided=("heads",)
)
MODELS: dict[str, tuple[type[nn.Module], fairlead.ParallelPlan | None]] = {"llama": (Llama, None), "tied": (Tied, PLAN)}


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(result: str, tried: list[tuple[dict[str, Any], str]]) -> None:
    """Train models under one split after the other and write the losses that this rank saw, and the names it had."""
    dist.init_process_group("gloo")
    found = []
    for split, model in tried:
        os.environ["FAIRLEAD_PARALLEL"] = json.dumps({**split, "batch": BATCH})
        with fairlead.run() as run:
            found.append(curve(run, model, STEPS))
    Path(f"{result}.{os.environ['RANK']}").write_text(json.dumps(found))
    dist.destroy_process_group()


def resume(result: str, split: dict[str, Any], model: str, upto: int) -> None:
    """Go on from the newest checkpoint to a step, and save there."""
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo")
    os.environ["FAIRLEAD_PARALLEL"] = json.dumps({**split, "batch": BATCH})
    with fairlead.run() as run:
        found = curve(run, model, upto, resumes=True)
    Path(f"{result}.{os.environ['RANK']}").write_text(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()


def curve(run: Any, name: str, upto: int, *, resumes: bool = False) -> dict[str, Any]:
    """The losses of the steps, and the names of what this rank trains."""
    torch.manual_seed(3)
    make, plan = MODELS[name]
    model = run.parallelize(make(), plan=plan, device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)  # smooth, where gradients are near zero
    done = run.resume(model=model, optimizer=optimizer) if resumes else 0
    generator = torch.Generator().manual_seed(7)
    steps = [torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator) for _ in range(upto)]
    losses, norms = [], []
    for step in range(done, upto):
        mine = steps[step].chunk(run.parallel.data)[run.parallel.replica_of(run.rank)]
        losses.append(float(run.forward_backward(model, mine[:, :-1], mine[:, 1:], loss=cross_entropy)))
        norms.append(float(run.clip_gradients(model, 0.5)))
        optimizer.step()
        optimizer.zero_grad()
        if resumes:
            run.checkpoint(step + 1, force=step + 1 == upto)
    names = sorted(name.removeprefix("module.") for name, _ in model.named_parameters())
    return {"losses": losses, "norms": norms, "names": names}


def alone(name: str, upto: int = STEPS) -> dict[str, Any]:
    """What one process sees."""
    os.environ.pop("FAIRLEAD_PARALLEL", None)
    torch.manual_seed(3)
    model = MODELS[name][0]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)  # smooth, where gradients are near zero
    generator = torch.Generator().manual_seed(7)
    losses, norms = [], []
    for _ in range(upto):
        tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
        loss = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return {"losses": losses, "norms": norms, "names": sorted(name for name, _ in model.named_parameters())}
