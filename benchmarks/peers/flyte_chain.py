"""A chain of steps of 10 ms in Flyte's local execution, with each result in its cache on disk: `flyte_chain.py STEPS`.

Flyte itself runs on Kubernetes alone; its local execution runs all tasks in this process, and no server keeps states.
"""

import sys
import time

from flytekit import task, workflow


@task(cache=True, cache_version="1")
def step(before: int) -> int:
    time.sleep(0.01)
    return before + 1


@workflow
def first() -> int:
    return step(before=-1)


@workflow
def chain() -> int:
    done = step(before=0)
    for _ in range(int(sys.argv[1]) - 1):
        done = step(before=done)
    return done


if __name__ == "__main__":
    first()  # imports and the cache's first use are not what is measured
    began = time.perf_counter()
    assert chain() == int(sys.argv[1])
    print(f"{time.perf_counter() - began:.3f}")
