"""Judges placed pods without a sign of life: when to notify the user, and when the gang is placed elsewhere.

A pod whose image is being pulled, or that runs init work before its ranks, is not silent, however long that takes.
Known obstacles, such as a volume that cannot be mounted, have a time limit of their own.
"""

from collections.abc import Iterable, Iterator

from fairlead.state.snapshot import Phase, Pod, Workload
from fairlead.text.quantities import describe_duration

# A started pod reports within seconds, even on a busy machine.
TOLD_AFTER_S = 60.0
# kube-scheduler allows a volume being provisioned as long, and a kubelet that came back has examined its pods by then.
LIMIT_S = 600.0


def tell(pod: Pod, num_pods: int, now: float) -> str | None:
    """Return the message for a pod that has been silent for a while; None while that is not unusual."""
    if pod.silence is None or silent_s(pod, now) < TOLD_AFTER_S:
        return None
    return (
        f"pod {pod.index} of {num_pods} has not started for {describe_duration(silent_s(pod, now))}: "
        f"{pod.silence.what}; after {describe_duration(LIMIT_S)} its gang restarts, elsewhere if there is room"
    )


def overdue(pods: Iterable[Pod], now: float) -> list[Pod]:
    """Return the pods that have been silent too long."""
    return [pod for pod in pods if pod.silence is not None and silent_s(pod, now) >= LIMIT_S]


def silent_s(pod: Pod, now: float) -> float:
    """Return how long a pod has been silent, as far as known."""
    silence = pod.silence
    if silence is None:
        return 0.0
    return (now if silence.until is None else silence.until) - silence.since


def look_times(workload: Workload) -> Iterator[float]:
    """Yield when a starting run may be notified of a silent pod, or give up its places."""
    if workload.status.phase is Phase.STARTING:
        yield workload.status.since + TOLD_AFTER_S
        yield workload.status.since + LIMIT_S
