"""Measures what reports cost a training step, also where writing a file takes long, paired with steps without them.

    python -m benchmarks.reports [--slow-ms 0,1.5,5] [--step-ms 20] [--seconds 60] [--json]

A run of this machine takes steps of fixed work, in turns of ten seconds with reports and without. Its program, not
Fairlead, makes writing slow: each file that it opens to write waits first, of which a report has two. The first figure,
which the bar of 0.5 % is for, is the share of the steps' time that `run.progress` computes or waits for a file; it
leaves out the first write, before which nothing is known of the disk. The second is the share of the clock that passes
in it, and the third what a step with reports takes more on the clock than one without: both are the same on a quiet
machine, and blurred by whatever else another one does.
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.home import end_everything

ROOT = Path(__file__).parents[1]
TURN_S = 10.0
LOSSES = ("number", "tensor")
BAR = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow-ms", default="0,1.5,5", help="delays of a write, divided by commas (default 0,1.5,5)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="length of a step (default 20)")
    parser.add_argument("--seconds", type=float, default=80.0, help="how long each run takes steps (default 80)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--loss", choices=LOSSES, default="number", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program is not None:
        program(arguments)
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-reports-") as directory:
        home = Path(directory) / "home"
        try:
            rows = [
                {"slow_ms": slow_ms, "loss": loss, **measured(home, slow_ms, loss, arguments)}
                for slow_ms in map(float, arguments.slow_ms.split(","))
                for loss in LOSSES
            ]
        finally:
            end_everything(home)
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{'a file waits':<15}{'loss':<8}{'reports':>8}{'cost':>9}{'on the clock':>14}{'paired':>9}{'bar':>7}")
    for row in rows:
        print(
            f"{row['slow_ms']:>9.1f} ms   {row['loss']:<8}{row['reports']:>8}{row['reports_cost']:>9.3%}"
            f"{row['on_the_clock']:>14.3%}{row['paired']:>+9.2%}{BAR:>7.1%}"
        )


def measured(home: Path, slow_ms: float, loss: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the program as a run, and return what it found."""
    result = home.parent / "result.json"
    paths = os.pathsep.join((str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    environ = {**os.environ, "FAIRLEAD_HOME": str(home), "PYTHONPATH": paths}
    name = f"reports-{loss}-{str(slow_ms).replace('.', '-')}"
    command = [
        *(sys.executable, "-m", "fairlead.cli.main", "run", "--name", name, "--env", f"PYTHONPATH={paths}", "--"),
        *(sys.executable, "-m", "benchmarks.reports", "--program", str(result), "--slow-ms", str(slow_ms)),
        *("--step-ms", str(arguments.step_ms), "--seconds", str(arguments.seconds), "--loss", loss),
    ]
    limit_s = arguments.seconds + 120
    ended = subprocess.run(
        command, cwd=home.parent, env=environ, capture_output=True, text=True, timeout=limit_s, check=False
    )
    if ended.returncode:
        raise SystemExit(f"the run ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def program(arguments: argparse.Namespace) -> None:
    """Take steps in turns with and without reports, and write what they took."""
    import fairlead

    reports = opened = 0

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal reports, opened
        reports += event == "os.rename"
        if event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR):
            opened += 1
            time.sleep(slow_s)

    work, slow_s = fitted(arguments.step_ms / 1e3), float(arguments.slow_ms) / 1e3
    losses: Any = random.random
    if arguments.loss == "tensor":
        import torch

        losses = lambda: torch.rand(())  # noqa: E731
    turns: dict[bool, list[float]] = {True: [], False: []}
    told_s = worked_s = stepped_s = 0.0
    with fairlead.run() as run:
        number, with_reports = 0, False
        sys.addaudithook(hook)
        until = time.monotonic() + arguments.seconds
        while time.monotonic() < until:
            with_reports = not with_reports
            end, steps = time.monotonic() + TURN_S, 0
            began = time.monotonic()
            while time.monotonic() < end:
                work()
                loss = losses()
                number += 1
                steps += 1
                if with_reports:
                    before, worked, opened = time.perf_counter(), time.thread_time(), 0
                    run.progress(number, loss=loss)
                    if number > 1:
                        told_s += time.perf_counter() - before
                        worked_s += time.thread_time() - worked + opened * slow_s
            took_s = time.monotonic() - began
            stepped_s += took_s * with_reports
            turns[with_reports].append(took_s / steps)
    pairs = list(zip(turns[True], turns[False], strict=False))
    Path(arguments.program).write_text(
        json.dumps(
            {
                "reports": reports,
                "on_the_clock": told_s / stepped_s,
                "reports_cost": worked_s / stepped_s,
                "paired": statistics.median(told / silent for told, silent in pairs) - 1,
            }
        )
    )


def fitted(step_s: float) -> Any:
    """Return work that takes the processor about as long as a step should."""
    data = bytes(1 << 16)
    hashlib.sha256(data).digest()
    began = time.thread_time()
    for _ in range(200):
        hashlib.sha256(data).digest()
    rounds = max(1, round(step_s / ((time.thread_time() - began) / 200)))

    def work() -> None:
        for _ in range(rounds):
            hashlib.sha256(data).digest()

    return work


if __name__ == "__main__":
    main()
