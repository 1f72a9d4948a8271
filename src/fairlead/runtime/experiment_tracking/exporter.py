"""Sends the metrics of one attempt of a run to its trackers: `PYTHON exporter.py`, in the pod of rank 0.

It follows the file of rank 0's metrics, so training never waits for it and is not aware of it. Each tracker has a
thread and a bounded queue. The offset that each tracker has reached is stored in the pod's directory, and a restarted
exporter continues there. The shim writes the run's final status to standard input; the remaining points are then sent
within a few seconds.

See decision 46.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
import types
from collections import deque

if __name__ == "__main__":
    # Started by path: Fairlead's modules are found without running fairlead/__init__.py and shadow no other modules.
    del sys.path[0]
    _runtime = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for _name, _path in (("fairlead", os.path.dirname(_runtime)), ("fairlead.runtime", _runtime)):
        sys.modules[_name] = types.ModuleType(_name)
        sys.modules[_name].__path__ = [_path]
from fairlead.runtime import podfiles
from fairlead.runtime.experiment_tracking import choice
from fairlead.runtime.experiment_tracking.target import About, MetricPoint, Refused, read_about
from fairlead.runtime.experiment_tracking.tensorboard_target import TensorBoardTarget
from fairlead.runtime.experiment_tracking.wandb_target import WandbTarget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from fairlead.runtime.experiment_tracking.target import TrackerTarget

SERIES = "rank-0.series.jsonl"
SENT = "export.json"
EVENTS = "rank-0.events.jsonl"
LOOK_EVERY_S = 1.0
MOST_WAITING = 10_000
MOST_AT_ONCE = 500
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
# Limit of all work after the ranks have ended; the shim waits a little longer.
END_S = 10.0
LAST_ANSWER_S = 9.0
# Time-out for a tracker that did not answer before.
AWAY_ANSWER_S = 1.0


def main() -> None:
    """Follow the pod that the environment names until it ends."""
    env = dict(os.environ)
    pod_dir = env["FAIRLEAD_POD_DIR"]
    pod = podfiles.read_json(os.path.join(pod_dir, "pod.json")) or {}
    about = read_about(env, str(pod.get("command", "")))
    Exporter(pod_dir, env, about).follow(sys.stdin.fileno())
    # Exit without joining threads that still wait for an answer.
    os._exit(0)


class Exporter:
    """Reads points as they are written and gives them to each tracker's lane."""

    def __init__(self, pod_dir: str, env: Mapping[str, str], about: About) -> None:
        self._path = os.path.join(pod_dir, SERIES)
        self._report = os.path.join(pod_dir, "rank-0.json")
        self._events = os.path.join(pod_dir, EVENTS)
        self._sent = SentOffsets(os.path.join(pod_dir, SENT))
        self._env = env
        self._about = about
        self._waiting = choice.chosen(env)
        self._lanes: list[Lane] = []
        self._offset = min((self._sent.of(name) for name in self._waiting), default=0)
        wanted = env.get(choice.CHOICE)
        if wanted and (problem := choice.problem(wanted)) is not None:
            self.tell(f"{choice.CHOICE}: {problem}")

    def follow(self, status_fd: int) -> None:
        """Follow the metrics until the descriptor has the run's final status or is closed."""
        is_over = False
        while not is_over:
            is_over = bool(select.select([status_fd], [], [], LOOK_EVERY_S)[0])
            self.look()
        self.look()
        self.end(_ending(status_fd))

    def look(self) -> None:
        """Give new points to the lanes; the first points start the lanes."""
        points = self._read()
        if points and self._waiting:
            self._begin()
        for lane in self._lanes:
            lane.add(points)

    def end(self, status: str | None) -> None:
        """Send the remaining points to every tracker, within ``END_S`` seconds."""
        deadline = time.monotonic() + END_S
        for lane in self._lanes:
            lane.end(status)
        for lane in self._lanes:
            lane.join(max(0.0, deadline - time.monotonic()))
            lane.account()

    def tell(self, message: str) -> None:
        """Record an event of the run; if the disk is full, it is lost."""
        line = json.dumps({"at": time.time(), "type": "MetricsExport", "message": message}) + "\n"
        try:
            with open(self._events, "ab", buffering=0) as file:
                file.write(line.encode())
        except OSError:
            return

    def _begin(self) -> None:
        """Start the lanes, except for trackers that the program itself uses."""
        own = (podfiles.read_json(self._report) or {}).get("trackers") or ()
        for name in self._waiting:
            if name in own:
                self.tell(f"The program sends its metrics to {choice.TITLES[name]} by itself; they are not sent twice.")
                continue
            try:
                target = _target(name, self._env, self._about)
            except Refused as error:
                self.tell(f"Metrics are not sent to {choice.TITLES[name]}: {error}.")
                continue
            lane = Lane(name, target, self, self._sent, is_first=self._about.attempt == 0)
            self._lanes.append(lane)
            lane.start()
        self._waiting = []

    def _read(self) -> list[tuple[int, MetricPoint]]:
        """Return the points of new complete lines, each with the offset of its line's end."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        points = []
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            self._offset += len(line)
            try:
                at, step, values = json.loads(line)
                numbers = {str(name): float(value) for name, value in values.items()}
                points.append((self._offset, MetricPoint(float(at), None if step is None else int(step), numbers)))
            except (ValueError, TypeError, AttributeError):  # a line that the program itself wrote into the file
                continue
        return points


class SentOffsets:
    """The file with the offset that each tracker has reached, at which a restarted exporter continues."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        known = podfiles.read_json(path)
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}

    def of(self, name: str) -> int:
        """Return the offset up to which a tracker has every point."""
        offset = self._known.get(name, 0)
        return offset if isinstance(offset, int) else 0

    def put(self, name: str, offset: int) -> None:
        """Store the offset up to which a tracker has every point; if that fails, some points are sent twice."""
        with self._lock:
            self._known[name] = offset
            try:
                podfiles.write_json(self._path, self._known, durably=False)
            except OSError:
                return


