"""What befalls the pods of a run on a real control plane: each is told in one sentence, and the gang restarts whole."""

import base64
import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trustme

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase
from tests.kubernetes.operating import GPUS, HARMLESS, comes_to, gang, live_pods, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.waiting import until

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def last_failure(cluster: WorkloadApi, namespace: str) -> str:
    """What it says of the latest failure, once there is one."""
    until(lambda: cluster.named("train", namespace).status.failures.last is not None)
    failure = cluster.named("train", namespace).status.failures.last
    assert failure is not None
    return failure.message


@pytest.mark.slow
def test_a_node_that_vanishes_takes_the_gang_to_another(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, plane: ControlPlane
) -> None:
    client = cluster.client
    add_nodes(plane, 1, prefix="a-mortal", gpus=GPUS)
    until(lambda: is_ready(client.get("/api/v1/nodes/a-mortal-0")))
    client.merge("/api/v1/nodes/a-gpu-0", {"spec": {"unschedulable": True}})
    try:
        cluster.submit(gang(namespace))
        with operating(access, namespace):
            comes_to(cluster, "train", Phase.RUNNING)
            client.merge("/api/v1/nodes/a-gpu-0", {"spec": {"unschedulable": None}})
            client.delete("/api/v1/nodes/a-mortal-0")
            run = comes_to(cluster, "train", Phase.RUNNING, attempt=1)
            assert live_pods(cluster, namespace) == ["train-1-0", "train-1-1"]
    finally:
        client.merge("/api/v1/nodes/a-gpu-0", {"spec": {"unschedulable": None}})
    assert run.status.failures.last is not None
    assert run.status.failures.last.code is Code.NODE_LOST
    assert "node a-mortal-0, which held pod" in run.status.failures.last.message
    assert run.status.failures.last.message.endswith("is gone")


