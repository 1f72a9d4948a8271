"""What the ranks of the tests do. Small, deterministic, and each behaviour under test is a switch."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fairlead
from fairlead.runtime import session
from fairlead.runtime.checkpoint import directory, remote, store


def train(steps: int, results: Path, pace_s: float = 0.0, every_steps: int | None = None) -> None:
    """Train with dropout, momentum and a schedule, under DDP; writes each step's exact loss to a file of the rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    seen: dict[str, Any] = {"samples": 0}
    torch.manual_seed(100 + dist.get_rank())
    losses = results / f"losses-{dist.get_rank()}.jsonl"
    with fairlead.run(checkpoint_every_steps=every_steps) as run:
        start = run.resume(model=model, optimizer=optimizer, schedule=schedule, seen=seen)
        for step in range(start, steps):
            inputs = torch.randn(4, 8)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            seen["samples"] += 4
            with open(losses, "a") as file:
                file.write(json.dumps([step + 1, loss.item().hex(), seen["samples"]]) + "\n")
            run.progress(step + 1, total=steps, loss=loss, samples=4)
            run.checkpoint(step + 1)
            time.sleep(pace_s)
    dist.destroy_process_group()


def train_and_hang_in_a_save(steps: int, results: Path, hang_at: int) -> None:
    """As ``train``, but the save of one step never gets to its end."""
    commit = directory.Directory.commit

    def hang(self: directory.Directory, draft: store.Draft, manifest: Any) -> None:
        if draft.step >= hang_at:
            (results / "in-the-middle").touch()
            time.sleep(3600)
        commit(self, draft, manifest)

    directory.Directory.commit = hang  # type: ignore[method-assign] # this process is the test's own
    train(steps, results, 0.02, 4)


def train_with_a_failing_disk(steps: int, results: Path, fail_at: int) -> None:
    """As ``train``, but rank 1 cannot write its part of one checkpoint."""
    put = directory.Directory.put

    def fail(self: directory.Directory, draft: store.Draft, workplace: Path) -> None:
        if draft.step == fail_at and dist.get_rank() == 1:
            raise OSError(28, "No space left on device")
        put(self, draft, workplace)

    directory.Directory.put = fail  # type: ignore[method-assign] # this process is the test's own
    session.LAST_TRIES_S = (0.1,)
    train(steps, results, 0.0, 4)


def train_sharded(steps: int, results: Path) -> None:
    """Train under FSDP2; rank 0 writes the whole parameters and moments at the end."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(8, 15), nn.Tanh(), nn.Linear(15, 3))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    averages = {"average": [parameter.detach().clone() for parameter in model.parameters()]}
    with fairlead.run() as run:
        start = run.resume(model=model, optimizer=optimizer, averages=averages)
        for step in range(start, steps):
            loss = model(torch.full((4, 8), 0.1 * step)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for average, parameter in zip(averages["average"], model.parameters(), strict=True):
                average.lerp_(parameter.detach(), 0.1)
            run.checkpoint(step + 1)
        moments = [optimizer.state[parameter]["exp_avg"] for parameter in model.parameters()]
        tensors = [*model.parameters(), *moments, *averages["average"]]
        whole = [tensor.full_tensor().detach() for tensor in tensors]
        if run.rank == 0:
            torch.save(whole, results / f"whole-{run.world_size}.pt")
    dist.destroy_process_group()


def upload_half_and_die(value: str) -> None:
    """Save two files to an object store; the process is killed in the middle of the second."""

    def half(system: Any, path: Path, goal: str) -> None:
        data = path.read_bytes()
        with system.open(goal, "wb") as sink:
            sink.write(data[: len(data) // 2])
            if path.name == "b.bin":
                os.kill(os.getpid(), signal.SIGKILL)
            sink.write(data[len(data) // 2 :])

    remote.upload = half  # type: ignore[assignment, attr-defined] # this process is the test's own

    def save(directory: Path) -> None:
        (directory / "a.txt").write_text(value)
        (directory / "b.bin").write_bytes(bytes(12 << 20))

    with fairlead.run() as run:
        run.resume(load=lambda _: None)
        run.checkpoint(2, save=save, force=True)
