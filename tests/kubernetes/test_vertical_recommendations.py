"""The recommendation of a vertical autoscaler becomes what a run of a program asks for; its controller is played."""

from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.client.one_shot_snapshot import OneShotSnapshot
from fairlead.cluster.kubernetes.informers.vertical_recommendations import RESOURCE
from fairlead.cluster.kubernetes.names import SIZES
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.resources import Resources
from fairlead.state.snapshot import Phase
from tests.kubernetes.operating import comes_to, gang, loosely_defined, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

API = "autoscaling.k8s.io/v1"
SAID = (
    "memory 2.22 GiB: 1.1 times what VerticalPodAutoscaler notebook recommends; "
    "1.7 CPU: 1.1 times what VerticalPodAutoscaler notebook recommends"
)


@pytest.mark.slow
def test_a_run_asks_for_what_an_autoscaler_recommends_and_says_so(
    plane: ControlPlane, access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    spec = replace(gang(namespace, nodes=1, gpus=0), resources=Resources(memory_auto=True, cpu_auto=True))
    assert OneShotSnapshot(cluster.client).snapshot().recommended == ()
    with loosely_defined(plane, [(API, "VerticalPodAutoscaler", RESOURCE)]):
        place = f"/apis/{API}/namespaces/{namespace}/{RESOURCE}"
        for name, labels in (("notebook", {SIZES: "train"}), ("for-nobody", {})):
            about = {"name": name, "namespace": namespace, "labels": labels}
            content = {"apiVersion": API, "kind": "VerticalPodAutoscaler", "metadata": about, "spec": {}}
            cluster.client.create(place, content)
            containers = [
                {"containerName": "main", "target": {"memory": "1792Mi", "cpu": "1500m"}},
                {"containerName": "beside", "target": {"memory": "256Mi"}},
            ]
            told = {"recommendation": {"containerRecommendations": containers}}
            cluster.client.merge(f"{place}/{name}/status", {"status": told})
        (seen,) = OneShotSnapshot(cluster.client).snapshot().recommended
        assert (seen.team, seen.name, seen.memory_bytes, seen.cpu_milli) == (namespace, "train", 2 * 1024**3, 1500)
        cluster.submit(spec)
        with operating(access, namespace):
            run = comes_to(cluster, "train", Phase.RUNNING)
            (pod,) = cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")
            events = f"/api/v1/namespaces/{namespace}/events"
            until(
                lambda: SAID in [each["message"] for each in cluster.client.items(events) if each["reason"] == "Sized"]
            )
    assert run.status.measured.requests is not None
    assert run.status.measured.requests.why == SAID
    asked = pod["spec"]["containers"][0]["resources"]["requests"]
    assert (asked["memory"], asked["cpu"]) == (str(2272 * 1024**2), "1700m")
