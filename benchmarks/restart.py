"""Downtime of a gang when one of its ranks is killed: from kill -9 to the first all-reduce of the next attempt.

    python -m benchmarks.restart [--kills 5] [--ranks 4] [--only forked|exec] [--json]

With ranks forked from a warm process and with `launch: exec`, on this machine with gloo and without a checkpoint to
load. The table's other columns show the course in seconds after the kill: the failure is decided on, every process of
the gang is gone, the shim has started the next ranks, the last rank exists, has imported torch, has its process group.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.specs.training import Launch, Retry, Training
from fairlead.state.snapshot import Intent, Pod

BIN = Path(sys.executable).parent
BAR_S = 1.5
TIMEOUT_S = 300.0
STEADY_S = 1.0
WAYS = {"forked": Launch.AUTO, "exec": Launch.EXEC}
STAGES = ("decided", "ended", "started", "process", "imported", "joined", "all-reduce")

SCRIPT = """
import os
import time
import torch
import torch.distributed as dist
import fairlead

def main():
    import psutil
    imported = time.time()
    dist.init_process_group("gloo")
    joined = time.time()
    total = torch.ones(1)
    dist.all_reduce(total)
    done = time.time()
    attempt = int(os.environ["FAIRLEAD_ATTEMPT"])
    path = os.path.join(os.environ["BENCHMARK_OUT"], f"{attempt}-{os.environ['RANK']}")
    with open(path + ".part", "w") as file:
        file.write(repr((os.getpid(), psutil.Process().create_time(), imported, joined, done)))
    os.rename(path + ".part", path)
    with fairlead.run() as run:
        for step in range(10**9):
            total.fill_(1)
            dist.all_reduce(total)
            run.progress(attempt * 10**6 + step)
            time.sleep(0.02)

main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="kills of each gang (default 5)")
    parser.add_argument("--ranks", type=int, default=4, help="ranks on this machine (default 4)")
    parser.add_argument("--only", choices=WAYS, help="one of the two ways")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    seconds: dict[str, list[dict[str, float]]] = {}
    if not arguments.json:
        print(f"{'median seconds after the kill':<30}" + "".join(f"{stage:>11}" for stage in STAGES), flush=True)
    for name, launch in WAYS.items():
        if arguments.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-", ignore_cleanup_errors=True) as directory:
            (Path(directory) / "script.py").write_text(SCRIPT)
            seconds[name] = measure(Path(directory), arguments.ranks, arguments.kills, launch)
        if not arguments.json:
            print(f"{name:<30}{row(seconds[name])}", flush=True)
    if arguments.json:
        print(json.dumps({"ranks": arguments.ranks, "seconds": seconds, "bar": BAR_S}))
    else:
        print(f"(bar: {BAR_S} s to the all-reduce of forked ranks)")


def row(kills: list[dict[str, float]]) -> str:
    """The median of each stage."""
    return "".join(f"{statistics.median(kill[stage] for kill in kills):>11.2f}" for stage in STAGES)


def measure(directory: Path, ranks: int, kills: int, launch: Launch) -> list[dict[str, float]]:
    """Kills rank 1 of a run on the local cluster, again and again."""
    cluster = LocalCluster.open(directory / "home")
    spec = Training(
        name="killed",
        run="python script.py",
        workdir=str(directory),
        ranks_per_node=ranks,
        retry=Retry(infrastructure=10**6),
        launch=launch,
        grace_s=5.0,
    )
    run = cluster.submit(spec, environ=environment(directory))
    cluster.nudge()
    try:
        return [_one_kill(cluster, run.uid, directory, ranks, attempt) for attempt in range(kills)]
    finally:
        cluster.set_intent(run.uid, Intent.STOP)
        cluster.nudge()
        wait_for(lambda: cluster.store.get(run.uid).status.phase.is_final)
        pid = cluster.supervisor_pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            wait_for(lambda: not cluster.supervisor_alive())
        cluster.close()


def _one_kill(cluster: LocalCluster, uid: str, directory: Path, ranks: int, attempt: int) -> dict[str, float]:
    before = reports(directory, ranks, attempt)
    time.sleep(STEADY_S)
    killed_at = time.time()
    os.kill(int(before[1][0]), signal.SIGKILL)
    stages = rank_stages(reports(directory, ranks, attempt + 1), killed_at)
    decided = next(event for event in reversed(cluster.events(uid)) if event.type == "Restarting")
    pods = {pod.attempt: pod for pod in cluster.pods(uid)}
    ended = _read(cluster, pods[attempt], "exit.json")["at"]
    wait_for(lambda: _path(cluster, pods[attempt + 1], "started.json").exists())
    started = _read(cluster, pods[attempt + 1], "started.json")["at"]
    return {"decided": decided.at - killed_at, "ended": ended - killed_at, "started": started - killed_at, **stages}


def environment(directory: Path) -> dict[str, str]:
    """What every rank inherits."""
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "BENCHMARK_OUT": str(directory),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def reports(directory: Path, ranks: int, attempt: int) -> list[tuple[float, ...]]:
    """Process id and times of every rank, once all of them have had their first all-reduce."""
    files = [directory / f"{attempt}-{rank}" for rank in range(ranks)]
    wait_for(lambda: all(file.exists() for file in files))
    return [tuple(float(word) for word in file.read_text().strip("()").split(",")) for file in files]


def rank_stages(found: list[tuple[float, ...]], killed_at: float) -> dict[str, float]:
    """When the last rank came to each stage."""
    names = ("process", "imported", "joined", "all-reduce")
    return {name: max(times[place] for times in found) - killed_at for place, name in enumerate(names, 1)}


def wait_for(what: Callable[[], bool]) -> None:
    """Look often, so that looking adds nothing to what is measured."""
    deadline = time.monotonic() + TIMEOUT_S
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {TIMEOUT_S} s")
        time.sleep(0.005)


def _path(cluster: LocalCluster, pod: Pod, name: str) -> Path:
    return cluster.home.pod(pod.workload_uid, pod.uid) / name


def _read(cluster: LocalCluster, pod: Pod, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(_path(cluster, pod, name).read_text())
    return value


if __name__ == "__main__":
    main()
