"""Repartitions the GPUs of nodes, one step at a time, as decided from the state of the nodes.

Each step is an Event of the node, recorded first, and one write that applies only to the node as it was read. So an
operator may be killed between any two of them: the next one continues from the node's state.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.objects import NodeObject
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.informers.node_cache import NODES
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.events.event_recorder import PendingEvent, render_event
from fairlead.cluster.kubernetes.operator.partitions.node_layouts import partitioned_node, render_step
from fairlead.cluster.kubernetes.workloads.plain_objects import KindObject
from fairlead.errors import InvalidSpec
from fairlead.specs.pool import Pool
from fairlead.state.partitions import PartitionAction, PartitionedNode, PartitionStep
from fairlead.state.plan import Plan
from fairlead.state.snapshot import Snapshot
from fairlead.text.quantities import plural

log = logging.getLogger(__name__)

EVENTS = "/api/v1/namespaces/default/events"  # for objects without a namespace
NOT_ALLOWED = "the operator may not change nodes; `fairlead install --partitions` gives it that right"
_REASONS = {
    PartitionAction.CORDON: "PartitionBegun",
    PartitionAction.RELABEL: "PartitionRequested",
    PartitionAction.REVERT: "PartitionFailed",
    PartitionAction.UNCORDON: "Partitioned",
    PartitionAction.GIVE_UP: "PartitionGivenUp",
}
_WARNINGS = frozenset({PartitionAction.REVERT, PartitionAction.GIVE_UP})


class PartitionController(Controller):
    """The nodes of pools with ``partitions``.

    Args:
        pools: Returns the existing Pool objects; None while they are unknown.
        may_act: Returns whether this process still leads; asked before each request.
    """

    name = "the layouts of nodes"

    def __init__(
        self,
        view: Informers,
        pools: Callable[[], Iterable[KindObject[Pool]] | None],
        *,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        self._view = view
        self._pools = pools
        self._may_act = may_act
        self._shown: dict[str, tuple[PartitionedNode, NodeObject]] = {}
        self._problems: dict[str, str] = {}
        self._is_refused = False
        self._steps: tuple[PartitionStep, ...] = ()

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return the snapshot with the nodes whose GPUs may be repartitioned."""
        items = self._pools() or ()
        pools = [item.spec for item in items if item.spec is not None and item.spec.partitions and item.spec.labels]
        if not pools and not self._shown:
            return snapshot
        self._problems = {}
        shown: dict[str, tuple[PartitionedNode, NodeObject]] = {}
        for node in snapshot.nodes:
            seen = self._view.nodes.get(node.name)
            pool = next(
                (candidate for candidate in pools if dict(candidate.labels).items() <= dict(node.labels).items()), None
            )
            if seen is None or pool is None or pool.name in self._problems:
                continue
            try:
                shown[node.name] = partitioned_node(pool, seen, node), seen
            except InvalidSpec as error:
                self._problems[pool.name] = f"no node is repartitioned: {error.problems[0]}"
        self._shown = shown
        return replace(snapshot, partitioned=tuple(node for node, _ in shown.values()))

    def take(self, plan: Plan) -> None:
        """Take the decided steps; ``act`` carries them out."""
        self._steps = plan.partitioning

    def act(self, turn: Turn) -> None:
        """Queue the decided steps."""
        agent = turn.agent
        steps, self._steps = self._steps, ()
        for step in steps:
            node, seen = self._shown[step.node]
            order = partial(self._carry_out, step, node, seen)
            agent.submit(f"node {step.node}", f"{step.action} {step.node} {step.to} {seen.version}", order)

    def status(self, pool: str) -> str | None:
        """Return in a sentence how the nodes of a pool are partitioned; None for a pool without a choice of layouts."""
        if pool in self._problems:
            return self._problems[pool]
        own = [node for node, _ in self._shown.values() if node.pool.name == pool]
        if not own:
            return None
        if self._is_refused:
            return NOT_ALLOWED
        layouts: dict[str, int] = {}
        for node in own:
            layouts[node.layout or "none of the layouts"] = layouts.get(node.layout or "none of the layouts", 0) + 1
        counts = ", ".join(f"{plural(number, 'node')} with {name}" for name, number in sorted(layouts.items()))
        ways = [f"{node.node} is on its way to {node.change.to}" for node in own if node.change is not None]
        return "; ".join([counts, *ways[:3]])

    def _carry_out(self, step: PartitionStep, node: PartitionedNode, seen: NodeObject) -> None:
        now = self._view.nodes.get(step.node)
        if now is None or now.version != seen.version or not self._may_act():
            return
        at = time.time()
        self._tell(step, seen, at)
        try:
            content = self._view.client.merge(f"{NODES}/{segment(step.node)}", render_step(step, node, seen, at))
        except ApiError as error:
            self._is_refused = error.status == 403
            if error.status not in (403, 404, 409):
                raise
            return
        self._is_refused = False
        log.info("%s: %s", _REASONS[step.action], step.why)
        self._view.nodes.put(content)

    def _tell(self, step: PartitionStep, seen: NodeObject, at: float) -> None:
        mark = hashlib.sha256(f"{step.action} {step.to} {seen.version}".encode()).hexdigest()[:10]
        telling = PendingEvent(
            regarding={"apiVersion": "v1", "kind": "Node", "name": step.node, "uid": step.node},
            name=f"{step.node}.{mark}",
            reason=_REASONS[step.action],
            note=step.why,
            at=at,
            is_warning=step.action in _WARNINGS,
        )
        try:
            self._view.client.create(EVENTS, render_event(telling))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
