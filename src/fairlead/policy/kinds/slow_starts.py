"""Judges pods that were placed and of which nothing is heard: when a person is told, and when the gang goes elsewhere.

A pod whose image is being pulled, or before whose ranks something of its own runs, is not silent, however long that
takes. What is known to hinder it, such as a volume that cannot be mounted, has a patience of its own.
"""

from collections.abc import Iterable, Iterator

from fairlead.state.snapshot import Phase, Pod, Workload
from fairlead.text.quantities import describe_duration

# Whoever starts a pod says something of it within seconds, also where a machine is busy.
TOLD_AFTER_S = 60.0
# kube-scheduler gives a volume that is being made as long, and a kubelet that came back has looked at its pods by then.
LIMIT_S = 600.0


def tell(pod: Pod, num_pods: int, now: float) -> str | None:
    """Return what a person is told of a pod that has been silent for a while; None while that is nothing unusual."""
    if pod.silence is None or silent_s(pod, now) < TOLD_AFTER_S:
        return None
    return (
        f"pod {pod.index} of {num_pods} has not started for {describe_duration(silent_s(pod, now))}: "
        f"{pod.silence.what}; after {describe_duration(LIMIT_S)} its gang starts anew, elsewhere if there is room"
    )


def overdue(pods: Iterable[Pod], now: float) -> list[Pod]:
    """Return the pods that have been silent for too long."""
    return [pod for pod in pods if pod.silence is not None and silent_s(pod, now) >= LIMIT_S]


def silent_s(pod: Pod, now: float) -> float:
    """Return for how long nothing has been heard of a pod, as far as that is known."""
    silence = pod.silence
    if silence is None:
        return 0.0
    return (now if silence.until is None else silence.until) - silence.since


def look_times(workload: Workload) -> Iterator[float]:
    """Yield when a run that is starting may be told of a silent pod, or give up its places."""
    if workload.status.phase is Phase.STARTING:
        yield workload.status.since + TOLD_AFTER_S
        yield workload.status.since + LIMIT_S
