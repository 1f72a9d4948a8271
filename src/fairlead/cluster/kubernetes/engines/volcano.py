"""Volcano: a Volcano Job, whose pods its scheduler binds all together or not at all."""

from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes.engines.pod_template import metadata, pod_template
from fairlead.cluster.kubernetes.engines.port import Driver, EngineStage, EngineStatus, Object, Submission
from fairlead.cluster.kubernetes.names import TASK_INDEX
from fairlead.specs.engines import Engine

SCHEDULER = "volcano"
OVER = {
    "Completed": EngineStage.SUCCEEDED,
    "Failed": EngineStage.FAILED,
    "Aborted": EngineStage.FAILED,
    "Terminated": EngineStage.FAILED,
}


class Volcano(Driver):
    """The port to Volcano."""

    engine = Engine.VOLCANO
    api, kind, plural = "batch.volcano.sh/v1alpha1", "Job", "jobs"

    def render(self, start: Submission) -> tuple[Object, ...]:
        """Render one Job with two tasks, the gang's first pod and the others, that starts only with all pods."""
        nodes, queue = start.workload.spec.nodes, start.workload.spec.queue
        tasks = [_task("first", 1, pod_template(start, self.engine, label=TASK_INDEX))]
        if nodes > 1:
            rest = pod_template(start, self.engine, label=TASK_INDEX, base=1, reports=False)
            tasks.append(_task("others", nodes - 1, rest))
        content: Object = {
            "apiVersion": self.api,
            "kind": self.kind,
            "metadata": metadata(start, self.engine),
            "spec": {
                "schedulerName": SCHEDULER,
                "queue": queue or "default",
                "minAvailable": nodes,
                "maxRetry": 1,
                "policies": [
                    {"event": "PodFailed", "action": "AbortJob"},
                    {"event": "PodEvicted", "action": "AbortJob"},
                ],
                "tasks": tasks,
            },
        }
        return (content,)

    def observe(self, content: Mapping[str, Any]) -> EngineStatus:
        """Read the phase of its state."""
        state = (content.get("status") or {}).get("state") or {}
        phase = str(state.get("phase") or "Pending")
        message = " ".join(str(state.get("message") or state.get("reason") or "").split()).rstrip(".")
        after = f": {message[:400]}" if message else ""
        if phase in OVER:
            failed = OVER[phase] is EngineStage.FAILED
            return EngineStatus(stage=OVER[phase], message=f"its Volcano Job is {phase}{after}" if failed else "")
        if phase in ("Running", "Completing"):
            return EngineStatus(stage=EngineStage.RUNNING)
        queue = (content.get("spec") or {}).get("queue") or "default"
        return EngineStatus(stage=EngineStage.WAITING, message=f"its Volcano Job in queue {queue} is {phase}{after}")


def _task(name: str, count: int, template: Object) -> Object:
    template["spec"]["schedulerName"] = SCHEDULER
    return {"name": name, "replicas": count, "maxRetry": 1, "template": template}


DRIVER = Volcano()
