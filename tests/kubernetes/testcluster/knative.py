"""Knative Serving on real nodes: its controller, autoscaler, webhook and activator in pods, as its release has them.

What routes requests from outside is a part that every installation chooses (Istio, Kourier, Contour); here a program of
our own plays it.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.testcluster import binaries, images, webhooks
from tests.kubernetes.testcluster.engines import apply, define
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

FLAGS = {"apiserver": ["--enable-aggregator-routing=true"]}
"""With these the API server, which no kube-proxy serves, finds webhooks by their pods; for a cluster's start."""
SYSTEM = "knative-serving"
INGRESS = "door"
"""The pod that routes requests, and its class of Ingresses."""
MODULE = "autoscaling"
DEPLOYMENTS = ("controller", "autoscaler", "activator", "webhook")
UNUSED = ("HorizontalPodAutoscaler", "PodDisruptionBudget", "Certificate")

# A pod's program: it says of each Ingress that it is ready, and sends each request where its Ingress says.
ROUTER = """
import http.client, json, os, ssl, threading, time, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PLACE = "/var/run/secrets/kubernetes.io/serviceaccount"
TLS = ssl.create_default_context(cafile=PLACE + "/ca.crt")
API = "https://%s:%s" % (os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"])
INGRESSES = "/apis/networking.internal.knative.dev/v1alpha1/"
KINDS = ("NetworkConfigured", "LoadBalancerReady", "Ready")
SINCE = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
READY = [{"type": each, "status": "True", "lastTransitionTime": SINCE} for each in KINDS]
BALANCER = {"ingress": [{"domainInternal": "door.knative-serving.svc.cluster.local"}]}
splits, turns, lock = {}, {}, threading.Lock()

def ask(path, body=None):
    asked = urllib.request.Request(API + path, method="GET" if body is None else "PATCH")
    asked.add_header("Authorization", "Bearer " + open(PLACE + "/token").read())
    asked.add_header("Content-Type", "application/merge-patch+json")
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(asked, data, context=TLS, timeout=10) as answer:
        return json.load(answer)

def learn():
    while True:
        try:
            found = {}
            for each in ask(INGRESSES + "ingresses")["items"]:
                about = each["metadata"]
                for rule in each["spec"]["rules"]:
                    found.update((host, rule["http"]["paths"][-1]["splits"]) for host in rule["hosts"])
                if each.get("status", {}).get("observedGeneration") != about["generation"]:
                    status = {"observedGeneration": about["generation"], "conditions": READY}
                    status.update(publicLoadBalancer=BALANCER, privateLoadBalancer=BALANCER)
                    place = "namespaces/%s/ingresses/%s/status" % (about["namespace"], about["name"])
                    splits.update(found)
                    ask(INGRESSES + place, {"status": status})
            splits.clear()
            splits.update(found)
        except Exception as error:
            print("learning:", repr(error), flush=True)
        time.sleep(0.2)

def chosen(host):
    with lock:
        turn = turns[host] = turns.get(host, -1) + 1
    place = turn * 37 % 100
    for each in splits[host]:
        place -= each.get("percent", 100)
        if place < 0:
            return each

class Router(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        host = self.headers["Host"].partition(":")[0]
        try:
            if host not in splits:
                return self.tell(404, b"no such host")
            split = chosen(host)
            there = "%s.%s.svc.cluster.local" % (split["serviceName"], split["serviceNamespace"])
            connection = http.client.HTTPConnection(there, split["servicePort"], timeout=120)
            headers = {**dict(self.headers), **(split.get("appendHeaders") or {})}
            connection.request("GET", self.path, headers=headers)
            answer = connection.getresponse()
            self.tell(answer.status, answer.read())
            connection.close()
        except Exception as error:
            self.tell(502, repr(error).encode())

    def tell(self, status, said):
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass

threading.Thread(target=learn, daemon=True).start()
ThreadingHTTPServer(("0.0.0.0", 8080), Router).serve_forever()
"""


