"""Everything that happens to the nodes of a simulated cluster while the loop manages its runs."""

from collections.abc import Sequence

from fairlead.cluster.simulated.autoscaler import SimulatedAutoscaler
from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.groups import NodeGroup
from fairlead.cluster.simulated.node_failures import TakenOut, Weather
from fairlead.state.snapshot import Node


def first_nodes(groups: Sequence[NodeGroup]) -> tuple[Node, ...]:
    """Return the nodes that exist from the beginning."""
    return tuple(group.node(number) for group in groups for number in range(group.num_always))


class SimulatedEnvironment:
    """Failures, reclaims and the autoscaler of one cluster, which starts with its ``first_nodes``."""

    def __init__(self, cluster: SimulatedCluster, groups: Sequence[NodeGroup], *, seed: int) -> None:
        self._cluster = cluster
        self._weather = Weather(groups, seed)
        self._autoscaler = SimulatedAutoscaler(groups, self._weather, seed)
        for node in first_nodes(groups):
            self._weather.comes(node, cluster.clock.now())

    @property
    def next_at(self) -> float:
        """Return the time of the next event that does not depend on a decision; infinity without one."""
        return min(self._weather.next_at, self._autoscaler.next_at(self._cluster))

    @property
    def taken_out(self) -> tuple[TakenOut, ...]:
        """Return the nodes that were taken out."""
        return tuple(self._weather.taken_out)

    @property
    def may_help(self) -> bool:
        """Return whether nodes will arrive, or return, without further requests."""
        return self._autoscaler.is_bringing or self._weather.brings_back

    def step(self, now: float) -> bool:
        """Apply due events; return whether there is anything new to decide."""
        befell = self._weather.step(self._cluster, now)
        return self._autoscaler.step(self._cluster, now) or befell
