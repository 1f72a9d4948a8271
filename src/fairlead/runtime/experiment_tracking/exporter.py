"""Sends the metrics of one start of a run to its trackers: `PYTHON exporter.py`, beside the ranks of rank 0's pod.

It follows the file of rank 0's metrics, so the training never waits for it and knows nothing of it. Each tracker has a
thread and a bounded queue. How far each has got is kept in the pod's directory, and whoever starts this again goes on
there. The shim says on standard input how the run ended; what is left is then sent, within a few seconds.
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
    # Started by path: our own modules are found without running fairlead/__init__.py, and hide none of others'.
    del sys.path[0]
    _runtime = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for _name, _path in (("fairlead", os.path.dirname(_runtime)), ("fairlead.runtime", _runtime)):
        sys.modules[_name] = types.ModuleType(_name)
        sys.modules[_name].__path__ = [_path]
from fairlead.runtime import podfiles
from fairlead.runtime.experiment_tracking import choice
from fairlead.runtime.experiment_tracking.target import About, Point, Refused, read_about

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from fairlead.runtime.experiment_tracking.target import Target

SERIES = "rank-0.series.jsonl"
SENT = "export.json"
EVENTS = "rank-0.events.jsonl"
LOOK_EVERY_S = 1.0
MOST_WAITING = 10_000
MOST_AT_ONCE = 500
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
# Of all that is done once the ranks have ended; the shim waits a little longer.
END_S = 10.0
LAST_ANSWER_S = 9.0
# Of a tracker that did not answer before.
AWAY_ANSWER_S = 1.0


def main() -> None:
    """Follows the pod that the environment names, to its end."""
    env = dict(os.environ)
    pod_dir = env["FAIRLEAD_POD_DIR"]
    pod = podfiles.read_json(os.path.join(pod_dir, "pod.json")) or {}
    about = read_about(env, str(pod.get("command", "")))
    Exporter(pod_dir, env, about).follow(sys.stdin.fileno())
    # A thread that still waits for an answer is not waited for.
    os._exit(0)


class Exporter:
    """Reads points as they are written, and gives them to each tracker's lane."""

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

    def follow(self, said: int) -> None:
        """Until the descriptor says how the run ended, or is closed."""
        is_over = False
        while not is_over:
            is_over = bool(select.select([said], [], [], LOOK_EVERY_S)[0])
            self.look()
        self.look()
        self.end(_ending(said))

    def look(self) -> None:
        """Gives new points to the lanes; the first ones begin them."""
        points = self._read()
        if points and self._waiting:
            self._begin()
        for lane in self._lanes:
            lane.add(points)

    def end(self, status: str | None) -> None:
        """Lets every tracker have the rest, within a few seconds."""
        deadline = time.monotonic() + END_S
        for lane in self._lanes:
            lane.end(status)
        for lane in self._lanes:
            lane.join(max(0.0, deadline - time.monotonic()))
            lane.account()

    def tell(self, message: str) -> None:
        """Adds an event of the run; on a full disk it is lost."""
        line = json.dumps({"at": time.time(), "type": "MetricsExport", "message": message}) + "\n"
        try:
            with open(self._events, "ab", buffering=0) as file:
                file.write(line.encode())
        except OSError:
            return

    def _begin(self) -> None:
        """Makes the lanes, but for trackers that the program uses by itself."""
        own = (podfiles.read_json(self._report) or {}).get("trackers") or ()
        for name in self._waiting:
            if name in own:
                self.tell(f"The program sends its metrics to {choice.SAID[name]} by itself; they are not sent twice.")
                continue
            try:
                target = _target(name, self._env, self._about)
            except Refused as error:
                self.tell(f"Metrics are not sent to {choice.SAID[name]}: {error}.")
                continue
            lane = Lane(name, target, self, self._sent, is_first=self._about.attempt == 0)
            self._lanes.append(lane)
            lane.start()
        self._waiting = []

    def _read(self) -> list[tuple[int, Point]]:
        """The points of whole lines that are new, each with the offset of its line's end."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        found = []
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            self._offset += len(line)
            try:
                at, step, values = json.loads(line)
                numbers = {str(name): float(value) for name, value in values.items()}
                found.append((self._offset, Point(float(at), None if step is None else int(step), numbers)))
            except (ValueError, TypeError, AttributeError):  # a line that the program itself wrote there
                continue
        return found


class SentOffsets:
    """A file that says how far each tracker has got, so that another process goes on there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        known = podfiles.read_json(path)
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}

    def of(self, name: str) -> int:
        """Up to where a tracker has everything."""
        offset = self._known.get(name, 0)
        return offset if isinstance(offset, int) else 0

    def put(self, name: str, offset: int) -> None:
        """Keeps that a tracker has everything up to there; where it cannot be kept some is sent twice."""
        with self._lock:
            self._known[name] = offset
            try:
                podfiles.write_json(self._path, self._known, durably=False)
            except OSError:
                return


