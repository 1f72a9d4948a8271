"""Trains a small network with PyTorch. Also runs standalone: python train.py"""

import os

import torch
from torch import nn

import fairlead

STEPS = int(os.environ.get("STEPS", "500"))


def main():
    torch.manual_seed(7)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Your model here. This one learns the sum of eight numbers.
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

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
            # Both are cheap: call them after every step.
            run.progress(step + 1, total=STEPS, loss=loss, samples=32)
            run.checkpoint(step + 1)
        print(f"trained {STEPS} steps on {run.world_size} ranks", flush=True)


if __name__ == "__main__":
    main()
