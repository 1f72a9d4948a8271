"""Keeps of each run that waits what the queue asks of its spec at every pass, which changes only with the spec.

A long queue is looked at run by run at each pass. Nothing here depends on what is free or on the time, so that what is
kept holds as long as the nodes are the same. With or without it a pass comes to the same plan.
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
        shape: The shape of a member, with the nodes that do not take it.
        asks: What the whole gang asks for.
        alike: Runs for which this is equal ask for the same, for the same team, with the same priority.
        kind: As ``fairlead.policy.queue.durations.kind_of`` tells.
    """

    spec: GangSpec
    shape: Shape
    asks: Amounts
    alike: int
    kind: tuple[str, str]


class SpecTraits:
    """The traits of runs on some nodes, worked out once for each spec.

    Attributes:
        known_to_fit: Of runs that are alike, the numbers of those that would fit if nothing ran. A shape does not tell:
            nodes may be closed to one for now and to another for good.
    """

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self._doors = doors_of(nodes)
        self._whole = capacity(nodes)
        self._of: dict[str, Traits] = {}
        self._numbers: dict[Hashable, int] = {}
        self.known_to_fit: set[int] = set()

    def of(self, workload: Workload) -> Traits:
        """The traits of a run as its spec is now."""
        found = self._of.get(workload.uid)
        if found is None or found.spec is not workload.spec:
            spec = workload.spec
            alike = spec.team, spec.priority, spec.nodes, spec.resources, spec.kubernetes, spec.capacity
            found = self._of[workload.uid] = Traits(
                spec=spec,
                shape=shape_of(spec, self._doors),
                asks=asked(spec, self._whole),
                alike=self._numbers.setdefault(alike, len(self._numbers)),
                kind=kind_of(spec),
            )
        return found

    def forget(self, uid: str) -> None:
        """Keep nothing of a run any more."""
        self._of.pop(uid, None)
