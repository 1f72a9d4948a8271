"""Names of the objects of a run, and the labels that select them. Every name fits into a DNS label."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from fairlead.specs.engines import Engine
from fairlead.specs.gang import GangSpec
from fairlead.specs.overlay import OBJECT_NAME_MOST, RANKS
from fairlead.specs.serving import Replica
from fairlead.specs.training import MANAGED_BY as MANAGED_BY
from fairlead.state.snapshot import AnyWorkload, Workload

NAME, INSTANCE, COMPONENT, PART_OF = (
    f"app.kubernetes.io/{suffix}" for suffix in ("name", "instance", "component", "part-of")
)
DOMAIN = "fairlead.dev"
MANAGER = "fairlead"
# The group of Karmada's policies, and the name of ours.
KARMADA_POLICIES, KARMADA_POLICY = "policy.karmada.io", MANAGER
RUN, RUN_UID = f"{DOMAIN}/run", f"{DOMAIN}/run-uid"
ATTEMPT, INDEX = f"{DOMAIN}/attempt", f"{DOMAIN}/index"
# On the pod that replaces a lost one of a gang that goes on in place: how often a pod of its index was lost.
REPLACEMENT = f"{DOMAIN}/replacement"
# On pods that an engine created: the engine, and the index of the first pod of the same template.
ENGINE, INDEX_BASE = f"{DOMAIN}/engine", f"{DOMAIN}/index-base"
# Names by the recommended label, of runs and of endpoints.
RUN_NAME, ENDPOINT_NAME = "fairlead-run", "fairlead-endpoint"
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
# The kinds whose objects create an engine's pods. Their names are that of the engine's object, or begin with it and a
# hyphen; KubeRay shortens long ones from the left, so that nothing is known of the name of a RayCluster.
_POD_MAKERS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "jobset": (("batch", "Job"),),
    "kueue": (("batch", "Job"),),
    "pytorchjob": (("kubeflow.org", "PyTorchJob"),),
    "tfjob": (("kubeflow.org", "TFJob"),),
    "xgboostjob": (("kubeflow.org", "XGBoostJob"),),
    "mpijob": (("kubeflow.org", "MPIJob"), ("batch", "Job")),
    "kubeflow-trainer": (("batch", "Job"),),
    "rayjob": (("ray.io", "RayCluster"),),
    "volcano": (("batch.volcano.sh", "Job"),),
}
_SHORTENED = frozenset({"RayCluster"})
FABRIC = f"{DOMAIN}/fabric"
"""Annotation of a pod that uses a fast network: the profile by which it does."""
TEAM, CONTENT = f"{DOMAIN}/team", f"{DOMAIN}/content"
ROOM_FOR = f"{DOMAIN}/room-for"
FAMILY = f"{DOMAIN}/family"
"""Annotation of the pod of a pipeline's driver: the state of the runs that it requested."""
# On a placeholder of a pool: its name.
POOL = f"{DOMAIN}/pool"
# On a node: the GPU layout that is being applied and since when, and the times at which layouts failed.
PARTITIONING, PARTITIONS_FAILED = f"{DOMAIN}/partitioning", f"{DOMAIN}/partitions-failed"
# The ConfigMap of the operator's namespace with the histories of nodes, and its key.
NODE_HISTORY, HISTORY = "fairlead-node-history", "history"
# On a node: why an administrator has cordoned it, and when one has given it back after a test, in Unix seconds.
CORDONED, GIVEN_BACK = f"{DOMAIN}/cordoned", f"{DOMAIN}/given-back"
# On a VerticalPodAutoscaler: the name of the runs that it applies to.
SIZES = f"{DOMAIN}/sizes"
# On the costs of a day: their owner.
COSTS = f"{DOMAIN}/costs"
PLACEHOLDER_CLASS = "fairlead-placeholder"
SYSTEM_NAMESPACE, LEASE = "fairlead-system", "fairlead-operator"
# Label of a namespace, which administrators alone write: "enabled" where operators have their Leases.
OPERATORS = f"{DOMAIN}/operator"
# The gateways of endpoints, in a separate namespace, and the object that has their routes.
GATEWAY = GATEWAY_NAMESPACE = "fairlead-gateway"
ROUTES, DEMAND = "fairlead-routes", "demand"
# The contents of ConfigMaps there, by their label: a team's part of the routes, and a gateway's demand.
TEAM_ROUTES = "routes"
# In a team's namespace: hashes of the keys with which the team may call endpoints.
ACCESS_KEYS = "fairlead-access-keys"
# Its annotation: when a key was last used, in Unix seconds by its hash.
KEY_USES = "fairlead.dev/key-uses"
MODELS = "fairlead-models"
# On the Lease: the policy with which the leader starts pending runs.
POLICY = f"{DOMAIN}/policy"
# On the Lease: the namespace whose runs alone the leader acts on; empty for all.
WATCHES = f"{DOMAIN}/watches"
# On the Lease: what teams have had beyond their shares, which the next leader goes on from.
DEBTS = f"{DOMAIN}/team-debts"
TROUBLE = (
    f"{DOMAIN}/trouble"  # of the operator's Lease: what keeps the operator from seeing the cluster; empty for nothing
)
# The ConfigMap with the status of the Cluster Autoscaler.
AUTOSCALER_STATUS = "cluster-autoscaler-status"


