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

HIDDEN, HEADS, WIDTH, VOCABULARY, SEQUENCE, BATCH, STEPS = 16, 4, 32, 24, 6, 4, 3


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
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.output = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.output(x)
        return logits


def losses(model: nn.Module, part: int, parts: int) -> list[float]:
    """The loss of each step over the whole batch, of which this rank has a part."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(7)
    found = []
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
        mine = tokens.chunk(parts)[part]
        logits = model(mine[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found


def alone() -> list[float]:
    """The losses of one process."""
    torch.manual_seed(3)
    return losses(Llama(), 0, 1)


def train(result: str) -> None:
    """Train under the split of the environment and write what this rank saw."""
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    with fairlead.run() as run:
        split: Any = run.parallel
        model = run.parallelize(Llama(), device="cpu")
        found = losses(model, run.rank // split.tensor, split.data)
        names = sorted(name for name, _ in model.named_parameters())
    Path(f"{result}.{os.environ['RANK']}").write_text(json.dumps({"losses": found, "names": names}))
    dist.destroy_process_group()
