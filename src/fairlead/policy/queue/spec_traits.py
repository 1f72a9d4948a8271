"""Keeps facts about the spec of each pending run, which each pass needs and which change only with the spec.

A long queue is considered run by run at each pass. Nothing here depends on free capacity or on the time, so the facts
hold as long as the nodes are the same. A pass comes to the same plan with or without them.
"""

from collections.abc import Hashable

from fairlead.frozen import dataclass
from fairlead.policy.placement.node_eligibility import doors_of
from fairlead.policy.placement.placement import shape_of
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.queue.dominant_shares import Amounts, asked, capacity
from fairlead.policy.queue.durations import kind_of
from fairlead.specs.gang import GangSpec
from fairlead.state.snapshot import Node, Workload


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of one spec.

    Attributes:
        shape: The shape of a pod, with the nodes that do not accept it.
        asks: The request of the whole gang.
        alike: Equal for runs with the same request, team and priority.
        size: Equal for gangs of as many pods of the same shape.
        kind: The result of ``fairlead.policy.queue.durations.kind_of``.
    """

    spec: GangSpec
    shape: Shape
    asks: Amounts
    alike: int
    size: int
    kind: tuple[str, str]


class SpecTraits:
    """The traits of runs on some nodes, computed once for each spec.

    Attributes:
        nodes: The nodes.
        known_to_fit: The ``alike`` numbers of runs that would fit if nothing ran. Shapes cannot replace them: nodes may
            be temporarily closed to one shape and permanently to another.
    """

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = nodes
        self._doors = doors_of(nodes)
        self._whole = capacity(nodes)
        self._of: dict[str, Traits] = {}
        self._numbers: dict[Hashable, int] = {}
        self._sizes: dict[tuple[Shape, int], int] = {}
        self.known_to_fit: set[int] = set()

    def of(self, workload: Workload) -> Traits:
        """Return the traits of a run for its current spec."""
        traits = self._of.get(workload.uid)
        if traits is None or traits.spec is not workload.spec:
            spec = workload.spec
            alike = spec.team, spec.priority, spec.nodes, spec.resources, spec.kubernetes, spec.capacity, spec.network
            shape = shape_of(spec, self._doors)
            traits = self._of[workload.uid] = Traits(
                spec=spec,
                shape=shape,
                asks=asked(spec, self._whole),
                alike=self._numbers.setdefault(alike, len(self._numbers)),
                size=self._sizes.setdefault((shape, spec.nodes), len(self._sizes)),
                kind=kind_of(spec),
            )
        return traits

    def forget(self, uid: str) -> None:
        """Remove a run."""
        self._of.pop(uid, None)
