"""Waiting for what other processes, threads and servers bring about."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 180.0  # nobody waits that long unless something is wrong, or the machine does much else


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
        every_s: Between two looks; at least twice as long as one takes, which may be a process of its own.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if answer := is_so():
            return answer
        if time.monotonic() > deadline:
            told = f"no {what}" if isinstance(what, str) else what()
            raise AssertionError(f"{told} within {timeout_s:.0f} s")
        time.sleep(max(every_s, 2 * (time.monotonic() - began)))
