"""The output of a run's ranks: the logs of its pods' containers, and what the operator kept of pods that are gone.

kubelet puts the time before each line and the pod's shim the rank: ``2026-01-31T12:00:00.5Z 3| text``, with ``!`` for
standard error. A pod's log is there as long as its object and its node are.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from queue import Empty, SimpleQueue

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object, Unreachable
from fairlead.cluster.kubernetes.operating.lastlines import kept_lines
from fairlead.cluster.output import LogQuery, Watermark
from fairlead.cluster.port import LogLine
from fairlead.errors import ClusterError
from fairlead.specs.overlay import RANKS

LOOK_S = 2.0
RETRY_S = 1.0
SILENT_S = 300.0
"""A program may say nothing for long; the connection is then made anew."""
DRAIN_S = 5.0
MOST_STREAMS = 128
NUM_READERS = 16

_LINE = re.compile(r"(\S+?)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) (?:(\d{1,6}|-)([|!]) ?)?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPod:
    """A pod that has, or will have, a log."""

    name: str
    attempt: int
    index: int
    has_started: bool
    is_over: bool


@dataclass(slots=True, kw_only=True)
class Mark:
    """How far a pod's log was read: nanoseconds of the last line, and how many lines have just that time."""

    at_ns: int = -1
    count: int = 0
    skipped: int = 0

    def is_new(self, at_ns: int) -> bool:
        """Whether a line goes beyond; kubelet starts again at a whole second, with lines that were read before."""
        if at_ns < self.at_ns:
            return False
        if at_ns == self.at_ns:
            if self.skipped < self.count:
                self.skipped += 1
                return False
            self.count += 1
            self.skipped = self.count
            return True
        self.at_ns, self.count, self.skipped = at_ns, 1, 1
        return True

    def again(self) -> str | None:
        """``sinceTime`` to go on from; None for the beginning."""
        self.skipped = 0
        if self.at_ns < 0:
            return None
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at_ns // 10**9))


