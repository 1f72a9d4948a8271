"""A chain of steps of 10 ms in Prefect, each a task whose state a server keeps in SQLite: `prefect_chain.py STEPS`."""

import sys
import time

from prefect import flow, task


@task
def step(before: int) -> int:
    time.sleep(0.01)
    return before + 1


@flow(log_prints=False)
def chain(length: int) -> int:
    done = 0
    for _ in range(length):
        done = step(done)
    return done


if __name__ == "__main__":
    length = int(sys.argv[1])
    chain(1)  # the server that it starts is not what is measured
    began = time.perf_counter()
    assert chain(length) == length
    print(f"{time.perf_counter() - began:.3f}")
