"""Decides when to request new nodes, for which runs, and when to give up.

A request is recorded in the status of a run, ``asked_at``. While it is set, the cluster keeps placeholders of the
gang's shape, or a request of its autoscaler's own kind, for which that adds nodes; it removes them otherwise. Runs
request nodes in order, a later one only if all runs that delay it request nodes too, so that no node is added for a run
that cannot be next. A running gang with ``elastic: in_place`` requests nodes for the pods that it has lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.placement.device_matching import matches
from fairlead.policy.placement.node_eligibility import PRICE_LABEL
from fairlead.policy.placement.placement import matching, takes_pods
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.specs.gang import GangSpec
from fairlead.state.capacity_requests import Amount, CapacityRequest, Growth, Source
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload
from fairlead.text.quantities import (
    describe_cpu,
    describe_dollars,
    describe_duration,
    describe_memory,
    describe_need,
    plural,
)

# The limit on placeholders of all runs together: an autoscaler considers each of them repeatedly.
MOST_PLACEHOLDERS = 1000
# An autoscaler that reports why it adds nothing may still find a machine, but not often.
REPLY_PATIENCE_S = 60.0
# A quota that refuses placeholders may have room a little later, when another run has ended.
REFUSED_PAUSE_S = 60.0


_BY_REQUEST = "a ProvisioningRequest"
# Name of the resource, need of the gang, amount present, accessor in an ``Amount``, formatter.
_Sum = tuple[str, int, int, Callable[[Amount], int | None], Callable[[int], str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """The state of a waiting run.

    Attributes:
        asked_at, ask_again_at: As in ``Status``.
    """

    reason: Reason
    asked_at: float | None = None
    ask_again_at: float | None = None


def is_asking(workload: Workload) -> bool:
    """Return whether nodes are requested for the run, so that it has placeholders."""
    return bool(requested_pods(workload))


def requested_pods(workload: Workload) -> Sequence[int]:
    """Return the indexes of the pods for which nodes are requested: of the whole gang, or those it has lost."""
    status = workload.status
    if status.queue.nodes_requested_at is None or workload.intent is not Intent.RUN:
        return ()
    if status.phase is Phase.PENDING:
        return range(workload.spec.nodes)
    return tuple(pod.index for pod in status.missing) if status.phase is Phase.RUNNING else ()


class Growing:
    """The requests for nodes of one pass; runs are passed in the order in which they may start."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self._snapshot = snapshot
        self._growth = snapshot.growth
        self._now = now
        self._requests = {request.workload_uid: request for request in snapshot.capacity_requests}
        self._num_placeholders = 0
        self._asking: set[str] = set()
        self._may_ask = True
        self._held: dict[str, int] | None = None

    def why_never(self, spec: GangSpec, never: Reason) -> Reason | None:
        """Return why a gang that fits no existing node fits no future one either; None if it may."""
        if self._growth is None:
            return never
        hindrance = self._hindrance(spec, self._growth, ever=True)
        if hindrance is None:
            return None
        message, remedy = hindrance
        return Reason(code=never.code, message=f"{never.message} Nodes to come do not help: {message}.", remedy=remedy)

    def wait(self, workload: Workload, why: Reason, *, fits_here: bool) -> WaitingRun:
        """Return how a run waits that does not start now, for the reason ``why``.

        Args:
            fits_here: Whether the existing nodes would hold it if they were free.
        """
        waits = self._wait(workload, workload.spec, why, fits_here=fits_here)
        if waits.asked_at is not None:
            self._asking.add(workload.uid)
            self._num_placeholders += workload.spec.nodes
        elif fits_here:
            self._may_ask = False
        return waits

    def wait_for_lost(self, workload: Workload, lost: GangSpec, why: Reason) -> WaitingRun:
        """Return how a running gang waits for places of lost pods that do not get any now, for the reason ``why``.

        Whether or not it requests nodes, it delays no other run that does.

        Args:
            lost: The spec of these pods alone.
        """
        waits = self._wait(workload, lost, why, fits_here=True)
        self._num_placeholders += lost.nodes if waits.asked_at is not None else 0
        return waits

    def is_asked_for(self, workload: Workload) -> bool:
        """Return whether the run requests nodes as of this pass."""
        return workload.uid in self._asking

    def _wait(self, workload: Workload, spec: GangSpec, why: Reason, *, fits_here: bool) -> WaitingRun:
        growth, status = self._growth, workload.status
        others = self._num_placeholders
        is_too_many = others > 0 and others + spec.nodes > MOST_PLACEHOLDERS
        if growth is None or not self._may_ask or is_too_many:
            return WaitingRun(reason=why)
        if status.queue.nodes_requested_at is not None and status.phase in (Phase.PENDING, Phase.RUNNING):
            request = self._requests.get(workload.uid, CapacityRequest(workload_uid=workload.uid))
            waited_s = self._now - max(status.queue.nodes_requested_at, request.bound_at or 0.0)
            if request.refused is not None:
                return _beside(self._refused(growth, request.refused), why, fits_here=fits_here)
            if waited_s >= (
                growth.patience_s if request.obstacle is None else min(growth.patience_s, REPLY_PATIENCE_S)
            ):
                return _beside(self._given_up(growth, request), why, fits_here=fits_here)
            # The reason stays unchanged while nodes come one by one, until they are enough.
            is_told = status.reason.code is Code.WAITING_FOR_NODES and why.code is not Code.WAITING_FOR_TURN
            is_told = is_told and (_BY_REQUEST in status.reason.message) == growth.by_request
            reason = status.reason if is_told else _asking(spec, growth, why, fits_here=fits_here)
            return WaitingRun(reason=reason, asked_at=status.queue.nodes_requested_at)
        if status.queue.request_again_at is not None and self._now < status.queue.request_again_at:
            why_pending = why if status.reason.code is not Code.NODES_NOT_COMING else status.reason
            if fits_here:
                later = f"{growth.by} is asked for nodes again later"
                why_pending = replace(why, message=f"{why.message}; {later}")
            return WaitingRun(reason=why_pending, ask_again_at=status.queue.request_again_at)
        hindrance = self._hindrance(spec, growth, ever=False)
        if hindrance is not None:
            message, remedy = hindrance
            return WaitingRun(
                reason=Reason(code=why.code, message=f"{why.message}; more nodes cannot come: {message}", remedy=remedy)
            )
        return WaitingRun(reason=_asking(spec, growth, why, fits_here=fits_here), asked_at=self._now)

    def _refused(self, growth: Growth, refused: str) -> WaitingRun:
        reason = Reason(
            code=Code.NODES_NOT_COMING,
            message=f"{growth.by} was not asked for nodes, for its placeholders are refused as its pods would be: "
            f"{refused}",
            remedy=f"Once that is fixed, they are asked for within {describe_duration(REFUSED_PAUSE_S)}.",
        )
        return WaitingRun(reason=reason, ask_again_at=self._now + REFUSED_PAUSE_S)

    def _given_up(self, growth: Growth, request: CapacityRequest) -> WaitingRun:
        message = f"{growth.by} was asked for nodes and brought none within {describe_duration(growth.patience_s)}"
        if request.obstacle is not None:
            message = f"{growth.by} was asked for nodes and brings none; it says: {request.obstacle}"
        reason = Reason(
            code=Code.NODES_NOT_COMING,
            message=message,
            remedy=f"{growth.look} shows what hinders it; ask for less, or let it bring more. It is asked again in "
            f"{describe_duration(growth.pause_s)}, and at once after suspend and resume.",
        )
        return WaitingRun(reason=reason, ask_again_at=self._now + growth.pause_s)

    def _hindrance(self, spec: GangSpec, growth: Growth, *, ever: bool) -> tuple[str, str] | None:
        """Return why future nodes cannot hold the gang, and a remedy; None if they may.

        The existing nodes count in full, so that only certain obstacles are reported.

        Args:
            ever: Whether at any time, or now.
        """
        shape = Shape.of(spec.resources)
        suitable = [source for source in growth.sources if _brings(source, shape)]
        if not suitable:
            kinds = "; ".join(f"{source.name} brings {', '.join(source.models)}" for source in growth.sources[:5])
            wanted = spec.resources.gpu.model if spec.resources.gpu is not None else None
            return (
                f"{growth.by} brings no {wanted or 'such node'} ({kinds or 'it has no NodePool'})",
                f"Ask for what it brings, or let it bring more: {growth.look}.",
            )
        affordable = [source for source in suitable if _is_affordable(source, spec)]
        if not affordable:
            prices = "; ".join(f"those of {source.name} {_say_price(source)}" for source in suitable[:5])
            most = describe_dollars(spec.capacity.max_price or 0.0)
            return (
                f"none that {growth.by} brings is within its `max_price` of {most} an hour: {prices}",
                "Raise `capacity.max_price`, or say what such nodes cost: the label "
                f"{PRICE_LABEL}=DOLLARS in the template of the NodePool.",
            )
        suitable = affordable
        for what, need, here, of, say in self._sums(spec, shape, ever=ever):
            bounds = [of(source.most if ever else source.left) for source in suitable]
            if need and None not in bounds and here + sum(bound or 0 for bound in bounds) < need:
                names = ", ".join(source.name for source in suitable[:5])
                more = sum(bound or 0 for bound in bounds)
                state = "have" if ever else "free"
                return (
                    f"the limits of {names} allow {say(more)} {'in all' if ever else 'more'}, the nodes that are here "
                    f"{state} {say(here)}, and the gang needs {say(need)}",
                    f"Raise the limit of {what} of {names}, or ask for less (`nodes` or `resources`).",
                )
        return None

    def _sums(self, spec: GangSpec, shape: Shape, *, ever: bool) -> list[_Sum]:
        """Return the total need of the gang, and what the nodes have in total, or have free."""
        nodes = [node for node in self._snapshot.nodes if ever or takes_pods(node)]
        devices = [gpu.uuid for node in nodes for gpu in matching(node, shape)]
        held = {} if ever else self._held_milli()
        free = sum(max(0, WHOLE_GPU - held.get(uuid, 0)) for uuid in devices) // WHOLE_GPU
        gpus = -(-spec.nodes * shape.total_gpu_milli // WHOLE_GPU)
        cpu, memory = sum(node.cpu_milli for node in nodes), sum(node.memory_bytes for node in nodes)
        if not ever:
            live = [pod.grant for pod in self._snapshot.pods if not pod.phase.is_final]
            cpu = max(0, cpu - sum(grant.cpu_milli for grant in live))
            memory = max(0, memory - sum(grant.memory_bytes for grant in live))
        return [
            ("GPUs", gpus, free, lambda amount: amount.gpus, lambda count: plural(count, "GPU")),
            ("cores", spec.nodes * shape.cpu_milli, cpu, lambda amount: amount.cpu_milli, describe_cpu),
            ("memory", spec.nodes * shape.memory_bytes, memory, lambda amount: amount.memory_bytes, describe_memory),
        ]

    def _held_milli(self) -> dict[str, int]:
        if self._held is None:
            self._held = {}
            for pod in self._snapshot.pods:
                for uuid in () if pod.phase.is_final else pod.grant.gpu_uuids:
                    self._held[uuid] = self._held.get(uuid, 0) + min(pod.grant.gpu_milli, WHOLE_GPU)
        return self._held


def _asking(spec: GangSpec, growth: Growth, why: Reason, *, fits_here: bool) -> Reason:
    means = _BY_REQUEST if growth.by_request else plural(spec.nodes, "placeholder pod")
    ask = f"{growth.by} is asked for nodes with {means}"
    if fits_here or why.code is Code.WAITING_FOR_TURN:
        return replace(why, message=f"{why.message}; {ask} meanwhile")
    need = describe_need(spec)
    return Reason(
        code=Code.WAITING_FOR_NODES,
        message=f"needs {need}, more than is here; {ask}",
        remedy="It starts when they have come. Should none come within "
        f"{describe_duration(growth.patience_s)}, it says so here.",
    )


def _beside(waits: WaitingRun, why: Reason, *, fits_here: bool) -> WaitingRun:
    """Prepend the reason of the wait for existing nodes, if the run waits for these too."""
    return replace(waits, reason=replace(why, message=f"{why.message}; {waits.reason.message}")) if fits_here else waits


def _is_affordable(source: Source, spec: GangSpec) -> bool:
    price, most = source.price_per_hour, spec.capacity.max_price
    return most is None or (price is not None and price <= most)


def _say_price(source: Source) -> str:
    price = source.price_per_hour
    return "have no known price" if price is None else f"cost {describe_dollars(price)}"


def _brings(source: Source, shape: Shape) -> bool:
    """Return whether such nodes may suit: the memory of a device is known only once its node exists."""
    if not shape.num_gpus:
        return True
    return not source.models or any(matches(model, 2**62, shape.gpu_model, None) for model in source.models)
