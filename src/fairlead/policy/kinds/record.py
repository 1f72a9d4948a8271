"""The records of kinds: all that tells one kind of workload from another."""

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
    from fairlead.state.measurements import Measurement

Spec = TypeVar("Spec", bound=WorkloadSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafKind:
    """A kind whose workloads have pods.

    Attributes:
        spec: The class of its specs.
        judge: What a workload needs apart from being placed, of its pods by attempt and index; None for nothing.
    """

    spec: type[Training]
    judge: Callable[[Workload, tuple[Pod, ...], Snapshot, float], Change | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The children of a parent.

    Attributes:
        children: By their names within the parent, oldest first; those that were deleted are missing. One that is over
            and about to go on is shown as Pending.
        settled: Those of ``children`` that are over and stay so, the same object from pass to pass as long as nothing
            changes of them: by it what was worked out of thousands is known again. Empty where nobody says.
        moving: The others of ``children``; None for all of them.
        ready: The uids of those of which every pod answers its probe.
        demand: What is asked of the parent; None where nobody counts.
        on_spot: The uids of replicas that are on spot nodes, of endpoints that tell these from others.
        measurement: Answers to the query by which it scales; None where nobody asks.
        unaddressed: Why it has no address; None where it has one, or needs none.
        engine: What the engine says that serves it; None where none does, or nobody has looked.
        share: How many of its children it may have beside all other parents of its kind; None where nobody says.
        spot_room: On spot nodes, for a replica that holds another for want of it; None where none is, or is needed.
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
    share: int | None = None
    spot_room: "SpotRoom | None" = None

    @property
    def unfinished(self) -> tuple[AnyWorkload, ...]:
        """Those that are not over."""
        moving = self.children if self.moving is None else self.moving
        return tuple(child for child in moving.values() if not child.status.phase.is_final)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentKind(Generic[Spec]):
    """A kind whose workloads have children. Stopping, suspending, resuming and deleting are the same for all of them.

    Attributes:
        spec: The class of its specs, a frozen dataclass.
        detail: The frozen dataclass that ``Status.detail`` holds, of what ``records`` can keep as JSON.
        judge: What a workload that is wanted to run needs now, made by ``parents.advance`` or ``parents.finish``; None
            for nothing. Called while it is Pending or Running.
        map_runs: The spec with each run that it describes replaced by what a function makes of it. So the runs are
            admitted when the parent is.
        progress: How far a workload is, in a few words for a column.
        best: The best that came of it so far, in a few words for a column, empty for nothing yet; None where no child
            is better than another.
        foresee: Works out ahead what ``judge`` will probably ask of functions that keep their answers; None where that
            saves nothing. Whether it was called changes nothing but how soon ``judge`` answers.
        together: The families of the kind's parents, by uid, that are judged by more than their own children: by what
            they divide among them, or by room that is free; None where each is judged by itself.
        next_at: When time alone changes what ``judge`` answers, in Unix seconds; None where it never does.
    """

    spec: type[Spec]
    detail: type[Any]
    judge: Callable[[Workload[Spec], Family, float], Change | None]
    map_runs: Callable[[Spec, Callable[[Training], Training]], Spec]
    progress: Callable[[Workload[Spec]], str]
    together: Callable[[Snapshot, Mapping[str, Family], float], Mapping[str, Family]] | None = None
    next_at: Callable[[Workload[Spec], Family, float], float | None] | None = None
    best: Callable[[Workload[Spec]], str] | None = None
    foresee: Callable[[Workload[Spec], Family], None] | None = None


Kind: TypeAlias = LeafKind | ParentKind[Any]
