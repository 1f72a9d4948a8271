"""Indexes pods by their run and by their node, and records changes for each reader."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from fairlead.cluster.kubernetes.api.objects import PodObject

_NONE: Mapping[str, PodObject] = MappingProxyType({})


class PodIndex:
    """Pods by run and by node. Not thread-safe: callers lock."""

    def __init__(self) -> None:
        self._pods: dict[str, PodObject] = {}
        self._of_run: dict[str, dict[str, PodObject]] = {}
        self._on_node: dict[str, dict[str, PodObject]] = {}
        self._placeholders: dict[str, dict[str, PodObject]] = {}

    def get(self, key: str) -> PodObject | None:
        """Return the pod of a key, as it was last taken in."""
        return self._pods.get(key)

    def follow(self, key: str, pod: PodObject | None) -> None:
        """Take in the current pod of a key, None for gone."""
        before = self._pods.pop(key, None)
        if before is not None:
            for places, place in self._places(before):
                of_place = places[place]
                del of_place[key]
                if not of_place:
                    del places[place]
        if pod is not None:
            self._pods[key] = pod
            for places, place in self._places(pod):
                places.setdefault(place, {})[key] = pod

    def of_run(self, uid: str) -> Mapping[str, PodObject]:
        """Return the pods of a run, by their keys."""
        return self._of_run.get(uid, _NONE)

    def on_node(self, name: str) -> Mapping[str, PodObject]:
        """Return the pods that count on a node, by their keys: bound there, not over, and no placeholders."""
        return self._on_node.get(name, _NONE)

    def placeholders_on(self, name: str) -> Mapping[str, PodObject]:
        """Return the placeholders that are bound on a node, by their keys."""
        return self._placeholders.get(name, _NONE)

    def _places(self, pod: PodObject) -> Iterator[tuple[dict[str, dict[str, PodObject]], str]]:
        if pod.run_uid:
            yield self._of_run, pod.run_uid
        if pod.node and not pod.is_over:
            yield self._placeholders if pod.room_for else self._on_node, pod.node


class Marks:
    """Runs and nodes that have changed since one reader last took them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: set[str] = set()
        self._nodes: set[str] = set()

    def add(self, *, runs: Iterable[str] = (), nodes: Iterable[str] = ()) -> None:
        """Mark runs and nodes as changed; call once the change is visible."""
        with self._lock:
            self._runs.update(runs)
            self._nodes.update(nodes)

    def take(self) -> tuple[set[str], set[str]]:
        """Return and clear the marked uids of runs and names of nodes; read their state after this."""
        with self._lock:
            taken = self._runs, self._nodes
            self._runs, self._nodes = set(), set()
            return taken
