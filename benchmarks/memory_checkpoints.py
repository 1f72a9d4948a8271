"""Checkpoints in the nodes' memory beside those on disk and torch's asynchronous ones: costs of saves and restarts.

    python -m benchmarks.memory_checkpoints [--megabytes 300] [--saves 5] [--json]

Two ranks under DDP, each on its own node, with a module of that many megabytes. ``blocked`` is how long a save blocked
training, ``complete`` when it counts: for Fairlead with checksums, in memory also with the neighbour's copy, on disk
synced. Then all ranks are killed with SIGKILL, and ``recovered`` is how long the next ones take to load it (without
processes and imports, which are alike): with the files in the kernel's cache, and ``cold`` without, as on another
machine. Medians of the slower rank; the first save is not counted.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.checkpoint import until
from tests.ports import free_port

TIMEOUT_S = 300.0
WAYS = ("memory", "disk", "dcp.async_save")
LAYERS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=300, help="size of the state (default 300)")
    parser.add_argument("--saves", type=int, default=5, help="saves of each kind, without the first (default 5)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    shared = Path("/dev/shm") / f"fairlead-benchmark-{os.getpid()}"
    shared.mkdir(mode=0o700)
    try:
        with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-") as name:
            for way in WAYS:
                place = Path(name) / way
                place.mkdir()
                start = Start(way, place, shared, arguments.megabytes)
                saved = start.run("save", arguments.saves + 1)
                figures[way] = {
                    key: statistics.median(max(pair) for pair in zip(*(rank[key][1:] for rank in saved), strict=True))
                    for key in ("blocked", "complete")
                }
                figures[way]["recovered"] = max(rank["recovered"] for rank in start.run("load", 1))
                if way != "memory":
                    forget(place)
                    figures[way]["cold"] = max(rank["recovered"] for rank in start.run("load", 1))
    finally:
        shutil.rmtree(shared)
    if arguments.json:
        print(json.dumps({"megabytes": arguments.megabytes, "medians": figures}))
        return
    print(f"{arguments.megabytes} MB{'blocked ms':>24}{'complete s':>14}{'recovered s':>14}{'cold s':>10}")
    for way, times in figures.items():
        cold = f"{times['cold']:>10.2f}" if "cold" in times else f"{'-':>10}"
        print(f"{way:<16}{times['blocked'] * 1000:>14.0f}{times['complete']:>14.2f}{times['recovered']:>14.2f}{cold}")


class Start:
    """Starts two ranks that save or load in one way."""

    def __init__(self, way: str, place: Path, shared: Path, megabytes: int) -> None:
        self._way = way
        self._place = place
        self._shared = shared
        self._megabytes = megabytes
        self._attempt = -1

    def run(self, phase: str, saves: int) -> list[dict[str, Any]]:
        """Return what each rank measured."""
        self._attempt += 1
        port, agree_port = free_port(), free_port()
        ranks = []
        for rank in range(2):
            pod = self._place / f"pod-{self._attempt}-{rank}"
            pod.mkdir()
            environ = {
                "RANK": str(rank), "GROUP_RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "FAIRLEAD_AGREE_PORT": str(agree_port),
                "FAIRLEAD_RUN": "benchmark", "FAIRLEAD_RUN_UID": "benchmark", "FAIRLEAD_POD_DIR": str(pod),
                "FAIRLEAD_ATTEMPT": str(self._attempt), "FAIRLEAD_CHECKPOINT_TO": str(self._place / "checkpoints"),
                "FAIRLEAD_CHECKPOINT_KEEP": "1", "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            if self._way == "memory":
                environ |= {
                    "FAIRLEAD_CHECKPOINT_MEMORY": str(self._shared / "run"),
                    "FAIRLEAD_CHECKPOINT_MEMORY_EVERY_STEPS": "1",
                }
            command = [sys.executable, "-c", "from benchmarks.memory_checkpoints import rank; rank()"]
            asked = [self._way, phase, str(self._place), str(self._shared), str(self._megabytes), str(saves)]
            ranks.append(subprocess.Popen([*command, *asked], env={**os.environ, **environ}))
        try:
            for process in ranks:
                code = process.wait(TIMEOUT_S)
                assert code == -signal.SIGKILL, f"a rank ended with {code}"
        finally:
            for process in ranks:
                process.kill()
        return [json.loads((self._place / f"{phase}-{rank}.json").read_text()) for rank in range(2)]


def rank() -> None:
    """One rank: saves so often, or loads once; then it is killed."""
    way, phase, place, shared, megabytes, saves = sys.argv[1:]
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import fairlead

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1 if phase == "save" else 2)
    width = int((int(megabytes) * 1e6 / 4 / LAYERS) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
    ddp = DistributedDataParallel(model)
    own, directory = dist.get_rank(), Path(place)
    found: dict[str, Any] = {"blocked": [], "complete": []}
    with fairlead.run() as run:
        began = time.perf_counter()
        if way == "dcp.async_save":
            if phase == "load":
                state = {"model": model.state_dict()}
                dcp.load(state, checkpoint_id=directory / "dcp" / str(int(saves_made(directory))))
                model.load_state_dict(state["model"])
        else:
            run.resume(model=ddp)
        dist.barrier()
        found["recovered"] = time.perf_counter() - began
        for step in range(1, int(saves) + 1) if phase == "save" else ():
            dist.barrier()
            began = time.perf_counter()
            wait = _save(way, step, run, dcp, model, directory, Path(shared))
            found["blocked"].append(time.perf_counter() - began)
            wait()
            found["complete"].append(time.perf_counter() - began)
        if phase == "save":
            (directory / "saves").write_text(saves)
        sums = [sum(float(parameter.detach().sum()) for parameter in model.parameters())]
        if phase == "save":
            (directory / f"sum-{own}").write_text(repr(sums[0]))
        else:
            assert repr(sums[0]) == (directory / f"sum-{own}").read_text(), "another state was loaded"
        (directory / f"{phase}-{own}.json").write_text(json.dumps(found))
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)


def _save(way: str, step: int, run: Any, dcp: Any, model: Any, directory: Path, shared: Path) -> Callable[[], object]:
    """Begin a save; returns what waits for its end."""
    if way == "dcp.async_save":
        future = dcp.async_save({"model": model.state_dict()}, checkpoint_id=str(directory / "dcp" / str(step)))
        result: Callable[[], object] = future.result
        return result
    step, number = step * 1000, 0 if way == "disk" else run._memory._saver._number
    run.checkpoint(step, force=way == "disk")
    # The ranks exchange, and so begin a save, at every k-th call where an exchange is slow for the steps.
    while way == "memory" and run._memory._saver._number == number:
        step += 1
        run.checkpoint(step)
    name = f"step-{step:012d}/MANIFEST.json"
    places = [directory / "checkpoints"] if way == "disk" else [shared / "run" / f"node-{node:05d}" for node in (0, 1)]

    def wait() -> None:
        for each in places:
            until((each / name).exists)
        # Old ones are removed after that; the next save begins when all ranks are through.
        until(lambda: not (run._saver if way == "disk" else run._memory).busy)

    return wait


def saves_made(directory: Path) -> str:
    """Return how many saves the ranks made that were killed."""
    return (directory / "saves").read_text()


def forget(place: Path) -> None:
    """Have the kernel forget what it has of these files; they are on the disk by then."""
    for path in place.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


if __name__ == "__main__":
    main()
