"""As ``counter``, with a state of which the program itself writes files."""

import sys
import time
from pathlib import Path

import fairlead

state = {"count": 0}


def save(directory: Path) -> None:
    (directory / "count").write_text(str(state["count"]))


def load(directory: Path) -> None:
    state["count"] = int((directory / "count").read_text())


with fairlead.run() as run:
    start = run.resume(load=load)
    print(f"start {start} with {state['count']}", flush=True)
    for step in range(start, int(sys.argv[1])):
        state["count"] += 1 + run.rank
        run.progress(step + 1)
        run.checkpoint(step + 1, save=save)
        time.sleep(float(sys.argv[2]))
    run.checkpoint(int(sys.argv[1]), save=save, force=True)
    print(f"end {state['count']}", flush=True)
