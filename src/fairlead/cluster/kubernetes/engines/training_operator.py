"""Kubeflow's training-operator (v1): PyTorchJob, TFJob, XGBoostJob and MPIJob, which differ in the names of roles."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.engines.pod_template import metadata, pod_template, queued
from fairlead.cluster.kubernetes.engines.port import EngineStage, EngineStatus, Object, Submission, condition, words
from fairlead.frozen import dataclass
from fairlead.specs.engines import Engine

API = "kubeflow.org/v1"
# An MPI worker does nothing itself: the launcher enters it and starts ranks there.
WAIT = ["python3", "-c", "import signal; signal.pause()"]
HOSTS = "/etc/mpi/hostfile"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeflowJob:
    """The port to one kind of the training-operator.

    Attributes:
        key: Name of the field with its roles.
        first: The role of the gang's first pod; None if all pods have the role of the others.
    """

    engine: Engine
    kind: str
    plural: str
    key: str
    first: str | None = "Master"
    api: str = API
    launches: bool = False
    reports_end: bool = False
    beside: tuple[str, ...] = ()

    def render(self, start: Submission) -> tuple[Object, ...]:
        """Render one job that never restarts a pod, and keeps all pods for reading when it has ended."""
        return (self._job(start, self._roles(start)),)

    def _roles(self, start: Submission) -> Object:
        nodes = start.workload.spec.nodes
        if self.first is None:
            return {"Worker": _role(pod_template(start, self.engine, label=names.REPLICA_INDEX), nodes)}
        roles = {self.first: _role(pod_template(start, self.engine, label=names.REPLICA_INDEX), 1)}
        if nodes > 1:
            rest = pod_template(start, self.engine, label=names.REPLICA_INDEX, base=1, reports=False)
            roles["Worker"] = _role(rest, nodes - 1)
        return roles

    def _job(self, start: Submission, roles: Object, **more: Any) -> Object:
        queue = start.workload.spec.queue
        content: Object = {
            "apiVersion": self.api,
            "kind": self.kind,
            "metadata": metadata(start, self.engine),
            "spec": {
                "runPolicy": {"cleanPodPolicy": "None", "suspend": queue is not None},
                **more,
                self.key: roles,
            },
        }
        return queued(content, queue)

    def observe(self, content: Mapping[str, Any]) -> EngineStatus:
        """Read its conditions, of which an older one may still be true."""
        if condition(content, "Succeeded"):
            return EngineStatus(stage=EngineStage.SUCCEEDED)
        if (failed := condition(content, "Failed")) is not None:
            why = words(failed, fallback="it does not say why")
            return EngineStatus(stage=EngineStage.FAILED, message=f"its {self.kind} failed: {why}")
        if ((content.get("spec") or {}).get("runPolicy") or {}).get("suspend"):
            return EngineStatus(stage=EngineStage.WAITING, message=f"its {self.kind} is suspended and not admitted yet")
        if condition(content, "Running"):
            return EngineStatus(stage=EngineStage.RUNNING)
        return EngineStatus(
            stage=EngineStage.WAITING,
            message=f"its {self.kind} does not run yet; waits for its controller to create its pods",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiJob(KubeflowJob):
    """The port to MPIJob: a launcher that starts ranks in as many workers as the run has nodes."""

    def _roles(self, start: Submission) -> Object:
        run = start.workload
        launcher = replace(
            start, workload=replace(run, spec=replace(run.spec, **_LONE, run=_mpirun(start))), device=None
        )
        launched = pod_template(launcher, self.engine, label=names.REPLICA_INDEX)
        # It enters its workers through the API server, with the service account that its controller creates for it.
        launched["spec"]["automountServiceAccountToken"] = True
        worker = pod_template(start, self.engine, label=names.REPLICA_INDEX, base=1, reports=False)
        (ranks,) = (
            container
            for container in worker["spec"]["containers"]
            if container["name"] == names.container_of(self.engine)
        )
        ranks["command"] = WAIT
        ranks.pop("startupProbe")
        return {"Launcher": _role(launched, 1), "Worker": _role(worker, run.spec.nodes)}

    def render(self, start: Submission) -> tuple[Object, ...]:
        """Render one job; each worker has as many slots as the run has ranks per node."""
        slots = start.workload.spec.ranks_on_each_node
        return (self._job(start, self._roles(start), slotsPerWorker=slots),)


# The launcher is always one process.
_LONE: Mapping[str, Any] = {"nodes": 1, "ranks_per_node": 1}


def _mpirun(start: Submission) -> str:
    spec = start.workload.spec
    return f"mpirun -n {spec.world_size} --hostfile {HOSTS} sh -c {shlex.quote(spec.run)}"


def _role(template: Object, count: int) -> Object:
    return {"replicas": count, "restartPolicy": "Never", "template": template}


# With a Master, workers have an init container that waits for its name, which Pod Security's `restricted` forbids.
PYTORCH = KubeflowJob(
    engine=Engine.PYTORCHJOB, kind="PyTorchJob", plural="pytorchjobs", key="pytorchReplicaSpecs", first=None
)
TENSORFLOW = KubeflowJob(engine=Engine.TFJOB, kind="TFJob", plural="tfjobs", key="tfReplicaSpecs", first=None)
XGBOOST = KubeflowJob(engine=Engine.XGBOOSTJOB, kind="XGBoostJob", plural="xgboostjobs", key="xgbReplicaSpecs")
MPI = MpiJob(engine=Engine.MPIJOB, kind="MPIJob", plural="mpijobs", key="mpiReplicaSpecs", launches=True)
