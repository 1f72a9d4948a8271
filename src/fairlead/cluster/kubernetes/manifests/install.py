"""All objects of an installation of Fairlead on a cluster: for `fairlead install`, Helm and GitOps."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any
from urllib.parse import urlsplit

from fairlead.cluster.kubernetes.dcgm import EXPORTER_LABELS, EXPORTER_PORT
from fairlead.cluster.kubernetes.manifests.admission_policies import (
    render_group_policy,
    render_operator_policy,
    render_orphan_policy,
    render_overlay_policy,
)
from fairlead.cluster.kubernetes.manifests.crds import definitions, with_fewer_rules
from fairlead.cluster.kubernetes.manifests.deployments import (
    container_security,
    http_get,
    nodes_apart,
    pod_security,
    with_recommended_labels,
)
from fairlead.cluster.kubernetes.manifests.gateway import render_gateway
from fairlead.cluster.kubernetes.manifests.ledger_storage import LedgerStorage, Storage, render_storage, with_storage
from fairlead.cluster.kubernetes.manifests.page import render_page
from fairlead.cluster.kubernetes.manifests.placeholders import render_priority_class
from fairlead.cluster.kubernetes.manifests.roles import (
    OPERATOR,
    render_node_partitioner,
    render_operator_bindings,
    render_roles,
)
from fairlead.cluster.kubernetes.names import MANAGED_BY, MANAGER, OPERATORS
from fairlead.cluster.kubernetes.system_namespaces import DEFAULT, SystemNamespaces
from fairlead.frozen import dataclass
from fairlead.gateway.proxying.programs import PYTHON
from fairlead.policy.kinds.retention import KEEP_ALL, OF_CLUSTERS, Retention
from fairlead.specs.overlay_allowance import NOTHING, OverlayAllowance
from fairlead.specs.quantities import format_duration

HEALTH_PORT = 8080  # health and metrics
USER = 65532
NO_LEDGER = LedgerStorage()
VERSION = "app.kubernetes.io/version"
_LABELS = {"app.kubernetes.io/name": OPERATOR, MANAGED_BY: MANAGER}
_SELECTOR = {"app.kubernetes.io/name": OPERATOR}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSettings:
    """Settings of the operator's installation.

    Attributes:
        namespace: Namespace of the operator; runs are in their teams' namespaces.
        image: An image with the package ``fairlead`` installed.
        replicas: Number of operators; one leads, the others stand by.
        policy: Name in ``fairlead.state.scheduling_policy.POLICIES`` of the policy that starts pending runs.
        show_names: Whether reasons name runs of other teams.
        keeps: Retention of finished runs.
        cpu: CPU request of an operator; it has no limit, since a throttled one would lose its Lease in a storm.
        memory: Memory request and limit of an operator.
        priority_class: Priority class of the operators' pods; ``fairlead-operator`` comes with the installation.
        fewer_rules: For API servers for which rules of quantities cost too much, such as Kubernetes 1.31.
        version: Version of Fairlead, written on the kinds and the Deployment.
        ledger: Storage of the usage and costs of runs.
        page: Also serve the web page in the cluster.
        gateways: Number of gateways of endpoints; 0 for none.
        gateway_proxy: Program that takes their requests to replicas.
        partitions: Allow the operator to cordon and label nodes, to change their GPU partitions.
        allowed: What ``kubernetes:`` of specs may do beyond what everybody may.
        only_teams: The operator writes in namespaces of Teams, and those labelled for runs, only.
        traces: URL of an OpenTelemetry receiver of the spans of runs; None for none.
        system: Namespaces of administrators, and hosts of Prometheus servers, that the operator believes.
        cluster_networks: Networks of the cluster, to which pods of teams have no way.
        extras: Further objects, applied after all others.
    """

    namespace: str = "fairlead-system"
    image: str
    replicas: int = 2
    policy: str = "default"
    show_names: bool = False
    keeps: Retention = OF_CLUSTERS
    cpu: str = "500m"
    memory: str = "512Mi"
    priority_class: str = OPERATOR
    fewer_rules: bool = False
    version: str = "unknown"
    ledger: LedgerStorage = NO_LEDGER
    page: bool = False
    gateways: int = 0
    gateway_proxy: str = PYTHON
    partitions: bool = False
    allowed: OverlayAllowance = NOTHING
    only_teams: bool = False
    traces: str | None = None
    system: SystemNamespaces = field(default_factory=SystemNamespaces)
    cluster_networks: tuple[str, ...] = ()
    extras: tuple[dict[str, Any], ...] = ()


def render_install(settings: InstallSettings) -> list[dict[str, Any]]:
    """Return the objects in the order in which they are applied."""
    operator = [
        _namespace(settings),
        *(
            _versioned(with_fewer_rules(definition) if settings.fewer_rules else definition, settings)
            for definition in definitions()
        ),
        render_priority_class(),
        _priority_class(),
        _account(settings),
        *render_roles(),
        *render_operator_bindings(settings.namespace),
        *render_overlay_policy(settings.namespace, settings.allowed),
        *render_orphan_policy(),
        *render_group_policy(settings.namespace),
        *render_operator_policy(settings.namespace, only_teams=settings.only_teams),
        _network_policy(settings),
        _disruption_budget(settings),
        *render_storage(settings.ledger, settings.namespace),
        _versioned(with_storage(_deployment(settings), settings.ledger), settings),
    ]
    page = [_versioned(content, settings) for content in _page(settings)] if settings.page else []
    gateways = [_versioned(gateway, settings) for gateway in _gateways(settings)] if settings.gateways else []
    partitioner = render_node_partitioner(settings.namespace) if settings.partitions else []
    parts = (
        ("operator", operator),
        ("page", page),
        ("gateway", gateways),
        ("operator", [*partitioner, *settings.extras]),
    )
    return [with_recommended_labels(content, component) for component, objects in parts for content in objects]


def _gateways(settings: InstallSettings) -> list[dict[str, Any]]:
    return render_gateway(settings.image, settings.namespace, USER, settings.gateways, settings.gateway_proxy)


def _page(settings: InstallSettings) -> list[dict[str, Any]]:
    return render_page(settings.image, settings.namespace, USER)


def selector() -> dict[str, str]:
    """Return the labels of the operator's pods."""
    return dict(_SELECTOR)


