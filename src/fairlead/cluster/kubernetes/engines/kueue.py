"""Kueue: a plain Job that Kueue admits and evicts by its quotas, and the reasons that Kueue gives.

With MultiKueue the Job is carried out by another cluster, and its status is a copy of that of the Job there.
"""

import re
from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.engines.jobset import indexed
from fairlead.cluster.kubernetes.engines.pod_template import metadata, pod_template, queued
from fairlead.cluster.kubernetes.engines.port import (
    Driver,
    EngineStage,
    EngineStatus,
    Object,
    Submission,
    condition,
    words,
)
from fairlead.cluster.kubernetes.names import JOB_INDEX
from fairlead.specs.engines import Engine

WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"
"""Path of Kueue's Workloads, which have the reason why their owner is pending."""

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""The manager of a Job that another cluster carries out."""
ORIGIN = "kueue.x-k8s.io/multikueue-origin"
"""Label of the Job there."""
# As the Job controller of Kubernetes words what a rule of a podFailurePolicy matched.
_EXIT = re.compile(r"for pod \S+?/(?P<pod>\S+) failed with exit code (?P<code>\d{1,9})(?!\d)")
_POLICY: Mapping[str, Any] = {
    "rules": [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
    ]
}
"""Has a failed Job name the pod that failed, and its exit code; a pod that its node lost is none of those."""


class Kueue(Driver):
    """The port to Kueue; ``api`` is that of Jobs, which every cluster has."""

    engine = Engine.KUEUE
    api, kind, plural = "batch/v1", "Job", "jobs"

    def render(self, start: Submission) -> tuple[Object, ...]:
        """Render one Job, suspended until Kueue admits it."""
        template = pod_template(start, self.engine, label=JOB_INDEX)
        content: Object = {
            "apiVersion": self.api,
            "kind": self.kind,
            "metadata": metadata(start, self.engine),
            "spec": {"suspend": True, **indexed(template, start.workload.spec.nodes), "podFailurePolicy": _POLICY},
        }
        return (queued(content, start.workload.spec.queue),)

    def observe(self, content: Mapping[str, Any]) -> EngineStatus:
        """Read the Job's conditions and active pods; ready ones where those are in another cluster."""
        status = content.get("status") or {}
        started_at = _moment(status.get("startTime"))
        if condition(content, "Complete"):
            return EngineStatus(stage=EngineStage.SUCCEEDED, started_at=started_at)
        if (failed := condition(content, "Failed")) is not None:
            return _failed(failed, started_at)
        if (content.get("spec") or {}).get("suspend"):
            return EngineStatus(stage=EngineStage.WAITING, message="Kueue has not admitted it yet")
        if is_dispatched(content):
            ready, count = status.get("ready") or 0, (content.get("spec") or {}).get("completions") or 1
            if ready + (status.get("succeeded") or 0) >= count:
                return EngineStatus(stage=EngineStage.RUNNING, started_at=started_at)
            message = f"its pods are starting in another cluster: {ready} of {count} are ready"
            return EngineStatus(stage=EngineStage.WAITING, message=message)
        if status.get("active"):
            return EngineStatus(stage=EngineStage.RUNNING)
        return EngineStatus(stage=EngineStage.WAITING, message="Kueue has admitted it; its Job has no pods yet")


def is_dispatched(content: Mapping[str, Any]) -> bool:
    """Return whether another cluster carries out an engine's object, as Kueue's webhook decided when it was created."""
    spec = content.get("spec") or {}
    return MULTIKUEUE in (spec.get("managedBy"), (spec.get("runPolicy") or {}).get("managedBy"))


def is_suspended(content: Mapping[str, Any]) -> bool:
    """Return whether an engine's object may have no pods now."""
    spec = content.get("spec") or {}
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def cluster_of(content: Mapping[str, Any]) -> str:
    """Return the MultiKueueCluster to which a Workload went; empty for none."""
    return str((content.get("status") or {}).get("clusterName") or "")


def _failed(condition_: Mapping[str, Any], started_at: float | None) -> EngineStatus:
    """Read which pod failed, and how, from the Job's own words."""
    message = f"its Job failed: {words(condition_, fallback='it does not say')}"
    match = _EXIT.search(str(condition_.get("message") or ""))
    number = None if match is None else match["pod"].split("-")[-2:][0]
    if match is None or number is None or not number.isdigit():
        return EngineStatus(stage=EngineStage.FAILED, message=message, started_at=started_at)
    return EngineStatus(
        stage=EngineStage.FAILED,
        message=message,
        started_at=started_at,
        index=int(number),
        exit_code=int(match["code"]),
        ended_at=_moment(condition_.get("lastTransitionTime")) or 0.0,
    )


def _moment(text: str | None) -> float | None:
    return seconds(text) if text else None


def owner_uid(content: Mapping[str, Any]) -> str | None:
    """Return the uid of the object that owns a Kueue Workload."""
    owners = content["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


def explain(content: Mapping[str, Any]) -> str:
    """Return why a Kueue Workload is pending, as a sentence without its full stop; empty once admitted."""
    queue = (content.get("spec") or {}).get("queueName") or ""
    if condition(content, "Admitted"):
        return ""
    evicted = condition(content, "Evicted")
    if evicted is not None:
        return f"Kueue took it back into queue {queue}: {words(evicted, fallback='it does not say why')}"
    conditions = (content.get("status") or {}).get("conditions") or ()
    nothing: Mapping[str, Any] = {}
    reserved = next((condition_ for condition_ in conditions if condition_.get("type") == "QuotaReserved"), nothing)
    if reserved.get("status") == "True":
        return f"Kueue has reserved quota for it in queue {queue}, and waits for {_awaited(content)}"
    why = words(reserved, fallback="it has not looked at it yet")
    return f"Kueue has not admitted it from queue {queue}: {why}"


def _awaited(content: Mapping[str, Any]) -> str:
    """Name what an admission waits for: room in other clusters, or checks with what they say."""
    status = content.get("status") or {}
    clusters = status.get("nominatedClusterNames") or ()
    if clusters:
        return f"room in {' or '.join(map(str, clusters))}, where MultiKueue has asked for it"
    open_ = (
        admission_check
        for admission_check in status.get("admissionChecks") or ()
        if admission_check.get("state") != "Ready"
    )
    checks = [f"{check['name']} ({words(check, fallback='it says nothing')})" for check in open_ if check.get("name")]
    return f"admission checks: {', '.join(checks)}" if checks else "its admission checks"


DRIVER = Kueue()
