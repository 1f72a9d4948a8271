"""Computes the replicas of endpoints with a latency target, jointly, from measurements of the gateway.

Endpoints whose replicas request the same resources share them: what they hold and what is free on nodes that accept
them. Each gets no more than serves nearly all requests in time; if that exceeds what is available, the split with the
most requests in time is chosen. An endpoint without any completed request scales by its requests in flight.

An endpoint with targets for token times is a text server, whose replicas are simulated with coefficients fitted to the
requests that they have served (``text_scaling``); until there are enough of these, or if no number of replicas meets
its targets, it scales by requests in flight too.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fairlead.deferred import deferred
from fairlead.frozen import dataclass
from fairlead.policy.serving.joint_scaling import Delays, EndpointState, allocate, enough, queue_limit
from fairlead.policy.serving.scheduled_replicas import scheduled_replicas
from fairlead.specs.quantities import format_duration
from fairlead.specs.serving import Serving
from fairlead.state.demand import Demand
from fairlead.state.snapshot import Grant, Node, Pod

if TYPE_CHECKING:
    from fairlead.policy.serving import text_scaling
    from fairlead.policy.serving.text_scaling import Answering
else:
    text_scaling = deferred("fairlead.policy.serving.text_scaling")

INTERVAL_S = 10
WINDOW_S = 900
# Used until measured: the start time of a replica. A place that another replica leaves is free this much later.
START_S, LEAVE_S = 35.0, 5.0
# Bounds on the measured start time.
LEAST_START_S, MOST_START_S = 1.0, 240.0
MOST_CV2 = 4.0
# The largest part of its target that a request is taken to need: slower ones cannot be helped by more replicas.
MOST_OF_SLO = 0.95


def service_of(
    spec: Serving, demand: Demand, replicas: int, *, locked: bool, start_s: float | None, now: float
) -> EndpointState | None:
    """Return an endpoint as input for the split; None if its requests are unknown so far.

    Args:
        replicas: Those that serve or were ordered, at least one.
        locked: Whether an order is in progress.
        start_s: Measured start time of a replica in seconds; None if not measured.
    """
    work = _tokens_work(spec, demand) if spec.scale.is_by_tokens else _work(spec, demand)
    rates = rates_of(demand, now)
    if work is None or not rates:
        return None
    start_s = START_S if start_s is None else min(MOST_START_S, max(LEAST_START_S, start_s))
    return EndpointState(
        rates=rates,
        service_s=work.service_s,
        service_cv2=work.service_cv2,
        slo_s=work.slo_s,
        replicas=replicas,
        locked=locked,
        gate=work.gate,
        places=work.places,
        shares=work.shares,
        least=max(1, spec.replicas, scheduled_replicas(spec.scale.schedule, now)),
        most=spec.most,
        delays=Delays(start_s=start_s, move_s=start_s + LEAVE_S),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The part of a replica that a request takes, as in ``EndpointState``."""

    service_s: float
    slo_s: float
    service_cv2: float = 0.0
    gate: bool = False
    places: float = 1.0
    shares: tuple[tuple[float, float], ...] = ()


def _work(spec: Serving, demand: Demand) -> _Work | None:
    measured = service_times(spec, demand)
    if spec.scale.latency_s is None or measured is None:
        return None
    return _Work(
        service_s=measured[0], service_cv2=measured[1], slo_s=spec.scale.latency_s, gate=spec.scale.shed,
        places=spec.scale.concurrency,
    )  # fmt: skip


def _answering(spec: Serving, demand: Demand | None) -> "Answering | None":
    """Return the performance of a replica of a text server; None if not known yet, or not scaled by."""
    if demand is None or not demand.latest_text or not spec.scale.is_by_tokens:
        return None

    scale = spec.scale
    return text_scaling.answering(
        demand.busiest_text, demand.latest_text, scale.first_token_s, scale.per_token_s, spec.max_concurrency
    )


