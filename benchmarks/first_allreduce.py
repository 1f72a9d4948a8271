"""Time of four ranks from nothing to their first all-reduce: Fairlead beside bare torchrun, in turn on one machine.

    python -m benchmarks.first_allreduce [--runs 5] [--ranks 4] [--through launcher|cli] [--json]

Time runs from the start of the command until the last rank has the sum. `--through cli` is the whole of `fairlead run`
with no supervisor running; `--through launcher` leaves the command line and the supervisor out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fairlead.runtime
from tests.ports import free_port

RUNTIME = Path(fairlead.runtime.__file__).parent
BIN = Path(sys.executable).parent
TARGET = 0.5
TIMEOUT_S = 120.0

SCRIPT = """
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
done = time.time()
assert total.item() == dist.get_world_size()
with open(os.path.join(os.environ["BENCHMARK_OUT"], os.environ["RANK"] + ".part"), "w") as file:
    file.write(repr(done))
os.rename(file.name, file.name[:-5])
dist.destroy_process_group()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="pairs of runs (default 5)")
    parser.add_argument("--ranks", type=int, default=4, help="ranks on this machine (default 4)")
    parser.add_argument("--through", choices=("launcher", "cli"), default="cli", help="what ours starts through")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    ours = through_launcher if arguments.through == "launcher" else through_cli
    seconds: dict[str, list[float]] = {"torchrun": [], "fairlead": []}
    for _ in range(arguments.runs):
        seconds["torchrun"].append(measure(through_torchrun, arguments.ranks))
        seconds["fairlead"].append(measure(ours, arguments.ranks))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["fairlead"] / medians["torchrun"]
    if arguments.json:
        print(json.dumps({"through": arguments.through, "seconds": seconds, "medians": medians, "ratio": ratio}))
        return
    for name, values in seconds.items():
        each = " ".join(f"{value:.2f}" for value in values)
        print(f"{name:<10}{medians[name]:>7.2f} s   ({each})")
    print(f"{'ratio':<10}{ratio:>7.2f}     (bar: {TARGET})")


def measure(start: Callable[[Path, int], subprocess.Popen[bytes]], ranks: int) -> float:
    """Seconds from starting to the last rank's sum."""
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        (directory / "script.py").write_text(SCRIPT)
        began = time.time()
        process = start(directory, ranks)
        try:
            files = [directory / str(rank) for rank in range(ranks)]
            while not all(file.exists() for file in files):
                if time.time() - began > TIMEOUT_S:
                    raise TimeoutError(f"no sum within {TIMEOUT_S} s")
                time.sleep(0.005)
            last = max(float(file.read_text()) for file in files)
        finally:
            finish(process, directory)
    return last - began


def finish(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Waits for what a run has left: a launcher ends with its input, a supervisor is told to."""
    if process.stdin is not None:
        process.stdin.close()
    process.wait(TIMEOUT_S)
    if (directory / "pod" / "claimed.json").exists():
        deadline = time.monotonic() + TIMEOUT_S
        while not (directory / "pod" / "exit.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    if (directory / "home").exists():
        from fairlead.cluster.local.cluster import LocalCluster

        pid = LocalCluster.open(directory / "home").supervisor_pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)


def through_torchrun(directory: Path, ranks: int) -> subprocess.Popen[bytes]:
    argv = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={ranks}", "script.py"]
    env = {**os.environ, "BENCHMARK_OUT": str(directory), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(argv, cwd=directory, env=env, stderr=subprocess.DEVNULL)


def through_cli(directory: Path, ranks: int) -> subprocess.Popen[bytes]:
    document = {"name": "first", "run": "python script.py", "ranks_per_node": ranks, "workdir": str(directory)}
    (directory / "run.yaml").write_text(json.dumps(document))
    env = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "BENCHMARK_OUT": str(directory),
        "FAIRLEAD_HOME": str(directory / "home"),
        "OMP_NUM_THREADS": "1",
    }
    argv = [str(BIN / "fairlead"), "run", "run.yaml"]
    return subprocess.Popen(argv, cwd=directory, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def through_launcher(directory: Path, ranks: int) -> subprocess.Popen[bytes]:
    write_pod(directory / "pod", "python script.py", ranks, directory)
    process = subprocess.Popen(
        [sys.executable, str(RUNTIME / "launcher.py")], cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"pod": str(directory / "pod")}).encode() + b"\n")
    process.stdin.flush()
    return process


def write_pod(path: Path, command: str, ranks: int, directory: Path) -> None:
    """A pod as the supervisor would write it."""
    port = free_port()
    env = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "BENCHMARK_OUT": str(directory),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "FAIRLEAD_POD_UID": "benchmark",
    }
    pod = {
        "uid": "benchmark",
        "workdir": str(directory),
        "command": command,
        "env": env,
        "ranks": [{"rank": i, "local_rank": i, "env": {"RANK": str(i), "LOCAL_RANK": str(i)}} for i in range(ranks)],
        "launch": "auto",
        "grace_s": 5.0,
        "log_max_bytes": 1 << 20,
        "log_files": 2,
        "supervisor_lock": "",
    }
    path.mkdir()
    (path / "pod.json").write_text(json.dumps(pod))


if __name__ == "__main__":
    main()
