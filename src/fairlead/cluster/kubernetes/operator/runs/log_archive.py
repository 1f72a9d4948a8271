"""Keeps the last lines of pods' logs, which go with their objects and nodes: one ConfigMap per run, of bounded size.

The operator reads a pod's log to its end when the pod ends or is told to stop. It keeps the last lines of the newest
attempts, and for cut logs the total amount. The garbage collector removes the ConfigMap with the run.
"""

import json
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.manifests.statuses import moment
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.request_dispatch import Dispatcher
from fairlead.cluster.kubernetes.operator.runs.log_lines import parse
from fairlead.cluster.kubernetes.operator.runs.run_record import TrainingObject
from fairlead.cluster.output import COUNTS, Gaps
from fairlead.errors import ClusterError
from fairlead.specs.overlay import RANKS
from fairlead.text.quantities import describe_memory

log = logging.getLogger(__name__)

MOST_STARTS = 3
MOST_BYTES = 256 * 1024  # of one attempt, so that three of them fit into the 1 MiB of a ConfigMap
MOST_POD_BYTES = 64 * 1024
MOST_PODS = 256
MOST_LINES = 2_000
RECENT_S = 60.0
"""Logs of pods that ended more seconds ago are not read by an operator that has just started."""
SILENT_S = 60.0
NUM_THREADS = 32

Place = tuple[int, int]  # attempt, index


