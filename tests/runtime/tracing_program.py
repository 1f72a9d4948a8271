"""A program for `fairlead plan --verify`: a Llama of the tests, larger."""

import sys

import torch
import torch.distributed as dist
from torch.nn import functional

import fairlead
from tests.runtime import parallel_programs

parallel_programs.HIDDEN, parallel_programs.HEADS, parallel_programs.WIDTH = 256, 4, 1024
LENGTH = 512


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in fp32."""
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def main() -> None:
    """Train for as many steps as are asked for."""
    with fairlead.run() as run:
        if run.world_size > 1:
            dist.init_process_group()
        model = run.parallelize(parallel_programs.Llama(), device="cpu")
        optimizer = torch.optim.AdamW(model.parameters())
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
