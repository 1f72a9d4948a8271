"""Finds how long gangs that have started pulled their images, which only the Events of kubelet tell.

Of each gang the pod that started last is examined, once, and only if its start took seconds: the API server reads all
Events of a namespace to find those of one pod. It keeps them for an hour, so this is done when the gang has started,
and the answer is kept in the run's object. An operator that takes over examines the gangs whose answer is missing.
"""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes.api.objects import PodObject, seconds
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.pods.pod_events import of_pod
from fairlead.cluster.kubernetes.workloads.run_record import Gang
from fairlead.state.attempts import ImagePull

# A pod's times are whole seconds.
LEAST_S = 2.0
# The API server's default, after which there are no Events of the start.
EVENTS_KEPT_S = 3600.0
# The least time between two requests, of whatever runs.
EVERY_S = 0.2
PULLED = "Pulled"
# Kubelet's sentence for an image that was not there; https://github.com/kubernetes/kubernetes, pkg/kubelet/images.
_SENTENCE = re.compile(
    r'Successfully pulled image "(?P<image>[^"]*)" in \S+ \((?P<took>[^)\s]+) including waiting\)'
    r"(?:\. Image size: (?P<size>\d{1,18}) bytes)?"
)
_PART = re.compile(r"([\d.]+)(h|ms|m|s|us|µs|ns)")
_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class ImagePulls(Controller):
    """Examines gangs that have started, one after the other."""

    name = "pulls of images"

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._marks = cluster.view.marks()
        # By run, the attempt that is to be examined, and the one that was.
        self._due: dict[str, int] = {}
        self._attempts: dict[str, int] = {}
        self._next_at = 0.0

    def act(self, turn: Turn) -> None:
        """Examine the next gang; one whose Events cannot be read comes last."""
        agent, now = turn.agent, turn.now
        for uid in self._marks.take()[0]:
            run_object = self._cluster.view.find(uid)
            gang = None if run_object is None or run_object.state.status.phase.is_final else run_object.state.gang
            if gang is None:
                self._attempts.pop(uid, None)
            if gang is None or gang.pull is not None or self._last_started(uid, gang, now) is None:
                self._due.pop(uid, None)
            elif self._attempts.get(uid) != gang.attempt:
                self._due[uid] = gang.attempt
        if not self._due or now < self._next_at:
            return
        uid, attempt = next(iter(self._due.items()))
        del self._due[uid]
        run_object = self._cluster.view.find(uid)
        gang = None if run_object is None else run_object.state.gang
        if gang is None or gang.attempt != attempt or self._attempts.get(uid) == attempt:
            return
        pod = self._last_started(uid, gang, now)
        if pod is not None:
            self._due[uid], self._next_at = attempt, now + EVERY_S
            agent.submit(uid, f"ask how long {pod.key} pulled its image", partial(self._ask, uid, pod))

    def _last_started(self, uid: str, gang: Gang, now: float) -> PodObject | None:
        """Return the pod of a gang that started last; None if that was quick or long ago, or one has not started."""
        pods = [pod for pod in self._cluster.view.pods_of(uid).values() if pod.attempt == gang.attempt]
        if len(pods) < len(gang.nodes) or any(pod.started_at is None for pod in pods):
            return None
        last = max(pods, key=lambda pod: (pod.started_at or 0.0, pod.index))
        at = last.started_at or 0.0
        return last if at - last.created_at >= LEAST_S and now - at < EVENTS_KEPT_S else None

    def _ask(self, uid: str, pod: PodObject) -> None:
        pull = pull_in(of_pod(self._cluster.client, pod), pod.node)
        self._attempts[uid] = pod.attempt
        if pull is not None:
            self._cluster.reports.note_pull(uid, pod.attempt, pull)


def pull_in(events: Iterable[Mapping[str, Any]], node: str) -> ImagePull | None:
    """Return the pull of a pod's images, from its Events; None if they were all there, or nothing tells."""
    pulls = []
    for event in events:
        match = _SENTENCE.match(str(event.get("message") or "")) if event.get("reason") == PULLED else None
        at = event.get("eventTime") or event.get("firstTimestamp")
        took_s = None if match is None else duration_s(match["took"])
        if match is None or not at or took_s is None:
            continue
        size = int(match["size"]) if match["size"] else None
        until = seconds(at)
        if took_s > until:
            continue  # an Event of the kubelet has no such time; members of a namespace may write others
        pulls.append(ImagePull(since=until - took_s, until=until, image=match["image"], node=node, size_bytes=size))
    if not pulls:
        return None
    longest = max(pulls, key=lambda pull: pull.until - pull.since)
    return ImagePull(
        since=min(pull.since for pull in pulls),
        until=max(pull.until for pull in pulls),
        image=longest.image,
        node=node,
        size_bytes=longest.size_bytes,
    )


def duration_s(text: str) -> float | None:
    """Parse a duration as Go prints it, such as ``1m2.5s``; None if it is none."""
    parts = _PART.findall(text)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != text:
        return None
    try:
        return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    except ValueError:
        return None
