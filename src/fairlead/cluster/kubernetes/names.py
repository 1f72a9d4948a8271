"""Names the objects of a run, and the labels by which they are found. Every name fits in a DNS label."""

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
# On pods that an engine made: which, and the index of the first of those that have the same template.
ENGINE, INDEX_BASE = f"{DOMAIN}/engine", f"{DOMAIN}/index-base"
# On the pods of replicas: the endpoint's name.
SERVICE = f"{DOMAIN}/service"
# On what an engine makes of an endpoint: whose it is, and of which revision.
ENDPOINT_UID, REVISION = f"{DOMAIN}/endpoint-uid", f"{DOMAIN}/revision"
# On the Experiment of a sweep and all that Katib makes of it: whose it is.
SWEEP_UID = f"{DOMAIN}/sweep-uid"
# Labels by which engines number the pods of one template, from 0.
JOB_INDEX, REPLICA_INDEX = "batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index"
TASK_INDEX = "volcano.sh/task-index"
# Engines that look for their container by a name of their own; the ranks' is called so there.
_CONTAINERS = {
    "pytorchjob": "pytorch", "tfjob": "tensorflow", "xgboostjob": "xgboost", "mpijob": "mpi",
    "kubeflow-trainer": "node",
}  # fmt: skip
TEAM, CONTENT = f"{DOMAIN}/team", f"{DOMAIN}/content"
ROOM_FOR = f"{DOMAIN}/room-for"
FAMILY = f"{DOMAIN}/family"
"""Annotation of the pod of a pipeline's driver: what became of the runs that it asked for."""
# On a placeholder of a pool: its name.
POOL = f"{DOMAIN}/pool"
# On a node: to which layout of its GPUs it is on its way since when, and when layouts failed there.
PARTITIONING, PARTITIONS_FAILED = f"{DOMAIN}/partitioning", f"{DOMAIN}/partitions-failed"
# On a VerticalPodAutoscaler: the name of the runs that it is meant for.
SIZES = f"{DOMAIN}/sizes"
# On the costs of a day: whose they are.
COSTS = f"{DOMAIN}/costs"
PLACEHOLDER_CLASS = "fairlead-placeholder"
SYSTEM_NAMESPACE, LEASE = "fairlead-system", "fairlead-operator"
# The gateways of endpoints, in a namespace of their own, and what tells them where requests go.
GATEWAY = GATEWAY_NAMESPACE = "fairlead-gateway"
ROUTES, DEMAND = "fairlead-routes", "demand"
# In a team's namespace: hashes of the keys by which the team may ask endpoints.
ACCESS_KEYS = "fairlead-access-keys"
MODELS = "fairlead-models"
# On the Lease: by which rules the one that leads starts what waits.
POLICY = f"{DOMAIN}/policy"
# Where the Cluster Autoscaler says how it is.
AUTOSCALER_STATUS = "cluster-autoscaler-status"


def is_object_name(text: str) -> bool:
    """Return whether an object can have the name, so that it may stand in the path of a request."""
    return re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", text) is not None


def pod_name(spec: GangSpec, attempt: int, index: int) -> str:
    """At most 62 characters: the run's name has 50, an index 4, and an attempt has 6 at its most."""
    return f"{spec.name}-{attempt}-{index}"


def container_of(engine: str | None) -> str:
    """Return the name of the ranks' container in pods of an engine; None for ours."""
    return RANKS if engine is None else _CONTAINERS.get(engine, RANKS)


def index_in_gang(labels: Mapping[str, str]) -> int:
    """Return the index that a pod's labels give it: ours, or that of its engine within its template."""
    if INDEX in labels:
        return _whole(labels[INDEX])
    number = next((labels[each] for each in (JOB_INDEX, REPLICA_INDEX, TASK_INDEX) if each in labels), None)
    return _whole(labels.get(INDEX_BASE)) + _whole(number)


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def engine_object_name(spec: GangSpec, attempt: int) -> str:
    """Return the name of what an engine is given for a start, so that it is given each start once.

    At most 57 characters; an engine adds to it for the names of pods.
    """
    return f"{spec.name}-{attempt}"


def placeholder_name(spec: GangSpec, index: int) -> str:
    """Of no pod of a gang, whose names end in two numbers after the run's."""
    return f"{spec.name}-room-{index}"


def service_name(workload: Workload) -> str:
    """A Service's name starts with a letter, which a run's need not.

    It has the beginning of the run's uid in it: what a run of the same name left behind may be on its way out.
    """
    return f"ft-{workload.spec.name}-{workload.uid[:6]}"


def run_labels(workload: Workload) -> dict[str, str]:
    """Labels of everything that belongs to a run."""
    return {MANAGED_BY: MANAGER, RUN: workload.spec.name, RUN_UID: workload.uid}


def owner(workload: AnyWorkload) -> dict[str, object]:
    """The owner reference of everything that goes with a workload."""
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": type(workload.spec).__name__,
        "name": workload.spec.name,
        "uid": workload.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
