"""Keeps one object of an engine for each endpoint or sweep that has an engine: the part that both have in common.

Level-triggered: an object's name follows from its parent, so that an operator that takes over finds it. A subclass says
which parents it keeps, what of an object it reads, and what each parent needs.

See decision 222.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.watching import IDLE_S, ObjectCache
from fairlead.cluster.kubernetes.engines.port import EngineKind
from fairlead.cluster.kubernetes.engines.table import AnyEngine, missing
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.cluster.kubernetes.operator.engines.engine_problems import EngineProblems
from fairlead.frozen import dataclass
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.snapshot import Snapshot, Workload

Spec = TypeVar("Spec", bound=WorkloadSpec)
Driver = TypeVar("Driver", bound=EngineKind)
Report = TypeVar("Report")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWatch(Generic[Driver]):
    """The watches of one engine: of its objects, and of those that it makes from them.

    Attributes:
        made: Kind and API of what it makes.
    """

    engine: AnyEngine
    driver: Driver
    objects: ObjectCache[Any]
    parts: ObjectCache[Any]
    made: tuple[str, str]

    @property
    def is_synced(self) -> bool:
        """Return whether all objects of both kinds were listed once."""
        return self.objects.is_synced and self.parts.is_synced

    def problem(self) -> str | None:
        """Report what a cluster lacks for the engine, or forbids; None if nothing is known to be missing."""
        for cache, (kind, api) in ((self.objects, (self.driver.kind, self.driver.api)), (self.parts, self.made)):
            trouble = None if cache.is_synced else cache.trouble
            if isinstance(trouble, ApiError) and trouble.status == 404:
                return missing(self.engine, kind, api)
            if isinstance(trouble, ApiError) and trouble.status == 403:
                return f"the operator may not watch {kind} ({api}): `fairlead install` gives it the right"
        return None


class ParentEngineController(Controller, ABC, Generic[Spec, Driver, Report]):
    """Manages the engine objects of parents of one kind for the operator.

    Args:
        may_act: Returns whether this process still leads; asked before each request.

    Attributes:
        uid_label: The label of an engine's object with the uid of its parent.
    """

    stage = PassStage.CHANGES
    uid_label: ClassVar[str]

    def __init__(
        self, client: Client, view: Informers, *, may_act: Callable[[], bool] = lambda: True, idle_s: float = IDLE_S
    ) -> None:
        self._client = client
        self._view = view
        self._may_act = may_act
        self._idle_s = idle_s
        self._watches: dict[AnyEngine, EngineWatch[Driver]] = {}
        self._problems = EngineProblems()
        self._is_behind = False

    @property
    def is_behind(self) -> bool:
        """Return whether anything is still to be written or read."""
        return self._is_behind

    @property
    def caches(self) -> list[ObjectCache[Any]]:
        """The caches of the engines that are used."""
        return [cache for watch in list(self._watches.values()) for cache in (watch.objects, watch.parts)]

    def stop(self) -> None:
        """End all watches."""
        for cache in self.caches:
            cache.stop()

    def look(self, snapshot: Snapshot) -> Mapping[str, Report]:
        """Return what engines report of the parents of a snapshot, by uid."""
        reports = {}
        for parent in self.parents(snapshot):
            with self._view.isolation.of(self.read_name(parent)):
                reports[parent.uid] = self.report(parent)
        return reports

    def act(self, turn: Turn) -> None:
        """Queue the work that follows from a snapshot."""
        self._is_behind = False
        parents = tuple(self.owners(turn.snapshot))
        self._problems.keep({parent.uid for parent in parents})
        for parent in parents:
            with self._view.isolation.of(self.work_name(parent)):
                self._is_behind = self.act_on(parent, turn) or self._is_behind

    @abstractmethod
    def parents(self, snapshot: Snapshot) -> Iterable[Workload[Spec]]:
        """Return the parents of a snapshot that have an engine."""

    @abstractmethod
    def owners(self, snapshot: Snapshot) -> Iterable[Workload[Spec]]:
        """Return the parents that may have an object, of which a snapshot need not show all."""

    @abstractmethod
    def read_name(self, parent: Workload[Spec]) -> str:
        """Name what is read for a parent, for logs."""

    @abstractmethod
    def work_name(self, parent: Workload[Spec]) -> str:
        """Name what is done for a parent, for logs."""

    @abstractmethod
    def report(self, parent: Workload[Spec]) -> Report:
        """Return what its engine reports of a parent."""

    @abstractmethod
    def act_on(self, parent: Workload[Spec], turn: Turn) -> bool:
        """Queue the work that one parent needs; return whether more is to come."""

    @abstractmethod
    def begin(self, engine: AnyEngine) -> EngineWatch[Driver]:
        """Return the watches of an engine, not yet started."""

    def watch(self, engine: AnyEngine) -> EngineWatch[Driver]:
        """Return the watches of an engine, which start with the first parent that has it."""
        watch = self._watches.get(engine)
        if watch is None:
            watch = self._watches[engine] = self.begin(engine)
            watch.objects.start()
            watch.parts.start()
        return watch

    def cache_of(
        self, engine: AnyEngine, api: str, plural: str, read: Callable[[dict[str, Any]], Any]
    ) -> ObjectCache[Any]:
        """Return a watch of objects of one kind that have an engine's label and name a parent."""
        return ObjectCache(
            self._client, f"/apis/{api}/{plural}", read, lambda *_: self._view.wake(), synced=self._view.wake,
            query={"labelSelector": f"{names.ENGINE}={engine.value},{self.uid_label}"}, idle_s=self._idle_s,
        )  # fmt: skip
