"""A controller of the operator: one concern, with hooks that the loop calls in the order of one list.

A hook that a controller does not need does nothing, so that a new controller is a class with those it needs and an
entry in the list, ``fairlead.control.controllers.build``.

See decision 205.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.watching import ObjectCache
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.frozen import dataclass
from fairlead.state.plan import Plan
from fairlead.state.snapshot import Snapshot

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent


class PassStage(Enum):
    """The time within a pass at which a controller acts."""

    FOLLOWING = "after the decision, and while its changes are written"
    CHANGES = "after the decision, if anything has changed or some controller is behind"
    EVERY_PASS = "after the decision, in every pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The moment at which controllers act.

    Attributes:
        agent: Takes the requests that they queue.
        now: In Unix seconds.
        snapshot: The snapshot on which this pass has decided.
        is_news: Anything has changed since the last pass, or some controller is behind.
        debts: What teams have had beyond their shares, in seconds of the cluster.
    """

    agent: "PodAgent"
    now: float
    snapshot: Snapshot
    is_news: bool = True
    debts: Mapping[str, float] = field(default_factory=dict)


class Controller:
    """One concern of the operator.

    The hooks are called in one thread, by an operator that leads; what they queue with the agent runs in others. An
    error in a hook ends that hook alone and is logged with the controller's name.

    Attributes:
        name: A clause that names the concern in logs.
        stage: When ``act`` is called.
    """

    name: ClassVar[str]
    stage: ClassVar[PassStage] = PassStage.EVERY_PASS

    def start(self) -> None:
        """Start watches of its own; called once, whether or not this operator leads."""

    def prepare(self, now: float) -> None:
        """Do what the snapshot needs, before it is taken."""

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return the snapshot with what this controller knows."""
        return snapshot

    def take(self, plan: Plan) -> None:
        """Take what concerns it in a plan, before the changes of the plan are written."""

    def act(self, turn: Turn) -> None:
        """Queue the requests that are due."""

    def rest(self) -> None:
        """Let go of what only a leader may hold; called again and again while this operator does not lead."""

    def finish(self) -> None:
        """Do what only a leader may, before this operator gives up its lead and ends."""

    def stop(self) -> None:
        """End watches and threads; called once, after the lead was given up."""

    @property
    def is_behind(self) -> bool:
        """Return whether there is work that no change announces: the next pass comes soon, and acts on everything."""
        return False

    @property
    def is_busy(self) -> bool:
        """Return whether the next pass is to come soon."""
        return self.is_behind

    @property
    def caches(self) -> Sequence[ObjectCache[Any]]:
        """The watch caches that it uses now, beside those of the informers."""
        return ()

    def numbers(self) -> Mapping[str, float]:
        """Return its metrics, by name."""
        return {}


class ControlledCluster:
    """The ``Cluster`` of the loop: the objects of workloads, extended by all that controllers know.

    Args:
        controllers: In the order in which they are called.
        follow: Called while changes are written, to act on those that are already written.
    """

    def __init__(
        self, cluster: KubernetesCluster, controllers: Sequence[Controller], follow: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._controllers = controllers
        self._follow = follow

    def snapshot(self) -> Snapshot:
        now, snapshot = time.time(), self._cluster.snapshot()
        for controller in self._controllers:
            with self._cluster.view.isolation.of(controller.name):
                snapshot = controller.extend(snapshot, now)
        self._cluster.shown = snapshot
        return snapshot

    def apply(self, plan: Plan) -> tuple[bool, ...]:
        for controller in self._controllers:
            controller.take(plan)
        return self._cluster.apply(plan, self._follow)

    def wait(self, timeout_s: float) -> None:
        self._cluster.wait(timeout_s)


def act_all(controllers: Iterable[Controller], stage: PassStage, turn: Turn, isolation: Isolation) -> None:
    """Call the controllers of a stage in turn, each kept from the failures of the others."""
    for controller in controllers:
        if controller.stage is stage:
            with isolation.of(controller.name):
                controller.act(turn)
