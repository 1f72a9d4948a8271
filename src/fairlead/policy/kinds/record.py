"""The records of kinds: all that distinguishes one kind of workload from another."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from fairlead.frozen import dataclass
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.plan import Change
from fairlead.state.snapshot import AnyWorkload, Pod, Snapshot, Workload

if TYPE_CHECKING:
    from fairlead.policy.serving.spot_return import SpotRoom
    from fairlead.state.demand import Demand
    from fairlead.state.engine_endpoints import EngineEndpoint
    from fairlead.state.engine_searches import EngineSearch
    from fairlead.state.measurements import Measurement
    from fairlead.state.site_clients import ClientReport
    from fairlead.state.site_rollouts import SiteReport

Spec = TypeVar("Spec", bound=WorkloadSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafKind:
    """A kind whose workloads have pods.

    Attributes:
        spec: The class of its specs.
        judge: Returns the change that a workload needs apart from placement, given its pods by attempt and index, or
            None.
    """

    spec: type[Training]
    judge: Callable[[Workload, tuple[Pod, ...], Snapshot, float], Change | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The children of a parent.

    Attributes:
        children: By their names within the parent, oldest first; deleted ones are missing. A finished one that is about
            to resume is shown as Pending.
        settled: The part of ``children`` that is over and stays so, the same object from pass to pass while unchanged,
            so that results computed from thousands can be reused. Empty if not determined.
        moving: The rest of ``children``; None for all of them.
        ready: The uids of children of which every pod passes its probe.
        demand: The demand for the parent; None if not counted.
        on_spot: The uids of replicas on spot nodes, for endpoints that distinguish these.
        measurement: Answers to the query by which it scales; None if not queried.
        unaddressed: Why it has no address; None if it has one, or needs none.
        engine: The report of the engine that serves it; None without one, or before the first report.
        search: The report of the engine that proposes the values of its trials; None without one, or before the first
            report.
        share: The number of children it may have beside all other parents of its kind; None if not limited.
        out_of_reach: Why no number of replicas meets its targets for token times; empty if some number does, None if
            not known.
        sites: Reports of its sites by name, None for one that was not visited yet; None where nobody visits sites, or
            without any.
        spot_room: Room on spot nodes for a replica that is on another node for lack of it; None if there is none, or
            none is needed.
    """

    children: Mapping[str, AnyWorkload]
    settled: Mapping[str, AnyWorkload] = field(default_factory=dict)
    moving: Mapping[str, AnyWorkload] | None = None
    ready: frozenset[str] = frozenset()
    on_spot: frozenset[str] = frozenset()
    demand: "Demand | None" = None
    measurement: "Measurement | None" = None
    unaddressed: str | None = None
    engine: "EngineEndpoint | None" = None
    search: "EngineSearch | None" = None
    share: int | None = None
    out_of_reach: str | None = None
    sites: "Mapping[str, SiteReport | ClientReport | None] | None" = None
    spot_room: "SpotRoom | None" = None

    @property
    def unfinished(self) -> tuple[AnyWorkload, ...]:
        """Return the children that are not over."""
        moving = self.children if self.moving is None else self.moving
        return tuple(child for child in moving.values() if not child.status.phase.is_final)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentKind(Generic[Spec]):
    """A kind whose workloads have children. Stopping, suspending, resuming and deleting are common to all such kinds.

    Attributes:
        spec: The class of its specs, a frozen dataclass.
        detail: The frozen dataclass that ``Status.detail`` holds, of what ``records`` can keep as JSON.
        judge: Returns the change that a workload with intent RUN needs now, made by ``parents.advance`` or
            ``parents.finish``, or None. Called while it is Pending or Running.
        map_runs: Returns the spec with a function applied to each run that it describes. So the runs are admitted when
            the parent is.
        progress: Returns the progress of a workload, in a few words for a column.
        best: Returns the best result so far, in a few words for a column, empty if there is none; None if children are
            not compared.
        why_stopped: Returns why the parent has stopped a child, for the child's reason; None if it has not.
        last_words: Returns changes to finished children made before the parent ends, so that their statuses say
            what its end means for them; empty if all do. None if no child needs any.
        foresee: Precomputes what ``judge`` will probably need from functions that cache their results; None if that
            saves nothing. It affects only the latency of ``judge``.
        together: Returns families of the kind's parents, by uid, that are judged by more than their own children: by
            what they divide among them, or by free capacity; None if each is judged by itself.
        has_more: Returns whether a workload that has succeeded would no longer end at once, as its spec was changed
            since; None if specs of the kind stay as they are.
        next_at: Returns when time alone changes the result of ``judge``, in Unix seconds; None if it never does.
    """

    spec: type[Spec]
    detail: type[Any]
    judge: Callable[[Workload[Spec], Family, float], Change | None]
    map_runs: Callable[[Spec, Callable[[Training], Training]], Spec]
    progress: Callable[[Workload[Spec]], str]
    together: Callable[[Snapshot, Mapping[str, Family], float], Mapping[str, Family]] | None = None
    has_more: Callable[[Workload[Spec]], bool] | None = None
    next_at: Callable[[Workload[Spec], Family, float], float | None] | None = None
    best: Callable[[Workload[Spec]], str] | None = None
    why_stopped: Callable[[Workload[Spec], AnyWorkload], str | None] | None = None
    last_words: Callable[[Workload[Spec], Family], tuple[Change, ...]] | None = None
    foresee: Callable[[Workload[Spec], Family], None] | None = None


Kind: TypeAlias = LeafKind | ParentKind[Any]