def metadata_of(namespace: str, *, name: str = OPERATOR, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the metadata of an object that belongs to the operator."""
    return {"name": name, "namespace": namespace, "labels": {**_LABELS, **(labels or {})}}


def _versioned(content: dict[str, Any], settings: InstallSettings) -> dict[str, Any]:
    metadata = content["metadata"]
    return {**content, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), VERSION: settings.version}}}


def _namespace(settings: InstallSettings) -> dict[str, Any]:
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    metadata = {"name": settings.namespace, "labels": {MANAGED_BY: MANAGER, OPERATORS: "enabled", **levels}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


PRIORITY = 1_000_000_000  # the highest that is not Kubernetes' own
# Some clouds allow Kubernetes' own critical classes in kube-system only.


def _priority_class() -> dict[str, Any]:
    """Render the class by which no pods of others evict the operator."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": OPERATOR, "labels": {MANAGED_BY: MANAGER}},
        "value": PRIORITY,
        "preemptionPolicy": "PreemptLowerPriority",
        "globalDefault": False,
        "description": "Fairlead's operator, which pods of others do not evict.",
    }


def _account(settings: InstallSettings) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(settings)}


def _deployment(settings: InstallSettings) -> dict[str, Any]:
    resources = {
        "requests": {"cpu": settings.cpu, "memory": settings.memory},
        "limits": {"memory": settings.memory},
    }
    operator = {
        "name": "operator",
        "image": settings.image,
        "args": [
            "operator",
            "--policy",
            settings.policy,
            *_retention_arguments(settings.keeps),
            *_allowed(settings.allowed),
            *_bounds(settings),
        ],
        "command": ["fairlead"],
        "env": [
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in (("POD_NAME", "metadata.name"), ("POD_NAMESPACE", "metadata.namespace"))
            ),
            *([{"name": TRACES, "value": settings.traces}] if settings.traces is not None else ()),
        ],
        "ports": [{"name": "health", "containerPort": HEALTH_PORT}],
        "livenessProbe": {**http_get("/livez", "health"), "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**http_get("/readyz", "health"), "periodSeconds": 5},
        "resources": resources,
        "securityContext": container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = {
        "serviceAccountName": OPERATOR,
        "priorityClassName": settings.priority_class,
        "securityContext": pod_security(USER),
        "affinity": nodes_apart(_SELECTOR),
        "containers": [operator],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(settings),
        "spec": {
            "replicas": settings.replicas,
            "selector": {"matchLabels": _SELECTOR},
            "template": {"metadata": {"labels": dict(_LABELS)}, "spec": pod},
        },
    }


def _bounds(settings: InstallSettings) -> list[str]:
    """Return what the operator believes beside the usual, and what it withholds from pods, as its arguments."""
    system = settings.system
    more = [name for name in system.names if name not in DEFAULT]
    return [
        *(["--show-names"] if settings.show_names else []),
        *(
            argument
            for cluster_network in settings.cluster_networks
            for argument in ("--cluster-network", cluster_network)
        ),
        *(argument for system_namespace in more for argument in ("--system-namespace", system_namespace)),
        *(
            argument
            for prometheus_host in system.prometheus_hosts
            for argument in ("--prometheus-host", prometheus_host)
        ),
    ]


def _retention_arguments(keeps: Retention) -> list[str]:
    """Return the retention as arguments of the operator."""
    if keeps == KEEP_ALL:
        return ["--keep", "forever"]
    period = [] if keeps.for_s is None else ["--keep", str(format_duration(keeps.for_s))]
    return period if keeps.last is None else [*period, "--keep-last", str(keeps.last)]


def _allowed(allowed: OverlayAllowance) -> list[str]:
    return [arg for word in allowed.words() for arg in ("--allow-overlay", word)]


def _disruption_budget(settings: InstallSettings) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(settings),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _SELECTOR}},
    }


TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Variable of the operator that names the receiver of its spans."""


def traces_port(url: str) -> int:
    """Return the TCP port of a receiver of traces.

    Raises:
        ValueError: It is not a URL of ``http`` or ``https`` with a host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is not a URL of http or https with a host")
    return parts.port or (443 if parts.scheme == "https" else 80)


PROMETHEUS_LABELS, PROMETHEUS_PORT = {"app.kubernetes.io/name": "prometheus"}, 9090
"""Labels of Prometheus pods by its Helm chart and operator; endpoints may scale by its queries."""


def _network_policy(settings: InstallSettings) -> dict[str, Any]:
    """Allow ingress for health and metrics, and egress to what the operator connects to.

    That is DNS, the API server, a database and a receiver of traces, whose addresses no policy can name, and DCGM
    exporters and Prometheus servers in the namespaces of administrators.
    """
    system = settings.system.selector()
    exporters = [
        {"namespaceSelector": system, "podSelector": {"matchLabels": exporter_label}}
        for exporter_label in EXPORTER_LABELS
    ]
    prometheus = [{"namespaceSelector": system, "podSelector": {"matchLabels": PROMETHEUS_LABELS}}]
    database = (settings.ledger.port,) if settings.ledger.kind is Storage.DATABASE else ()
    traces = () if settings.traces is None else (traces_port(settings.traces),)
    ports = dict.fromkeys((443, 6443, *database, *traces))
    tcp = [{"port": port, "protocol": "TCP"} for port in ports]
    dns = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(settings),
        "spec": {
            "podSelector": {"matchLabels": _SELECTOR},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": [{"port": HEALTH_PORT, "protocol": "TCP"}]}],
            "egress": [
                {"ports": dns},
                {"ports": tcp},
                {"to": exporters, "ports": [{"port": EXPORTER_PORT, "protocol": "TCP"}]},
                {"to": prometheus, "ports": [{"port": PROMETHEUS_PORT, "protocol": "TCP"}]},
            ],
        },
    }


def _metadata(settings: InstallSettings) -> dict[str, Any]:
    return metadata_of(settings.namespace)
