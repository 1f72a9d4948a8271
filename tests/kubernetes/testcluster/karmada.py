"""A real Karmada beside a control plane: its API of clusters, webhooks, controllers and scheduler."""

import base64
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import yaml

from tests.kubernetes.testcluster import binaries, webhooks
from tests.kubernetes.testcluster.control_plane import ADMIN, ControlPlane
from tests.kubernetes.testcluster.engines import await_served, define, kept
from tests.kubernetes.testcluster.processes import Server
from tests.ports import free_ports
from tests.waiting import until

SYSTEM, MEMBERS = "karmada-system", "karmada-cluster"
CLUSTERS = "/apis/cluster.karmada.io/v1alpha1/clusters"
MODULE = "github.com/karmada-io/karmada"
QUICK = (
    # As far as Karmada's own defaults, of minutes, can be shortened: that a member is lost is seen after seconds.
    "--cluster-status-update-frequency=2s",
    "--cluster-failure-threshold=4s",
    "--cluster-success-threshold=2s",
    "--cluster-monitor-period=1s",
    "--cluster-monitor-grace-period=10s",
    "--failover-eviction-timeout=1s",
)


@contextmanager
def karmada(plane: ControlPlane, members: Mapping[str, ControlPlane]) -> Iterator[None]:
    """Karmada on a control plane, once its members are ready; built if it is missing (many minutes the first time).

    Raises:
        Unavailable: It cannot be built here, or is not built.
    """
    programs = {name: binaries.ensure_engine(f"karmada-{name}") for name in binaries.KARMADA}
    source = binaries.source_of_module("karmada", MODULE)
    for each in sorted((source / "charts/karmada/_crds/bases").iterdir()):
        define(plane, each)
    for namespace in (SYSTEM, MEMBERS):
        kept(plane, "/api/v1/namespaces", {"metadata": {"name": namespace}})
    home = plane.home / "karmada"
    authority = webhooks.certified(home, "localhost")
    api, hook, *health = free_ports(5)
    shared = [f"--kubeconfig={plane.kubeconfig()}", "--kube-api-qps=500", "--kube-api-burst=500"]
    alone = ["--metrics-bind-address=0", "--leader-elect=false"]
    flags = {
        "aggregated-apiserver": [
            *shared,
            *(f"--{what}-kubeconfig={plane.kubeconfig()}" for what in ("authentication", "authorization")),
            "--authentication-skip-lookup",
            "--authorization-always-allow-paths=/*",
            f"--etcd-servers={plane.etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={api}",
            f"--tls-cert-file={home}/tls.crt",
            f"--tls-private-key-file={home}/tls.key",
        ],
        "webhook": [
            *shared,
            "--bind-address=127.0.0.1",
            f"--secure-port={hook}",
            f"--cert-dir={home}",
            "--metrics-bind-address=0",
            f"--health-probe-bind-address=127.0.0.1:{health[0]}",
            "--default-not-ready-toleration-seconds=1",
            "--default-unreachable-toleration-seconds=1",
        ],
        "controller-manager": [
            *shared,
            *alone,
            *QUICK,
            "--cluster-api-qps=500",
            "--cluster-api-burst=500",
            f"--health-probe-bind-address=127.0.0.1:{health[1]}",
        ],
        "scheduler": [*shared, *alone, f"--health-probe-bind-address=127.0.0.1:{health[2]}"],
    }
    configurations = yaml.safe_load_all(
        (source / "artifacts/deploy/webhook-configuration.yaml").read_text().replace("{{caBundle}}", authority)
    )
    with ExitStack() as stack:
        for name, program in programs.items():
            server = Server(f"karmada-{name}", [str(program), *flags[name]], plane.home / f"karmada-{name}.log")
            stack.callback(server.kill)
            server.start()
            if name == "aggregated-apiserver":
                stack.enter_context(_serving_clusters(plane, api))
            elif name == "webhook":
                server.until(lambda server=server: server.said("Serving webhook server"), "its webhooks")  # type: ignore[misc]
                stack.enter_context(webhooks.registered(plane, configurations, hook, authority))
        for name, member in members.items():
            _join(plane, name, member)
        until(lambda: ready(plane) == set(members), lambda: plane.request("GET", CLUSTERS))
        yield


def ready(plane: ControlPlane) -> set[str]:
    """The members that Karmada reaches."""
    return {
        each["metadata"]["name"]
        for each in plane.request("GET", CLUSTERS)["items"]
        for condition in (each.get("status") or {}).get("conditions") or ()
        if condition["type"] == "Ready" and condition["status"] == "True"
    }


@contextmanager
def _serving_clusters(plane: ControlPlane, port: int) -> Iterator[None]:
    """The API of clusters, which a port of loopback serves, registered with the API server."""
    group = "cluster.karmada.io"
    # The API server has no certificate to show it, so whoever asks there is nobody to it.
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "User", "name": "system:anonymous", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": "clusters-of-karmada"}, "roleRef": role, "subjects": [subject]}
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    kept(plane, bindings, binding)
    spec = {"type": "ExternalName", "externalName": "localhost"}
    services = f"/api/v1/namespaces/{SYSTEM}/services"
    kept(plane, services, {"metadata": {"name": "aggregated"}, "spec": spec})
    registered = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1alpha1.{group}"},
        "spec": {
            "group": group,
            "version": "v1alpha1",
            "groupPriorityMinimum": 2000,
            "versionPriority": 10,
            "insecureSkipTLSVerify": True,
            "service": {"namespace": SYSTEM, "name": "aggregated", "port": port},
        },
    }
    path = "/apis/apiregistration.k8s.io/v1/apiservices"
    kept(plane, path, registered)
    try:
        await_served(plane, CLUSTERS)
        yield
    finally:
        plane.request("DELETE", f"{path}/v1alpha1.{group}")


def _join(plane: ControlPlane, name: str, member: ControlPlane) -> None:
    """Give Karmada a cluster, as `karmadactl join` does."""
    authority = base64.b64encode((member.home / "ca.pem").read_bytes()).decode()
    token = base64.b64encode(ADMIN.encode()).decode()
    secret = {"metadata": {"name": name}, "data": {"token": token, "caBundle": authority}}
    kept(plane, f"/api/v1/namespaces/{MEMBERS}/secrets", secret)
    there: dict[str, Any] = {"namespace": MEMBERS, "name": name}
    spec = {"syncMode": "Push", "apiEndpoint": member.url, "secretRef": there, "impersonatorSecretRef": there}
    cluster = {"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name}, "spec": spec}
    kept(plane, CLUSTERS, cluster)
