"""Names of the objects of a run, and the labels that select them. Every name fits into a DNS label."""

import re
from collections.abc import Mapping

from fairlead.specs.gang import GangSpec
from fairlead.specs.overlay import RANKS
from fairlead.specs.training import MANAGED_BY as MANAGED_BY
from fairlead.state.snapshot import AnyWorkload, Workload

DOMAIN = "fairlead.dev"
MANAGER = "fairlead"
RUN, RUN_UID = f"{DOMAIN}/run", f"{DOMAIN}/run-uid"
ATTEMPT, INDEX = f"{DOMAIN}/attempt", f"{DOMAIN}/index"
# On the pod that replaces a lost one of a gang that goes on in place: how often a pod of its index was lost.
REPLACEMENT = f"{DOMAIN}/replacement"
# On pods that an engine created: the engine, and the index of the first pod of the same template.
ENGINE, INDEX_BASE = f"{DOMAIN}/engine", f"{DOMAIN}/index-base"
# On the pods of replicas: the endpoint's name.
SERVICE = f"{DOMAIN}/service"
# On objects that an engine creates for an endpoint: the endpoint and the revision.
ENDPOINT_UID, REVISION = f"{DOMAIN}/endpoint-uid", f"{DOMAIN}/revision"
# On the Experiment of a sweep and all that Katib makes of it: whose it is.
SWEEP_UID = f"{DOMAIN}/sweep-uid"
# Labels by which engines number the pods of one template, from 0.
JOB_INDEX, REPLICA_INDEX = "batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index"
TASK_INDEX = "volcano.sh/task-index"
# Container names that engines require for the ranks' container.
_CONTAINERS = {
    "pytorchjob": "pytorch", "tfjob": "tensorflow", "xgboostjob": "xgboost", "mpijob": "mpi",
    "kubeflow-trainer": "node",
}  # fmt: skip
TEAM, CONTENT = f"{DOMAIN}/team", f"{DOMAIN}/content"
ROOM_FOR = f"{DOMAIN}/room-for"
FAMILY = f"{DOMAIN}/family"
"""Annotation of the pod of a pipeline's driver: the state of the runs that it requested."""
# On a placeholder of a pool: its name.
POOL = f"{DOMAIN}/pool"
# On a node: the GPU layout that is being applied and since when, and the times at which layouts failed.
PARTITIONING, PARTITIONS_FAILED = f"{DOMAIN}/partitioning", f"{DOMAIN}/partitions-failed"
# On a VerticalPodAutoscaler: the name of the runs that it applies to.
SIZES = f"{DOMAIN}/sizes"
# On the costs of a day: their owner.
COSTS = f"{DOMAIN}/costs"
PLACEHOLDER_CLASS = "fairlead-placeholder"
SYSTEM_NAMESPACE, LEASE = "fairlead-system", "fairlead-operator"
# The gateways of endpoints, in a separate namespace, and the object that has their routes.
GATEWAY = GATEWAY_NAMESPACE = "fairlead-gateway"
ROUTES, DEMAND = "fairlead-routes", "demand"
# In a team's namespace: hashes of the keys with which the team may call endpoints.
ACCESS_KEYS = "fairlead-access-keys"
MODELS = "fairlead-models"
# On the Lease: the policy with which the leader starts pending runs.
POLICY = f"{DOMAIN}/policy"
# The ConfigMap with the status of the Cluster Autoscaler.
AUTOSCALER_STATUS = "cluster-autoscaler-status"


def is_object_name(text: str) -> bool:
    """Return whether an object can have this name, so that it may be used in the path of a request."""
    return re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", text) is not None


def host_name(spec: GangSpec, attempt: int, index: int) -> str:
    """Return a pod's name in DNS, of at most 62 characters: 50 of the run's name, 4 of the index, 6 of the attempt.

    A replacement has the name of the pod that was lost.
    """
    return f"{spec.name}-{attempt}-{index}"


def pod_name(spec: GangSpec, attempt: int, index: int, replacement: int = 0) -> str:
    """Return the name of a pod's object, which no other pod has or had; no run's name makes it another's."""
    return host_name(spec, attempt, index) + (f"r{replacement}" if replacement else "")


def container_of(engine: str | None) -> str:
    """Return the name of the ranks' container in pods of an engine; None stands for Fairlead's own pods."""
    return RANKS if engine is None else _CONTAINERS.get(engine, RANKS)


def index_in_gang(labels: Mapping[str, str]) -> int:
    """Return a pod's index from its labels: Fairlead's, or the engine's index within its template."""
    if INDEX in labels:
        return _whole(labels[INDEX])
    number = next((labels[each] for each in (JOB_INDEX, REPLICA_INDEX, TASK_INDEX) if each in labels), None)
    return _whole(labels.get(INDEX_BASE)) + _whole(number)


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def engine_object_name(spec: GangSpec, attempt: int) -> str:
    """Return the name of the engine's object for an attempt, so that each attempt is submitted once.

    It has at most 57 characters; an engine appends to it for the names of pods.
    """
    return f"{spec.name}-{attempt}"


def placeholder_name(spec: GangSpec, index: int) -> str:
    """Return a placeholder's name, which no pod of a gang has, as those end in two numbers."""
    return f"{spec.name}-room-{index}"


def service_name(workload: Workload) -> str:
    """Return the name of a run's Service, which must start with a letter, as a run's name need not.

    It contains the start of the run's uid, because objects of an earlier run of the same name may still be terminating.
    """
    return f"ft-{workload.spec.name}-{workload.uid[:6]}"


def run_labels(workload: Workload) -> dict[str, str]:
    """Return the labels of all objects that belong to a run."""
    return {MANAGED_BY: MANAGER, RUN: workload.spec.name, RUN_UID: workload.uid}


def owner(workload: AnyWorkload) -> dict[str, object]:
    """Return the owner reference of objects that are deleted with a workload."""
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": type(workload.spec).__name__,
        "name": workload.spec.name,
        "uid": workload.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
