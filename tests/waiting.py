"""Waiting for what other processes, threads and servers bring about."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0


def until(
    is_so: Callable[[], Any],
    what: str | Callable[[], object] = "sign of it",
    *,
    timeout_s: float = PATIENCE_S,
    every_s: float = 0.05,
) -> Any:
    """What `is_so` answers once that is true.

    Args:
        what: What is awaited, as in "a ready node", or what there is to tell when it has not come.
    """
    deadline = time.monotonic() + timeout_s
    while not (answer := is_so()):
        if time.monotonic() > deadline:
            told = f"no {what}" if isinstance(what, str) else what()
            raise AssertionError(f"{told} within {timeout_s:.0f} s")
        time.sleep(every_s)
    return answer
