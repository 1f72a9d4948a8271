"""Cost of Fairlead in each step of a training: the same DDP program under Fairlead and under bare torchrun, in turns.

    python -m benchmarks.step_overhead [--ranks 2] [--turns 60] [--steps 10] [--width 512] [--json]

Both gangs are started once, on this machine with gloo. In each turn one of them takes so many steps and then the other,
whose ranks wait meanwhile; every other turn begins with the other one. So a machine that is faster at one time than at
another is so for both. Ours reports each step's number and loss and offers it as a checkpoint (``run.progress``,
``run.checkpoint``, ``every: 10m``), with the supervisor, launcher and shim that a user has. What these take of a
processor beside the ranks is measured apart, over seconds in which ours trains without a break, and counts in full.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from fairlead.cluster.local.cluster import LocalCluster

BIN = Path(sys.executable).parent
BAR = 0.01
TIMEOUT_S = 300.0
STEADY_STEPS = 400

SCRIPT = """
import contextlib
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

width, ours = int(sys.argv[1]), sys.argv[2] == "ours"
torch.manual_seed(0)
dist.init_process_group("gloo")
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, width)
asked = socket.socket(socket.AF_UNIX)
asked.connect(os.environ["BENCHMARK_SOCKET"])
asked.sendall(f"{sys.argv[2]} {os.environ['RANK']} {os.getpid()}\\n".encode())
lines = asked.makefile("r")

if ours:
    import fairlead
    context = fairlead.run()
else:
    context = contextlib.nullcontext()
with context as run:
    step = 0 if run is None else run.resume(model=model, optimizer=optimizer)
    for line in lines:
        began = time.perf_counter()
        for _ in range(int(line)):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            step += 1
            value = float(loss)
            if run is not None:
                run.progress(step, loss=value)
                run.checkpoint(step)
        asked.sendall(f"{time.perf_counter() - began}\\n".encode())
"""


class Gang:
    """The ranks of one of the two, which train when they are asked to."""

    def __init__(self) -> None:
        self.ranks: dict[int, socket.socket] = {}
        self.pids: list[int] = []

    def train(self, steps: int) -> float:
        """Return the seconds of so many steps, of the slowest rank."""
        for rank in self.ranks.values():
            rank.sendall(f"{steps}\n".encode())
        return max(float(_line(rank)) for rank in self.ranks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of each gang (default 2)")
    parser.add_argument("--turns", type=int, default=30, help="turns of each gang (default 30)")
    parser.add_argument("--steps", type=int, default=150, help="steps in a turn (default 150)")
    parser.add_argument("--width", type=int, default=512, help="width of the model's layers (default 512)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of sentences")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-", ignore_cleanup_errors=True) as name:
        found = measure(Path(name), arguments)
    if arguments.json:
        print(json.dumps({**found, "bar": BAR}))
        return
    print(
        f"a step under torchrun: {found['torchrun_ms']:.2f} ms; under Fairlead, in turns: {found['fairlead_ms']:.2f} ms"
    )
    print(f"  in the ranks: {found['ranks']:+.2%} (median of {arguments.turns} pairs; half of them from "
          f"{found['lower_quartile']:+.2%} to {found['upper_quartile']:+.2%})")  # fmt: skip
    print(f"  supervisor, launcher and shim beside them: {found['beside']:.2%} of the ranks' processor time")
    print(f"  together: {found['ranks'] + found['beside']:+.2%} (bar {BAR:.0%})")


def measure(directory: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds of a step, and the shares that ours takes more."""
    (directory / "train.py").write_text(SCRIPT)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "socket"))
    listener.listen(2 * arguments.ranks)
    listener.settimeout(TIMEOUT_S)
    env = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "BENCHMARK_SOCKET": str(directory / "socket"),
        "FAIRLEAD_HOME": str(directory / "home"),
        "OMP_NUM_THREADS": "1",
    }
    run = {
        "name": "steps", "run": f"python train.py {arguments.width} ours", "ranks_per_node": arguments.ranks,
        "workdir": str(directory), "checkpoint": {"every": "10m"}, "resources": {"cpu": 0.1},
    }  # fmt: skip
    (directory / "run.yaml").write_text(json.dumps(run))
    subprocess.run([BIN / "fairlead", "run", "-d", "run.yaml"], cwd=directory, env=env, check=True, capture_output=True)
    argv = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={arguments.ranks}", "train.py"]
    bare = subprocess.Popen([*argv, str(arguments.width), "bare"], cwd=directory, env=env, stderr=subprocess.DEVNULL)
    supervisor = LocalCluster.open(directory / "home").supervisor_pid()
    assert supervisor is not None
    try:
        gangs = {"ours": Gang(), "bare": Gang()}
        for _ in range(2 * arguments.ranks):
            connection = listener.accept()[0]
            whose, rank, pid = _line(connection).split()
            gangs[whose].ranks[int(rank)] = connection
            gangs[whose].pids.append(int(pid))
        ours, theirs = gangs["ours"], gangs["bare"]
        for each in (ours, theirs):
            each.train(2 * arguments.steps)
        pairs: list[tuple[float, float]] = []
        for turn in range(arguments.turns):
            if turn % 2:
                second, first = theirs.train(arguments.steps), ours.train(arguments.steps)
            else:
                first, second = ours.train(arguments.steps), theirs.train(arguments.steps)
            pairs.append((first / arguments.steps, second / arguments.steps))
        of_ranks, of_others = _cpu_s(ours.pids), _others_s(supervisor, ours.pids)
        ours.train(STEADY_STEPS)
        beside = (_others_s(supervisor, ours.pids) - of_others) / (_cpu_s(ours.pids) - of_ranks)
        for gang in (ours, theirs):
            for rank_socket in gang.ranks.values():
                rank_socket.close()
        bare.wait(TIMEOUT_S)
    except RuntimeError:
        said = subprocess.run([BIN / "fairlead", "logs", "steps"], env=env, check=False, capture_output=True, text=True)
        sys.stderr.write(said.stdout[-2000:])
        raise
    finally:
        bare.terminate()
        os.kill(supervisor, signal.SIGTERM)
    lower, middle, upper = statistics.quantiles([first / second - 1 for first, second in pairs], n=4)
    return {
        "torchrun_ms": 1e3 * statistics.median(second for _, second in pairs),
        "fairlead_ms": 1e3 * statistics.median(first for first, _ in pairs),
        "ranks": middle,
        "lower_quartile": lower,
        "upper_quartile": upper,
        "beside": beside,
    }


def _line(connection: socket.socket) -> str:
    connection.settimeout(TIMEOUT_S)
    said = b""
    while not said.endswith(b"\n"):
        found = connection.recv(4096)
        if not found:
            raise RuntimeError("a rank ended")
        said += found
    return said.decode().strip()


def _others_s(supervisor: int, ranks: list[int]) -> float:
    """Processor seconds of the supervisor and all its descendants but the ranks."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, left = [], [supervisor]
    while left:
        pid = left.pop()
        found += [] if pid in ranks else [pid]
        left += children.get(pid, [])
    return _cpu_s(found)


def _cpu_s(pids: list[int]) -> float:
    """Processor seconds of processes, all their threads included."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
