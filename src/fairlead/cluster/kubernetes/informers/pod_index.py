"""Indexes pods by their run and by their node, and records changes for each reader."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from fairlead.cluster.kubernetes.api.objects import PodObject

Place = TypeVar("Place")
Key = TypeVar("Key")
_NONE: Mapping[str, PodObject] = MappingProxyType({})


RunKey = tuple[str, str]  # kind, namespace/name


class PodIndex:
    """Pods by run and by node. Not thread-safe: callers lock.

    A run is its uid with its kind, namespace and name: a uid is no secret, and anybody may write it into a pod.
    """

    def __init__(self) -> None:
        self._pods: dict[str, PodObject] = {}
        self._of_run: dict[tuple[str, RunKey], dict[str, PodObject]] = {}
        self._keys: dict[str, dict[RunKey, None]] = {}
        self._on_node: dict[str, dict[str, PodObject]] = {}
        self._placeholders: dict[str, dict[str, PodObject]] = {}
        self._rooms: dict[str, dict[str, PodObject]] = {}

    def get(self, key: str) -> PodObject | None:
        """Return the pod of a key, as it was last taken in."""
        return self._pods.get(key)

    def follow(self, key: str, pod: PodObject | None) -> None:
        """Take in the current pod of a key, None for gone."""
        before = self._pods.pop(key, None)
        if before is not None:
            if before.run_uid:
                _take_out(self._of_run, (before.run_uid, before.run_key), key)
                if (before.run_uid, before.run_key) not in self._of_run:
                    _take_out(self._keys, before.run_uid, before.run_key)
            if before.room_for:
                _take_out(self._rooms, before.room_for, key)
            if (places := self._of_node(before)) is not None:
                _take_out(places, before.node, key)
        if pod is not None:
            self._pods[key] = pod
            if pod.run_uid:
                self._of_run.setdefault((pod.run_uid, pod.run_key), {})[key] = pod
                self._keys.setdefault(pod.run_uid, {})[pod.run_key] = None
            if pod.room_for:
                self._rooms.setdefault(pod.room_for, {})[key] = pod
            if (places := self._of_node(pod)) is not None:
                places.setdefault(pod.node, {})[key] = pod

    def of_run(self, uid: str, run_key: RunKey) -> Mapping[str, PodObject]:
        """Return the pods of a run, by their keys."""
        return self._of_run.get((uid, run_key), _NONE)

    def keys_of(self, uid: str) -> tuple[RunKey, ...]:
        """Return the runs that pods name with this uid; at most one of them has it."""
        return tuple(self._keys.get(uid, ()))

    def on_node(self, name: str) -> Mapping[str, PodObject]:
        """Return the pods on a node, by their keys: bound there, not over, and none that say they are placeholders."""
        return self._on_node.get(name, _NONE)

    def placeholders_on(self, name: str) -> Mapping[str, PodObject]:
        """Return the pods that are bound on a node and say they are placeholders, by their keys."""
        return self._placeholders.get(name, _NONE)

    def rooms_of(self, uid: str) -> Mapping[str, PodObject]:
        """Return the pods that say they are placeholders of the run or Pool with this uid, by their keys."""
        return self._rooms.get(uid, _NONE)

    def rooms(self) -> Iterator[PodObject]:
        """Yield the pods that say they are placeholders."""
        for pods in self._rooms.values():
            yield from pods.values()

    def _of_node(self, pod: PodObject) -> dict[str, dict[str, PodObject]] | None:
        if not pod.node or pod.is_over:
            return None
        return self._placeholders if pod.room_for else self._on_node


def _take_out(places: dict[Place, dict[Key, Any]], place: Place, key: Key) -> None:
    of_place = places[place]
    del of_place[key]
    if not of_place:
        del places[place]


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
