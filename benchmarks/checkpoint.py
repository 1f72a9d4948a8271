"""Measure how long a checkpoint blocks training: Fairlead beside torch.save and torch's own asynchronous save.

    python -m benchmarks.checkpoint [--megabytes 200] [--saves 5] [--json]

One process, a module of that many megabytes without optimizer, a local directory. ``blocked`` is how long the call
blocked training; ``complete`` is when the checkpoint counts: for Fairlead checksummed, synced to disk and sealed by its
manifest, for the others when the call or its future is done, which includes no sync and no checksum.

``--first`` measures the first checkpoint of a process instead, with a module of 16 MB: how long ``resume`` and the
longest ``checkpoint`` up to it blocked training, in a newly started process and in one that was forked as the launcher
forks ranks.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import fairlead
from fairlead.runtime.preloading import _SESSION
from tests.ports import free_port

TIMEOUT_S = 120.0
FIRST_EVERY_S = 30.0

Times = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200, help="size of the state (default 200)")
    parser.add_argument("--saves", type=int, default=5, help="saves of each kind; the first is not counted (default 5)")
    parser.add_argument("--first", action="store_true", help="the first checkpoint of a process, cold and forked")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    if arguments.first:
        first = {kind: first_save(kind) for kind in ("cold", "forked")}
        for kind, seconds in first.items() if not arguments.json else ():
            print(f"{kind:<8}" + "".join(f"{what} {value * 1000:>6.0f} ms   " for what, value in seconds.items()))
        if arguments.json:
            print(json.dumps({"first": first}))
        return
    width = int((arguments.megabytes * 1e6 / 4 / 8) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(8)))
    figures: dict[str, Times] = {}
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-") as name:
        for label, measure in (("torch.save", plain), ("dcp.async_save", torchs_own), ("fairlead", ours)):
            directory = Path(name) / label
            directory.mkdir()
            figures[label] = measure(model, directory, arguments.saves + 1)
    medians = {
        label: {key: statistics.median(values[1:]) for key, values in times.items()} for label, times in figures.items()
    }
    if arguments.json:
        print(json.dumps({"megabytes": arguments.megabytes, "seconds": figures, "medians": medians}))
        return
    print(f"{arguments.megabytes} MB{'blocked ms':>24}{'complete s':>14}")
    for label, times in medians.items():
        print(f"{label:<16}{times['blocked'] * 1000:>14.0f}{times['complete']:>14.2f}")


def plain(model: nn.Module, directory: Path, saves: int) -> Times:
    """``torch.save`` of the state, the training waiting."""

    def save(step: int) -> Callable[[], object]:
        torch.save(model.state_dict(), directory / f"{step}.pt")
        return lambda: None

    return timed(save, directory, saves)


def torchs_own(model: nn.Module, directory: Path, saves: int) -> Times:
    """``torch.distributed.checkpoint.async_save`` with its default staging."""
    import torch.distributed.checkpoint as dcp  # not before: the first save is measured in a process without it

    with one_process_group():

        def save(step: int) -> Callable[[], object]:
            future = dcp.async_save(model.state_dict(), checkpoint_id=str(directory / str(step)))
            assert isinstance(future, Future)
            return future.result

        return timed(save, directory, saves)


def ours(model: nn.Module, directory: Path, saves: int) -> Times:
    """``run.checkpoint`` in the middle of a training."""
    with one_process_group(), fairlead.run(checkpoint_to=directory) as run:
        run.resume(model=model)

        def save(step: int) -> Callable[[], object]:
            run.checkpoint(step, force=True)
            manifest = directory / f"step-{step:012d}" / "MANIFEST.json"
            return lambda: until(manifest.exists)

        return timed(save, directory, saves)


def first_save(kind: str) -> dict[str, float]:
    """Seconds that the first save of a process kept it, for ``resume`` and for the longest ``checkpoint``."""
    context: Any = multiprocessing.get_context("spawn" if kind == "cold" else "forkserver")
    if kind == "forked":
        context.set_forkserver_preload(["torch", *_SESSION])
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-") as directory:
        process = context.Process(target=train_to_first_save, args=(directory, theirs))
        process.start()
        seconds: dict[str, float] = ours.recv()
        process.join()
    return seconds


def train_to_first_save(directory: str, answer: Connection) -> None:
    """A training of small steps up to its first complete checkpoint."""
    model = nn.Linear(2000, 2000)
    with fairlead.run(checkpoint_to=directory, checkpoint_every_s=FIRST_EVERY_S) as run:
        began = time.perf_counter()
        run.resume(model=model)
        resume_s, longest_s, step = time.perf_counter() - began, 0.0, 0
        while not any(Path(directory).glob("step-*/MANIFEST.json")):
            step += 1
            model(torch.ones(64, 2000)).sum().backward()
            began = time.perf_counter()
            run.checkpoint(step)
            longest_s = max(longest_s, time.perf_counter() - began)
            time.sleep(0.01)
        answer.send({"resume": resume_s, "checkpoint": longest_s})


def timed(save: Callable[[int], Callable[[], object]], directory: Path, saves: int) -> Times:
    """Seconds that each call blocked, and until each was complete."""
    times: Times = {"blocked": [], "complete": []}
    for step in range(1, saves + 1):
        os.sync()
        began = time.perf_counter()
        wait = save(step)
        times["blocked"].append(time.perf_counter() - began)
        wait()
        times["complete"].append(time.perf_counter() - began)
    return times


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not met():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no complete checkpoint within {TIMEOUT_S} s")
        time.sleep(0.002)


@contextmanager
def one_process_group() -> Iterator[None]:
    """Both asynchronous ways want a gloo group, even of one."""
    port = free_port()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
