"""How long the command line takes to answer: whole processes, with a thousand past runs in the store.

    python -m benchmarks.cli_startup [--runs 10] [--past 1000] [--json]

`python -c pass` is the floor that nothing in Python comes under. The commands take turns, so that a slow moment of the
machine hits all of them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
}
BARS_MS = {"fairlead --help": 120.0, "fairlead status": 150.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="calls of each command (default 10)")
    parser.add_argument("--past", type=int, default=1000, help="finished runs in the store (default 1000)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-") as directory:
        fill(Path(directory), arguments.past)
        milliseconds = measure(Path(directory), arguments.runs)
    medians = {name: statistics.median(values) for name, values in milliseconds.items()}
    if arguments.json:
        print(json.dumps({"past": arguments.past, "milliseconds": milliseconds, "medians": medians, "bars": BARS_MS}))
        return
    print(f"{'command':<24}{'median ms':>10}{'least':>8}{'most':>8}{'bar':>8}")
    for name, values in milliseconds.items():
        bar = f"{BARS_MS[name]:.0f}" if name in BARS_MS else "-"
        print(f"{name:<24}{medians[name]:>10.0f}{min(values):>8.0f}{max(values):>8.0f}{bar:>8}")


def fill(home: Path, past: int) -> None:
    """A store with finished runs, each with the events and the failed attempt of an ordinary life."""
    cluster = LocalCluster.open(home)
    ended = Reason(code=Code.COMPLETED, message="every rank ended well after 1000 steps, 1h 2m after its first start")
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


def measure(home: Path, runs: int) -> dict[str, list[float]]:
    """Milliseconds of each call; a first call that warms the file cache does not count."""
    # Compiled modules, as any installation has them, in a place of their own whatever this shell says about them.
    environ = {**os.environ, "FAIRLEAD_HOME": str(home), "PYTHONPYCACHEPREFIX": str(home / "compiled")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    milliseconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(runs + 1):
        for name, argv in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run(argv, env=environ, stdout=subprocess.DEVNULL, check=True)
            if number:
                milliseconds[name].append((time.perf_counter() - began) * 1000)
    return milliseconds


if __name__ == "__main__":
    main()
