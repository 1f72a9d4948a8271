"""Reports a rank's progress to Fairlead: a small file, replaced a few times a second, and a list of events.

A full disk or a lost directory raises no error here: a report that cannot be written is lost, and training continues.
Tensors are converted to numbers only when a report is written, because on a GPU that waits for the device.
"""

import json
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairlead.runtime.own_time import OwnTime
from fairlead.runtime.podfiles import read_json
from fairlead.runtime.series import SeriesFile

WRITE_EVERY_S = 0.2
# Where a write takes long, the next waits so long that writing takes no more than this share of the time. The wait is
# bounded, also to a part of `stall_timeout`, so that a slow disk is not taken for a hang.
MOST_SHARE, MOST_REST_S, STALL_PART = 0.0025, 5.0, 0.25
PRINT_EVERY_S = 1.0
WINDOW_S = 15.0
MOST_UNTOLD = 100


class Reporter:
    """Writes the reports of one rank; safe to use from several threads.

    Outside Fairlead (no directory) rank 0 prints one line a second instead, and events go to stderr.

    Attributes:
        bad_loss: The first step whose loss was not finite, and that loss; None if there was none. A tensor is checked
        only when it is read.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        directory: Path | None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._directory = directory
        self._clock = clock
        self._wall = wall
        self._lock = threading.RLock()
        self._facts: dict[str, Any] = {}
        self._loss: object = None
        self.bad_loss: tuple[int, float] | None = None
        self._metrics: dict[str, object] = {}
        self.own_time = OwnTime()
        self._counted = Counted()
        self._next = -math.inf
        self._most_rest_s = MOST_REST_S if directory is None else _most_rest_s(directory)
        self._unwritten = False
        self._mute = False
        self._untold: deque[str] = deque(maxlen=MOST_UNTOLD)
        self._series = None
        if directory is not None and rank == 0:
            self._series = SeriesFile(str(directory / f"rank-{rank}.series.jsonl"), wall())
        self._told_step: int | None = None

    def progress(
        self,
        step: int,
        *,
        total: int | None,
        loss: object,
        epoch: float | None,
        samples: int | None,
        tokens: int | None,
        metrics: Mapping[str, object],
    ) -> None:
        """Record a completed step, and write a report if the last one is at least ``WRITE_EVERY_S`` seconds old."""
        now = self._clock()
        self.own_time.step(step)
        with self._lock:
            self._facts["step"] = step
            if "first_step_at" not in self._facts:
                self._facts["first_step_at"] = round(self._wall(), 3)
            if total is not None:
                self._facts["total_steps"] = total
            if epoch is not None:
                self._facts["epoch"] = epoch
            if loss is not None:
                self._loss = detached(loss)
                if isinstance(loss, (float, int)):
                    self._judge(step, float(loss))
            if metrics:
                self._metrics.update((name, detached(value)) for name, value in metrics.items())
            self._counted.add(step, samples=samples, tokens=tokens, now=now)
            self._unwritten = True
            if self._series is not None:
                all_metrics = metrics if loss is None else {"loss": loss, **metrics}
                # Numbers are cheap to read; tensors are read when a report is written.
                values = {name: float(value) for name, value in all_metrics.items() if isinstance(value, (float, int))}
                if len(values) == len(all_metrics):
                    self._note_point(step, values)
            if now >= self._next:
                self._write(now)

    def fact(self, **facts: object) -> None:
        """Set keys of the report, such as ``checkpoint_step``, to JSON values, and write it at once."""
        with self._lock:
            self._facts.update(facts)
            if self._directory is not None:
                self._write(self._clock())

    def spend(self, what: str, seconds: float) -> None:
        """Add seconds to a sum in the report, such as ``saving_s``; it is written with the next report."""
        with self._lock:
            self._facts[what] = round(self._facts.get(what, 0.0) + seconds, 3)

    def event(self, kind: str, message: str, *, warn: bool = False) -> None:
        """Record one event; a warning also goes to stderr."""
        if warn or (self._directory is None and self._rank == 0):
            print(f"fairlead: {message}", file=sys.stderr, flush=True)
        if self._directory is None:
            return
        line = json.dumps({"at": self._wall(), "type": kind, "message": message}) + "\n"
        with self._lock:
            self._untold.append(line)
            self._tell()

    def flush(self) -> None:
        """Write everything that is not written yet."""
        with self._lock:
            if self._unwritten:
                self._write(self._clock())
            if self._series is not None:
                self._series.finish()
            self._tell()

    def look(self) -> None:
        """Read a loss that has not been read yet."""
        with self._lock:
            if self._unwritten and self._loss is not None:
                self._read_loss()

    def _read_loss(self) -> float | None:
        """Return the loss as a finite number; None if there is none, because JSON has no NaN."""
        loss = _float(self._loss)
        if loss is None:
            return None
        self._judge(self._facts.get("step", 0), loss)
        return loss if math.isfinite(loss) else None

    def _judge(self, step: int, loss: float) -> None:
        if self.bad_loss is None and not math.isfinite(loss):
            self.bad_loss = (step, loss)

    def _note_point(self, step: int, values: Mapping[str, float]) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        if finite and self._series is not None:
            self._told_step = step
            self._series.add(self._wall(), step, finite)

    def _tell(self) -> None:
        """Append the waiting events. On a full disk they keep waiting, and the oldest of more than 100 are lost."""
        if self._directory is None or not self._untold:
            return
        try:
            with open(self._directory / f"rank-{self._rank}.events.jsonl", "ab", buffering=0) as file:
                size = file.tell()
                while self._untold:
                    data = self._untold[0].encode()
                    if file.write(data) != len(data):
                        file.truncate(size)
                        return
                    size += len(data)
                    self._untold.popleft()
        except OSError as error:
            self._complain(error)

    def _write(self, now: float) -> None:
        if self._directory is None:
            self._next = now + PRINT_EVERY_S
            if self._unwritten and self._rank == 0:
                print(sentence(self._report(now)), file=sys.stderr, flush=True)
            self._unwritten = False
            return
        self._unwritten = False
        path = self._directory / f"rank-{self._rank}.json"
        temporary = self._directory / f".rank-{self._rank}.json.{os.getpid()}"
        fields = self._report(now)  # which may wait for a GPU
        began = self._clock()
        report = json.dumps(fields).encode()
        if fields.get("step") is not None and fields["step"] != self._told_step:
            loss = {} if fields["loss"] is None else {"loss": fields["loss"]}
            self._note_point(fields["step"], {**loss, **fields["metrics"]})
        if self._series is not None:
            self._series.write()
        try:
            temporary.write_bytes(report)
            temporary.replace(path)
        except OSError as error:
            self._complain(error)
            self._overwrite(path, temporary, report)
        self._tell()
        rest_s = min(self._most_rest_s, (self._clock() - began) / MOST_SHARE)
        self._next = now + max(WRITE_EVERY_S, rest_s)

    def _overwrite(self, path: Path, temporary: Path, report: bytes) -> None:
        """Overwrite the last report in place, which needs no space on most disks; readers retry a half-written one."""
        try:
            temporary.unlink(missing_ok=True)
            with open(path, "r+b", buffering=0) as file:
                file.write(report)
                file.truncate(len(report))
        except OSError as error:
            self._complain(error)

    def _report(self, now: float) -> dict[str, Any]:
        throughput, unit = self._counted.rate(now, self._world_size)
        metrics = {name: number(value) for name, value in self._metrics.items()}
        return {
            **self._facts,
            "updated_at": self._wall(),
            "loss": self._read_loss(),
            "throughput": throughput,
            "throughput_unit": unit,
            "metrics": {name: value for name, value in metrics.items() if value is not None},
            **({"own": own_times} if (own_times := self.own_time.report()) else {}),
            **({"trackers": own} if (own := own_trackers()) else {}),
        }

    def _complain(self, error: OSError) -> None:
        if not self._mute:
            self._mute = True
            print(f"fairlead: progress cannot be written ({error}); the training continues without it", file=sys.stderr)


def _most_rest_s(directory: Path) -> float:
    """Return the longest pause between two reports of a pod, which `pod.json` in its directory describes."""
    limit_s = (read_json(str(directory / "pod.json")) or {}).get("stall_timeout_s")
    return MOST_REST_S if limit_s is None else min(MOST_REST_S, STALL_PART * float(limit_s))


class Counted:
    """Measures the throughput of the last seconds, in steps, samples or tokens."""

    def __init__(self) -> None:
        self._unit = "steps"
        self._total = 0
        self._newest = 0.0
        self._marks: deque[tuple[float, int]] = deque()

    def add(self, step: int, *, samples: int | None, tokens: int | None, now: float) -> None:
        """Count one step. The first only starts the clock, because its time includes the start of the program."""
        unit, amount = "steps", 1
        if tokens is not None:
            unit, amount = "tokens", tokens
        elif samples is not None:
            unit, amount = "samples", samples
        if unit != self._unit:
            self._unit = unit
            self._marks.clear()
        total = step if unit == "steps" else self._total + amount
        if total < self._total:  # the program has begun to count anew
            self._marks.clear()
        self._total = total
        if not self._marks:
            self._marks.append((now, self._total))
        elif now - self._marks[-1][0] >= WRITE_EVERY_S:
            self._marks.append((now, self._total))
            while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW_S:
                self._marks.popleft()
        self._newest = now

    def rate(self, now: float, world_size: int) -> tuple[float | None, str | None]:
        """Return units per second over all ranks, assuming that the others are as fast; steps count once."""
        if not self._marks:
            return None, None
        start, before = self._marks[0]
        elapsed = self._newest - start
        if elapsed <= 0:
            return None, None
        ranks = 1 if self._unit == "steps" else world_size
        return (self._total - before) * ranks / elapsed, f"{self._unit}/s"


def detached(value: object) -> object:
    """Return the value without its autograd graph, so that keeping it keeps nothing else alive."""
    detach = getattr(value, "detach", None)
    return detach() if callable(detach) else value


def own_trackers() -> list[str]:
    """Return the experiment trackers at which the program has its own run, so that metrics are not sent there twice."""
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    trackers = ["wandb"] if getattr(wandb, "run", None) is not None else []
    # While another thread is importing it, the module may not have this function yet.
    active_run = getattr(mlflow, "active_run", None)
    if callable(active_run) and active_run() is not None:
        trackers.append("mlflow")
    return trackers


def number(value: object) -> float | None:
    """Return the value as a finite number, or None, because JSON has no NaN."""
    result = _float(value)
    return None if result is None or not math.isfinite(result) else result


def _float(value: object) -> float | None:
    """Return the value as a number, which may be NaN or infinite; None if it is not a number."""
    if value is None:
        return None
    try:
        return float(value)  # type: ignore[arg-type] # anything with __float__, such as a tensor of one element
    except (TypeError, ValueError, RuntimeError):
        return None


def sentence(report: Mapping[str, Any]) -> str:
    """Return the report as one human-readable line."""
    words = [f"step {report.get('step', 0)}"]
    if report.get("total_steps") is not None:
        words[0] += f"/{report['total_steps']}"
    if report.get("loss") is not None:
        words.append(f"loss {report['loss']:.4g}")
    if report.get("throughput") is not None:
        words.append(f"{report['throughput']:,.4g} {report['throughput_unit']}")
    words.extend(f"{name} {value:.4g}" for name, value in report["metrics"].items())
    return "  ".join(words)