@pytest.mark.slow
def test_a_preempted_pod_says_who_took_its_place_and_the_gang_comes_back(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    client = cluster.client
    name = f"urgent-{namespace}"
    client.create(CLASSES, {"metadata": {"name": name}, "value": 1000})
    try:
        cluster.submit(gang(namespace))
        with operating(access, namespace):
            comes_to(cluster, "train", Phase.RUNNING)
            resources = {"nvidia.com/gpu": str(GPUS)}
            asked = {"requests": resources, "limits": resources}
            container = {"name": "c", "image": "i", "resources": asked, "securityContext": HARMLESS}
            pod = {"metadata": {"name": "urgent"}, "spec": {"priorityClassName": name, "containers": [container]}}
            client.create(f"/api/v1/namespaces/{namespace}/pods", pod)
            assert "kube-scheduler preempted it for a pod of a higher priority" in last_failure(cluster, namespace)
            until(lambda: cluster.named("train", namespace).status.phase is Phase.PENDING)
            assert live_pods(cluster, namespace) == ["urgent"]
            client.delete(f"/api/v1/namespaces/{namespace}/pods/urgent")
            comes_to(cluster, "train", Phase.RUNNING, attempt=1)
    finally:
        client.delete(f"{CLASSES}/{name}")


def test_a_pod_that_its_node_evicts_says_what_it_ran_short_of(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    cluster.submit(gang(namespace))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
        path = f"/api/v1/namespaces/{namespace}/pods/train-0-1/status"
        said = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
        cluster.client.merge(path, {"status": said})
        run = comes_to(cluster, "train", Phase.RUNNING, attempt=1)
    assert run.status.failures.last is not None
    assert "evicted it: The node was low on resource: ephemeral-storage; ask for" in run.status.failures.last.message


def test_a_webhook_that_denies_a_pod_fails_the_run_with_its_words(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    with denying(cluster, namespace, "no GPUs on Fridays"):
        cluster.submit(gang(namespace))
        with operating(access, namespace):
            run = comes_to(cluster, "train", Phase.FAILED)
            until(lambda: not live_pods(cluster, namespace))
    assert "the admission webhook deny.example.com denied the pod: no GPUs on Fridays" in run.status.reason.message
    assert "`kubernetes:`" in run.status.reason.message


def test_a_webhook_that_denies_what_pods_need_beside_themselves_fails_the_run_with_its_words(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    with denying(cluster, namespace, "no Services here", what="services"):
        cluster.submit(gang(namespace))
        with operating(access, namespace):
            run = comes_to(cluster, "train", Phase.FAILED)
            assert live_pods(cluster, namespace) == []
    assert "deny.example.com denied the Service that its pods need: no Services here" in run.status.reason.message


def test_an_admission_policy_that_denies_a_pod_is_told_by_its_name(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}, "resourceRules": [rule]}
    rules = {"matchConstraints": here, "validations": [{"expression": "false", "message": "no label `owner`"}]}
    bound = {"policyName": namespace, "validationActions": ["Deny"]}
    client, bindings = cluster.client, POLICIES.replace("policies", "policybindings")
    client.create(POLICIES, {"metadata": {"name": namespace}, "spec": rules})
    client.create(bindings, {"metadata": {"name": namespace}, "spec": bound})
    container = {"name": "c", "image": "i", "securityContext": HARMLESS}
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [container]}}

    def is_in_force() -> bool:
        try:
            client.create(f"/api/v1/namespaces/{namespace}/pods", pod, {"dryRun": "All"})
        except ApiError as error:
            return "ValidatingAdmissionPolicy" in error.server_message
        return False

    try:
        until(is_in_force)
        cluster.submit(gang(namespace))
        with operating(access, namespace):
            run = comes_to(cluster, "train", Phase.FAILED)
    finally:
        client.delete(f"{bindings}/{namespace}")
        client.delete(f"{POLICIES}/{namespace}")
    told = f"the admission policy {namespace} denied the pod: no label `owner`; change what it objects to"
    assert told in run.status.reason.message


@pytest.mark.slow
def test_a_webhook_that_cannot_be_asked_is_told_and_the_run_goes_on_when_it_is_back(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    cluster.submit(gang(namespace))
    nobody = "https://127.0.0.1:9/"
    with denying(cluster, namespace, "", url=nobody), operating(access, namespace):
        told = last_failure(cluster, namespace)
    assert "the admission webhook deny.example.com did not answer" in told
    assert "refused" in told
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)


@contextmanager
def denying(
    cluster: WorkloadApi, namespace: str, why: str, *, what: str = "pods", url: str | None = None
) -> Iterator[None]:
    """A webhook that denies whatever of one kind is created in a namespace, or one at an address without an answer."""
    authority = trustme.CA()
    with answering(authority, why) as served:
        hook = {
            "name": "deny.example.com",
            "clientConfig": {"url": url or served, "caBundle": _encoded(authority)},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [what]}],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
        }
        cluster.client.create(WEBHOOKS, {"metadata": {"name": namespace}, "webhooks": [hook]})
        try:
            time.sleep(1.0)  # the API server reads its webhooks in its own time
            yield
        finally:
            cluster.client.delete(f"{WEBHOOKS}/{namespace}")


def _encoded(authority: trustme.CA) -> str:
    return base64.b64encode(authority.cert_pem.bytes()).decode()


@contextmanager
def answering(authority: trustme.CA, why: str) -> Iterator[str]:
    """An HTTPS server on loopback that denies what it is asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            response = {"uid": asked["request"]["uid"], "allowed": False, "status": {"message": why}}
            body = json.dumps({**{k: asked[k] for k in ("apiVersion", "kind")}, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


@pytest.mark.slow
def test_a_namespace_that_is_deleted_goes_with_its_runs_and_nothing_is_created_again(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, plane: ControlPlane
) -> None:
    doomed = f"{namespace}-doomed"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": doomed}})
    plane.await_namespace(doomed)
    doomed_cluster = WorkloadApi(cluster.client, namespace=doomed)
    with operating(access, namespace, watch_namespace=doomed):
        doomed_cluster.submit(gang(doomed))
        comes_to(doomed_cluster, "train", Phase.RUNNING)
        plane.request("DELETE", f"/api/v1/namespaces/{doomed}")
        # The namespace controller looks again in growing intervals, so that it takes half a minute on a busy machine.
        until(lambda: not plane.exists(f"/api/v1/namespaces/{doomed}"), timeout_s=120.0)