def is_object_name(text: str) -> bool:
    """Return whether an object can have this name, so that it may be used in the path of a request."""
    return re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", text) is not None


def segment(name: str) -> str:
    """Return a name as one part of the path of a request; a client refuses a path with one that no object can have.

    Names come from users, owner references and labels too, none of which the API server checks as it does names. It
    decodes a path before it divides it, so that ``a%2Fstatus`` would lead to the status of ``a`` as ``a/status`` does.
    """
    return quote(name, safe=":", errors="replace")


def host_name(spec: GangSpec, attempt: int, index: int) -> str:
    """Return a pod's name in DNS, of at most 62 characters: 50 of the run's name, 4 of the index, 6 of the attempt.

    A replacement has the name of the pod that was lost.
    """
    return pod_name_of(spec.name, attempt, index)


def pod_name(spec: GangSpec, attempt: int, index: int, replacement: int = 0) -> str:
    """Return the name of a pod's object, which no other pod has or had; no run's name makes it another's."""
    return pod_name_of(spec.name, attempt, index, replacement)


def pod_name_of(run: str, attempt: int, index: int, replacement: int = 0) -> str:
    """Return the name of a pod's object by the name of its run."""
    return f"{run}-{attempt}-{index}" + (f"r{replacement}" if replacement else "")


def container_of(engine: str | None) -> str:
    """Return the name of the ranks' container in pods of an engine; None stands for Fairlead's own pods."""
    return RANKS if engine is None else _CONTAINERS.get(engine, RANKS)


def index_in_gang(labels: Mapping[str, str]) -> int:
    """Return a pod's index from its labels: Fairlead's, or the engine's index within its template."""
    if INDEX in labels:
        return _whole(labels[INDEX])
    number = next((labels[label] for label in (JOB_INDEX, REPLICA_INDEX, TASK_INDEX) if label in labels), None)
    return _whole(labels.get(INDEX_BASE)) + _whole(number)


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def engine_object_name(spec: GangSpec, attempt: int) -> str:
    """Return the name of the engine's object for an attempt, so that each attempt is submitted once.

    It has at most 57 characters; an engine appends to it for the names of pods.
    """
    return engine_object_name_of(spec.name, attempt)


def engine_object_name_of(run: str, attempt: int) -> str:
    """Return the name of the engine's object for an attempt by the name of its run."""
    return f"{run}-{attempt}"


def placeholder_name(spec: GangSpec, index: int) -> str:
    """Return a placeholder's name, which no pod of a gang has, as those end in two numbers."""
    return placeholder_name_of(spec.name, index)


def placeholder_name_of(run: str, index: int) -> str:
    """Return a placeholder's name by the name of its run or Pool."""
    return f"{run}-room-{index}"


