"""The operator over a real control plane: it places gangs, says why, and loses nothing when others are killed."""

import json
import threading
import time
import urllib.request
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.names import LEASE
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.health import serve
from fairlead.control.loop import run_pass
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase
from tests.kubernetes.loopback import FaultyProxy, LoseAnswer, Refuse, serving
from tests.kubernetes.operating import GPUS, HARMLESS, an_operator, comes_to, gang, live_pods, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until


def test_a_gang_runs_to_its_end(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    cluster.submit(gang(namespace, run="1s"))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.SUCCEEDED)
    told = [event.type for event in cluster.events()]
    assert told == ["Submitted", "Starting", "Running", "Succeeded"]
    content = cluster.client.get(f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings/train")
    conditions = {c["type"]: c["status"] for c in content["status"]["conditions"]}
    assert conditions["Complete"] == "True"
    assert content["status"]["phase"] == "Succeeded"


@pytest.mark.slow
def test_what_does_not_fit_waits_says_why_and_takes_its_turn(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    cluster.submit(gang(namespace, "first"))
    with operating(access, namespace):
        comes_to(cluster, "first", Phase.RUNNING)
        cluster.submit(gang(namespace, "second"))
        until(lambda: "0 of 8 GPUs" in cluster.named("second", namespace).status.reason.message)
        assert live_pods(cluster, namespace) == ["first-0-0", "first-0-1"]
        cluster.set_intent(cluster.named("first", namespace).uid, Intent.STOP)
        comes_to(cluster, "second", Phase.RUNNING)
    assert cluster.named("first", namespace).status.phase is Phase.STOPPED


@pytest.mark.slow
def test_an_elastic_gang_takes_what_is_free_and_gives_up_what_another_is_owed(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    path = f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings/train"
    cluster.submit(replace(gang(namespace, nodes=1), most_nodes=4, grace_s=1.0))
    with operating(access, namespace):
        run = comes_to(cluster, "train", Phase.RUNNING)
        assert run.status.reason.message == (
            "16 ranks on 2 nodes started; runs on 2 of 1..4 nodes; would grow when 2 more are free"
        )
        assert (run.gang.nodes, live_pods(cluster, namespace)) == (2, ["train-0-0", "train-0-1"])
        cluster.submit(replace(gang(namespace, "urgent", nodes=1), priority=1))
        comes_to(cluster, "urgent", Phase.RUNNING)
        comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        assert live_pods(cluster, namespace) == ["train-1-0", "urgent-0-0"]
        content = cluster.client.get(path)
        assert (content["spec"]["nodes"], content["status"]["ranks"]) == ("1..4", "8/8")
        (pod,) = (each for each in pods_of(cluster, namespace) if each["metadata"]["name"] == "train-1-0")
        env = pod["spec"]["containers"][0]["env"]
        (told,) = (each["value"] for each in env if each["name"].endswith("INSTRUCTIONS"))
        assert json.loads(told)["env"]["WORLD_SIZE"] == "8"
        assert json.loads(told)["env"]["FAIRLEAD_ELASTIC"] == "1"


def pods_of(cluster: WorkloadApi, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.client.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def test_what_can_never_fit_is_refused(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    cluster.submit(gang(namespace, gpus=GPUS * 2))
    with operating(access, namespace):
        assert "can never fit" in comes_to(cluster, "train", Phase.FAILED).status.reason.message


def test_others_pods_and_cordons_are_waited_for(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    client = cluster.client
    client.create(f"/api/v1/namespaces/{namespace}/pods", foreign_pod("a-gpu-0"))
    client.merge("/api/v1/nodes/a-gpu-1", {"spec": {"unschedulable": True}})
    try:
        cluster.submit(gang(namespace, nodes=1))
        with operating(access, namespace):
            until(lambda: "cordoned" in cluster.named("train", namespace).status.reason.message)
            assert live_pods(cluster, namespace) == ["foreign"]
            client.merge("/api/v1/nodes/a-gpu-1", {"spec": {"unschedulable": None}})
            comes_to(cluster, "train", Phase.RUNNING)
    finally:
        client.merge("/api/v1/nodes/a-gpu-1", {"spec": {"unschedulable": None}})


def foreign_pod(node: str) -> dict[str, object]:
    resources = {"cpu": "1", "nvidia.com/gpu": "1"}
    asked = {"requests": resources, "limits": resources}
    containers = [{"name": "c", "image": "i", "resources": asked, "securityContext": HARMLESS}]
    return {"metadata": {"name": "foreign"}, "spec": {"nodeName": node, "containers": containers}}


@pytest.mark.slow
def test_a_deleted_pod_restarts_the_gang_whole(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    cluster.submit(gang(namespace))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
        cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/train-0-1")
        run = comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        assert live_pods(cluster, namespace) == ["train-1-0", "train-1-1"]
    assert run.status.failures.last is not None
    assert "kubectl delete pod" in run.status.failures.last.message


@pytest.mark.slow
def test_a_drained_pod_says_so(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    cluster.submit(gang(namespace))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "train-0-0"}}
        cluster.client.create(f"/api/v1/namespaces/{namespace}/pods/train-0-0/eviction", eviction)
        run = comes_to(cluster, "train", Phase.RUNNING, attempt=1)
    assert run.status.failures.last is not None
    assert "kubectl drain" in run.status.failures.last.message


def test_out_of_memory_is_told_as_that(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    cluster.submit(gang(namespace, run="0.5s", exit_code="137", reason="OOMKilled"))
    with operating(access, namespace):
        until(lambda: cluster.named("train", namespace).status.failures.last is not None)
        cluster.set_intent(cluster.named("train", namespace).uid, Intent.STOP)
        run = comes_to(cluster, "train", Phase.STOPPED)
    assert run.status.failures.last is not None
    assert "ran out of memory" in run.status.failures.last.message


def test_an_image_that_cannot_be_pulled_fails_the_run(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    cluster.submit(gang(namespace, image="missing"))
    with operating(access, namespace):
        run = comes_to(cluster, "train", Phase.FAILED)
        assert "cannot be pulled" in run.status.reason.message
        until(lambda: not live_pods(cluster, namespace))


def test_what_delays_a_start_is_told_at_once_and_no_more_when_it_is_over(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    def reason() -> Reason:
        return cluster.named("train", namespace).status.reason

    with operating(access, namespace):
        cluster.submit(gang(namespace, image="unreachable"))
        until(lambda: reason().code is Code.START_DELAYED, lambda: reason(), timeout_s=15.0)
        assert "of 2 has not started: the image " in reason().message
        assert "connect: connection refused; check its name" in reason().message
        assert "kubelet retries for 60 s in all" in reason().message
        assert cluster.named("train", namespace).status.phase is Phase.STARTING
        for index in range(2):
            path = f"/api/v1/namespaces/{namespace}/pods/train-0-{index}"
            cluster.client.merge(path, {"metadata": {"annotations": {"fake/image": None}}})
        comes_to(cluster, "train", Phase.RUNNING, attempt=0)


def test_whoever_comes_next_completes_what_was_committed(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    first = an_operator(access, namespace)
    first.view.start()
    cluster.submit(gang(namespace))
    until(lambda: len(first.cluster.workloads()) == 1)
    assert run_pass(first.cluster, time.time())  # decided and written; killed before a pod was created
    first.agent.close()
    first.view.stop()
    assert live_pods(cluster, namespace) == []
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING, attempt=0)
        assert live_pods(cluster, namespace) == ["train-0-0", "train-0-1"]


@pytest.mark.slow
def test_only_one_of_two_operators_acts_and_the_other_takes_over(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    timing = {"lease_s": 2.0, "deadline_s": 1.2, "beat_s": 0.3}
    first = an_operator(access, namespace, **timing)
    thread = threading.Thread(target=first.run, daemon=True)
    thread.start()
    until(lambda: first.election.is_leader)
    with operating(access, namespace, **timing) as second:
        cluster.submit(gang(namespace))
        comes_to(cluster, "train", Phase.RUNNING)
        assert not second.election.is_leader
        first.stop()
        thread.join(timeout=20)
        until(lambda: second.election.is_leader)
        cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/train-0-0")
        comes_to(cluster, "train", Phase.RUNNING, attempt=1)
    lease = cluster.client.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE}")
    assert lease["spec"]["leaseTransitions"] >= 1


@pytest.mark.slow
def test_a_run_that_whoever_takes_over_has_not_heard_of_yet_has_not_stalled(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    cluster.submit(replace(gang(namespace), stall_timeout_s=3.0))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
    time.sleep(4.0)
    with operating(access, namespace) as second:
        until(lambda: second.election.is_leader)
        # Nobody answers for a fake node, so that it is never heard of.
        time.sleep(8.0)
        run = cluster.named("train", namespace)
        assert (run.status.phase, run.status.attempt) == (Phase.RUNNING, 0), run.status.reason


@pytest.mark.slow
def test_the_operator_goes_on_after_the_api_server_was_killed(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, control_plane: ControlPlane
) -> None:
    cluster.submit(gang(namespace))
    with operating(access, namespace) as operator:
        comes_to(cluster, "train", Phase.RUNNING)
        lists = sum(cache.num_lists for cache in operator.view.caches)
        control_plane.restart("apiserver")
        cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/train-0-1")
        comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        assert live_pods(cluster, namespace) == ["train-1-0", "train-1-1"]
        assert sum(cache.num_lists for cache in operator.view.caches) <= lists + len(operator.view.caches)


@pytest.mark.slow
def test_it_works_through_a_proxy_that_refuses_cuts_and_loses_answers(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    count = [0]
    faults: list[Refuse | LoseAnswer | None] = [
        Refuse(429, "TooManyRequests", (("Retry-After", "1"),)), LoseAnswer(), Refuse(500), None, Refuse(503), None,
        LoseAnswer(), Refuse(409, "Conflict"), None,
    ]  # fmt: skip

    def choose(method: str, path: str) -> Refuse | LoseAnswer | None:
        if method == "GET" or "leases" in path or "serviceaccounts" in path:
            return None
        count[0] += 1
        return faults[count[0] % len(faults)]

    proxy = FaultyProxy(access.server, choose, ca=access.ca)
    with serving(proxy.handler()) as url:
        through = replace(access, context="proxy", server=url)
        cluster.submit(gang(namespace, "first", nodes=4, gpus=1, run="2s"))
        cluster.submit(gang(namespace, "second", nodes=4, gpus=1))
        with operating(through, namespace):
            # Its pods may have run and ended before an answer got through that says so.
            until(lambda: cluster.named("first", namespace).status.phase is not Phase.PENDING)
            proxy.cut()
            comes_to(cluster, "first", Phase.SUCCEEDED)
            comes_to(cluster, "second", Phase.RUNNING)
            assert live_pods(cluster, namespace) == [f"second-0-{index}" for index in range(4)]
    assert count[0] > len(faults)


@pytest.mark.slow
def test_at_rest_it_writes_nothing(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    cluster.submit(gang(namespace))
    with operating(access, namespace) as operator:
        comes_to(cluster, "train", Phase.RUNNING)
        path = f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings/train"
        time.sleep(2.0)
        version = cluster.client.get(path)["metadata"]["resourceVersion"]
        time.sleep(12.0)  # a refresh would come after 10 s
        assert cluster.client.get(path)["metadata"]["resourceVersion"] == version
        assert operator.health.is_alive


def test_a_namespace_that_is_not_there_is_told(access: ClusterAccess) -> None:
    cluster = WorkloadApi(Client(access), namespace="nowhere")
    with pytest.raises(Exception, match="no namespace 'nowhere'"):
        cluster.submit(gang("nowhere"))


def test_health_and_metrics_are_served(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    with operating(access, namespace) as operator:
        until(lambda: operator.election.is_leader)
        server = serve(operator.health, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            for path, expected in (("/livez", "ok"), ("/readyz", "ok"), ("/metrics", "fairlead_leader 1")):
                with urllib.request.urlopen(url + path, timeout=5) as answer:
                    assert expected in answer.read().decode()
        finally:
            server.shutdown()
            server.server_close()
