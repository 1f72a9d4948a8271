"""Kubeflow Trainer (v2): a TrainJob, and a TrainingRuntime of its own that defines its pods."""

from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes.engines.jobset import OF_A_START, indexed, observe_jobs
from fairlead.cluster.kubernetes.engines.pod_template import metadata, pod_template, queued
from fairlead.cluster.kubernetes.engines.port import Driver, EngineStatus, Object, Submission
from fairlead.cluster.kubernetes.names import JOB_INDEX
from fairlead.specs.engines import Engine

STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
NODE = "node"
"""The name that Trainer requires for the Job, and for its container, whose pods are the gang."""


class Trainer(Driver):
    """The port to Kubeflow Trainer."""

    engine = Engine.KUBEFLOW_TRAINER
    api, kind, plural = "trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs"
    beside: tuple[str, ...] = ("TrainingRuntime",)

    def render(self, start: Submission) -> tuple[Object, ...]:
        """Render the runtime, which defines the pods, and the job; the cluster's own runtimes do not fit."""
        nodes, queue = start.workload.spec.nodes, start.workload.spec.queue
        about = metadata(start, self.engine)
        template = pod_template(start, self.engine, label=JOB_INDEX)
        gang = {
            "name": NODE,
            "replicas": 1,
            "template": {"metadata": {"labels": {STEP: "trainer"}}, "spec": indexed(template, nodes)},
        }
        runtime: Object = {
            "apiVersion": self.api,
            "kind": "TrainingRuntime",
            "metadata": about,
            "spec": {
                "mlPolicy": {"numNodes": nodes},
                "template": {
                    "spec": {**OF_A_START, "replicatedJobs": [gang]},
                },
            },
        }
        job: Object = {
            "apiVersion": self.api,
            "kind": self.kind,
            "metadata": metadata(start, self.engine),
            "spec": {
                "suspend": queue is not None,
                "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": about["name"]},
                "trainer": {"numNodes": nodes},
            },
        }
        return (runtime, queued(job, queue))

    def observe(self, content: Mapping[str, Any]) -> EngineStatus:
        """Read its conditions, which are those of its JobSet."""
        return observe_jobs(content, "its TrainJob")


DRIVER = Trainer()
