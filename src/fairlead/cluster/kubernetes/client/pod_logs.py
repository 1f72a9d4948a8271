"""The output of a run's ranks: the logs of its pods' containers, and the output kept of deleted pods.

kubelet writes the time before each line, and the pod's shim the rank: ``2026-01-31T12:00:00.5Z 3| text``, with ``!``
for standard error. A pod's log exists as long as its object and its node.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from queue import Empty, SimpleQueue

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object, Unreachable
from fairlead.cluster.kubernetes.api.pod_owner import is_pod_of
from fairlead.cluster.kubernetes.client.kept_output import KeptOutput
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.workloads.kept_logs import Place, kept_lines, kept_why
from fairlead.cluster.kubernetes.workloads.log_lines import parse
from fairlead.cluster.output import COUNTS, NOTE, Dropped, Gaps, LogQuery, Watermark
from fairlead.cluster.port import LogLine
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

LOOK_S = 2.0
LOOK_SOON_S = 0.2  # while a reader waits for output before an event
STREAM_S = 0.1
"""Seconds after which output that kubelet has read has arrived here."""
RETRY_S = 1.0
SILENT_S = 300.0
"""Seconds of silence after which the connection is opened again; a program may be silent for long."""
MOST_LINE_BYTES = 16 << 20
DRAIN_S = 5.0
KEPT_S = 10.0
"""Seconds within which the operator has kept the output of a pod that is gone, however busy it is."""
REST_S = 3.0
"""Seconds that a follower waits for that at the end."""
MOST_STREAMS = 128
NUM_READERS = 16
MOST_TAIL = 200_000
BEGINNING_BYTES = 64 * 1024  # which contain counts, if there are any
KUBELET = "the node's kubelet keeps the newest file of a log (containerLogMaxSize, 10Mi by default)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPod:
    """A pod that has, or will have, a log, with the container of that log."""

    name: str
    container: str
    attempt: int
    index: int
    has_started: bool
    is_over: bool


@dataclass(slots=True, kw_only=True)
class Mark:
    """A position in a pod's log: nanoseconds of the last line read, and the number of lines with exactly that time."""

    at_ns: int = -1
    count: int = 0
    skipped: int = 0

    def is_new(self, at_ns: int) -> bool:
        """Return whether a line is new; kubelet resumes at a whole second, with lines that were already read."""
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
        """Return the ``sinceTime`` at which to resume; None for the beginning."""
        self.skipped = 0
        if self.at_ns < 0:
            return None
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at_ns // 10**9))


