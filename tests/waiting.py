"""Waiting for what other processes, threads and servers bring about."""

import os
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 180.0  # nobody waits that long unless something is wrong, or the machine does much else
IN_CI = 3.0 if os.environ.get("CI") else 1.0
"""Factor of all waits where nobody watches, and a busy machine would cause failures."""
MOST_S = 700.0  # later pytest's faulthandler ends the worker, which says nothing of what was awaited
LONGEST_S = 0.25  # between two looks, of somebody who has waited for seconds


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
        every_s: Between two looks at first; at least twice as long as one takes, which may be a process of its own, and
            later a tenth of what was waited, as looking takes from others what they need to bring it about.
    """
    start = time.monotonic()
    timeout_s = min(timeout_s * IN_CI, MOST_S)
    deadline = start + timeout_s
    while True:
        began = time.monotonic()
        if answer := is_so():
            return answer
        if time.monotonic() > deadline:
            told = f"no {what}" if isinstance(what, str) else what()
            raise AssertionError(f"{told} within {timeout_s:.0f} s")
        now = time.monotonic()
        time.sleep(max(every_s, 2 * (now - began), min(LONGEST_S, (now - start) / 10)))
