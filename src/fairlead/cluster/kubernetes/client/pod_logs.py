"""The output of a run's ranks: the logs of its pods' containers, and what the operator kept of pods that are gone.

kubelet puts the time before each line and the pod's shim the rank: ``2026-01-31T12:00:00.5Z 3| text``, with ``!`` for
standard error. A pod's log is there as long as its object and its node are.
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
from fairlead.cluster.kubernetes.client.kept_output import KeptOutput
from fairlead.cluster.kubernetes.operator.runs.log_archive import Place, kept_lines, kept_why
from fairlead.cluster.kubernetes.operator.runs.log_lines import parse
from fairlead.cluster.output import COUNTS, NOTE, Dropped, Gaps, LogQuery, Watermark
from fairlead.cluster.port import LogLine
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

LOOK_S = 2.0
LOOK_SOON_S = 0.2  # where somebody waits for the output before an event
STREAM_S = 0.1
"""What kubelet has read is here by then."""
RETRY_S = 1.0
SILENT_S = 300.0
"""A program may say nothing for long; the connection is then made anew."""
DRAIN_S = 5.0
MOST_STREAMS = 128
NUM_READERS = 16
MOST_TAIL = 200_000
BEGINNING_BYTES = 64 * 1024  # in which there are counts, if there are any
KUBELET = "the node's kubelet keeps the newest file of a log (containerLogMaxSize, 10Mi where nobody set it)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPod:
    """A pod that has, or will have, a log; that of one container."""

    name: str
    container: str
    attempt: int
    index: int
    has_started: bool
    is_over: bool


@dataclass(slots=True, kw_only=True)
class Mark:
    """A position in a pod's log: nanoseconds of the last line read, and how many lines have just that time."""

    at_ns: int = -1
    count: int = 0
    skipped: int = 0

    def is_new(self, at_ns: int) -> bool:
        """Return whether a line goes beyond; kubelet starts again at a whole second, with lines that were read
        before."""
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
        store: Where all output of pods that are gone is; None where nobody keeps it.
        since: From when the run has been there, a Unix time.
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
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._namespace, self._uid = namespace, uid
        self._query = query
        self._store, self._since = store, since
        self._indexes = None if query.ranks is None else {rank // ranks_per_pod for rank in query.ranks}
        self._marks: dict[str, Mark] = {}
        self._gaps: dict[str, Gaps] = {}
        self._gone: dict[Place, str] = {}
        self._passed: set[str] = set()  # pods before those in which the last lines are
        self._largest = 0

    def all(self) -> Iterator[LogLine]:
        """Yield what there is now, by starts and time; a start is read when it is its turn."""
        pods, kept = self._places()
        attempts = sorted({place[0] for place in (*pods, *kept)})
        if self._query.tail is not None:
            yield from self._last(attempts[::-1], pods, kept, self._query.tail)
            return
        for attempt in attempts:
            yield from heapq.merge(*self._of(attempt, pods, kept, None), key=_at)

    def dropped(self) -> tuple[Dropped, ...]:
        """List what is missing, as far as the beginnings of logs tell."""
        pods, kept = self._places()
        found: list[Dropped] = []
        for (attempt, _), text in ((place, text) for place, text in kept.items() if place not in pods):
            found.extend(_first_gap(text.split("\n"), attempt, kept_why(text)))
        newest = [pods[place] for place in sorted(pods, reverse=True)[:NUM_READERS]]
        with ThreadPoolExecutor(NUM_READERS) as readers:
            for pod, text in zip(newest, readers.map(self._beginning, newest), strict=True):
                found.extend(_first_gap(text.split("\n"), pod.attempt, KUBELET))
        return tuple(found)

    def follow(self, over: Callable[[], bool], watermark: Watermark | None = None) -> Iterator[LogLine]:
        """Yield what there is, and then what comes, until ``over`` and everything is read."""
        yield from self.all()
        # A number among the lines: all that was there at this Unix time has been read.
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
                    # Asked before the pods are: what they have said by then is read before the end.
                    over_at = looked_at if over_at is None and (over() or self._is_past(looked_at)) else over_at
                    pods = [pod for pod in self._pods() if pod.has_started]
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
        """A reader for each pod that has none, and whose log may have grown since it was read whole."""
        for pod in pods:
            if pod.name in readers:
                continue
            if sum(reader.is_alive() for reader in readers.values()) >= MOST_STREAMS:
                if f"more {pod.attempt}" not in readers:
                    readers[f"more {pod.attempt}"] = threading.Thread()
                    text = f"only {MOST_STREAMS} pods are followed at once; choose one with --rank"
                    lines.put(_note(pod.attempt, text))
                return
            reader = threading.Thread(target=self._stream, args=(pod, lines, stopping), daemon=True)
            readers[pod.name] = reader
            reader.start()

    def _stream(self, pod: LoggedPod, lines: "SimpleQueue[LogLine | float]", stopping: threading.Event) -> None:
        mark = self._marks.setdefault(pod.name, Mark())
        gaps = self._gaps.setdefault(pod.name, Gaps(pod.attempt, KUBELET, whole=self._query.since is None))
        while not stopping.is_set():
            query = {**self._common(pod), "follow": "true"}
            since = mark.again()
            if since is not None:
                query["sinceTime"] = since
            is_last = self._is_over(pod)
            try:
                with self._client.stream(f"{self._path}/{pod.name}/log", query, idle_s=SILENT_S) as stream:
                    for raw in stream:
                        for line in self._new([raw.decode(errors="replace")], pod.attempt, mark):
                            for each in (*(dropped.line(line.at) for dropped in gaps.take(line)), line):
                                if each.stream != COUNTS and self._query.is_wanted(each):
                                    lines.put(each)
                        if stopping.is_set():
                            return
            except Unreachable:
                # Silence or a broken connection: go on from where it was.
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
            return _logged(self._client.get(f"{self._path}/{pod.name}", patience_s=5.0)).is_over
        except ApiError as error:
            return error.status == 404
        except ClusterError:
            return False

    def _places(self) -> tuple[dict[Place, LoggedPod], dict[Place, str]]:
        """Pods that have a log, and what is kept of pods, by attempt and index."""
        pods = {(pod.attempt, pod.index): pod for pod in self._pods() if pod.has_started}
        kept = self._kept(pods)
        return pods, {place: text for place, text in kept.items() if self._is_wanted(*place)}

    def _kept(self, pods: Mapping[Place, LoggedPod]) -> dict[Place, str]:
        """Read what is kept of pods, by attempt and index: the operator's last lines, or all that a store has."""
        kept = kept_lines(self._client, self._namespace, self._uid)
        if self._store is None:
            return kept
        query, now = self._query, time.time()
        try:
            until = now if query.until is None else min(now, query.until)
            told = self._store.lines(self._uid, self._since if query.since is None else query.since, until)
        except ClusterError as error:
            note = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%S.%fZ} -| fairlead: {error}\n"
            first = next((place for place in sorted(kept) if place not in pods), None)
            return kept if first is None else {**kept, first: kept[first].rstrip("\n") + "\n" + note}
        # What the store has is whole; of what it has not, the last lines are there.
        return {**kept, **{place: text for place, text in told.items() if place not in pods}}

    def _of(
        self, attempt: int, pods: Mapping[Place, LoggedPod], kept: Mapping[Place, str], tail: int | None
    ) -> list[Iterator[LogLine]]:
        """The lines of each pod of a start; only the last ones, or more of them, where a number is given."""
        there = [pod for place, pod in pods.items() if place[0] == attempt]
        found: list[Iterator[LogLine]] = []
        self._largest = 0
        with ThreadPoolExecutor(NUM_READERS) as readers:
            texts = list(readers.map(lambda pod: self._text(pod, tail), there))
        unread = []
        for pod, text in zip(there, texts, strict=True):
            place = pod.attempt, pod.index
            if isinstance(text, LogLine):
                if place not in kept:
                    found.append(iter((text,)))
                unread.append(place)
                continue
            mark = self._marks[pod.name] = Mark()
            is_whole = self._query.since is None and (tail is None or text.count("\n") < tail)
            gaps = self._gaps[pod.name] = Gaps(attempt, KUBELET, whole=is_whole)
            found.append(self._wanted(gaps.told(self._new(text.split("\n"), attempt, mark))))
        for place, text in kept.items():
            if place[0] == attempt and (place not in pods or place in unread):
                gaps = Gaps(attempt, kept_why(text), whole=True)
                found.append(self._wanted(gaps.told(self._new(text.split("\n"), attempt, Mark()))))
        return found

    def _last(
        self, newest_first: list[int], pods: Mapping[Place, LoggedPod], kept: Mapping[Place, str], tail: int
    ) -> list[LogLine]:
        """The last lines of what there is, in their order."""
        found: list[LogLine] = []
        for number, attempt in enumerate(newest_first):
            asked = tail
            while True:
                # Lines that are not asked for, and counts, may be among them.
                lines = heapq.merge(*self._of(attempt, pods, kept, asked if asked < MOST_TAIL else None), key=_at)
                last = deque(lines, maxlen=tail - len(found))
                if len(last) == tail - len(found) or asked >= MOST_TAIL or self._largest < asked:
                    break
                asked *= 8
            found = [*last, *found]
            if len(found) >= tail:
                older = set(newest_first[number + 1 :])
                self._passed = {pod.name for pod in pods.values() if pod.attempt in older}
                break
        return found

    def _text(self, pod: LoggedPod, tail: int | None) -> str | LogLine:
        """A pod's log or its end; a line that says so when it cannot be read."""
        query = self._common(pod) if tail is None else {**self._common(pod), "tailLines": str(tail)}
        try:
            text = self._client.text(f"{self._path}/{pod.name}/log", query)
        except ApiError as error:
            if error.status == 403:
                raise
            if error.status == 404:
                self._gone[pod.attempt, pod.index] = pod.name
            return _note(pod.attempt, f"the log of pod {pod.name} cannot be read: {error.said}")
        self._largest = max(self._largest, text.count("\n"))
        return text

    def _beginning(self, pod: LoggedPod) -> str:
        try:
            return self._client.text(
                f"{self._path}/{pod.name}/log", {**_query(pod), "limitBytes": str(BEGINNING_BYTES)}
            )
        except ClusterError:  # its node is gone, or we may not look: nothing can be told
            return ""

    def _rest(self) -> Iterator[LogLine]:
        """Yield what was kept of pods that went while they were followed."""
        if not self._gone:
            return
        for place, text in kept_lines(self._client, self._namespace, self._uid).items():
            name = self._gone.get(place)
            if name is not None:
                mark = self._marks.setdefault(name, Mark())
                mark.again()
                gaps = self._gaps.setdefault(name, Gaps(place[0], kept_why(text), whole=True))
                yield from self._wanted(gaps.told(self._new(text.split("\n"), place[0], mark)))

    def _common(self, pod: LoggedPod) -> dict[str, str]:
        if self._query.since is None:
            return _query(pod)
        return {**_query(pod), "sinceTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._query.since))}

    def _wanted(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        return (line for line in lines if self._query.is_wanted(line))

    def _new(self, raws: Iterable[str], attempt: int, mark: Mark) -> Iterator[LogLine]:
        """Lines that were not read before, those of counts too."""
        for raw in raws:
            parsed = parse(raw, attempt)
            if parsed is not None:
                if mark.is_new(parsed[0]):
                    yield parsed[1]
            elif raw:
                # kubelet's own words, such as that a file is gone.
                yield replace(_note(attempt, raw), at=max(0.0, mark.at_ns / 1e9) or time.time())

    def _is_past(self, now: float) -> bool:
        return self._query.until is not None and now > self._query.until

    def _pods(self) -> list[LoggedPod]:
        """The pods that may have what is wanted, in order."""
        content = self._client.items(self._path, {"labelSelector": f"{names.RUN_UID}={self._uid}"})
        pods = sorted((_logged(each) for each in content), key=lambda pod: (pod.attempt, pod.index))
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
    states = {each["name"]: each.get("state") or {} for each in status.get("containerStatuses") or ()}
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