class LogArchive:
    """Reads and keeps logs in its own threads; nothing is kept of a pod whose log cannot be read.

    Args:
        may_act: Whether this operator leads; if not, its successor in the lead reads the logs of recent ends.
    """

    def __init__(self, cluster: KubernetesCluster, *, may_act: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._may_act = may_act
        self._lock = threading.Lock()
        self._wanted: dict[str, PodObject] = {}
        self._asked: set[str] = set()
        self._read: dict[str, dict[Place, str]] = defaultdict(dict)
        self._threads = Dispatcher(NUM_THREADS)
        cluster.view.pods.listen(self._note)

    def keep(self, now: float) -> None:
        """Start to read logs that are to be kept, and write those that were read."""
        with self._lock:
            wanted, self._wanted = self._wanted, {}
            read, self._read = self._read, defaultdict(dict)
        for pod in wanted.values():
            self._begin(pod, now)
        for uid, texts in read.items():
            found = self._cluster.view.find(uid)
            if found is not None and not self._threads.submit(uid, f"keep {uid}", partial(self._write, found, texts)):
                # The previous write is still running, or has just failed.
                with self._lock:
                    self._read[uid] = {**texts, **self._read[uid]}

    def close(self) -> None:
        """Stop reading logs."""
        self._threads.stop(wait_s=0.0)

    def _note(self, before: PodObject | None, after: PodObject | None) -> None:
        """Note each pod once, when it is told to stop or has ended."""
        if after is None:
            if before is not None:
                with self._lock:
                    self._asked.discard(before.uid)
                    self._wanted.pop(before.uid, None)
            return
        is_ending = after.is_over or after.told_at is not None
        if after.run_uid and is_ending and after.started_at is not None and after.index < MOST_PODS:
            with self._lock:
                if after.uid in self._asked:
                    return
                self._asked.add(after.uid)
            # Not only at the next pass: a pod whose ranks end at once is gone, with its log, within a second.
            if not (self._may_act() and self._begin(after, time.time())):
                with self._lock:
                    self._wanted[after.uid] = after

    def _begin(self, pod: PodObject, now: float) -> bool:
        """Start to read a log if it is to be kept; return False if the pod's run is not known yet."""
        found = self._cluster.view.find(pod.run_uid)
        if found is None or found.workload is None:
            return False
        if _is_kept(found, now):
            self._threads.submit(
                pod.run_uid, f"last lines of {pod.key}", partial(self._take, pod, share(found.workload.gang.nodes))
            )
        return True

    def _take(self, pod: PodObject, most_bytes: int) -> None:
        try:
            text = last_lines(self._cluster.client, pod.key, most_bytes, container=pod.container)
        except ClusterError as error:
            # Its node is gone or never had a kubelet; the run's status shows its end all the same.
            log.info("the last lines of %s are not kept: %s", pod.key, error)
            return
        with self._lock:
            self._read[pod.run_uid][(pod.attempt, pod.index)] = text
        self._cluster.view.wake()

    def _write(self, found: TrainingObject, texts: Mapping[Place, str]) -> None:
        try:
            write(self._cluster.client, found, texts)
        except ClusterError as error:
            log.warning("the last lines of %s are not kept: %s", found.key, error)


def last_lines(client: Client, key: str, most_bytes: int, *, container: str = RANKS) -> str:
    """Return the end of a pod's log, up to the end of its ranks; if lines were cut, the last one counts them all.

    Raises:
        ClusterError: Nothing can be read.
    """
    namespace, _, name = key.partition("/")
    query = {"container": container, "timestamps": "true", "follow": "true", "tailLines": str(MOST_LINES)}
    lines: deque[str] = deque()
    size = num_cut = 0
    gaps, is_counted = Gaps(0, "", whole=False), False
    try:
        with client.stream(f"/api/v1/namespaces/{namespace}/pods/{name}/log", query, idle_s=SILENT_S) as stream:
            for raw in stream:
                line = raw.decode(errors="replace")
                lines.append(line)
                parsed = parse(line, 0)
                if parsed is not None:
                    gaps.take(parsed[1])
                    is_counted = is_counted or parsed[1].stream == COUNTS
                size += len(line.encode()) + 1
                while size > most_bytes and lines:
                    size -= len(lines.popleft().encode()) + 1
                    num_cut += 1
    except ApiError:
        raise
    except ClusterError:
        # The node has gone in the meantime; the lines so far are all there are.
        if not lines:
            raise
    is_cut = num_cut > 0 or len(lines) >= MOST_LINES
    if is_cut and (is_counted or num_cut + len(lines) < MOST_LINES):
        # The total amount, by which a reader knows how much is missing.
        when = lines[-1].partition(" ")[0] if lines else moment(time.time())
        counts = {str(rank) if rank >= 0 else "-": counted for rank, counted in gaps.seen.items()}
        lines.append(f"{when} -# {json.dumps(counts, separators=(',', ':'))}")
    elif is_cut:
        when = lines[0].partition(" ")[0] if lines else moment(time.time())
        kept = f"the pod is gone; of its output the last {len(lines)} lines were kept"
        lines.appendleft(f"{when} -! {kept}")
    return "\n".join(lines)


def kept_why(text: str) -> str:
    """Return why lines are missing before those that were kept of a pod."""
    return f"the pod is gone, and of its output the last {describe_memory(len(text.encode()))} were kept"


def share(num_pods: int) -> int:
    """Return the bytes that each pod of a gang may keep."""
    return min(MOST_POD_BYTES, MOST_BYTES // min(num_pods, MOST_PODS))


def kept_lines(client: Client, namespace: str, uid: str) -> dict[Place, str]:
    """Read the kept logs of a run's pods, by attempt and index; none if the user may not read them."""
    try:
        content = client.get(f"/api/v1/namespaces/{namespace}/configmaps/{map_name(uid)}")
    except ApiError as error:
        if error.status in (403, 404):
            return {}
        raise
    found = {}
    for key, text in (content.get("data") or {}).items():
        attempt, _, index = key.partition("-")
        if attempt.isdigit() and index.isdigit():
            found[int(attempt), int(index)] = str(text)
    return found


def map_name(uid: str) -> str:
    """Return the name of the ConfigMap of a run."""
    return f"fairlead-log-{uid}"


def write(client: Client, found: TrainingObject, texts: Mapping[Place, str]) -> None:
    """Write the lines beside those of the two previous attempts; older ones are removed."""
    if found.workload is None:
        return
    place = f"/api/v1/namespaces/{found.namespace}/configmaps"
    data: dict[str, Any] = {f"{attempt}-{index}": text for (attempt, index), text in texts.items()}
    newest = max(attempt for attempt, _ in texts)
    spec = found.workload.spec
    num_pods = min(MOST_PODS, spec.most_nodes or spec.nodes)
    dropped = {f"{newest - MOST_STARTS}-{index}": None for index in range(num_pods)}
    try:
        client.merge(f"{place}/{map_name(found.uid)}", {"data": {**dropped, **data}})
    except ApiError as error:
        if error.status != 404:
            raise
        metadata = {
            "name": map_name(found.uid),
            "namespace": found.namespace,
            "labels": {**names.run_labels(found.workload), names.CONTENT: "log"},
            "ownerReferences": [{**names.owner(found.workload), "controller": False}],
        }
        client.create(place, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def _is_kept(found: TrainingObject, now: float) -> bool:
    finished_at = found.state.status.finished_at
    return not found.is_leaving and (finished_at is None or now - finished_at < RECENT_S)