def controller_of(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the reference to the controller of an object; an empty one if it has none.

    Anybody who may write an object may write any reference into it: it is a claim, which the name and the namespace of
    the object have to bear out. One that is longer than any real one is none.
    """
    references = metadata.get("ownerReferences") or ()
    controller: Mapping[str, Any] = next((reference for reference in references if reference.get("controller")), {})
    is_real = all(len(str(part)) <= OBJECT_NAME_MOST for part in controller.values())
    return controller if is_real else {}


def group_of(owner: Mapping[str, Any]) -> str:
    """Return the API group of an owner reference; empty for the core group."""
    group, slash, _ = str(owner.get("apiVersion") or "").partition("/")
    return group if slash else ""


def is_pod_maker(owner: Mapping[str, Any], engine: str, run: str, attempt: int) -> bool:
    """Return whether an engine's pod of an attempt may have this controller, by its kind and name."""
    kind, name, expected = owner.get("kind"), str(owner.get("name") or ""), f"{run}-{attempt}"
    if (group_of(owner), kind) not in _POD_MAKERS.get(engine, ()):
        return False
    return kind in _SHORTENED or name == expected or name.startswith(f"{expected}-")


def standby_name(pool: str) -> str:
    """Return the name that the placeholders of a Pool begin with, as those of a run do with that of the run."""
    return f"pool-{pool}"[:50].rstrip("-")


def service_name(workload: Workload) -> str:
    """Return the name of a run's Service, which must start with a letter, as a run's name need not.

    It contains the start of the run's uid, because objects of an earlier run of the same name may still be terminating.
    """
    return f"ft-{workload.spec.name}-{workload.uid[:6]}"


def weights_name(replica: Workload) -> str:
    """Return the name that the replicas of an endpoint find each other by: of a Service, and of the Secret of its key.

    It contains the start of the endpoint's uid, because objects of an earlier one may still be terminating.
    """
    assert isinstance(replica.spec, Replica)
    return f"weights-{replica.spec.service}-{(replica.parent or '')[:6]}"


def key_name(workload: Workload, attempt: int) -> str:
    """Return the name of the Secret with a run's key.

    All attempts share one, except where MultiKueue may send each to another cluster, in which it goes with its Job.
    """
    name = service_name(workload)
    return f"{name}-{attempt}" if getattr(workload.spec, "engine", None) == Engine.KUEUE else name


POD_GROUP_PREFIX = "fairlead-"
"""Prefix of the PodGroups of gangs, which nobody else may use where an installation's policies are."""


def pod_group_name_of(run: str, uid: str, attempt: int) -> str:
    """Return the name of the PodGroup of an attempt by the name and the uid of its run; it has at most 73 characters.

    An earlier run of the same name may have one that is still in use by its last pods.
    """
    return f"{POD_GROUP_PREFIX}{run}-{uid[:6]}-{attempt}"


def is_alone(spec: GangSpec) -> bool:
    """Return whether a run never has a second pod, so that its pod needs no name by which others find it."""
    return spec.engine is None and spec.nodes == 1 and spec.most_nodes in (None, 1)


def recommended_labels(name: str, instance: str, component: str) -> dict[str, str]:
    """Return the labels that Kubernetes recommends, by which dashboards and policies of clusters select.

    Fairlead trusts none of them, since everybody may write them. Objects of teams without an owner get none: Argo CD
    can take one whose ``instance`` is the name of an application for a part of that application, and prune it.
    """
    return {NAME: name, INSTANCE: instance, COMPONENT: component, PART_OF: MANAGER, MANAGED_BY: MANAGER}


def recommended_for(spec: GangSpec) -> dict[str, str]:
    """Return the recommended labels of a run; replicas of an endpoint have the endpoint as their instance."""
    if isinstance(spec, Replica):
        return recommended_labels(ENDPOINT_NAME, spec.service, "replica")
    return recommended_labels(RUN_NAME, spec.name, RANKS)


def run_labels(workload: Workload) -> dict[str, str]:
    """Return the labels of all objects that belong to a run."""
    own = {MANAGED_BY: MANAGER, RUN: workload.spec.name, RUN_UID: workload.uid}
    # Engines give pods and Services these labels themselves; KubeRay's Services select pods by its own ones.
    return own if workload.spec.engine is not None else {**recommended_for(workload.spec), **own}


def pod_labels(workload: Workload) -> dict[str, str]:
    """Return the labels of a run's pods: those of the user too, who may replace recommended ones."""
    own = run_labels(workload)
    return {**own, **workload.spec.labels, **{key: own[key] for key in (MANAGED_BY, RUN, RUN_UID)}}


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
