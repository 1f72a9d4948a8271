"""Roles and bindings: the operator's own, and the three roles for members of a team.

The operator's rules cover exactly its requests: each verb is listed because some code makes that request.

See decision 180.
"""

from typing import Any

from fairlead.cluster.kubernetes.kinds import NAMED, SUBMITTED_BY, plural, workload_kinds
from fairlead.cluster.kubernetes.manifests.crds import GROUP
from fairlead.cluster.kubernetes.names import (
    ACCESS_KEYS,
    AUTOSCALER_STATUS,
    GATEWAY,
    LEASE,
    MANAGED_BY,
    MANAGER,
    NODE_HISTORY,
)

OPERATOR = "fairlead-operator"
TEAM_KEEPER = "fairlead-team-keeper"
ENGINE_DRIVER = "fairlead-engine-driver"
READ = ("get", "list", "watch")
OVERLAY = "overlay"
"""Verb on trainings: the pods of the person's runs may use any Secret and account of the namespace."""
API_GROUP = "rbac.authorization.k8s.io"
Rules = list[dict[str, Any]]


def rule(group: str, resources: tuple[str, ...], verbs: tuple[str, ...], *names: str) -> dict[str, Any]:
    """Return one rule; ``names`` limits it to these objects, if given."""
    rule: dict[str, Any] = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return rule | ({"resourceNames": list(names)} if names else {})


WORKLOADS = tuple(map(plural, workload_kinds()))
"""Plurals of the kinds of workloads, with pods and with children."""
WRITTEN = tuple(plural(kind) for kind in workload_kinds() if kind not in SUBMITTED_BY)
"""Plurals of the kinds that users write; the others are submitted by their parents."""
NAMES = tuple(map(plural, NAMED))
"""Plurals of the kinds of a namespace that are no workloads."""
OTHERS = tuple(plural(kind) for kind in workload_kinds() if kind in SUBMITTED_BY)
NOBODYS = (plural("Serving"), plural("Workspace"))
"""Plurals of the kinds that no other workload submits."""
USAGE = rule("metrics.k8s.io", ("pods",), ("get", "list"))
ROLES: dict[str, Rules] = {
    "viewer": [
        rule(GROUP, (*WORKLOADS, *NAMES), READ),
        USAGE,
        rule("", ("pods", "pods/log", "events", "resourcequotas"), READ),
        rule("", ("configmaps",), ("get",)),  # the last lines of deleted pods
    ],
    "user": [
        rule(GROUP, (*WRITTEN, *NAMES), (*READ, "create", "update", "patch", "delete")),
        rule(GROUP, OTHERS, (*READ, "patch", "delete")),
        USAGE,
        rule("", ("pods", "pods/log", "events", "resourcequotas", "persistentvolumeclaims"), READ),
        rule("", ("persistentvolumeclaims",), ("delete",)),  # homes of workspaces; pods may write to any claim anyway
        rule("", ("pods/exec", "pods/portforward"), ("get", "create")),  # a WebSocket is opened by a GET
        rule("", ("configmaps",), ("get", "create", "patch")),
    ],
    "admin": [
        rule(GROUP, (*WRITTEN, *NAMES), (*READ, "create", "update", "patch", "delete")),
        rule(GROUP, (plural("Training"),), (OVERLAY,)),  # gives nothing beyond the rights on secrets and accounts below
        rule(GROUP, OTHERS, (*READ, "patch", "delete")),
        USAGE,
        rule("", ("pods", "pods/log", "events", "resourcequotas"), READ),
        rule("", ("pods",), ("delete",)),
        rule("", ("pods/exec", "pods/portforward"), ("get", "create")),  # a WebSocket is opened by a GET
        rule(
            "",
            ("configmaps", "secrets", "persistentvolumeclaims", "serviceaccounts"),
            (*READ, "create", "update", "patch", "delete"),
        ),
    ],
}

CLUSTER_VIEWER = "fairlead-cluster-viewer"
CLUSTER_VIEWER_RULES: Rules = [
    # All that a decision depends on, with the names of all teams' runs; bound to nobody by the installation
    rule(GROUP, (*WORKLOADS, "teams"), READ),
    rule("", ("nodes", "pods"), READ),
    rule("apps", ("daemonsets",), READ),
    rule("resource.k8s.io", ("resourceslices", "resourceclaims"), READ),
    rule("", ("configmaps",), ("get",), NODE_HISTORY),  # why nodes are avoided or taken out
]
AGGREGATED = {"viewer": ("view",), "user": ("edit", "admin"), "admin": ("admin",)}
"""Roles of Kubernetes whose holders have those of Fairlead too, by role; theirs have the other rights already."""