def install(cluster: RealCluster) -> None:
    """Put Knative Serving on a cluster with kube-proxy and ``FLAGS``, until it serves; built if it is missing.

    Raises:
        Unavailable: It cannot be built here.
        Broken: It did not come up.
    """
    programs = {part: binaries.ensure_engine(f"knative-{part}") for part in binaries.KNATIVE}
    home = binaries.source_of_module(MODULE, "knative.dev/serving") / "config" / "core"
    network = binaries.source_of_module(MODULE, "knative.dev/networking") / "config"
    with tempfile.TemporaryDirectory(dir=cluster.home) as scratch:
        for part, program in programs.items():
            layer = images.layer_of(Path(scratch) / "layer.tar", {f"/{part}": program})
            archive = Path(scratch) / "image.tar"
            images.write_archive(archive, image_of(part), [layer], command=[f"/{part}"])
            cluster.import_image(archive)
    define(cluster, home / "300-resources", "*.yaml")
    define(cluster, network, "*.yaml")
    define(cluster, binaries.source_of_module(MODULE, "knative.dev/caching") / "config", "*.yaml")
    places = ("200-roles", "configmaps", "deployments", "webhooks")
    files = [*home.glob("*.yaml"), network / "config-network.yaml"]
    files += [each for place in places for each in sorted((home / place).glob("*.yaml"))]
    found = [each for file in files for each in yaml.safe_load_all(file.read_text()) if each is not None]
    found = [_fitted(each) for each in found if each["kind"] not in (*UNUSED, "CustomResourceDefinition")]
    found.sort(key=lambda each: ORDER.index(each["kind"]) if each["kind"] in ORDER else len(ORDER))
    apply(cluster, [*found, *_router()], "Knative")

    def is_ready() -> bool:
        there = cluster.request("GET", f"/apis/apps/v1/namespaces/{SYSTEM}/deployments")["items"]
        available = [each["metadata"]["name"] for each in there if each["status"].get("availableReplicas")]
        router = cluster.request("GET", f"/api/v1/namespaces/{SYSTEM}/pods/{INGRESS}")["status"]
        hooks = cluster.request("GET", f"{webhooks.REGISTERED}/validatingwebhookconfigurations")["items"]
        hooks += cluster.request("GET", f"{webhooks.REGISTERED}/mutatingwebhookconfigurations")["items"]
        has_authority = all("caBundle" in hook["clientConfig"] for each in hooks for hook in each["webhooks"])
        return set(available) == set(DEPLOYMENTS) and router.get("phase") == "Running" and has_authority

    until(is_ready, lambda: _told(cluster))


ORDER = (
    "Namespace",
    "ServiceAccount",
    "ClusterRole",
    "Role",
    "ClusterRoleBinding",
    "RoleBinding",
    "ConfigMap",
    "Secret",
)


def image_of(part: str) -> str:
    """The image of one of Knative's programs; Knative looks for no registry of such a name."""
    return f"dev.local/knative-{part}:1"


def ask(cluster: RealCluster, host: str, *, times: int = 1, timeout_s: float = 60.0) -> Counter[tuple[int, str]]:
    """Return the answers to requests that come from outside, one after another, with their statuses."""
    pod = cluster.request("GET", f"/api/v1/namespaces/{SYSTEM}/pods/{INGRESS}")
    argv = ["nsenter", f"--net=/var/run/netns/{cluster.control_network}", sys.executable, "-c", CLIENT]
    argv += [pod["status"]["podIP"], host, str(times), f"{timeout_s:g}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=timeout_s + 60)
    return Counter((status, said) for status, said in json.loads(done.stdout))


CLIENT = """
import http.client, json, sys
address, host, times, limit = sys.argv[1:]
found = []
for _ in range(int(times)):
    connection = http.client.HTTPConnection(address, 8080, timeout=float(limit))
    connection.request("GET", "/", headers={"Host": host})
    answer = connection.getresponse()
    found.append([answer.status, answer.read().decode()])
    connection.close()
print(json.dumps(found))
"""


def _fitted(content: dict[str, Any]) -> dict[str, Any]:
    """An object of the release as these nodes can have it."""
    found: dict[str, Any] = yaml.safe_load(_with_images(yaml.safe_dump(content)))
    name = found["metadata"]["name"]
    if found["kind"] == "ConfigMap":
        found["metadata"].get("annotations", {}).pop("knative.dev/example-checksum", None)
        data = {key: text for key, text in (found.get("data") or {}).items() if key != "_example"}
        found["data"] = {**data, **SETTINGS.get(name, {})}
    if found["kind"] == "Deployment":
        pod = found["spec"]["template"]["spec"]
        pod.pop("affinity", None)
        (container,) = pod["containers"]
        container["resources"] = {"requests": {"cpu": "10m", "memory": "32Mi"}}
        container["readinessProbe"]["periodSeconds"] = 1
        # A busy machine is no reason to begin anew.
        container.pop("livenessProbe", None)
    return found


SETTINGS = {
    "config-deployment": {
        "registries-skipping-tag-resolving": "dev.local,testcluster.fairlead.dev",
        "queue-sidecar-memory-request": "16Mi",
        "queue-sidecar-cpu-request": "5m",
    },
    "config-autoscaler": {"scale-to-zero-grace-period": "2s"},
    "config-network": {"ingress-class": f"{INGRESS}.ingress.networking.knative.dev"},
}


def _with_images(text: str) -> str:
    for part in binaries.KNATIVE:
        text = text.replace(f"ko://knative.dev/serving/cmd/{part}", image_of(part))
    return text


def _router() -> list[dict[str, Any]]:
    about = {"name": INGRESS, "namespace": SYSTEM}
    subject = {"kind": "ServiceAccount", **about}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    container = {"name": "router", "image": images.PYTHON, "command": ["python3", "-c", ROUTER]}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": INGRESS},
            "subjects": [subject],
            "roleRef": role,
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": about,
            "spec": {"serviceAccountName": INGRESS, "containers": [container], "terminationGracePeriodSeconds": 0},
        },
    ]


def _told(cluster: RealCluster) -> str:
    """What its pods say of themselves, for whoever waits for them."""
    pods = cluster.request("GET", f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
    states = {each["metadata"]["name"]: each["status"].get("containerStatuses") for each in pods}
    return f"Knative is not ready: {states}"
