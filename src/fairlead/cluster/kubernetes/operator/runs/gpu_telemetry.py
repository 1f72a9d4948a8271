"""Reads the utilisation of GPUs from DCGM's exporters, and assigns it to runs by our own record of who holds what.

An exporter's pod names come from kubelet: they are missing for shared devices, and stale after a restart. Here a pod's
devices are those that its first process saw, or all of its node if it holds all of them; other devices are not
assigned. The exporters are found by their labels and read at their own ports, a few at a time.
"""

import logging
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field

from fairlead.cluster.kubernetes.api.client import Object
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.dcgm import AT_ONCE, EXPORTER_PORT, EXPORTERS, devices_of, samples
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.names import controller_of
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import LedgerKeeper
from fairlead.cluster.kubernetes.system_namespaces import SystemNamespaces
from fairlead.cluster.usages import GpuUsage
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.policy.kinds import idleness
from fairlead.specs.serving import Replica
from fairlead.state.idleness import Idleness
from fairlead.state.snapshot import WHOLE_MILLI, Node, Pod, PodPhase, Snapshot, Workload

log = logging.getLogger(__name__)

EVERY_S = 30.0
# Exporters come and go with nodes; a cluster without any only has the cost of this search.
FIND_EVERY_S = 300.0
ANSWER_S = 5.0
GIVE_UP_S = 120.0
MOST_BYTES = 4 * 2**20
MOST_SAMPLES = 1_000
BY_DEFAULT = SystemNamespaces()
Start = tuple[str, int]  # uid of a run, attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpu:
    """A device that a run holds, and its utilisation.

    Attributes:
        run: The uid of the run.
    """

    run: str
    node: str
    usage: GpuUsage


@dataclass(frozen=True, slots=True)
class _Scrape:
    """Devices by node, as exporters report them; unknown ones are missing."""

    at: float
    nodes: Mapping[str, Mapping[str, GpuUsage]] = field(default_factory=dict)


