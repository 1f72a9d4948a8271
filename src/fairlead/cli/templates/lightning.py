"""Trains a small network with Lightning. Also runs standalone: python train.py"""

import os

import lightning
import torch
from torch import nn

import fairlead
from fairlead.lightning import FairleadCallback


class Model(lightning.LightningModule):
    """Your model here. This one learns the sum of eight numbers."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch, index):
        (inputs,) = batch
        loss = (self.network(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    lightning.seed_everything(7)
    # Your data here.
    data = torch.utils.data.TensorDataset(torch.randn(4096, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    with fairlead.run() as run:
        callback = FairleadCallback(run)
        trainer = lightning.Trainer(
            max_steps=int(os.environ.get("STEPS", "500")),
            accelerator="auto",
            # As many as train.yaml says. Fairlead starts the processes, Lightning finds them.
            devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
            callbacks=[callback],
            enable_checkpointing=False,  # Fairlead saves, as often as train.yaml says
            enable_progress_bar=False,
            logger=False,
        )
        # The newest complete checkpoint after a restart, None the first time.
        with callback.resumed(trainer) as checkpoint:
            trainer.fit(Model(), loader, ckpt_path=checkpoint)
        if run.rank == 0:
            print(f"trained {trainer.global_step} steps on {run.world_size} ranks", flush=True)


if __name__ == "__main__":
    main()