class Lane(threading.Thread):
    """One tracker: its queue, of which the oldest points are lost when it is full, and the thread that empties it."""

    def __init__(self, name: str, target: Target, exporter: Exporter, sent: SentOffsets, *, is_first: bool) -> None:
        super().__init__(name=name, daemon=True)
        self._target = target
        self._exporter = exporter
        self._sent = sent
        self._is_first = is_first
        self._said = choice.SAID[name]
        self._offset = sent.of(name)
        self._queue: deque[tuple[int, Point]] = deque()
        self._num_on_the_way = 0
        self._changed = threading.Condition()
        self._is_ending = False
        self._status: str | None = None
        self._num_lost = 0
        self._is_away = False
        self._is_begun = False
        self._is_given_up = False
        self._is_told = False

    def add(self, points: Sequence[tuple[int, Point]]) -> None:
        """Queues points that the tracker has not got."""
        with self._changed:
            if self._is_given_up:
                return
            self._queue.extend(each for each in points if each[0] > self._offset)
            self._trim()
            self._changed.notify()

    def end(self, status: str | None) -> None:
        """Lets the thread end once the queue is empty; no answer is waited for long any more."""
        with self._changed:
            self._target.hurry(AWAY_ANSWER_S if self._is_away else LAST_ANSWER_S)
            self._is_ending, self._status = True, status
            self._changed.notify()

    def account(self) -> None:
        """Tells what the tracker will never get, if there is any; once the thread has ended or is out of time."""
        with self._changed:
            num_lost = self._num_lost + len(self._queue) + self._num_on_the_way
            if num_lost and not self._is_given_up and not self._is_told:
                self._is_told = True
                points = "1 point" if num_lost == 1 else f"{num_lost} points"
                kept = "`fairlead compare` has them"
                self._exporter.tell(f"{points} of the metrics did not get to {self._said}; {kept}.")

    def run(self) -> None:
        """Empties the queue until it is to end."""
        wait_s = FIRST_WAIT_S
        while True:
            batch = self._next()
            try:
                self._try(batch)
            except Refused as error:
                self._give_up(f"Metrics are not sent to {self._said}: {error}.")
                return
            except Exception as error:  # noqa: BLE001 (a tracker's package raises what it likes)
                self._put_back(batch)
                self._say_away(error)
                with self._changed:
                    if self._is_ending:
                        return
                    # New points are no reason to ask sooner, the end is.
                    self._changed.wait_for(lambda: self._is_ending, wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                continue
            wait_s = FIRST_WAIT_S
            if not batch:
                return

    def _next(self) -> list[tuple[int, Point]]:
        """The next points; none when the queue is empty and is to stay so."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_ending)
            self._num_on_the_way = min(MOST_AT_ONCE, len(self._queue))
            return [self._queue.popleft() for _ in range(self._num_on_the_way)]

    def _try(self, batch: Sequence[tuple[int, Point]]) -> None:
        if not self._is_begun:
            where = self._target.begin()
            self._is_begun = True
            if self._is_first:
                self._exporter.tell(f"Metrics are sent to {self._said}: {where}")
        if batch:
            self._target.send([point for _, point in batch])
            self._num_on_the_way = 0
            self._sent.put(self.name, batch[-1][0])
        else:
            self._target.end(self._status)
        if self._is_away:
            self._is_away = False
            self._exporter.tell(f"{self._said} answers again.")

    def _put_back(self, batch: Sequence[tuple[int, Point]]) -> None:
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
            kept = f"up to {MOST_WAITING:,} points wait for it, and the run goes on"
            self._exporter.tell(f"{self._said} does not answer: {why}; {kept}.")

    def _give_up(self, message: str) -> None:
        with self._changed:
            self._is_given_up = True
            self._queue.clear()
        self._exporter.tell(message)


def _target(name: str, env: Mapping[str, str], about: About) -> Target:
    if name == choice.MLFLOW:
        from fairlead.runtime.experiment_tracking.mlflow_target import MlflowTarget

        return MlflowTarget(env, about)
    if name == choice.WANDB:
        from fairlead.runtime.experiment_tracking.wandb_target import WandbTarget

        return WandbTarget(env, about)
    from fairlead.runtime.experiment_tracking.tensorboard_target import TensorBoardTarget

    return TensorBoardTarget(env, about)


def _ending(said: int) -> str | None:
    """The word on a descriptor; None when it was closed without one, as by a shim that was killed."""
    return os.read(said, 64).decode("ascii", "replace").strip() or None


if __name__ == "__main__":
    main()
