"""Builds the objects that ``install --monitoring`` adds: for the Prometheus operator and Grafana's sidecar."""

import json
from typing import Any

from fairlead.cluster.kubernetes.manifests.install import metadata_of, selector
from fairlead.control.metrics.dashboards import DASHBOARDS, grafana
from fairlead.control.metrics.rules import rule_groups

GROUP = "monitoring.coreos.com"
SCRAPE = "30s"


def monitoring_objects(namespace: str) -> list[dict[str, Any]]:
    """Return a Service of the operator's pods, its ServiceMonitor, the alerts, and a ConfigMap per dashboard."""
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
            "endpoints": [{"port": "metrics", "path": "/metrics", "interval": SCRAPE}],
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
    return [service, monitor, rules, *boards]
