"""KubeRay: a Ray cluster on the run's nodes; the program runs as Ray's driver on its head and ends the cluster."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.engines.pod_template import bare_template, metadata, queued
from fairlead.cluster.kubernetes.engines.port import Driver, EngineStage, EngineStatus, Object, Submission, words
from fairlead.cluster.kubernetes.manifests.pod_environment import PYTHON, RUNTIME
from fairlead.specs.engines import Engine

# Ray's message on a job whose driver failed has its exit code, and then the end of its output.
CODE, OUTPUT_FOLLOWS = re.compile(r"failed with exit code (\d{1,9})(?!\d)"), ", last available logs"
# KubeRay deletes the cluster this long after the job, until when its head reports how the program ended.
KEPT_S = 15
SUBMITTER_CPU, SUBMITTER_MEMORY = "500m", "512Mi"
ENDED = {"SUCCEEDED": EngineStage.SUCCEEDED, "FAILED": EngineStage.FAILED, "STOPPED": EngineStage.FAILED}


class RayJob(Driver):
    """The port to KubeRay."""

    engine = Engine.RAYJOB
    api, kind, plural = "ray.io/v1", "RayJob", "rayjobs"
    launches = True
    reports_end = True

    def render(self, start: Submission) -> tuple[Object, ...]:
        """Render one RayJob: the head is the first pod, and each other pod is a group of one, which fixes its index."""
        spec = start.workload.spec
        head = bare_template(_lone(start), self.engine, index=0, reports=True)
        queue = spec.queue
        cluster: Object = {"headGroupSpec": {"rayStartParams": {"dashboard-host": "0.0.0.0"}, "template": head}}
        if spec.nodes > 1:
            cluster["workerGroupSpecs"] = [
                {
                    "groupName": f"w{index}",
                    "replicas": 1,
                    "minReplicas": 1,
                    "maxReplicas": 1,
                    "rayStartParams": {},
                    "template": bare_template(start, self.engine, index=index, reports=False),
                }
                for index in range(1, spec.nodes)
            ]
        content: Object = {
            "apiVersion": self.api,
            "kind": self.kind,
            "metadata": metadata(start, self.engine),
            "spec": {
                "entrypoint": f"{PYTHON} {RUNTIME} run",
                "suspend": queue is not None,
                "backoffLimit": 0,
                "shutdownAfterJobFinishes": True,
                "ttlSecondsAfterFinished": KEPT_S,
                "rayClusterSpec": cluster,
                "submitterConfig": {"backoffLimit": 0},
                "submitterPodTemplate": _submitter(head, start),
            },
        }
        return (queued(content, queue),)

    def observe(self, content: Mapping[str, Any]) -> EngineStatus:
        """Read Ray's status of the job, and KubeRay's if that failed earlier."""
        status = content.get("status") or {}
        job, deployed = str(status.get("jobStatus") or ""), str(status.get("jobDeploymentStatus") or "")
        if deployed in ("Failed", "ValidationFailed") or ENDED.get(job) is EngineStage.FAILED:
            message = words(status, fallback="it does not say why").partition(OUTPUT_FOLLOWS)[0]
            code = CODE.search(message)
            index, exit_code = (None, 0) if code is None else (0, int(code[1]))
            message = f"its RayJob failed: {message}"
            return EngineStatus(
                stage=EngineStage.FAILED, message=message, index=index, exit_code=exit_code, ended_at=_end(status)
            )
        if ENDED.get(job) is EngineStage.SUCCEEDED or deployed == "Complete":
            return EngineStatus(stage=EngineStage.SUCCEEDED)
        if (content.get("spec") or {}).get("suspend"):
            return EngineStatus(stage=EngineStage.WAITING, message="its RayJob is suspended and not admitted yet")
        if job == "RUNNING":
            return EngineStatus(stage=EngineStage.RUNNING)
        if deployed == "Running":
            return EngineStatus(stage=EngineStage.WAITING, message="its Ray cluster is up and is given the program")
        return EngineStatus(stage=EngineStage.WAITING, message=f"its Ray cluster is {deployed or 'not there yet'}")


def _end(status: Mapping[str, Any]) -> float:
    """Return the end of the job in Unix seconds; 0 if it is unknown."""
    ended_at = (status.get("rayJobInfo") or {}).get("endTime") or status.get("endTime")
    return seconds(ended_at) if ended_at else 0.0


def _lone(start: Submission) -> Submission:
    """Return the submission with one rank, because Ray's driver is one process that instructs the workers."""
    run = start.workload
    return replace(start, workload=replace(run, spec=replace(run.spec, nodes=1, ranks_per_node=1)))


def _submitter(head: Object, start: Submission) -> Object:
    """Return the pod that submits the entrypoint to the head, with Ray's image and the head's security context."""
    spec = head["spec"]
    ranks = next(
        container for container in spec["containers"] if container["name"] == names.container_of(Engine.RAYJOB)
    )
    resources = {"cpu": SUBMITTER_CPU, "memory": SUBMITTER_MEMORY}
    return {
        "metadata": {"labels": names.run_labels(start.workload)},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": spec["securityContext"],
            **({"imagePullSecrets": spec["imagePullSecrets"]} if "imagePullSecrets" in spec else {}),
            "containers": [
                {
                    "name": "ray-job-submitter",
                    "image": ranks["image"],
                    "resources": {"requests": dict(resources), "limits": dict(resources)},
                    "securityContext": ranks["securityContext"],
                }
            ],
        },
    }


DRIVER = RayJob()
