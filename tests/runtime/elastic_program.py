"""A training whose ranks may be killed: a plain loop over `run.steps`, deterministic but for how a batch is divided."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fairlead
from fairlead.runtime.elastic import group

BATCH = 24


def train(steps: int, results: Path, pace_s: float, every_steps: "int | None" = None) -> None:
    """Train a small model; ranks write each step's loss over the batch, and how many of them there were."""
    torch.set_num_threads(1)
    with fairlead.run(checkpoint_every_steps=every_steps) as run:
        run.init_process_group("gloo")
        torch.manual_seed(7 + run.rank)  # the first rank's weights are those of all
        model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 1)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        run.resume(model=model, optimizer=optimizer, schedule=schedule)
        (results / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
        for step in run.steps(steps, batch=BATCH, micro_batch=5):
            with step:
                inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step.number))
                total = torch.zeros(1)
                for part in step.parts(model):
                    chosen = inputs[part.samples.start : part.samples.stop]
                    loss = (model(chosen) - chosen.sum(1, keepdim=True)).square().mean() * part.weight
                    loss.backward()
                    total += loss.detach()
                dist.all_reduce(total)
                total /= dist.get_world_size()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                # Without all ranks it waits for those that come back, however busy the machine is.
                time.sleep(pace_s if run.world_size == int(os.environ["WORLD_SIZE"]) else 20 * pace_s)
                run.progress(step.number + 1, total=steps, loss=total)
                with open(results / "losses.jsonl", "a") as file:  # whoever is killed may not come to it
                    rate = optimizer.param_groups[0]["lr"]
                    said = [step.number + 1, total.item(), run.world_size, rate, time.time()]
                    file.write(json.dumps(said) + "\n")
    dist.destroy_process_group()


def fail() -> None:
    """Make a mistake in a step, on all ranks alike."""
    torch.set_num_threads(1)
    with fairlead.run() as run:
        run.init_process_group("gloo")
        run.resume(model=DistributedDataParallel(nn.Linear(2, 1)))
        for step in run.steps(2, batch=2):
            with step:
                raise RuntimeError("a mistake")


def stand_still(results: Path) -> None:
    """Wait for ever in a step of the first rank, as a collective of gloo has done that was to fail."""
    torch.set_num_threads(1)
    group.STUCK_AFTER_S = 1.0
    with fairlead.run() as run:
        run.init_process_group("gloo")
        run.resume(model=DistributedDataParallel(nn.Linear(2, 1)))
        for step in run.steps(2, batch=2):
            with step:
                (results / f"in-step-{os.environ['RANK']}").touch()
                threading.Event().wait()


if __name__ == "__main__":
    train(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
