"""Computes the replicas that an endpoint needs from a Prometheus query, as Kubernetes' own autoscaler does.

A sum over all replicas, such as a queue length, is divided by the target per replica. A mean per replica, such as GPU
utilisation, is first multiplied by the replicas that were ready at the query; within a tenth of the target nothing
changes, the tolerance of Kubernetes' HorizontalPodAutoscaler. The result is never below the need of any answer of the
last window. Without a fresh answer the need is unknown.
"""

import math

from fairlead.specs.serving import Aggregation, PrometheusQuery
from fairlead.state.measurements import Measurement, Sample

# The interval between queries, and for how long an answer counts.
ASK_S, FRESH_S = 2.0, 30.0
# The default of `--horizontal-pod-autoscaler-tolerance` of kube-controller-manager.
TOLERANCE = 0.1


def needed_by_metric(
    query: PrometheusQuery, measurement: Measurement | None, window_s: float, current: int, now: float
) -> int | None:
    """Return the number of replicas needed; None if unknown now.

    Args:
        current: The previously wanted number, which is kept until a whole window is known.
    """
    if measurement is None:
        return None
    known = [sample for sample in measurement.samples if _says(query, sample)]
    if not known or now - known[-1].at > FRESH_S:
        return None
    needed = max(_needed(query, sample) for sample in known if sample is known[-1] or now - sample.at <= window_s)
    return max(needed, current) if now - measurement.since < window_s else needed


def unmeasured(query: PrometheusQuery | None, measurement: Measurement | None, now: float) -> str | None:
    """Return why a query has no valid answer; None if it has one, or was not evaluated yet."""
    if query is None or measurement is None or measurement.problem is None:
        return None
    samples = measurement.samples
    return measurement.problem if not samples or now - samples[-1].at > FRESH_S else None


def _says(query: PrometheusQuery, sample: Sample) -> bool:
    """Return whether an answer is usable: the mean over no replicas is not."""
    return query.aggregation is Aggregation.SUM or sample.replicas > 0


def _needed(query: PrometheusQuery, sample: Sample) -> int:
    if query.aggregation is Aggregation.SUM:
        return max(0, math.ceil(sample.value / query.target - 1e-9))
    ratio = sample.value / query.target
    if abs(ratio - 1.0) <= TOLERANCE:
        return sample.replicas
    return max(0, math.ceil(ratio * sample.replicas - 1e-9))