OPERATOR_RULES: Rules = [
    rule(GROUP, WORKLOADS, (*READ, "patch", "delete")),  # finalizers, and runs beyond their retention
    rule(GROUP, tuple(f"{workload}/status" for workload in WORKLOADS), ("patch",)),
    rule(
        GROUP, tuple(workload for workload in WORKLOADS if workload not in NOBODYS), ("create",)
    ),  # children of parents
    rule(GROUP, NAMES, ("list",)),  # those that teams share
    rule(GROUP, ("teams",), ("list", "watch")),  # for the queue, and for the team controller
    rule("", ("nodes",), ("list", "watch")),
    # GPUs of nodes without a device plugin, and their allocations
    rule("resource.k8s.io", ("resourceslices", "resourceclaims"), ("list", "watch")),
    rule("apps", ("daemonsets",), ("list", "watch")),  # their requests on a new node
    rule("", ("pods",), ("get", "list", "watch", "create", "delete")),
    rule("", ("pods",), ("patch",)),  # of a pipeline's driver: the state of the runs that it requested
    rule("", ("pods/log",), ("get",)),
    rule("", ("services", "configmaps"), ("create",)),
    rule("", ("persistentvolumeclaims",), ("create",)),  # the homes of workspaces
    rule("", ("secrets",), ("create",)),  # the key of each run with several ranks; none can be read or changed
    # Of runs: which have any, and of those that are over
    rule("", ("services",), ("list", "delete")),
    rule("networking.k8s.io", ("networkpolicies",), ("list", "delete")),
    rule("discovery.k8s.io", ("endpointslices",), ("delete",)),
    rule("", ("services",), ("get", "patch")),  # of an endpoint: the owner of an existing one, and to adopt it
    rule("", ("configmaps",), ("patch",)),  # the last lines of deleted pods
    rule("networking.k8s.io", ("networkpolicies",), ("create",)),  # of each run
    rule("discovery.k8s.io", ("endpointslices",), ("create", "patch")),  # the names of its pods, and ready replicas
    rule("scheduling.k8s.io", ("podgroups",), ("get", "list", "watch", "create", "patch", "delete")),  # of gangs
    rule("policy", ("poddisruptionbudgets",), ("list", "create", "patch", "delete")),  # of endpoints with replicas
    rule("autoscaling", ("horizontalpodautoscalers",), ("list",)),  # endpoints that the cluster's autoscaler scales
    rule("keda.sh", ("scaledobjects",), ("list",)),
    # Requests to autoscalers, with the pods that they stand for
    rule("autoscaling.x-k8s.io", ("provisioningrequests", "capacitybuffers"), ("list", "create", "patch", "delete")),
    rule("", ("podtemplates",), ("create", "patch", "delete")),
    rule("karpenter.sh", ("nodepools",), ("list",)),  # whether nodes may be added, and within which limits
    rule("autoscaling.k8s.io", ("verticalpodautoscalers",), ("list",)),  # recommendations of those with the label
    rule("", ("configmaps",), ("list", "watch"), ACCESS_KEYS),  # hashes of keys, which gateways check
    rule("", ("configmaps",), ("get",), AUTOSCALER_STATUS),  # whether the Cluster Autoscaler is installed
    rule("", ("events",), ("list",)),  # an autoscaler's on placeholders, and kubelet's on pods
    rule("", ("events",), ("create", "patch")),  # for `kubectl describe`; a repeated event is counted
    rule("coordination.k8s.io", ("leases",), ("list",), LEASE),  # whether another operator leads too
    rule("authentication.k8s.io", ("tokenreviews",), ("create",)),  # who asks for its metrics
    rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),  # whether they may have them
]

# Rights for managing teams. `bind` is limited to these roles, so no other role can be granted to users.
TEAM_RULES: Rules = [
    rule(GROUP, ("pools",), ("list", "watch")),
    rule(GROUP, ("teams/status", "pools/status"), ("patch",)),
    rule("", ("namespaces",), ("get", "list", "watch", "create", "patch")),  # get: the owner, before adoption
    rule("", ("resourcequotas",), ("list", "watch", "create", "patch", "delete")),  # deleted if a team has none
    rule("", ("limitranges",), ("list", "watch", "create", "patch")),
    rule("networking.k8s.io", ("networkpolicies",), ("list", "watch", "create", "patch")),
    rule(API_GROUP, ("rolebindings",), ("list", "watch", "create", "patch")),
    rule(API_GROUP, ("clusterroles",), ("bind",), *(f"fairlead-{role}" for role in ROLES)),
]

