"""Builds the objects that ``install --monitoring`` adds: for the Prometheus operator and Grafana's sidecar."""

import json
from typing import Any

from fairlead.cluster.kubernetes.manifests.gateway import METRICS_PORT
from fairlead.cluster.kubernetes.manifests.install import metadata_of, selector
from fairlead.cluster.kubernetes.manifests.roles import render_metrics_reader
from fairlead.cluster.kubernetes.names import CONTENT, GATEWAY, GATEWAY_NAMESPACE, MANAGED_BY, MANAGER, SERVICE
from fairlead.control.metrics.dashboards import DASHBOARDS, grafana
from fairlead.control.metrics.rules import rule_groups

GROUP = "monitoring.coreos.com"
SCRAPE = "30s"
ACCOUNT = "fairlead-metrics"
_BEARER = {"type": "Bearer", "credentials": {"name": ACCOUNT, "key": "token"}}


def monitoring_objects(namespace: str, *, gateways: bool = False) -> list[dict[str, Any]]:
    """Return a Service of the operator's pods, its ServiceMonitor, the alerts, and a ConfigMap per dashboard.

    Args:
        gateways: Also return what lets Prometheus scrape gateways and the replicas of endpoints.
    """
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(namespace),
        "spec": {
            "clusterIP": "None",
            "selector": selector(),
            "ports": [{"name": "metrics", "port": 8080, "targetPort": "health", "protocol": "TCP"}],
        },
    }
    monitor = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ServiceMonitor",
        "metadata": metadata_of(namespace),
        "spec": {
            "selector": {"matchLabels": selector()},
            "endpoints": [{"port": "metrics", "path": "/metrics", "interval": SCRAPE, "authorization": _BEARER}],
        },
    }
    rules = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "PrometheusRule",
        "metadata": metadata_of(namespace),
        "spec": rule_groups(),
    }
    boards = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata_of(namespace, name=dashboard.uid, labels={"grafana_dashboard": "1"}),
            "data": {f"{dashboard.uid}.json": json.dumps(grafana(dashboard), indent=1)},
        }
        for dashboard in DASHBOARDS
    ]
    readers = (namespace, GATEWAY_NAMESPACE) if gateways else (namespace,)
    return [
        service,
        *(content for reader in readers for content in _account(reader)),
        render_metrics_reader(ACCOUNT, *readers),
        monitor,
        rules,
        *boards,
        *(_of_endpoints(namespace) if gateways else ()),
    ]


def _account(namespace: str) -> list[dict[str, Any]]:
    """Return the account with whose token Prometheus reads the metrics of a namespace, and nothing else."""
    token = metadata_of(namespace, name=ACCOUNT)
    token = {**token, "annotations": {"kubernetes.io/service-account.name": ACCOUNT}}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata_of(namespace, name=ACCOUNT)},
        {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": token},
    ]


def _of_endpoints(namespace: str) -> list[dict[str, Any]]:
    selected = {MANAGED_BY: MANAGER, CONTENT: "metrics"}
    of_gateways = {"name": f"{GATEWAY}-metrics", "namespace": GATEWAY_NAMESPACE, "labels": selected}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": of_gateways,
        "spec": {
            "clusterIP": "None",
            "selector": {"app.kubernetes.io/name": GATEWAY},
            "ports": [{"name": "metrics", "port": METRICS_PORT, "targetPort": "metrics", "protocol": "TCP"}],
        },
    }
    # Otherwise the label `service` of the gateway's metrics would be that of this Service.
    gateways = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ServiceMonitor",
        "metadata": of_gateways,
        "spec": {
            "selector": {"matchLabels": selected},
            "endpoints": [
                {
                    "port": "metrics",
                    "path": "/metrics",
                    "interval": SCRAPE,
                    "honorLabels": True,
                    "authorization": _BEARER,
                }
            ],
        },
    }
    replicas = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "PodMonitor",
        "metadata": metadata_of(namespace, name="fairlead-replicas"),
        "spec": {
            "namespaceSelector": {"any": True},
            "selector": {"matchExpressions": [{"key": SERVICE, "operator": "Exists"}]},
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": SCRAPE}],
        },
    }
    return [service, gateways, replicas]
