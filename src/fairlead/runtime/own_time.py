"""Measures what a rank computes by itself in each step, up to where it would wait for other ranks.

The step times of all ranks of a gang are equal, because they wait for one another. A rank's own work ends when the
gradient of the parameter that gets it last, the first one of the model, is there. Up to then its processor time counts
(waits take none), or on a GPU the time between two events of its stream.

It takes two readings of a clock a step, and a hook of one parameter. Ranks of pipelines are not measured: they wait for
others within a step.

See decision 216.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MOST_STEPS = 256
"""Steps of which a report has the own times; it is replaced several times a second."""
MOST_PENDING = 16
"""Steps whose events a GPU may not have reached yet; older ones are given up."""


class OwnTime:
    """The own times of the last steps of this rank, once a model is watched."""

    def __init__(
        self,
        *,
        cpu: Callable[[], float] = time.process_time,
        wall: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._cpu = cpu
        self._wall = wall
        self._event: Callable[[], Any] | None = None
        self._began: Any = None
        self._ready: Any = None
        self._wall_began = 0.0
        self._pending: deque[tuple[int, float, Any, Any]] = deque(maxlen=MOST_PENDING)
        self._times: deque[tuple[int, int, float]] = deque(maxlen=MOST_STEPS)
        self._is_watching = False

    def watch(self, modules: Iterable[Any]) -> None:
        """Watch the first parameter that is trained of all modules; nothing without one."""
        for module in modules:
            for parameter in module.parameters():
                if not parameter.requires_grad or not hasattr(parameter, "register_post_accumulate_grad_hook"):
                    continue
                if parameter.is_cuda:
                    self._event = _event_of(parameter.device)
                parameter.register_post_accumulate_grad_hook(self._accumulated)
                self._is_watching = True
                return

    def step(self, step: int) -> None:
        """Note the end of a step, given as the count of completed ones."""
        if not self._is_watching:
            return
        now = self._wall()
        if self._ready is not None and self._began is not None:
            self._pending.append((step, now - self._wall_began, self._began, self._ready))
        self._ready = None
        self._wall_began = now
        self._began = self._cpu() if self._event is None else self._event()
        while self._pending and (self._event is None or self._pending[0][3].query()):
            number, wall_s, began, ready = self._pending.popleft()
            own_us = round(1e6 * (ready - began)) if self._event is None else round(1e3 * began.elapsed_time(ready))
            if self._times and number != self._times[-1][0] + 1:
                self._times.clear()
            self._times.append((number, own_us, wall_s))

    def report(self) -> dict[str, Any] | None:
        """Return the last measured step, own microseconds up to it, and the mean seconds of a step; None before any."""
        if not self._times:
            return None
        return {
            "step": self._times[-1][0],
            "us": [own_us for _, own_us, _ in self._times],
            "gpu": self._event is not None,
            "step_s": round(sum(wall_s for _, _, wall_s in self._times) / len(self._times), 6),
        }

    def _accumulated(self, _: Any) -> None:
        self._ready = self._cpu() if self._event is None else self._event()


def _event_of(device: Any) -> Callable[[], Any]:
    """Return what records an event in the current stream of a device."""
    import torch

    def record() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    return record
