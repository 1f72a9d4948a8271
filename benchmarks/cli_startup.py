"""Response times of the command line: whole processes, with a thousand past runs in the store.

    python -m benchmarks.cli_startup [--runs 10] [--past 1000] [--json]

`python -c pass` is the lower bound of anything in Python. The commands take turns, so that a slow moment of the machine
affects all of them. The bars are of processor time (user and system, of the process and its children), which depends
least on other load. `run` follows its run to the end; the program itself and the supervisor, which an uncounted first
call has started, are other processes and not in its processor time.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.bytecode import keep_compiled
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.specs.training import Training
from fairlead.state.plan import Change, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Status

FAIRLEAD = str(Path(sys.executable).parent / "fairlead")
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "fairlead --help": [FAIRLEAD, "--help"],
    "fairlead status": [FAIRLEAD, "status"],
    "fairlead status NAME": [FAIRLEAD, "status", "run-7"],
    "fairlead events NAME": [FAIRLEAD, "events", "run-7"],
    "fairlead logs NAME": [FAIRLEAD, "logs", "run-7"],
    "fairlead plan FILE": [FAIRLEAD, "plan", "train.yaml"],
    "fairlead run -- python": [FAIRLEAD, "run", "--", sys.executable, "-c", "pass"],
    "import fairlead": [sys.executable, "-c", "import fairlead"],
    "fairlead.run": [sys.executable, "-c", "import fairlead; fairlead.run"],
}
SPEC = "name: train\nrun: python -c pass\n"
CPU_BARS_MS = {"fairlead --help": 120.0, "fairlead status": 120.0, "fairlead plan FILE": 250.0}


class Took(NamedTuple):
    """Milliseconds of one call."""

    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="calls of each command (default 10)")
    parser.add_argument("--past", type=int, default=1000, help="finished runs in the store (default 1000)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-") as directory:
        fill(Path(directory), arguments.past)
        try:
            took = measure(Path(directory), arguments.runs)
        finally:
            end_supervisor(Path(directory))
    wall = {name: [each.wall for each in calls] for name, calls in took.items()}
    cpu = {name: [each.cpu for each in calls] for name, calls in took.items()}
    if arguments.json:
        medians = {name: {"wall": median(wall[name]), "cpu": median(cpu[name])} for name in took}
        told = {"past": arguments.past, "wall_ms": wall, "cpu_ms": cpu, "medians_ms": medians}
        print(json.dumps({**told, "cpu_bars_ms": CPU_BARS_MS}))
        return
    print(f"{'milliseconds':<24}{'wall':>8}{'cpu':>8}{'least':>8}{'most':>8}{'bar':>8}")
    for name in took:
        bar = f"{CPU_BARS_MS[name]:.0f}" if name in CPU_BARS_MS else "-"
        times = f"{median(wall[name]):>8.0f}{median(cpu[name]):>8.0f}{min(cpu[name]):>8.0f}{max(cpu[name]):>8.0f}"
        print(f"{name:<24}{times}{bar:>8}")
    print("wall and cpu are medians; least, most and bar are of cpu")


def fill(home: Path, past: int) -> None:
    """A store with finished runs, each with the events and the failed attempt of an ordinary life."""
    cluster = LocalCluster.open(home)
    ended = Reason(code=Code.COMPLETED, message="all ranks succeeded after 1000 steps in 1h 2m")
    for number in range(past):
        spec = Training(name=f"run-{number}", run="python train.py --lr 0.1", workdir="/", ranks_per_node=2)
        now = time.time() - past + number
        uid = f"{number:011x}"
        workload = cluster.store.submit(uid, spec, now)
        for phase in (Phase.STARTING, Phase.RUNNING, Phase.SUCCEEDED):
            status = Status(phase=phase, reason=ended, since=now, started_at=now, finished_at=now)
            intent = Intent.STOP if phase.is_final else None
            event = Event(type=phase.value, reason=ended)
            change = Change(workload_uid=uid, version=workload.version, status=status, intent=intent, event=event)
            assert cluster.store.apply(change, now)
            workload = cluster.store.get(uid)
    cluster.close()


def measure(home: Path, runs: int) -> dict[str, list[Took]]:
    """Each call of each command; a first call that warms the file cache does not count."""
    keep_compiled()
    environ = {**os.environ, "FAIRLEAD_HOME": str(home)}
    (home / "train.yaml").write_text(SPEC)
    took: dict[str, list[Took]] = {name: [] for name in COMMANDS}
    for number in range(runs + 1):
        for name, argv in COMMANDS.items():
            call = once(argv, environ, home)
            if number:
                took[name].append(call)
    return took


def end_supervisor(home: Path) -> None:
    """End the supervisor of a state directory, which would else stay for minutes, and wait until it has."""
    cluster = LocalCluster.open(home)
    pid = cluster.supervisor_pid()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        while cluster.supervisor_alive():
            time.sleep(0.05)
    cluster.close()


def once(argv: list[str], environ: dict[str, str], directory: Path) -> Took:
    """One whole process."""
    began = time.perf_counter()
    process = subprocess.Popen(argv, env=environ, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{argv} ended with exit code {process.returncode}"
    return Took(wall=wall * 1000, cpu=(usage.ru_utime + usage.ru_stime) * 1000)


if __name__ == "__main__":
    main()