class PodLogs:
    """The logs of one run.

    Args:
        query: Which lines.
    """

    def __init__(self, client: Client, namespace: str, uid: str, query: LogQuery, *, ranks_per_pod: int) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._namespace, self._uid = namespace, uid
        self._query = query
        self._indexes = None if query.ranks is None else {rank // ranks_per_pod for rank in query.ranks}
        self._marks: dict[str, Mark] = {}

    def all(self) -> Iterator[LogLine]:
        """What there is now, by starts and time."""
        pods = [pod for pod in self._pods() if pod.has_started]
        with ThreadPoolExecutor(NUM_READERS) as readers:
            read = dict(zip(((pod.attempt, pod.index) for pod in pods), readers.map(self._whole, pods), strict=True))
        for place, text in kept_lines(self._client, self._namespace, self._uid).items():
            if self._is_wanted(*place) and not isinstance(read.get(place), list):
                read[place] = list(self._lines(text.splitlines(), place[0], Mark()))
        found = [line for lines in read.values() for line in (lines if isinstance(lines, list) else [lines])]
        lines = sorted(found, key=lambda line: (line.attempt, line.at))
        yield from lines if self._query.tail is None else lines[-self._query.tail :]

    def follow(self, over: Callable[[], bool], watermark: Watermark | None = None) -> Iterator[LogLine]:
        """What there is, and then what comes, until ``over`` and everything is read."""
        yield from self.all()
        lines: SimpleQueue[LogLine] = SimpleQueue()
        readers: dict[str, threading.Thread] = {}
        stopping = threading.Event()
        looked_at, over_at = 0.0, None
        try:
            while True:
                if time.monotonic() - looked_at > LOOK_S:
                    # Asked before the pods are: what they have said by then is read before the end.
                    over_at = time.monotonic() if over_at is None and over() else over_at
                    self._begin([pod for pod in self._pods() if pod.has_started], readers, lines, stopping)
                    looked_at = time.monotonic()
                try:
                    yield lines.get(timeout=0.2)
                except Empty:
                    is_drained = not any(reader.is_alive() for reader in readers.values()) and lines.empty()
                    if over_at is not None and (is_drained or time.monotonic() - over_at > DRAIN_S):
                        return
        finally:
            stopping.set()

    def _begin(
        self,
        pods: Iterable[LoggedPod],
        readers: dict[str, threading.Thread],
        lines: "SimpleQueue[LogLine]",
        stopping: threading.Event,
    ) -> None:
        """A reader for each pod that has none, and whose log may have grown since it was read whole."""
        for pod in pods:
            if pod.name in readers:
                continue
            if sum(reader.is_alive() for reader in readers.values()) >= MOST_STREAMS:
                if f"more {pod.attempt}" not in readers:
                    readers[f"more {pod.attempt}"] = threading.Thread()
                    text = f"only {MOST_STREAMS} pods are followed at once; choose one with --rank"
                    lines.put(LogLine(at=time.time(), attempt=pod.attempt, rank=-1, stream="e", text=text))
                return
            reader = threading.Thread(target=self._stream, args=(pod, lines, stopping), daemon=True)
            readers[pod.name] = reader
            reader.start()

    def _stream(self, pod: LoggedPod, lines: "SimpleQueue[LogLine]", stopping: threading.Event) -> None:
        mark = self._marks.setdefault(pod.name, Mark())
        while not stopping.is_set():
            query = {**_QUERY, "follow": "true"}
            since = mark.again()
            if since is not None:
                query["sinceTime"] = since
            is_last = self._is_over(pod)
            try:
                with self._client.stream(f"{self._path}/{pod.name}/log", query, idle_s=SILENT_S) as stream:
                    for raw in stream:
                        for line in self._lines([raw.decode(errors="replace")], pod.attempt, mark):
                            lines.put(line)
                        if stopping.is_set():
                            return
            except Unreachable:
                # Silence or a broken connection: go on from where it was.
                is_last = False
            except ApiError as error:
                if error.status == 404:
                    return
                is_last = is_last or error.status == 403
            if is_last or stopping.wait(RETRY_S):
                return

    def _is_over(self, pod: LoggedPod) -> bool:
        """Whether its ranks have ended, so that the log is complete."""
        try:
            return _logged(self._client.get(f"{self._path}/{pod.name}", patience_s=5.0)).is_over
        except ApiError as error:
            return error.status == 404
        except ClusterError:
            return False

    def _whole(self, pod: LoggedPod) -> list[LogLine] | LogLine:
        """All lines of a pod; a single one, that says so, when they cannot be read."""
        mark = self._marks.setdefault(pod.name, Mark())
        try:
            text = self._client.text(f"{self._path}/{pod.name}/log", dict(_QUERY))
        except ApiError as error:
            if error.status == 403:
                raise
            said = f"the log of pod {pod.name} cannot be read: {error.said}"
            return LogLine(at=time.time(), attempt=pod.attempt, rank=-1, stream="e", text=said)
        return list(self._lines(text.splitlines(), pod.attempt, mark))

    def _lines(self, raws: Iterable[str], attempt: int, mark: Mark) -> Iterator[LogLine]:
        for raw in raws:
            parsed = parse(raw, attempt)
            if parsed is not None and mark.is_new(parsed[0]) and self._query.is_wanted(parsed[1]):
                yield parsed[1]

    def _pods(self) -> list[LoggedPod]:
        """The pods that may have what is wanted, in order."""
        content = self._client.items(self._path, {"labelSelector": f"{names.RUN_UID}={self._uid}"})
        pods = sorted((_logged(each) for each in content), key=lambda pod: (pod.attempt, pod.index))
        return [pod for pod in pods if self._is_wanted(pod.attempt, pod.index)]

    def _is_wanted(self, attempt: int, index: int) -> bool:
        return self._query.attempt in (None, attempt) and (self._indexes is None or index in self._indexes)


def parse(raw: str, attempt: int) -> tuple[int, LogLine] | None:
    """Nanoseconds and the line that kubelet gave; None when it has no time before it.

    What the shim did not write, such as an interpreter that cannot start, is the pod's own: rank -1.
    """
    match = _LINE.fullmatch(raw)
    if match is None:
        return None
    base, fraction, zone, rank, mark, text = match.groups()
    try:
        second, part_ns = _second(base, zone), int((fraction or "").ljust(9, "0"))
    except ValueError:
        return None
    number = int(rank) if rank is not None and rank.isdigit() else -1
    stream = "e" if mark == "!" else "o"
    at = second + part_ns / 1e9
    return second * 10**9 + part_ns, LogLine(at=at, attempt=attempt, rank=number, stream=stream, text=text)


@lru_cache(maxsize=256)
def _second(base: str, zone: str) -> int:
    return int(datetime.fromisoformat(f"{base}{zone}").timestamp())


def _logged(content: Object) -> LoggedPod:
    metadata, status = content["metadata"], content.get("status") or {}
    labels = metadata.get("labels") or {}
    states = {each["name"]: each.get("state") or {} for each in status.get("containerStatuses") or ()}
    state = states.get(RANKS) or {}
    return LoggedPod(
        name=metadata["name"],
        attempt=int(labels.get(names.ATTEMPT) or 0),
        index=int(labels.get(names.INDEX) or 0),
        has_started="running" in state or "terminated" in state,
        is_over="terminated" in state or status.get("phase") in ("Succeeded", "Failed"),
    )


_QUERY = {"container": RANKS, "timestamps": "true"}
