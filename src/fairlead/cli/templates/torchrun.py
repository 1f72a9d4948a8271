"""Trains a small network on several ranks, as a torchrun script does. Also runs standalone: python train.py"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fairlead

STEPS = int(os.environ.get("STEPS", "500"))


def main():
    # With several ranks the variables of torchrun are set; a single rank has none and needs none.
    several = "RANK" in os.environ
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if several:
        dist.init_process_group("nccl" if gpu else "gloo")

    torch.manual_seed(7)
    # Your model here. This one learns the sum of eight numbers.
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    if several:
        model = DistributedDataParallel(model, device_ids=[device.index] if gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + (dist.get_rank() if several else 0))  # each rank has data of its own

    with fairlead.run() as run:
        # These objects are saved, and restored after a restart. Returns 0 the first time.
        start = run.resume(model=model, optimizer=optimizer)
        for step in range(start, STEPS):
            # Your data here.
            inputs = torch.randn(32, 8, device=device)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # On every rank, after every step. Both are cheap.
            run.progress(step + 1, total=STEPS, loss=loss, samples=32)
            run.checkpoint(step + 1)
        if run.rank == 0:
            print(f"trained {STEPS} steps on {run.world_size} ranks", flush=True)
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