# Rights for runs and endpoints with an `engine`: one object for each attempt or endpoint. They have no effect on a
# cluster without the engine.
_HANDED = ("get", "list", "watch", "create", "delete")
_SCALING = ("create", "patch", "delete")
ENGINE_RULES: Rules = [
    rule("jobset.x-k8s.io", ("jobsets",), _HANDED),
    rule("batch", ("jobs",), _HANDED),  # those that Kueue admits
    rule("kubeflow.org", ("pytorchjobs", "tfjobs", "xgboostjobs", "mpijobs"), _HANDED),
    rule("trainer.kubeflow.org", ("trainjobs",), _HANDED),
    rule("trainer.kubeflow.org", ("trainingruntimes",), ("get", "create", "delete")),  # the pods of an attempt
    rule("ray.io", ("rayjobs",), _HANDED),
    rule("batch.volcano.sh", ("jobs",), _HANDED),
    rule("kubeflow.org", ("experiments",), ("list", "watch", "create")),  # what Katib searches
    rule("kubeflow.org", ("suggestions",), ("get",)),  # why it has failed
    rule("kubeflow.org", ("trials",), ("list", "watch")),  # what it proposes
    rule("kubeflow.org", ("experiments/status", "trials/status"), ("patch",)),  # how those ended
    rule("serving.kserve.io", ("inferenceservices",), (*_HANDED, "patch")),
    rule("apps", ("deployments",), ("list", "watch")),  # roll-outs of KServe's, Seldon's, Katib's
    rule("machinelearning.seldon.io", ("seldondeployments",), (*_HANDED, "patch")),
    rule("serving.knative.dev", ("services",), (*_HANDED, "patch")),
    rule("serving.knative.dev", ("revisions",), ("list", "watch")),  # their number of replicas
    rule("autoscaling", ("horizontalpodautoscalers",), _SCALING),  # for endpoints that the cluster's autoscaler scales
    rule("keda.sh", ("scaledobjects",), _SCALING),
    rule("networking.k8s.io", ("networkpolicies",), ("patch",)),  # of a run that MultiKueue sent here
    rule("kueue.x-k8s.io", ("workloads",), ("list", "watch")),  # why it admits a workload or not
]

# Only if the operator may change GPU partitions: it cordons and labels nodes, and annotates the state of each.
NODE_PARTITIONER = "fairlead-node-partitioner"
NODE_PARTITIONER_RULES: Rules = [rule("", ("nodes",), ("patch",))]

METRICS_READER = "fairlead-metrics-reader"
METRICS_READER_RULES: Rules = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]

SEEN = "fairlead-operator-seen"
SEEN_RULES: Rules = [  # whether an operator runs, and which one
    rule("coordination.k8s.io", ("leases",), ("get",), LEASE),
    rule("apps", ("deployments",), ("get",), OPERATOR),
]

GATEWAY_RULES: Rules = [
    rule("", ("configmaps",), ("list", "watch")),  # routes, of which each team has one
    rule("", ("configmaps",), ("create", "patch")),  # the demand of endpoints, by the name of the gateway's pod
]
OPERATOR_AT_GATEWAY = "fairlead-operator-at-gateway"
OPERATOR_AT_GATEWAY_RULES: Rules = [
    rule("", ("configmaps",), ("list", "watch", "create", "patch", "delete")),  # demand from gateways, and their routes
]
GATEWAY_SEEN = "fairlead-gateway-seen"
GATEWAY_SEEN_RULES: Rules = [rule("apps", ("deployments",), ("get",), GATEWAY)]  # whether it is installed

LEADER_RULES: Rules = [
    rule("coordination.k8s.io", ("leases",), ("get", "create", "update")),
    rule("", ("configmaps",), ("get",), NODE_HISTORY),  # the failures of nodes, which the next leader goes on from
]