def out_of_reach(spec: Serving, demand: Demand | None) -> str | None:
    """Return why no number of replicas meets the targets for token times.

    Empty if some number does; None if not known.
    """
    answer = _answering(spec, demand)
    if answer is None or answer.shares:
        return None if answer is None else ""
    scale, misses = spec.scale, []
    if scale.first_token_s is not None:
        target = format_duration(scale.first_token_s)
        misses.append(f"the first token takes {answer.first_token_s * 1000:.3g} ms, and the target is {target}")
    if scale.per_token_s is not None:
        target = format_duration(scale.per_token_s)
        misses.append(f"each further token takes {answer.per_token_s * 1000:.3g} ms, and the target is {target}")
    return f"on an idle replica {'; '.join(misses)}"


def _tokens_work(spec: Serving, demand: Demand) -> _Work | None:
    answer = _answering(spec, demand)
    if answer is None or not answer.shares:
        return None
    return _Work(service_s=1.0 / answer.most_per_s, slo_s=math.inf, shares=answer.shares)


def service_times(spec: Serving, demand: Demand) -> tuple[float, float] | None:
    """Return the mean time for which a request occupies a place, in seconds, and its squared coefficient of variation.

    The mean follows from the utilization law (busy time over completions), which queues within a replica do not
    distort; the variation is that of whole requests. None before the first has ended.
    """
    ended = sum(interval.ended for interval in demand.intervals)
    if spec.scale.latency_s is None or not ended:
        return None
    service_s = sum(interval.busy_s for interval in demand.intervals) / ended
    mean = sum(interval.took_s for interval in demand.intervals) / ended
    square = sum(interval.took_s2 for interval in demand.intervals) / ended
    cv2 = 0.0 if mean <= 0.0 else max(0.0, square / mean**2 - 1.0)
    return min(max(service_s, 1e-6), MOST_OF_SLO * spec.scale.latency_s), min(cv2, MOST_CV2)


def rates_of(demand: Demand, now: float) -> list[float]:
    """Return the requests per second in each whole counted interval, oldest first."""
    end = int(now) // INTERVAL_S * INTERVAL_S
    begin = max(math.ceil(demand.since / INTERVAL_S) * INTERVAL_S, end - WINDOW_S)
    counted = {interval.at: interval.arrivals for interval in demand.intervals}
    return [counted.get(at, 0) / INTERVAL_S for at in range(begin, end, INTERVAL_S)]


def most_in_flight(spec: Serving, demand: Demand | None, num_ready: int) -> int | None:
    """Return the limit on requests in flight at an endpoint with so many ready replicas; None for no limit."""
    if demand is None or spec.scale.latency_s is None or not spec.scale.shed or not num_ready:
        return None
    measured = service_times(spec, demand)
    if measured is None:
        return None
    held = queue_limit(measured[0], spec.scale.latency_s) * spec.scale.concurrency * num_ready
    return max(1, math.floor(held))


def shares(services: Mapping[str, EndpointState], room: int) -> dict[str, int]:
    """Return the replicas of each service, in total what they hold and ``room`` more; by the keys of the services."""
    needs = {uid: replace(service, most=max(service.least, _needed(service))) for uid, service in services.items()}
    held = sum(service.replicas for service in needs.values())
    least = sum(service.replicas if service.locked else service.least for service in needs.values())
    allocated = allocate(list(needs.values()), max(held + room, least))
    return dict(zip(needs, allocated, strict=True))


def _needed(service: EndpointState) -> int:
    needed = enough(service)
    return needed if service.most is None else min(needed, service.most)


def room_for(grant: Grant, nodes: Sequence[Node], pods: Sequence[Pod]) -> int:
    """Return how many more pods with such a grant fit on open nodes, by the sums on each node."""
    taken: dict[str, list[Grant]] = defaultdict(list)
    for pod in pods:
        if not pod.phase.is_final:
            taken[pod.node].append(pod.grant)
    return sum(_fits(grant, node, taken[node.name]) for node in nodes if node.ready and node.closed is None)


def _fits(grant: Grant, node: Node, taken: Sequence[Grant]) -> int:
    pairs = (
        (grant.cpu_milli, node.cpu_milli - sum(pod.cpu_milli for pod in taken)),
        (grant.memory_bytes, node.memory_bytes - sum(pod.memory_bytes for pod in taken)),
        (grant.gpu_milli, 1_000 * len(node.gpus) - sum(pod.gpu_milli for pod in taken)),
    )
    return min((max(0, free) // size for size, free in pairs if size), default=MOST_ROOM)


# Used if replicas request no limited resource.
MOST_ROOM = 1_000
