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
from fairlead.cluster.kubernetes.manifests.conditions import moment
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.request_dispatch import Dispatcher
from fairlead.cluster.kubernetes.workloads.kept_logs import Place, map_name
from fairlead.cluster.kubernetes.workloads.log_lines import parse
from fairlead.cluster.kubernetes.workloads.run_record import TrainingObject
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
MOST_READ_BYTES = 256 << 20
"""The output of one pod that is followed to its end; a pod may go on to write for all its grace period."""
RECENT_S = 60.0
"""Logs of pods that ended more seconds ago are not read by an operator that has just started."""
SILENT_S = 60.0
NUM_THREADS, MOST_OF_TEAM = 32, 8
"""A pod may write until its grace period is over, for a day; see decision 199."""


class LogArchive(Controller):
    """Reads and keeps logs in its own threads; nothing is kept of a pod whose log cannot be read.

    Args:
        may_act: Whether this operator leads; if not, its successor in the lead reads the logs of recent ends.
    """

    name = "logs of ended pods"

    def __init__(self, cluster: KubernetesCluster, *, may_act: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._may_act = may_act
        self._lock = threading.Lock()
        self._wanted: dict[str, PodObject] = {}
        self._requested: set[str] = set()
        self._read: dict[str, dict[Place, str]] = defaultdict(dict)
        self._threads = Dispatcher(NUM_THREADS, most_of_team=MOST_OF_TEAM)
        cluster.view.pods.listen(self._note)

    def act(self, turn: Turn) -> None:
        """Start to read logs that are to be kept, and write those that were read."""
        now = turn.now
        with self._lock:
            wanted, self._wanted = self._wanted, {}
            read, self._read = self._read, defaultdict(dict)
        for pod in wanted.values():
            self._begin(pod, now)
        for uid, texts in read.items():
            run_object = self._cluster.view.find(uid)
            if run_object is not None and not self._threads.submit(
                uid, f"keep {uid}", partial(self._write, run_object, texts), team=run_object.namespace
            ):
                # The previous write is still running, or has just failed.
                with self._lock:
                    self._read[uid] = {**texts, **self._read[uid]}

    def stop(self) -> None:
        """Stop reading logs."""
        self._threads.stop(wait_s=0.0)

    def _note(self, before: PodObject | None, after: PodObject | None) -> None:
        """Note each pod once, when it is told to stop or has ended."""
        if after is None:
            if before is not None:
                with self._lock:
                    self._requested.discard(before.uid)
                    self._wanted.pop(before.uid, None)
            return
        is_ending = after.is_over or after.told_at is not None
        if after.run_uid and is_ending and after.started_at is not None and after.index < MOST_PODS:
            with self._lock:
                if after.uid in self._requested:
                    return
                self._requested.add(after.uid)
            # Not only at the next pass: a pod whose ranks end at once is gone, with its log, within a second.
            if not (self._may_act() and self._begin(after, time.time())):
                with self._lock:
                    self._wanted[after.uid] = after

    def _begin(self, pod: PodObject, now: float) -> bool:
        """Start to read a log if it is to be kept; return False if the pod's run is not known yet."""
        run_object = self._cluster.view.find(pod.run_uid)
        if run_object is None or run_object.workload is None:
            return False
        if not self._cluster.view.run_of(pod):
            return True
        if _is_kept(run_object, now):
            self._threads.submit(
                pod.run_uid, f"last lines of {pod.key}",
                partial(self._take, pod, share(run_object.workload.gang.nodes)), team=run_object.namespace,
            )  # fmt: skip
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

    def _write(self, run_object: TrainingObject, texts: Mapping[Place, str]) -> None:
        try:
            write(self._cluster.client, run_object, texts)
        except ClusterError as error:
            log.warning("the last lines of %s are not kept: %s", run_object.key, error)


def last_lines(client: Client, key: str, most_bytes: int, *, container: str = RANKS) -> str:
    """Return the end of a pod's log, up to the end of its ranks; if lines were cut, the last one counts them all.

    Raises:
        ClusterError: Nothing can be read.
    """
    namespace, _, name = key.partition("/")
    query = {"container": container, "timestamps": "true", "follow": "true", "tailLines": str(MOST_LINES)}
    lines: deque[str] = deque()
    size = num_cut = 0
    gaps, is_counted, is_ended = Gaps(0, "", whole=False), False, True
    try:
        path = f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}/log"
        with client.stream(path, query, idle_s=SILENT_S, most_bytes=MOST_READ_BYTES) as stream:
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
            is_ended = not stream.is_cut
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
        note = f"the pod is gone; of its output the last {len(lines)} lines were kept"
        lines.appendleft(f"{when} -! {note}")
    if not is_ended:
        most = describe_memory(MOST_READ_BYTES)
        lines.append(f"{moment(time.time())} -! the pod wrote more than {most} while it ended; the rest was not read")
    return "\n".join(lines)


def share(num_pods: int) -> int:
    """Return the bytes that each pod of a gang may keep."""
    return min(MOST_POD_BYTES, MOST_BYTES // min(num_pods, MOST_PODS))


def write(client: Client, run_object: TrainingObject, texts: Mapping[Place, str]) -> None:
    """Write the lines beside those of the two previous attempts; older ones are removed."""
    if run_object.workload is None:
        return
    place = f"/api/v1/namespaces/{segment(run_object.namespace)}/configmaps"
    data: dict[str, Any] = {f"{attempt}-{index}": text for (attempt, index), text in texts.items()}
    newest = max(attempt for attempt, _ in texts)
    spec = run_object.workload.spec
    num_pods = min(MOST_PODS, spec.most_nodes or spec.nodes)
    dropped = {f"{newest - MOST_STARTS}-{index}": None for index in range(num_pods)}
    try:
        client.merge(f"{place}/{segment(map_name(run_object.uid))}", {"data": {**dropped, **data}})
    except ApiError as error:
        if error.status != 404:
            raise
        metadata = {
            "name": map_name(run_object.uid),
            "namespace": run_object.namespace,
            "labels": {**names.run_labels(run_object.workload), names.CONTENT: "log"},
            "ownerReferences": [{**names.owner(run_object.workload), "controller": False}],
        }
        client.create(place, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def _is_kept(run_object: TrainingObject, now: float) -> bool:
    finished_at = run_object.state.status.finished_at
    return not run_object.is_leaving and (finished_at is None or now - finished_at < RECENT_S)
