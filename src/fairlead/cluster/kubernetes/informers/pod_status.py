"""Determines the state of a gang's pod and the reason, in one sentence, from the pod as it was last seen. Pure."""

from dataclasses import replace

from fairlead.cluster.kubernetes.api.objects import NodeObject, PodObject
from fairlead.cluster.kubernetes.workloads.pod_reports import Ending, read_ending
from fairlead.frozen import dataclass
from fairlead.policy.kinds.failures import NO_PLACE
from fairlead.policy.kinds.slow_starts import LIMIT_S, TOLD_AFTER_S
from fairlead.state.plan import CreatePod
from fairlead.state.pod_uids import pod_uid
from fairlead.state.snapshot import Grant, Pod, PodPhase, Silence

# kube-scheduler's caches may lag behind freed resources; it tries again at every change.
REFUSAL_PATIENCE_S = 3.0
# A registry recovers from a failure within a minute; a name that does not exist never appears.
PULL_PATIENCE_S = 60.0
# Kubernetes force-detaches a disk from a node that does not release it, but only after six minutes
# (`maxWaitForUnmountDuration` of its attach-detach controller). A disk still missing a while later needs a person.
MOUNT_PATIENCE_S = LIMIT_S
PULLING = "Pulling"
PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"})
NEVER = frozenset(
    {"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
# kubelet's messages when its container runtime fails during an operation; the next attempt may succeed.
RUNTIME_CALLS = frozenset({"CreateContainerError", "RunContainerError", "ImageInspectError"})
RUNTIME_AWAY = (
    *("transport", "error reading from server", "connection refused", "deadline exceeded", "is reserved for"),
    *("ttrpc: closed", "connection reset"),
)
# kubelet reports these only in Events: the operation, and a remedy. It retries for ever, Fairlead does not.
HINDRANCES = {
    **dict.fromkeys(
        ("FailedMount", "FailedAttachVolume", "FailedMapVolume"),
        ("a volume cannot be mounted", "create what it refers to, or correct the name under `kubernetes`"),
    ),
    **dict.fromkeys(
        ("FailedCreatePodSandBox", "NetworkNotReady"),
        ("its network cannot be set up", "ask the administrator of the node: `kubectl describe node` may say more"),
    ),
}
HOPELESS = ("not found", "denied", "unauthorized", "manifest unknown", "does not exist", "no match for platform")
DISRUPTIONS = {
    "PreemptionByScheduler": "kube-scheduler preempted it for a pod of a higher priority",
    "EvictionByEvictionAPI": "it was evicted, as `kubectl drain` does before maintenance of its node",
    "DeletionByTaintManager": "its node was tainted as unreachable or not ready",
    "DeletionByPodGC": "its node left the cluster",
    "TerminationByKubelet": "its node ran short of memory or disk, or was shutting down",
}
UNANSWERED = "it was deleted before its result was read"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWord:
    """The newest Event of a pod's kubelet, which may name an obstacle before any container starts.

    Attributes:
        words: Reason and message of the Event; None if there is none.
        told_at: When it was first recorded, in Unix seconds.
        asked_at: When it was last read as the newest, in Unix seconds.
    """

    pod_uid: str
    words: tuple[str, str] | None
    told_at: float | None = None
    asked_at: float

    @property
    def is_obstacle(self) -> bool:
        """Return whether it names an obstacle to the pod's start."""
        return self.words is not None and self.words[0] in HINDRANCES

    def applied(self, pod: PodObject) -> PodObject:
        """Return the pod with this Event, if it is the pod concerned."""
        if pod.uid != self.pod_uid:
            return pod
        known = replace(pod, asked_at=self.asked_at, last_word=self.words, last_word_at=self.told_at)
        return replace(known, waiting=self.words) if self.is_obstacle else known


def observe_pod(
    pod: PodObject,
    member: CreatePod,
    *,
    ranks: range,
    told_at: float | None,
    node: NodeObject | None,
    gone: bool,
    active_at: float | None = None,
    heard_at: float | None = None,
) -> Pod:
    """Return a member of a gang, as the loop sees it.

    Args:
        pod: The pod as it was last seen.
        ranks: The ranks of the pod.
        told_at: When Fairlead told it to stop; None if it did not.
        node: The node that it is bound to; None if that is gone, or the pod is not bound.
        gone: Its object is gone, so none of its processes lives.
        active_at: The run's last sign of progress; None if nothing reports any.
        heard_at: When the run last answered; None if it never did.
    """
    ending = read_ending(pod.ended, ranks=ranks) if pod.ended is not None else None
    phase, message = _verdict(pod, ending, is_told=told_at is not None, node=node, gone=gone)
    if phase is PodPhase.STARTING and message is None and node is not None and not node.ready:
        message = f"node {pod.node} is not ready: its kubelet does not answer"
    keeps = phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)
    return Pod(
        uid=pod_uid(pod.run_uid, pod.attempt, pod.index, pod.replacement),
        workload_uid=pod.run_uid,
        attempt=pod.attempt,
        index=pod.index,
        replacement=pod.replacement,
        node=pod.node or member.node,
        grant=member.grant,
        phase=phase,
        created_at=pod.created_at,
        started_at=pod.started_at,
        terminating_since=told_at if told_at is not None else pod.told_at,
        active_at=max(pod.started_at, active_at) if pod.started_at is not None and active_at else pod.started_at,
        heard_at=heard_at or pod.started_at,
        exits=ending.exits if ending is not None and keeps else (),
        message=message,
        usage=ending.usage if ending is not None and keeps else None,
        ready=pod.ready and phase is PodPhase.RUNNING and told_at is None and pod.told_at is None,
        silence=_silence(pod, is_told=told_at is not None) if not phase.is_final else None,
    )


def _silence(pod: PodObject, *, is_told: bool) -> Silence | None:
    """Return how long nothing was heard of an attempt's pod; None while it waits for a known reason."""
    if pod.started_at is not None or is_told or pod.told_at is not None or pod.is_busy:
        return None
    if is_stuck(pod) or is_hindered(pod) or _is_pulling(pod):
        return None
    if not pod.node:
        return Silence(since=pod.created_at, what="kube-scheduler has not bound it to its node")
    since = max(pod.created_at, pod.last_word_at or 0.0)
    if pod.last_word is None:
        what = "its kubelet says nothing of it"
    else:
        what = f"its kubelet said last {_clause(': '.join(filter(None, pod.last_word)))!r}"
    # Before the run was asked its silence means nothing.
    return Silence(since=since, until=max(since, pod.asked_at or 0.0), what=what)


def stray(pod: PodObject) -> Pod:
    """Return a pod of an attempt that the run's object no longer contains, or not yet."""
    requests = pod.requests
    grant = Grant(cpu_milli=requests.cpu_milli, memory_bytes=requests.memory_bytes)
    member = CreatePod(attempt=pod.attempt, index=pod.index, node=pod.node, grant=grant)
    return observe_pod(pod, member, ranks=range(0), told_at=None, node=None, gone=False)


def remembering(before: PodObject | None, pod: PodObject) -> PodObject:
    """Return the pod with the reason why it could not start, which is lost once the pod is being deleted."""
    if before is None or before.uid != pod.uid or pod.told_at is None or pod.started_at is not None or is_stuck(pod):
        return pod
    if not is_stuck(before) and not is_hindered(before):
        return pod
    return replace(pod, waiting=before.waiting, asked_at=before.asked_at)


def is_hopeless(pod: PodObject, now: float) -> bool:
    """Return whether a pod that has not started is to be deleted, and its gang with it."""
    if pod.is_over or pod.told_at is not None or pod.started_at is not None:
        return False
    age_s = now - pod.created_at
    if not pod.node:
        return pod.refused is not None and age_s > REFUSAL_PATIENCE_S
    if is_hindered(pod):
        return _is_given_up(pod)
    return is_stuck(pod) and (_is_final(pod) or age_s > PULL_PATIENCE_S)


def is_on_lost_node(pod: PodObject, node: NodeObject | None) -> bool:
    """Return whether a bound pod's node is gone for good, so that the pod's end will never be reported."""
    if not pod.node or pod.is_over:
        return False
    return node is None or any(taint.key == "node.kubernetes.io/out-of-service" for taint in node.taints)


def is_stuck(pod: PodObject) -> bool:
    """Return whether a container of the pod cannot start as things are."""
    return pod.waiting is not None and pod.waiting[0] in PULL | NEVER


def _is_pulling(pod: PodObject) -> bool:
    return pod.last_word is not None and pod.last_word[0] == PULLING


def is_hindered(pod: PodObject) -> bool:
    """Return whether the pod waits for something that comes before its containers."""
    return pod.waiting is not None and pod.waiting[0] in HINDRANCES


def _verdict(
    pod: PodObject, ending: Ending | None, *, is_told: bool, node: NodeObject | None, gone: bool
) -> tuple[PodPhase, str | None]:
    well = pod.phase == "Succeeded" or (ending is not None and ending.exits and all(one.ok for one in ending.exits))
    if well and (pod.is_over or gone):
        return PodPhase.SUCCEEDED, None if ending is None else ending.message
    if not pod.is_over and not gone:
        if is_on_lost_node(pod, node):
            return PodPhase.LOST, f"node {pod.node} is gone"
        if pod.started_at is not None:
            return PodPhase.RUNNING, None
        return (PodPhase.STARTING, _waits(pod)) if pod.node else (PodPhase.CREATED, _waits(pod))
    if pod.started_at is None and pod.ended is None:
        return _never_started(pod, is_told=is_told)
    if is_told:
        seen = ending is not None and ending.exits
        return (PodPhase.FAILED, None) if seen else (PodPhase.LOST, UNANSWERED)
    cause = _disruption(pod)
    if cause is not None:
        return PodPhase.LOST, cause
    if pod.told_at is not None:
        return PodPhase.LOST, "it was deleted, as by `kubectl delete pod`"
    if ending is not None and (ending.exits or ending.message):
        return PodPhase.FAILED, ending.message
    return PodPhase.LOST, pod.pod_reason[1] or UNANSWERED


def _never_started(pod: PodObject, *, is_told: bool) -> tuple[PodPhase, str]:
    if is_told:
        return PodPhase.FAILED, "stopped before it started"
    if pod.is_over and pod.pod_reason[0]:
        return PodPhase.LOST, _disruption(
            pod
        ) or f"node {pod.node} refused it: {_clause(pod.pod_reason[1] or pod.pod_reason[0])}"
    if not pod.node and pod.refused is not None:
        return PodPhase.LOST, f"{NO_PLACE} on the node that had room: {_clause(pod.refused)}"
    if _is_of_runtime(pod):
        return PodPhase.LOST, why_not_started(pod)
    if is_stuck(pod):
        return PodPhase.FAILED, why_not_started(pod)
    if is_hindered(pod):
        end = f"; after {MOUNT_PATIENCE_S / 60:.0f} min its place is given to others" if _is_given_up(pod) else ""
        return PodPhase.LOST, f"{_why_hindered(pod)}{end}"
    return PodPhase.LOST, _disruption(pod) or "it was deleted before it started"


def why_not_started(pod: PodObject) -> str:
    """Return why a container of a pod cannot start, and a remedy."""
    reason, message = pod.waiting or ("", "")
    cause = _clause(message or reason)
    if _is_of_runtime(pod):
        return f"the container runtime of {pod.node} did not answer: {cause}"
    if reason in PULL or reason == "ErrImageNeverPull":
        return (
            f"the image {pod.image} cannot be pulled on {pod.node}: {cause}; check its name and tag, and for a private "
            "registry name a pull secret under `kubernetes.spec.imagePullSecrets`"
        )
    if reason == "InvalidImageName":
        return f"the image {pod.image} is not a valid name: {cause}; correct `image`"
    if reason == "CreateContainerConfigError":
        return f"the container cannot be set up on {pod.node}: {cause}; create what it refers to, or correct the name"
    return f"the container cannot start on {pod.node}: {cause}; the image needs Python 3.9 or newer as `python3`"


def _is_final(pod: PodObject) -> bool:
    """Return whether another attempt of a stuck pod would end the same way."""
    reason, message = pod.waiting or ("", "")
    if _is_of_runtime(pod):
        return False
    return reason in NEVER or any(word in message.lower() for word in HOPELESS)


def _is_of_runtime(pod: PodObject) -> bool:
    """Return whether its container waits for the node's container runtime, not for anything of its own."""
    reason, message = pod.waiting or ("", "")
    return reason in RUNTIME_CALLS and any(word in message for word in RUNTIME_AWAY)


def _disruption(pod: PodObject) -> str | None:
    reason, message = pod.pod_reason
    if reason == "Evicted":
        return f"node {pod.node} evicted it: {_clause(message)}; ask for what it uses, so that it gets a node with room"
    if reason in ("NodeShutdown", "Terminated", "Shutdown"):
        return f"node {pod.node} was shutting down"
    if pod.disruption is None:
        return None
    word, explanation = pod.disruption
    return DISRUPTIONS.get(word) or f"it was disrupted ({word}): {_clause(explanation)}"


def _waits(pod: PodObject) -> str | None:
    if is_hindered(pod):
        return f"{_why_hindered(pod)}; kubelet retries for {MOUNT_PATIENCE_S / 60:.0f} min in all"
    if _is_pulling(pod) and pod.asked_at is not None and pod.asked_at - pod.created_at >= TOLD_AFTER_S:
        return f"its image {pod.image} is being pulled on {pod.node}"
    if not is_stuck(pod):
        return None
    why = why_not_started(pod)
    return why if _is_final(pod) else f"{why}; kubelet retries for {PULL_PATIENCE_S:.0f} s in all"


def _is_given_up(pod: PodObject) -> bool:
    """Return whether an obstacle outlasted Fairlead's patience; an older answer may be outdated."""
    return pod.asked_at is not None and pod.asked_at - pod.created_at >= MOUNT_PATIENCE_S


def _why_hindered(pod: PodObject) -> str:
    reason, message = pod.waiting or ("", "")
    what, remedy = HINDRANCES[reason]
    return f"{what} on {pod.node}: {_clause(message)}; {remedy}"


def _clause(text: str) -> str:
    """Return another component's sentence as a clause."""
    return " ".join(text.split()).rstrip(".")[:400]
