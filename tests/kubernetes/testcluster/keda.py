"""A real KEDA beside a control plane: its operator, and the adapter that answers HorizontalPodAutoscalers for it."""

import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.kubernetes.testcluster import binaries, webhooks
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.engines import define, kept
from tests.kubernetes.testcluster.processes import Server
from tests.ports import free_ports
from tests.waiting import until

GROUP = "external.metrics.k8s.io"
API = f"/apis/{GROUP}/v1beta1"


@contextmanager
def keda(plane: ControlPlane) -> Iterator[None]:
    """KEDA, once it serves; built if it is missing (many minutes the first time).

    Raises:
        Unavailable: It cannot be built here.
    """
    programs = {name: binaries.ensure_engine(f"keda-{name}") for name in ("operator", "adapter")}
    source = binaries.source_of_module("autoscaling", "github.com/kedacore/keda/v2")
    define(plane, source / "config/crd/bases")
    home = plane.home / "keda"
    webhooks.certified(home, "localhost")
    metrics, health, service, secure, own = free_ports(5)
    settings = {
        "KUBECONFIG": plane.kubeconfig(), "POD_NAMESPACE": "default", "WATCH_NAMESPACE": "",
        "KEDA_CLUSTER_OBJECT_NAMESPACE": "default",
    }  # fmt: skip
    environment = ["env", *(f"{name}={value}" for name, value in settings.items())]
    limits = ["--kube-api-qps=500", "--kube-api-burst=500"]
    operator = [
        f"--metrics-bind-address=127.0.0.1:{metrics}",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        f"--metrics-service-bind-address=127.0.0.1:{service}",
        f"--cert-dir={home}",
        *limits,
    ]
    adapter = [
        f"--metrics-service-address=127.0.0.1:{service}",
        f"--cert-dir={home}",
        "--bind-address=127.0.0.1",
        f"--secure-port={secure}",
        f"--port={own}",
        f"--tls-cert-file={home}/tls.crt",
        f"--tls-private-key-file={home}/tls.key",
        *(f"--{what}kubeconfig={plane.kubeconfig()}" for what in ("authentication-", "authorization-", "lister-")),
        # The API server shows it no certificate of its own, as it has none for that.
        "--authentication-skip-lookup",
        "--authorization-always-allow-paths=/*",
        *limits,
    ]
    flags = {"operator": operator, "adapter": adapter}
    # The API server has no certificate to show it, so whoever asks there is nobody to it.
    about = {"metadata": {"name": "external-metrics"}}
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [GROUP], "resources": ["*"], "verbs": ["get", "list"]}]
    subject = {"kind": "User", "name": "system:anonymous", "apiGroup": group}
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "external-metrics"}
    kept(plane, f"/apis/{group}/v1/clusterroles", {**about, "rules": rules})
    kept(plane, f"/apis/{group}/v1/clusterrolebindings", {**about, "roleRef": role, "subjects": [subject]})
    with ExitStack() as stack:
        for name, program in programs.items():
            log = plane.home / f"keda-{name}.log"
            server = Server(f"keda-{name}", [*environment, str(program), *flags[name]], log)
            stack.callback(server.kill)
            server.start()
            if name == "operator":
                server.until(lambda server=server: server.said("Starting workers"), "its controllers")  # type: ignore[misc]
        stack.enter_context(external_metrics(plane, secure))
        yield


@contextmanager
def external_metrics(plane: ControlPlane, port: int) -> Iterator[None]:
    """An API of external metrics that a port of loopback serves with TLS, registered with the API server."""
    spec = {"type": "ExternalName", "externalName": "localhost"}
    kept(plane, "/api/v1/namespaces/default/services", {"metadata": {"name": "adapter"}, "spec": spec})
    registered = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1beta1.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"namespace": "default", "name": "adapter", "port": port},
        },
    }
    path = "/apis/apiregistration.k8s.io/v1/apiservices"
    try:
        plane.request("POST", path, registered)
        until(lambda: _is_served(plane), "the metrics API")
        yield
    finally:
        plane.request("DELETE", f"{path}/v1beta1.{GROUP}")
        plane.request("DELETE", "/api/v1/namespaces/default/services/adapter")


def _is_served(plane: ControlPlane) -> bool:
    """Return whether the API server has found it, which it says it has not until then."""
    try:
        plane.request("GET", API)
    except urllib.error.HTTPError:
        return False
    return True
