"""A program without torch, run as a script: counts, and writes at the end whether torch was ever loaded."""

import sys
import time

import fairlead

state = {"count": 0}
with fairlead.run() as run:
    start = run.resume(state=state)
    print(f"start {start}", flush=True)
    for step in range(start, int(sys.argv[1])):
        state["count"] += 1 + run.rank
        run.progress(step + 1, loss=1 / (step + 1))
        run.checkpoint(step + 1)
        time.sleep(float(sys.argv[2]))
    print(f"end {state['count']} torch {'torch' in sys.modules} fsspec {'fsspec' in sys.modules}", flush=True)