class Lane(threading.Thread):
    """One tracker: its queue, which drops the oldest points when full, and the thread that sends them."""

    def __init__(
        self, name: str, target: TrackerTarget, exporter: Exporter, sent: SentOffsets, *, is_first: bool
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._target = target
        self._exporter = exporter
        self._sent = sent
        self._is_first = is_first
        self._title = choice.TITLES[name]
        self._offset = sent.of(name)
        self._queue: deque[tuple[int, MetricPoint]] = deque()
        self._num_on_the_way = 0
        self._changed = threading.Condition()
        self._is_ending = False
        self._status: str | None = None
        self._num_lost = 0
        self._is_away = False
        self._is_begun = False
        self._is_given_up = False
        self._is_told = False

    def add(self, points: Sequence[tuple[int, MetricPoint]]) -> None:
        """Queue the points that the tracker does not have yet."""
        with self._changed:
            if self._is_given_up:
                return
            self._queue.extend(point for point in points if point[0] > self._offset)
            self._trim()
            self._changed.notify()

    def end(self, status: str | None) -> None:
        """Let the thread end once the queue is empty, with a short time-out for answers from now on."""
        with self._changed:
            self._target.hurry(AWAY_ANSWER_S if self._is_away else LAST_ANSWER_S)
            self._is_ending, self._status = True, status
            self._changed.notify()

    def account(self) -> None:
        """Report the number of points that were not sent, if any, once the thread has ended or is out of time."""
        with self._changed:
            num_lost = self._num_lost + len(self._queue) + self._num_on_the_way
            if num_lost and not self._is_given_up and not self._is_told:
                self._is_told = True
                points = "1 point" if num_lost == 1 else f"{num_lost} points"
                remedy = "`fairlead compare` has them"
                self._exporter.tell(f"{points} of the metrics did not get to {self._title}; {remedy}.")

    def run(self) -> None:
        """Send the queue's points until the lane is told to end."""
        wait_s = FIRST_WAIT_S
        while True:
            batch = self._next()
            try:
                self._try(batch)
            except Refused as error:
                self._give_up(f"Metrics are not sent to {self._title}: {error}.")
                return
            except Exception as error:  # noqa: BLE001 (a tracker's package may raise anything)
                self._put_back(batch)
                self._say_away(error)
                with self._changed:
                    if self._is_ending:
                        return
                    # New points do not shorten the wait; the end of the run does.
                    self._changed.wait_for(lambda: self._is_ending, wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                continue
            wait_s = FIRST_WAIT_S
            if not batch:
                return

    def _next(self) -> list[tuple[int, MetricPoint]]:
        """Return the next points; an empty list if the queue is empty and the lane is ending."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_ending)
            self._num_on_the_way = min(MOST_AT_ONCE, len(self._queue))
            return [self._queue.popleft() for _ in range(self._num_on_the_way)]

    def _try(self, batch: Sequence[tuple[int, MetricPoint]]) -> None:
        if not self._is_begun:
            where = self._target.begin()
            self._is_begun = True
            if self._is_first:
                self._exporter.tell(f"Metrics are sent to {self._title}: {where}")
        if batch:
            self._target.send([point for _, point in batch])
            self._num_on_the_way = 0
            self._sent.put(self.name, batch[-1][0])
        else:
            self._target.end(self._status)
        if self._is_away:
            self._is_away = False
            self._exporter.tell(f"{self._title} answers again.")

    def _put_back(self, batch: Sequence[tuple[int, MetricPoint]]) -> None:
        with self._changed:
            self._queue.extendleft(reversed(batch))
            self._num_on_the_way = 0
            self._trim()

    def _trim(self) -> None:
        while len(self._queue) > MOST_WAITING:
            self._queue.popleft()
            self._num_lost += 1

    def _say_away(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            why = " ".join(str(getattr(error, "reason", error)).split())[:200] or type(error).__name__
            consequence = f"up to {MOST_WAITING:,} points wait for it, and the run continues"
            self._exporter.tell(f"{self._title} does not answer: {why}; {consequence}.")

    def _give_up(self, message: str) -> None:
        with self._changed:
            self._is_given_up = True
            self._queue.clear()
        self._exporter.tell(message)


def _target(name: str, env: Mapping[str, str], about: About) -> TrackerTarget:
    if name == choice.MLFLOW:
        from fairlead.runtime.experiment_tracking.mlflow_target import MlflowTarget

        return MlflowTarget(env, about)
    if name == choice.WANDB:
        return WandbTarget(env, about)
    return TensorBoardTarget(env, about)


def _ending(status_fd: int) -> str | None:
    """Return the status written to a descriptor; None if it was closed without one, as by a killed shim."""
    return os.read(status_fd, 64).decode("ascii", "replace").strip() or None


if __name__ == "__main__":
    main()
