"""JobSet: the gang as two Jobs, one for its first pod and one for the others, which succeed and fail together."""

from collections.abc import Mapping
from typing import Any

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

OF_A_START: Mapping[str, Any] = {
    "network": {"enableDNSHostnames": False},
    "successPolicy": {"operator": "All"},
    "failurePolicy": {"maxRestarts": 0},
}
"""Settings of a JobSet that never restarts and has no Service, because the run has one."""


class JobSet(Driver):
    """The port to JobSet."""

    engine = Engine.JOBSET
    api, kind, plural = "jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets"

    def render(self, start: Submission) -> tuple[Object, ...]:
        """Render one JobSet, without restarts and without a Service, because the run has one."""
        queue = start.workload.spec.queue
        content: Object = {
            "apiVersion": self.api,
            "kind": self.kind,
            "metadata": metadata(start, self.engine),
            "spec": {
                "suspend": queue is not None,
                **OF_A_START,
                "replicatedJobs": replicated_jobs(start, self.engine),
            },
        }
        return (queued(content, queue),)

    def observe(self, content: Mapping[str, Any]) -> EngineStatus:
        """Read its conditions and the number of its active Jobs."""
        return observe_jobs(content, "its JobSet")


def replicated_jobs(start: Submission, engine: Engine, names: tuple[str, str] = ("first", "others")) -> list[Object]:
    """Return the two Jobs of a gang; one Job for a gang of one pod."""
    nodes = start.workload.spec.nodes
    first = pod_template(start, engine, label=JOB_INDEX)
    jobs = [{"name": names[0], "replicas": 1, "template": {"spec": indexed(first, 1)}}]
    if nodes > 1:
        rest = pod_template(start, engine, label=JOB_INDEX, base=1, reports=False)
        jobs.append({"name": names[1], "replicas": 1, "template": {"spec": indexed(rest, nodes - 1)}})
    return jobs


def indexed(template: Object, count: int) -> Object:
    """Return the spec of an Indexed Job of ``count`` pods that fails with the first failed pod."""
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "template": template,
    }


def observe_jobs(content: Mapping[str, Any], what: str) -> EngineStatus:
    """Read the status of a JobSet, or of an object that has a JobSet's conditions."""
    status = content.get("status") or {}
    if condition(content, "Completed") or condition(content, "Complete"):
        return EngineStatus(stage=EngineStage.SUCCEEDED)
    if (failed := condition(content, "Failed")) is not None:
        return EngineStatus(
            stage=EngineStage.FAILED, message=f"{what} failed: {words(failed, fallback='it does not say why')}"
        )
    if (content.get("spec") or {}).get("suspend"):
        return EngineStatus(stage=EngineStage.WAITING, message=f"{what} is suspended and not admitted yet")
    jobs = status.get("replicatedJobsStatus") or status.get("jobsStatus") or ()
    if any(job.get("active") for job in jobs):
        return EngineStatus(stage=EngineStage.RUNNING)
    return EngineStatus(
        stage=EngineStage.WAITING, message=f"{what} has no pods yet; waits for its controller to create them"
    )


DRIVER = JobSet()
