"""A program for `fairlead plan --verify`: a Llama of the tests, larger."""

import sys

import torch
import torch.distributed as dist
from torch.nn import functional

import fairlead
from tests.runtime import parallel_programs

parallel_programs.HIDDEN, parallel_programs.HEADS, parallel_programs.WIDTH = 256, 4, 1024
parallel_programs.VOCABULARY = 8192
LENGTH = 512


class Llama(parallel_programs.Llama):
    """The same, with a norm before its output as real ones have."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(parallel_programs.HIDDEN)
        torch.nn.init.trunc_normal_(self.output.weight, std=0.02)  # which looks at what it has drawn

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.output(self.norm(x))
        return logits


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in fp32."""
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def main() -> None:
    """Train for as many steps as are asked for."""
    with fairlead.run() as run:
        if run.world_size > 1:
            dist.init_process_group()
        model = run.parallelize(Llama(), device="cpu")
        # As on a GPU; it does not take tensor parallel parameters beside plain ones.
        optimizer = torch.optim.AdamW(model.parameters(), foreach=run.parallel.tensor == 1)
        start = run.resume(model=model, optimizer=optimizer)
        for step in range(start, 100):
            tokens = torch.randint(parallel_programs.VOCABULARY, (run.parallel.samples, LENGTH + 1))
            loss = run.forward_backward(model, tokens[:, :-1], tokens[:, 1:], loss=loss_of)
            if "--look" in sys.argv:
                print(float(loss))
            optimizer.step()
            optimizer.zero_grad()
            run.progress(step + 1, loss=loss)
            run.checkpoint(step + 1)


if __name__ == "__main__":
    main()