class GpuTelemetry(Controller):
    """Utilisation of the GPUs that runs hold; ``act`` is for the loop's thread, ``note`` for any.

    Args:
        ledger: Records idle time for the bill; None records nothing.
        system: Namespaces whose exporters are believed.
        fetch: Reads the text that an exporter serves at a URL.
    """

    name = "the use of GPUs"

    def __init__(
        self,
        view: Informers,
        ledger: LedgerKeeper | None = None,
        *,
        system: SystemNamespaces = BY_DEFAULT,
        every_s: float = EVERY_S,
        fetch: Callable[[str], str] | None = None,
    ) -> None:
        self._view = view
        self._ledger = ledger
        self._system = system
        self._every_s = every_s
        self._fetch = fetch or _fetch
        self._lock = threading.Lock()
        self._seen_by: dict[tuple[str, int, int], tuple[str, ...]] = {}
        self._scraped: _Scrape | None = None
        self._is_asking = False
        self._asked_at = self._found_at = float("-inf")
        self._used_at: float | None = None
        self._exporters: Mapping[str, str] = {}
        self._looked_for: frozenset[str] = frozenset()
        self._samples: dict[Start, list[idleness.UsageSample]] = {}
        self._idle: dict[Start, Idleness] = {}
        self.held: tuple[HeldGpu, ...] = ()

    def note(self, pod: PodObject, uuids: tuple[str, ...]) -> None:
        """Record the devices that the first process of a pod saw."""
        if uuids:
            with self._lock:
                self._seen_by[pod.run_uid, pod.attempt, pod.index] = uuids

    def idle_of(self, run: Workload) -> Idleness | None:
        """Return how idle a run is as its spec counts it; None if it is not, or that is unknown."""
        return self._idle.get((run.uid, run.status.attempt))

    def act(self, turn: Turn) -> None:
        """Take in the exporters' answers, and read them again if it is time."""
        agent, seen, now = turn.agent, turn.snapshot, turn.now
        with self._lock:
            scraped, self._scraped = self._scraped, None
            is_asking = self._is_asking
        if scraped is not None:
            self._take(scraped, seen)
        passed_s = now - self._asked_at
        # A dropped request, such as when another operator led briefly, is never answered.
        if 0 <= passed_s < (max(self._every_s, GIVE_UP_S) if is_asking else self._every_s):
            return
        nodes = {pod.node for pod in _holders(seen)}
        self._asked_at = now
        if not nodes:
            self._samples, self._idle, self.held, self._used_at = {}, {}, (), None
            with self._lock:
                self._seen_by.clear()
            return
        with self._lock:
            self._is_asking = True
        agent.submit("", "ask DCGM's exporters", lambda: self._ask(nodes, now))

    def _ask(self, nodes: set[str], now: float) -> None:
        usages: dict[str, Mapping[str, GpuUsage]] = {}
        try:
            if not 0 <= now - self._found_at < FIND_EVERY_S or not nodes <= self._looked_for:
                self._exporters, self._found_at, self._looked_for = dict(self._find()), now, frozenset(nodes)
            urls = {node: url for node, url in self._exporters.items() if node in nodes}
            with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="exporters") as pool:
                for node, text in zip(urls, pool.map(self._text, urls.values()), strict=True):
                    if text is not None:
                        usages[node] = devices_of(samples(text))
        except ClusterError as error:
            log.warning("DCGM's exporters cannot be found: %s", error)
        finally:
            with self._lock:
                self._is_asking = False
                self._scraped = _Scrape(now, usages)

    def _find(self) -> Iterator[tuple[str, str]]:
        """Yield nodes with the URLs of their exporters; of several on a node the first by name counts."""
        daemons = {(daemon.key.partition("/")[0], daemon.uid) for daemon in self._view.daemons.all()}
        teams = {team.name for team in self._view.teams.all()}
        exporters: dict[str, list[tuple[str, str]]] = {}
        for selector in EXPORTERS:
            for pod in self._view.client.items("/api/v1/pods", {"labelSelector": selector}):
                node, address = pod["spec"].get("nodeName"), (pod.get("status") or {}).get("podIP")
                if not node or not address or (pod.get("status") or {}).get("phase") != "Running":
                    continue
                namespace, owner = pod["metadata"]["namespace"], controller_of(pod["metadata"])
                is_daemons = owner.get("kind") == "DaemonSet" and (namespace, owner.get("uid")) in daemons
                if is_daemons and self._system.include(namespace, teams):
                    key = f"{namespace}/{pod['metadata']['name']}"
                    exporters.setdefault(str(node), []).append((key, _url(pod, str(address))))
        yield from ((node, min(urls)[1]) for node, urls in exporters.items())

    def _text(self, url: str) -> str | None:
        try:
            return self._fetch(url)
        except (OSError, ValueError) as error:
            log.debug("%s: %s", url, error)
            return None

    def _take(self, scraped: _Scrape, seen: Snapshot) -> None:
        """Turn the answers into measurements of the runs that hold the devices."""
        since, self._used_at = self._used_at, scraped.at
        nodes = {node.name: node for node in seen.nodes}
        runs = {run.uid: run for run in seen.workloads}
        pods: dict[str, list[Pod]] = {}
        for pod in _holders(seen):
            if pod.workload_uid in runs and pod.attempt == runs[pod.workload_uid].status.attempt:
                pods.setdefault(pod.workload_uid, []).append(pod)
        held: list[HeldGpu] = []
        measured: list[tuple[str, int, int, float]] = []
        samples_now: dict[Start, list[idleness.UsageSample]] = {}
        for uid, own in pods.items():
            run, busy = runs[uid], dict[str, float]()
            for pod in own:
                usages = self._devices(pod, nodes.get(pod.node), scraped.nodes.get(pod.node) or {})
                held += [HeldGpu(run=uid, node=pod.node, usage=usage) for usage in usages]
                known = [usage.busy for usage in usages if usage.busy is not None]
                if known:
                    busy[pod.uid] = sum(known) / len(known)
            key = uid, run.status.attempt
            samples_now[key] = list(self._samples.get(key, ()))
            if not busy or since is None or scraped.at <= since:
                continue
            span_s = scraped.at - since
            samples_now[key].append(
                idleness.sample_of(run, own, at=scraped.at, span_s=span_s, busy=sum(busy.values()) / len(busy))
            )
            samples_now[key] = idleness.coarsened(
                idleness.recent(samples_now[key], run.spec.idle, scraped.at), MOST_SAMPLES
            )
            for pod in own:
                if pod.uid in busy:
                    begun = max(scraped.at - min(span_s, idleness.MOST_SPAN_S), pod.started_at or 0.0)
                    measured.append((pod.uid, round(begun * 1000), round(scraped.at * 1000), busy[pod.uid]))
        self._samples, self.held = samples_now, tuple(held)
        if self._ledger is not None and measured:
            self._ledger.add_idle(measured, scraped.at)
        self._judge(runs, scraped.at)
        with self._lock:
            members = {(pod.workload_uid, pod.attempt, pod.index) for own in pods.values() for pod in own}
            self._seen_by = {key: uuids for key, uuids in self._seen_by.items() if key in members}

    def _judge(self, runs: Mapping[str, Workload], now: float) -> None:
        """Find idle runs, and have the loop check those that have just become idle or busy."""
        before, self._idle = self._idle, {}
        for key, series in self._samples.items():
            run = runs[key[0]]
            if not isinstance(run.spec, Replica):  # a server may be waiting for requests
                idle = idleness.idleness(series, run.spec.idle, now)
                if idle is not None:
                    self._idle[key] = idle
        for uid, attempt in before.keys() | self._idle.keys():
            if before.get((uid, attempt)) != self._idle.get((uid, attempt)):
                self._view.look_again(uid)

    def _devices(self, pod: Pod, node: Node | None, usages: Mapping[str, GpuUsage]) -> list[GpuUsage]:
        """Return the devices of a pod, if they are known for certain."""
        with self._lock:
            own = self._seen_by.get((pod.workload_uid, pod.attempt, pod.index))
        if own is not None:
            return [usages[uuid] for uuid in own if uuid in usages]
        whole = node is not None and all(gpu.milli == WHOLE_MILLI for gpu in node.gpus)
        if node is not None and whole and node.gpus and len(pod.grant.gpu_uuids) == len(node.gpus):
            return list(usages.values())
        return []


def _holders(seen: Snapshot) -> Iterable[Pod]:
    """Return the pods of runs that hold GPUs and work."""
    for pod in seen.pods:
        if pod.grant.gpu_uuids and pod.phase is PodPhase.RUNNING and pod.terminating_since is None and pod.workload_uid:
            yield pod


def _url(pod: Object, address: str) -> str:
    """Return the address of an exporter, at its container's port or the usual one."""
    ports = [
        int(port["containerPort"])
        for container in pod["spec"].get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("name") == "metrics"
    ]
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{ports[0] if ports else EXPORTER_PORT}/metrics"


def _fetch(url: str) -> str:
    # No proxy: an exporter is in the cluster's own network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=ANSWER_S) as answer:
        data: bytes = answer.read(MOST_BYTES)
    return data.decode("utf-8", "replace")