def render_roles() -> list[dict[str, Any]]:
    """Render the ClusterRoles: those of users, and the operator's three for runs, teams and engines."""
    return [
        *render_user_roles(),
        _role("ClusterRole", CLUSTER_VIEWER, CLUSTER_VIEWER_RULES),
        _role("ClusterRole", OPERATOR, OPERATOR_RULES),
        _role("ClusterRole", TEAM_KEEPER, TEAM_RULES),
        _role("ClusterRole", ENGINE_DRIVER, ENGINE_RULES),
        _role("ClusterRole", METRICS_READER, METRICS_READER_RULES),
    ]


def render_user_roles() -> list[dict[str, Any]]:
    """Render the ClusterRoles of users."""
    roles = []
    for name, rules in ROLES.items():
        role = _role("ClusterRole", f"fairlead-{name}", rules)
        role["metadata"]["labels"] |= {f"{API_GROUP}/aggregate-to-{of}": "true" for of in AGGREGATED[name]}
        roles.append(role)
    return roles


def render_operator_bindings(namespace: str) -> list[dict[str, Any]]:
    """Render the bindings of the operator's account; the one for leader election is limited to its namespace.

    Every authenticated user may see whether an operator runs.
    """
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": namespace}
    return [
        _binding("ClusterRoleBinding", OPERATOR, None, "ClusterRole", OPERATOR, [subject]),
        _binding("ClusterRoleBinding", TEAM_KEEPER, None, "ClusterRole", TEAM_KEEPER, [subject]),
        _binding("ClusterRoleBinding", ENGINE_DRIVER, None, "ClusterRole", ENGINE_DRIVER, [subject]),
        {**_role("Role", OPERATOR, LEADER_RULES), "metadata": _metadata(OPERATOR, namespace)},
        _binding("RoleBinding", OPERATOR, namespace, "Role", OPERATOR, [subject]),
        {**_role("Role", SEEN, SEEN_RULES), "metadata": _metadata(SEEN, namespace)},
        _binding("RoleBinding", SEEN, namespace, "Role", SEEN, [EVERYBODY]),
    ]


def render_node_partitioner(namespace: str) -> list[dict[str, Any]]:
    """Render the role and the binding with which the operator may change nodes."""
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": namespace}
    return [
        _role("ClusterRole", NODE_PARTITIONER, NODE_PARTITIONER_RULES),
        _binding("ClusterRoleBinding", NODE_PARTITIONER, None, "ClusterRole", NODE_PARTITIONER, [subject]),
    ]


def render_metrics_reader(account: str, *namespaces: str) -> dict[str, Any]:
    """Render the binding by which the service accounts of a name may read metrics."""
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": namespace} for namespace in namespaces]
    return _binding("ClusterRoleBinding", METRICS_READER, None, "ClusterRole", METRICS_READER, subjects)


def render_reviewer(account: dict[str, Any]) -> dict[str, Any]:
    """Render the binding by which a service account may ask the API server who may do what."""
    return _binding("ClusterRoleBinding", account["name"], None, "ClusterRole", "system:auth-delegator", [account])


def render_role(name: str, namespace: str, rules: Rules) -> dict[str, Any]:
    """Render a role in one namespace."""
    return {**_role("Role", name, rules), "metadata": _metadata(name, namespace)}


def render_role_binding(name: str, namespace: str, subject: dict[str, Any]) -> dict[str, Any]:
    """Render the binding of a subject to the role of that name in a namespace."""
    return _binding("RoleBinding", name, namespace, "Role", name, [subject])


EVERYBODY = {"kind": "Group", "name": "system:authenticated"}


def render_binding(namespace: str, role: str, subjects: list[dict[str, Any]]) -> dict[str, Any]:
    """Render the binding of users to one of the three roles in a namespace."""
    name = f"fairlead-{role}"
    return _binding("RoleBinding", name, namespace, "ClusterRole", name, subjects)


def _role(kind: str, name: str, rules: Rules) -> dict[str, Any]:
    return {"apiVersion": f"{API_GROUP}/v1", "kind": kind, "metadata": _metadata(name, None), "rules": rules}


def _binding(
    kind: str, name: str, namespace: str | None, role_kind: str, role: str, subjects: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "apiVersion": f"{API_GROUP}/v1",
        "kind": kind,
        "metadata": _metadata(name, namespace),
        "roleRef": {"apiGroup": API_GROUP, "kind": role_kind, "name": role},
        "subjects": subjects,
    }


def _metadata(name: str, namespace: str | None) -> dict[str, Any]:
    labels = {MANAGED_BY: MANAGER}
    return {"name": name, **({"namespace": namespace} if namespace else {}), "labels": labels}
