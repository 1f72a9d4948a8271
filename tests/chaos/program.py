"""What the chaos test runs: gradient descent in plain Python, with checkpoints, a lock and a record of its steps.

Every rank descends on the same sum of squares with noise drawn from (seed, step, rank), so that its loss after the last
step shows whether any step was lost, repeated from a wrong state, or taken twice.
"""

import fcntl
import json
import os
import random
import sys
import time
from pathlib import Path

import fairlead

SIZE = 16


def main(total: int, step_s: float, seed: int) -> None:
    with fairlead.run() as run:
        keep = Path(os.environ["FAIRLEAD_RUN_DIR"])
        lock = (keep / f"lock-{run.rank}").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (keep / f"TWICE-{run.rank}-{run.attempt}").touch()
            raise
        weights = [1.0] * SIZE

        def load(directory: Path) -> None:
            weights[:] = json.loads((directory / "weights.json").read_text())

        def save(directory: Path) -> None:
            (directory / "weights.json").write_text(json.dumps(weights))

        start = run.resume(load=load)
        record = os.open(keep / f"steps-{run.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(record, f"start {run.attempt} {start}\n".encode())
        for step in range(start, total):
            time.sleep(step_s)
            descend(weights, seed, step, run.rank)
            os.write(record, f"step {run.attempt} {step + 1}\n".encode())
            run.progress(step + 1, total=total, loss=loss_of(weights))
            run.checkpoint(step + 1, save=save)
        (keep / f"final-{run.rank}.json").write_text(json.dumps({"loss": loss_of(weights)}))


def descend(weights: list[float], seed: int, step: int, rank: int) -> None:
    """One step down, in place."""
    draw = random.Random(f"{seed}-{step}-{rank}")
    weights[:] = [w - 0.05 * (2 * w + draw.gauss(0, 0.1)) for w in weights]


def loss_of(weights: list[float]) -> float:
    """What is minimised."""
    return sum(w * w for w in weights)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
