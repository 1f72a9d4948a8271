"""A slow rank in a real gang on this machine: after how many steps Fairlead names it, and what measuring costs.

    python -m benchmarks.slow_rank_live [--ranks 4] [--factor 1.3] [--steps 400] [--quiet-steps 2000] [--json]

A DDP program with gloo is started by ``fairlead run``. From step 100 on one rank computes its forward and backward on a
batch that is larger by the factor. ``steps_to_name`` counts from there to the step of the rank's report by which the
event names it. Then a gang without a slow rank takes ``quiet_steps`` steps; ``false_alarms`` are its events.
``overhead_pct`` is the part of a step that the measurement takes in a rank: its calls, timed in a loop, over the step.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fairlead.runtime.own_time import OwnTime

BIN = Path(sys.executable).parent
SLOW_FROM, TIMEOUT_S, CALLS = 100, 900.0, 20_000

SCRIPT = """
import os
import sys

import torch
import torch.distributed as dist

import fairlead

steps, slow, factor, since = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
rank = dist.get_rank()
with fairlead.run() as run:
    step = run.resume(model=model, optimizer=optimizer)
    while step < steps:
        rows = 512 * (factor if rank == slow and step >= since else 1)
        optimizer.zero_grad()
        model(torch.randn(int(rows), 256)).square().mean().backward()
        optimizer.step()
        step += 1
        run.progress(step, total=steps)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="ranks of the gang (default 4)")
    parser.add_argument("--factor", type=float, default=1.3, help="work of the slow rank (default 1.3)")
    parser.add_argument("--steps", type=int, default=400, help="steps with a slow rank at most (default 400)")
    parser.add_argument("--quiet-steps", type=int, default=2000, help="steps without one (default 2000)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of sentences")
    arguments = parser.parse_args()
    slow = arguments.ranks // 2
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-", ignore_cleanup_errors=True) as name:
        gang = Gang(Path(name), arguments.ranks)
        named, at_step, step_s = gang.train("slow", SLOW_FROM + arguments.steps, slow, arguments.factor)
        quiet, _, _ = gang.train("quiet", arguments.quiet_steps, -1, 1.0)
    row = {
        "ranks": arguments.ranks,
        "factor": arguments.factor,
        "slow_rank": slow,
        "named": named,
        "steps_to_name": None if at_step is None else at_step - SLOW_FROM,
        "quiet_steps": arguments.quiet_steps,
        "false_alarms": len(quiet),
        "step_ms": round(1e3 * step_s, 2),
        "overhead_pct": round(100 * cost_s() / step_s, 3),
    }
    if arguments.json:
        print(json.dumps(row))
        return 0
    for key, value in row.items():
        print(f"{key}: {value}")
    return 0


class Gang:
    """Runs of a program in a home of their own."""

    def __init__(self, directory: Path, ranks: int) -> None:
        self._directory = directory
        self._ranks = ranks
        (directory / "train.py").write_text(SCRIPT)
        self._env = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "FAIRLEAD_HOME": str(directory / "home"),
            "OMP_NUM_THREADS": "1",
        }

    def train(self, name: str, steps: int, slow: int, factor: float) -> tuple[list[str], int | None, float]:
        """Return what the events say of slow ranks, the step by which the first did, and the seconds of a step."""
        spec = {
            "name": name, "run": f"python train.py {steps} {slow} {factor} {SLOW_FROM}", "ranks_per_node": self._ranks,
            "workdir": str(self._directory), "resources": {"cpu": 0.1},
        }  # fmt: skip
        (self._directory / f"{name}.yaml").write_text(json.dumps(spec))
        self._command("run", "-d", f"{name}.yaml")
        deadline = time.monotonic() + TIMEOUT_S
        messages: list[str] = []
        at_step, status = None, {"phase": "Pending"}
        progress: dict[str, Any] = {}
        while time.monotonic() < deadline and status["phase"] not in ("Succeeded", "Failed", "Stopped"):
            time.sleep(0.5)
            status = json.loads(self._command("status", name, "--json"))
            progress = status.get("progress") or progress
            events = map(json.loads, self._command("events", name, "--json").splitlines())
            messages = [event["reason"]["message"] for event in events if event["event"] == "SlowRank"]
            if messages and at_step is None:
                at_step = int(progress["step"])
                if slow >= 0:
                    self._command("stop", name)
        seconds = progress["updated_at"] - progress["first_step_at"]
        return messages, at_step, seconds / max(progress["step"], 1)

    def _command(self, *words: str) -> str:
        argv = [str(BIN / "fairlead"), *words]
        return subprocess.run(
            argv, cwd=self._directory, env=self._env, check=True, capture_output=True, text=True
        ).stdout


def cost_s() -> float:
    """Return the seconds of processor time that measuring takes in a step."""
    import torch

    own, model = OwnTime(), torch.nn.Linear(1, 1)
    own.watch([model])
    began = time.process_time()
    for step in range(1, CALLS + 1):
        own._accumulated(None)
        own.step(step)
    return (time.process_time() - began) / CALLS


if __name__ == "__main__":
    sys.exit(main())
