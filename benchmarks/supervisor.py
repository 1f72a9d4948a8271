"""The supervisor's cost: resident memory and CPU, with nothing to do and with one quiet run.

    python -m benchmarks.supervisor [--seconds 20] [--json]

Plain torchrun stays in the foreground, so there is no peer; the bars are 60 MB and 1 % of a core.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import psutil

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.specs.training import Training
from fairlead.state.snapshot import Intent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each state is watched (default 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure_both(Path(directory), arguments.seconds)
    if arguments.json:
        print(json.dumps(figures))
        return
    print(f"{'supervisor':<20}{'resident MB':>12}{'% of a core':>14}{'bars':>16}")
    for state, values in figures.items():
        print(f"{state:<20}{values['resident_mb']:>12.1f}{values['core_percent']:>14.2f}{'60 MB, 1 %':>16}")


def measure_both(home: Path, seconds: float) -> dict[str, dict[str, float]]:
    """Figures with a run that does nothing, and after it."""
    cluster = LocalCluster.open(home)
    run = cluster.submit(Training(name="quiet", run="sleep 1000", workdir=str(home), ranks_per_node=2))
    cluster.nudge()
    while (pid := cluster.supervisor_pid()) is None or cluster.store.get(run.uid).status.phase != "Running":
        time.sleep(0.05)
    process = psutil.Process(pid)
    try:
        time.sleep(1.0)
        with_run = measure(process, seconds)
        cluster.set_intent(run.uid, Intent.STOP)
        cluster.nudge()
        while not cluster.store.get(run.uid).status.phase.is_final:
            time.sleep(0.05)
        time.sleep(1.0)
        return {"one quiet run": with_run, "nothing to do": measure(process, seconds)}
    finally:
        process.terminate()
        process.wait(10)
        cluster.close()


def measure(process: psutil.Process, seconds: float) -> dict[str, float]:
    """Memory and share of a core over a time."""
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return {"resident_mb": process.memory_info().rss / 1e6, "core_percent": 100 * used / seconds}


if __name__ == "__main__":
    main()
