"""Counts the replicas that an endpoint needs by a number that a Prometheus tells, as Kubernetes' own autoscaler does.

A number of all replicas together, such as the length of a queue, is divided by what one of them is to have. A number of
one replica on average, such as a share of its GPU, is first multiplied by the replicas that were ready when it was
asked for; within a tenth of the target nothing moves, which is the tolerance of Kubernetes' HorizontalPodAutoscaler.
There are never fewer than any answer of the last window needed. Without a fresh answer nothing is known.
"""

import math

from fairlead.specs.serving import Aggregation, PrometheusQuery
from fairlead.state.measurements import Measurement, Sample

# How often it is looked whether there is an answer, and for how long one counts.
ASK_S, FRESH_S = 2.0, 30.0
# `--horizontal-pod-autoscaler-tolerance` of kube-controller-manager has this default.
TOLERANCE = 0.1


def needed_by_metric(
    query: PrometheusQuery, measurement: Measurement | None, window_s: float, current: int, now: float
) -> int | None:
    """Return how many replicas are needed; None where nothing is known now.

    Args:
        current: How many were wanted before, which stay until a whole window is known.
    """
    if measurement is None:
        return None
    known = [each for each in measurement.samples if _says(query, each)]
    if not known or now - known[-1].at > FRESH_S:
        return None
    needed = max(_needed(query, each) for each in known if each is known[-1] or now - each.at <= window_s)
    return max(needed, current) if now - measurement.since < window_s else needed


def unmeasured(query: PrometheusQuery | None, measurement: Measurement | None, now: float) -> str | None:
    """Return why a query has no answer that counts; None where it has one, or nobody knows yet."""
    if query is None or measurement is None or measurement.problem is None:
        return None
    samples = measurement.samples
    return measurement.problem if not samples or now - samples[-1].at > FRESH_S else None


def _says(query: PrometheusQuery, sample: Sample) -> bool:
    """Tell whether an answer says anything: the mean of no replica does not."""
    return query.aggregation is Aggregation.SUM or sample.replicas > 0


def _needed(query: PrometheusQuery, sample: Sample) -> int:
    if query.aggregation is Aggregation.SUM:
        return max(0, math.ceil(sample.value / query.target - 1e-9))
    ratio = sample.value / query.target
    if abs(ratio - 1.0) <= TOLERANCE:
        return sample.replicas
    return max(0, math.ceil(ratio * sample.replicas - 1e-9))