class PodLogs:
    """The logs of one run.

    Args:
        query: The lines to return.
        store: Store of the output of deleted pods; None if there is none.
        since: Creation time of the run in Unix seconds.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        uid: str,
        query: LogQuery,
        *,
        ranks_per_pod: int,
        store: KeptOutput | None = None,
        since: float = 0.0,
    ) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{segment(namespace)}/pods"
        self._namespace, self._uid = namespace, uid
        self._query = query
        self._store, self._since = store, since
        self._indexes = None if query.ranks is None else {rank // ranks_per_pod for rank in query.ranks}
        self._marks: dict[str, Mark] = {}
        self._names: dict[Place, str] = {}  # of the pods that were read
        self._gaps: dict[str, Gaps] = {}
        self._gone: dict[Place, str] = {}
        self._passed: set[str] = set()  # pods of attempts before the one with the last lines
        self._oldest = 0  # the attempt with the first of the last lines
        self._found_kept: set[Place] = set()
        self._kept_marks: dict[Place, Mark] = {}  # of output that was kept of pods never read here
        self._missed_at: dict[int, float] = {}  # when an attempt was noticed of which nothing had been read
        self._largest = 0

    def all(self) -> Iterator[LogLine]:
        """Yield the present lines by attempt and time; an attempt is read when it is its turn."""
        pods, stored = self._places()
        attempts = sorted({place[0] for place in (*pods, *stored)})
        if self._query.tail is not None:
            yield from self._last(attempts[::-1], pods, stored, self._query.tail)
            return
        for attempt in attempts:
            yield from heapq.merge(*self._of(attempt, pods, stored, None), key=_at)

    def dropped(self) -> tuple[Dropped, ...]:
        """Return the missing lines, as far as the beginnings of logs show them."""
        pods, stored = self._places()
        gaps: list[Dropped] = []
        for (attempt, _), text in ((place, text) for place, text in stored.items() if place not in pods):
            gaps.extend(_first_gap(text.split("\n"), attempt, kept_why(text)))
        newest = [pods[place] for place in sorted(pods, reverse=True)[:NUM_READERS]]
        with ThreadPoolExecutor(NUM_READERS) as readers:
            for pod, text in zip(newest, readers.map(self._beginning, newest), strict=True):
                gaps.extend(_first_gap(text.split("\n"), pod.attempt, KUBELET))
        return tuple(gaps)

    def follow(
        self,
        over: Callable[[], bool],
        watermark: Watermark | None = None,
        num_started: Callable[[], int] = lambda: 0,
    ) -> Iterator[LogLine]:
        """Yield the present lines and then new ones, until ``over`` is true and everything is read.

        Args:
            num_started: Returns how many attempts of the run have started, once it is final; 0 before. The output of
                one whose pods came and went unseen is awaited for a short time.
        """
        yield from self.all()
        # A number among the lines: all output present at this Unix time has been read.
        lines: SimpleQueue[LogLine | float] = SimpleQueue()
        readers: dict[str, threading.Thread] = {name: threading.Thread() for name in self._passed}
        stopping = threading.Event()
        looked_at, over_at, told_at = 0.0, None, 0.0
        ended: list[str] = []
        try:
            while True:
                is_wanted = watermark is not None and watermark.wanted > looked_at
                if time.time() - looked_at > (LOOK_SOON_S if is_wanted else LOOK_S):
                    looked_at = time.time()
                    # Evaluated before the pods are listed, so that output written by then is read before the end.
                    over_at = looked_at if over_at is None and (over() or self._is_past(looked_at)) else over_at
                    listed = self._pods()
                    yield from self._missed(listed, looked_at)
                    pods = [pod for pod in listed if pod.has_started]
                    ended = [pod.name for pod in pods if pod.is_over]
                    self._begin(pods, readers, lines, stopping)
                is_read = not any(readers[name].is_alive() for name in ended if name in readers)
                if is_read and told_at < looked_at and time.time() - looked_at > STREAM_S:
                    told_at = looked_at
                    lines.put(looked_at)
                try:
                    line = lines.get(timeout=0.2)
                except Empty:
                    late = [name for name, reader in readers.items() if reader.is_alive()]
                    if over_at is not None and (not late or time.time() - over_at > DRAIN_S):
                        yield from self._rest()
                        if time.time() - over_at < REST_S and (self._unread(num_started()) or self._is_kept_awaited()):
                            continue
                        if over() and late:
                            yield _note(0, f"the end of the output of {', '.join(late[:3])} could not be read in time")
                        return
                    continue
                if isinstance(line, LogLine):
                    yield line
                elif watermark is not None:
                    watermark.reached = line
        finally:
            stopping.set()

    def _begin(
        self,
        pods: Iterable[LoggedPod],
        readers: dict[str, threading.Thread],
        lines: "SimpleQueue[LogLine | float]",
        stopping: threading.Event,
    ) -> None:
        """Start a reader for each pod without one whose log may have grown since it was read."""
        for pod in pods:
            if pod.name in readers:
                continue
            if sum(reader.is_alive() for reader in readers.values()) >= MOST_STREAMS:
                if f"more {pod.attempt}" not in readers:
                    readers[f"more {pod.attempt}"] = threading.Thread()
                    text = f"only {MOST_STREAMS} pods are followed at once; choose one with --rank"
                    lines.put(_note(pod.attempt, text))
                return
            self._marks.setdefault(pod.name, Mark())
            self._names[pod.attempt, pod.index] = pod.name
            reader = threading.Thread(target=self._stream, args=(pod, lines, stopping), daemon=True)
            readers[pod.name] = reader
            reader.start()

    def _stream(self, pod: LoggedPod, lines: "SimpleQueue[LogLine | float]", stopping: threading.Event) -> None:
        mark = self._marks[pod.name]
        gaps = self._gaps.setdefault(pod.name, Gaps(pod.attempt, KUBELET, whole=self._query.since is None))
        while not stopping.is_set():
            query = {**self._common(pod), "follow": "true"}
            since = mark.again()
            if since is not None:
                query["sinceTime"] = since
            is_last = self._is_over(pod)
            try:
                path = f"{self._path}/{segment(pod.name)}/log"
                with self._client.stream(path, query, idle_s=SILENT_S, most_line_bytes=MOST_LINE_BYTES) as stream:
                    for raw in stream:
                        for line in self._new([raw.decode(errors="replace")], pod.attempt, mark):
                            for log_line in (*(dropped.line(line.at) for dropped in gaps.take(line)), line):
                                if log_line.stream != COUNTS and self._query.is_wanted(log_line):
                                    lines.put(log_line)
                        if stopping.is_set():
                            return
            except Unreachable:
                # Silence or a broken connection: resume at the mark.
                is_last = False
            except ApiError as error:
                if error.status == 404:
                    self._gone[pod.attempt, pod.index] = pod.name
                    return
                is_last = is_last or error.status == 403
            if is_last or stopping.wait(RETRY_S):
                return

    def _is_over(self, pod: LoggedPod) -> bool:
        """Return whether its ranks have ended, so that the log is complete."""
        try:
            return _logged(self._client.get(f"{self._path}/{segment(pod.name)}", patience_s=5.0)).is_over
        except ApiError as error:
            return error.status == 404
        except ClusterError:
            return False

    def _places(self) -> tuple[dict[Place, LoggedPod], dict[Place, str]]:
        """Return the pods that have a log, and the output kept of pods, by attempt and index."""
        pods = {(pod.attempt, pod.index): pod for pod in self._pods() if pod.has_started}
        stored = self._stored_output(pods)
        return pods, {place: text for place, text in stored.items() if self._is_wanted(*place)}

    def _stored_output(self, pods: Mapping[Place, LoggedPod]) -> dict[Place, str]:
        """Return the kept output of pods, by attempt and index: the operator's last lines, or all lines of a store."""
        stored = kept_lines(self._client, self._namespace, self._uid)
        if self._store is None:
            return stored
        query, now = self._query, time.time()
        try:
            until = now if query.until is None else min(now, query.until)
            store_lines = self._store.lines(self._uid, self._since if query.since is None else query.since, until)
        except ClusterError as error:
            note = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%S.%fZ} -| fairlead: {error}\n"
            first = next((place for place in sorted(stored) if place not in pods), None)
            return stored if first is None else {**stored, first: stored[first].rstrip("\n") + "\n" + note}
        # The store's output is complete; for pods that it does not have, the last lines are used.
        return {**stored, **{place: text for place, text in store_lines.items() if place not in pods}}

    def _of(
        self, attempt: int, pods: Mapping[Place, LoggedPod], stored: Mapping[Place, str], tail: int | None
    ) -> list[Iterator[LogLine]]:
        """Return the lines of each pod of an attempt; with a number at least that many of the last ones."""
        attempt_pods = [pod for place, pod in pods.items() if place[0] == attempt]
        streams: list[Iterator[LogLine]] = []
        self._largest = 0
        with ThreadPoolExecutor(NUM_READERS) as readers:
            texts = list(readers.map(lambda pod: self._text(pod, tail), attempt_pods))
        unread = []
        for pod, text in zip(attempt_pods, texts, strict=True):
            place = pod.attempt, pod.index
            if isinstance(text, LogLine):
                if place not in stored:
                    streams.append(iter((text,)))
                unread.append(place)
                continue
            mark = self._marks[pod.name] = Mark()
            self._names[place] = pod.name
            is_whole = self._query.since is None and (tail is None or text.count("\n") < tail)
            gaps = self._gaps[pod.name] = Gaps(attempt, KUBELET, whole=is_whole)
            streams.append(self._wanted(gaps.noted(self._new(text.split("\n"), attempt, mark))))
        for place, text in stored.items():
            if place[0] == attempt and (place not in pods or place in unread):
                gaps = Gaps(attempt, kept_why(text), whole=True)
                mark = self._kept_marks[place] = Mark()
                streams.append(self._wanted(gaps.noted(self._new(text.split("\n"), attempt, mark))))
        return streams

    def _last(
        self, newest_first: list[int], pods: Mapping[Place, LoggedPod], stored: Mapping[Place, str], tail: int
    ) -> list[LogLine]:
        """Return the last of the present lines, in order."""
        collected: list[LogLine] = []
        for number, attempt in enumerate(newest_first):
            num_lines = tail
            while True:
                # Unwanted lines and counts may be among them.
                lines = heapq.merge(
                    *self._of(attempt, pods, stored, num_lines if num_lines < MOST_TAIL else None), key=_at
                )
                last = deque(lines, maxlen=tail - len(collected))
                if len(last) == tail - len(collected) or num_lines >= MOST_TAIL or self._largest < num_lines:
                    break
                num_lines *= 8
            collected = [*last, *collected]
            if len(collected) >= tail:
                older = set(newest_first[number + 1 :])
                self._passed = {pod.name for pod in pods.values() if pod.attempt in older}
                self._oldest = attempt
                break
        return collected

    def _text(self, pod: LoggedPod, tail: int | None) -> str | LogLine:
        """Return a pod's log or its end; a line with the reason if it cannot be read."""
        query = self._common(pod) if tail is None else {**self._common(pod), "tailLines": str(tail)}
        try:
            text = self._client.text(f"{self._path}/{segment(pod.name)}/log", query)
        except ApiError as error:
            if error.status == 403:
                raise
            if error.status == 404:
                self._gone[pod.attempt, pod.index] = pod.name
            return _note(pod.attempt, f"the log of pod {pod.name} cannot be read: {error.server_message}")
        self._largest = max(self._largest, text.count("\n"))
        return text

    def _beginning(self, pod: LoggedPod) -> str:
        try:
            return self._client.text(
                f"{self._path}/{segment(pod.name)}/log", {**_query(pod), "limitBytes": str(BEGINNING_BYTES)}
            )
        except ClusterError:  # its node is gone, or the right is missing: nothing is known
            return ""

    def _missed(self, listed: Iterable[LoggedPod], now: float) -> Iterator[LogLine]:
        """Yield the kept output of attempts that are over, and whose pods came and went between two looks."""
        newest = max((pod.attempt for pod in listed), default=0)
        unread = self._unread(newest)
        for attempt in unread:
            self._missed_at.setdefault(attempt, now)
        if any(now - self._missed_at[attempt] < KEPT_S for attempt in unread):
            yield from self._rest(before=newest)

    def _unread(self, num_attempts: int) -> list[int]:
        """Return the attempts, of so many, of which nothing was read."""
        read = {place[0] for place in (*self._names, *self._kept_marks)}
        wanted = self._query.attempt
        return [
            attempt
            for attempt in range(self._oldest, num_attempts)
            if attempt not in read and wanted in (None, attempt)
        ]

    def _is_kept_awaited(self) -> bool:
        """Return whether the output of a pod that went while it was read is not kept yet."""
        return not self._found_kept.issuperset(self._gone)

    def _rest(self, before: int | None = None) -> Iterator[LogLine]:
        """Yield the unread kept output of pods that are gone; only of attempts before a number, if one is given."""
        present = {(pod.attempt, pod.index): pod for pod in self._pods()}
        for place, text in sorted(self._stored_output(present).items()):
            attempt, name = place[0], self._gone.get(place)
            self._found_kept.add(place)
            is_passed = attempt < self._oldest or (before is not None and attempt >= before)
            if is_passed or not self._is_wanted(*place) or (name is None and place in self._names):
                continue
            if name is None or place in self._kept_marks:
                mark = self._kept_marks.setdefault(place, Mark())
            else:
                mark = self._marks.setdefault(name, Mark())
            mark.again()
            gaps = self._gaps.setdefault(name or f"{place}", Gaps(attempt, kept_why(text), whole=True))
            yield from self._wanted(gaps.noted(self._new(text.split("\n"), attempt, mark)))

    def _common(self, pod: LoggedPod) -> dict[str, str]:
        if self._query.since is None:
            return _query(pod)
        return {**_query(pod), "sinceTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._query.since))}

    def _wanted(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        return (line for line in lines if self._query.is_wanted(line))

    def _new(self, raws: Iterable[str], attempt: int, mark: Mark) -> Iterator[LogLine]:
        """Yield lines that were not read before, including counts."""
        for raw in raws:
            parsed = parse(raw, attempt)
            if parsed is not None:
                if mark.is_new(parsed[0]):
                    yield parsed[1]
            elif raw:
                # kubelet's own messages, such as that a file is gone.
                yield replace(_note(attempt, raw), at=max(0.0, mark.at_ns / 1e9) or time.time())

    def _is_past(self, now: float) -> bool:
        return self._query.until is not None and now > self._query.until

    def _pods(self) -> list[LoggedPod]:
        """Return the pods that may have wanted lines, in order."""
        content = self._client.items(self._path, {"labelSelector": f"{names.RUN_UID}={self._uid}"})
        own = (pod for pod in content if is_pod_of(pod["metadata"], self._uid))
        pods = sorted((_logged(pod) for pod in own), key=lambda pod: (pod.attempt, pod.index))
        return [pod for pod in pods if self._is_wanted(pod.attempt, pod.index)]

    def _is_wanted(self, attempt: int, index: int) -> bool:
        return self._query.attempt in (None, attempt) and (self._indexes is None or index in self._indexes)


def _first_gap(raws: Iterable[str], attempt: int, why: str) -> tuple[Dropped, ...]:
    gaps = Gaps(attempt, why, whole=True)
    for raw in raws:
        parsed = parse(raw, attempt)
        if parsed is not None:
            dropped = gaps.take(parsed[1])
            if parsed[1].stream == COUNTS:
                return dropped
    return ()


def _note(attempt: int, text: str) -> LogLine:
    return LogLine(at=time.time(), attempt=attempt, rank=-1, stream=NOTE, text=text)


_at: Callable[[LogLine], float] = attrgetter("at")


def _logged(content: Object) -> LoggedPod:
    metadata, status = content["metadata"], content.get("status") or {}
    labels = metadata.get("labels") or {}
    states = {
        container_status["name"]: container_status.get("state") or {}
        for container_status in status.get("containerStatuses") or ()
    }
    container = names.container_of(labels.get(names.ENGINE))
    state = states.get(container) or {}
    return LoggedPod(
        name=metadata["name"],
        container=container,
        attempt=int(labels.get(names.ATTEMPT) or 0),
        index=names.index_in_gang(labels),
        has_started="running" in state or "terminated" in state,
        is_over="terminated" in state or status.get("phase") in ("Succeeded", "Failed"),
    )


def _query(pod: LoggedPod) -> dict[str, str]:
    return {"container": pod.container, "timestamps": "true"}
