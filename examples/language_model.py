"""Train a small byte-level transformer on the sources of Python's own standard library, then let it write some Python.

    torchrun --nproc-per-node=2 language_model.py            two ranks without Fairlead
    python language_model.py --steps 100                     one rank

Under Fairlead the run of language_model.yaml may be stopped or killed, and goes on where it was. Every batch follows
from (seed, step, rank) alone, so a run that was interrupted ends with the very same numbers.
Shapes: B batch, T time (bytes), D width, V the 256 bytes.
"""

import argparse
import math
import os
import random
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import fairlead

BITS = 1 / math.log(2)  # bits for one nat


class Block(nn.Module):
    """Attention over the bytes so far, then a small network for each byte."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.network_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_BTD: Tensor) -> Tensor:  # noqa: N803 - names carry shapes
        batch, length, width = x_BTD.shape
        qkv = self.qkv(self.attention_norm(x_BTD)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(mixed.transpose(1, 2).reshape(batch, length, width))  # noqa: N806
        changed: Tensor = self.network(self.network_norm(x_BTD))
        return x_BTD + changed


class LanguageModel(nn.Module):
    """Predicts the next byte."""

    def __init__(self, *, width: int = 128, layers: int = 3, heads: int = 4, context: int = 128) -> None:
        super().__init__()
        self.context = context
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, bytes_BT: Tensor) -> Tensor:  # noqa: N803
        places = torch.arange(bytes_BT.shape[1], device=bytes_BT.device)
        logits_BTV: Tensor = self.head(self.norm(self.blocks(self.bytes(bytes_BT) + self.places(places))))  # noqa: N806
        return logits_BTV


def read_text(size: int) -> tuple[Tensor, Tensor]:
    """Bytes to train on and bytes to validate on: whole files of the standard library, every tenth for validation."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [*sorted(root.glob("*.py")), *sorted(root.glob("[a-z]*/*.py"))]
    paths = [path for path in paths if "site-packages" not in path.parts and "test" not in path.parts]
    random.Random(0).shuffle(paths)
    texts: tuple[bytearray, bytearray] = (bytearray(), bytearray())
    for number, path in enumerate(paths):
        texts[number % 10 == 0].extend(path.read_bytes())
    train, held_out = (torch.frombuffer(text, dtype=torch.uint8)[:size] for text in texts)
    return train, held_out


def batch(text: Tensor, seed: tuple[int, ...], size: int, context: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random windows of the text and the same windows one byte later."""
    dice = random.Random(repr(seed))
    starts = [dice.randrange(len(text) - context - 1) for _ in range(size)]
    windows = torch.stack([text[start : start + context + 1] for start in starts]).to(device, torch.long)
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats for each byte."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def unigram_bits(train: Tensor, held_out: Tensor) -> float:
    """Bits per byte of the held-out text for whoever knows only how frequent each byte is in the training text."""
    frequency = (torch.bincount(train.long(), minlength=256) + 1).double()
    return float(-(frequency / frequency.sum()).log2()[held_out.long()].mean())


@torch.no_grad()
def validate(model: nn.Module, text: Tensor, context: int, device: torch.device) -> float:
    """Bits per byte on the held-out text, on the same windows each time."""
    model.eval()
    losses = [loss_of(model, *batch(text, (0, number), 32, context, device)).item() for number in range(10)]
    return sum(losses) / len(losses) * BITS


@torch.no_grad()
def write(model: LanguageModel, prompt: str, length: int, seed: int, device: torch.device) -> str:
    """Let the model continue the prompt, one byte after the other."""
    model.eval()
    dice = torch.Generator(device).manual_seed(seed)
    text = torch.tensor([list(prompt.encode())], device=device)
    for _ in range(length):
        logits = model(text[:, -model.context :])[:, -1] / 0.7
        text = torch.cat([text, torch.multinomial(logits.softmax(-1), 1, generator=dice)], dim=1)
    return bytes(text[0].tolist()).decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=700, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="windows for each rank and step (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=4e-3, help="highest learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights, batches and the sample (default: %(default)s)")
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(options.seed)
    model = LanguageModel().to(device)
    parallel = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=options.rate, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=options.steps, pct_start=0.1)
    train, held_out = read_text(20_000_000)

    with fairlead.run() as run:
        start = run.resume(model=parallel, optimizer=optimizer, schedule=schedule)
        began, tokens = time.perf_counter(), options.batch * model.context
        for step in range(start, options.steps):
            inputs, targets = batch(train, (options.seed, step, run.rank), options.batch, model.context, device)
            loss = loss_of(parallel, inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            run.progress(step + 1, total=options.steps, loss=loss, tokens=tokens)
            run.checkpoint(step + 1)
        seconds = time.perf_counter() - began
        if run.rank == 0:
            print(write(model, "def ", 400, options.seed, device), flush=True)
            speed = (options.steps - start) * tokens * run.world_size / seconds
            print(
                f"bits per byte: unigram {unigram_bits(train, held_out):.4f}, "
                f"model {validate(model, held_out, model.context, device):.4f} (held-out files); "
                f"steps {start} to {options.steps} on {run.world_size} ranks, {speed:,.0f} tokens/s, {seconds:.1f} s",
                flush=True,
            )
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
