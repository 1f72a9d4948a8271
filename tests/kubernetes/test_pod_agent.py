"""What the hands of the operator do when somebody else may be at it, or has been."""

import time
from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.state.snapshot import Intent, Phase
from tests.kubernetes.loopback import Fault, FaultyProxy, Refuse, serving
from tests.kubernetes.operating import comes_to, gang, live_pods, operating
from tests.waiting import until


@pytest.mark.slow
def test_no_pod_is_created_once_another_operator_may_lead(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    broken = {"/pods"}

    def choose(method: str, path: str) -> Fault:
        of_pods = method == "POST" and path.partition("?")[0].endswith("/pods")
        if ("/pods" in broken and of_pods) or ("/leases" in broken and "/leases" in path):
            return Refuse(500)
        return None

    proxy = FaultyProxy(access.server, choose, ca=access.ca)
    with serving(proxy.handler()) as url:
        through = replace(access, server=url)
        with operating(through, namespace, lease_s=1.5, deadline_s=1.0, beat_s=0.2) as operator:
            until(lambda: operator.election.is_leader)
            cluster.submit(gang(namespace))
            until(lambda: any(method == "POST" and "/pods?" in path for method, path in proxy.seen))
            broken.add("/leases")
            until(lambda: not operator.election.is_leader)
            time.sleep(0.6)  # what is left of the Lease
            broken.discard("/pods")
            time.sleep(3.0)  # a request that is tried again is tried within this
            assert live_pods(cluster, namespace) == []
            broken.clear()
            comes_to(cluster, "train", Phase.RUNNING, attempt=0)


def test_each_start_makes_anew_what_somebody_has_deleted(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    place = f"/api/v1/namespaces/{namespace}"
    cluster.submit(gang(namespace))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
        (service,) = (each["metadata"]["name"] for each in cluster.client.items(f"{place}/services"))
        for path in (f"{place}/services/{service}", f"{place}/configmaps/{bundle_name()}"):
            cluster.client.delete(path)
        cluster.client.delete(f"{place}/pods/train-0-0")
        comes_to(cluster, "train", Phase.RUNNING, attempt=1)
    assert [each["metadata"]["name"] for each in cluster.client.items(f"{place}/services")] == [service]
    assert bundle_name() in [each["metadata"]["name"] for each in cluster.client.items(f"{place}/configmaps")]


def test_the_names_of_a_gang_are_those_of_its_pods_and_follow_it_to_its_next_start(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    place = f"/api/v1/namespaces/{namespace}/pods"

    def names() -> dict[str, str]:
        slices = cluster.client.items(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
        return {each["hostname"]: each["addresses"][0] for found in slices for each in found["endpoints"]}

    def addresses(attempt: int) -> dict[str, str]:
        pods = (
            each for each in cluster.client.items(place) if each["metadata"]["name"].startswith(f"train-{attempt}-")
        )
        return {each["metadata"]["name"]: each["status"]["podIP"] for each in pods}

    cluster.submit(gang(namespace))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
        until(lambda: names() == addresses(0))
        assert {"train-0-0", "train-0-1"} <= set(names())
        cluster.client.delete(f"{place}/train-0-0")
        comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        until(lambda: names() == addresses(1))


@pytest.mark.slow
def test_a_run_has_network_objects_only_while_it_has_several_pods_and_those_are_alive(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    lists = ("/api/v1", "services"), ("/apis/networking.k8s.io/v1", "networkpolicies")
    places = [f"{api}/namespaces/{namespace}/{plural}" for api, plural in lists]
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"

    def counts() -> list[int]:
        return [len(list(cluster.client.items(place))) for place in (*places, slices)]

    def ends(name: str, nodes: int, run: str) -> None:
        cluster.submit(gang(namespace, name, nodes=nodes, gpus=0, run=run))

    with operating(access, namespace):
        ends("alone", 1, "0.3s")
        comes_to(cluster, "alone", Phase.SUCCEEDED)
        until(lambda: counts() == [0, 0, 0])
        cluster.submit(gang(namespace, gpus=0))
        run = comes_to(cluster, "train", Phase.RUNNING)
        until(lambda: counts() == [1, 1, 1])
        cluster.set_intent(run.uid, Intent.SUSPEND)
        comes_to(cluster, "train", Phase.SUSPENDED)
        until(lambda: counts() == [0, 0, 0])
        cluster.set_intent(run.uid, Intent.RUN)
        comes_to(cluster, "train", Phase.RUNNING)
        until(lambda: counts() == [1, 1, 1])
    with operating(access, namespace):
        # It reads which runs have any, as it made none itself.
        cluster.set_intent(run.uid, Intent.STOP)
        comes_to(cluster, "train", Phase.STOPPED)
        until(lambda: counts() == [0, 0, 0])
    assert cluster.named("alone", namespace).status.reason.message.startswith("all ranks succeeded")
    pods = cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")
    assert any(each["metadata"]["name"] == "alone-0-0" for each in pods), "its output is still with its pod"
