"""Kueue: a plain Job that Kueue admits and evicts by its quotas, and the reasons that Kueue gives."""

from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes.engines.jobset import indexed
from fairlead.cluster.kubernetes.engines.pod_template import metadata, pod_template, queued
from fairlead.cluster.kubernetes.engines.port import Object, Observation, Stage, Submission, condition, words
from fairlead.cluster.kubernetes.names import JOB_INDEX
from fairlead.specs.engines import Engine

WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"
"""Path of Kueue's Workloads, which have the reason why their owner is pending."""


class Kueue:
    """The port to Kueue; ``api`` is that of Jobs, which every cluster has."""

    engine = Engine.KUEUE
    api, kind, plural = "batch/v1", "Job", "jobs"
    launches = False
    beside: tuple[str, ...] = ()

    def render(self, start: Submission) -> tuple[Object, ...]:
        """Render one Job, suspended until Kueue admits it."""
        template = pod_template(start, self.engine, label=JOB_INDEX)
        content: Object = {
            "apiVersion": self.api,
            "kind": self.kind,
            "metadata": metadata(start, self.engine),
            "spec": {"suspend": True, **indexed(template, start.workload.spec.nodes)},
        }
        return (queued(content, start.workload.spec.queue),)

    def observe(self, content: Mapping[str, Any]) -> Observation:
        """Read the Job's conditions and active pods."""
        if condition(content, "Complete"):
            return Observation(stage=Stage.SUCCEEDED)
        if (failed := condition(content, "Failed")) is not None:
            return Observation(
                stage=Stage.FAILED, message=f"its Job failed: {words(failed, fallback='it does not say')}"
            )
        if (content.get("spec") or {}).get("suspend"):
            return Observation(stage=Stage.WAITING, message="Kueue has not admitted it yet")
        if (content.get("status") or {}).get("active"):
            return Observation(stage=Stage.RUNNING)
        return Observation(stage=Stage.WAITING, message="Kueue has admitted it; its Job has no pods yet")


def owner_uid(content: Mapping[str, Any]) -> str | None:
    """Return the uid of the object that owns a Kueue Workload."""
    owners = content["metadata"].get("ownerReferences") or ()
    return next((str(each["uid"]) for each in owners if each.get("controller")), None)


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
    reserved = next((each for each in conditions if each.get("type") == "QuotaReserved"), nothing)
    if reserved.get("status") == "True":
        return f"Kueue has reserved quota for it in queue {queue}, and waits for its admission checks"
    why = words(reserved, fallback="it has not looked at it yet")
    return f"Kueue has not admitted it from queue {queue}: {why}"


DRIVER = Kueue()
