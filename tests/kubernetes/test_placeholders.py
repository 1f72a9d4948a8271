"""The pods that ask an autoscaler for nodes, and what is known of an autoscaler."""

from dataclasses import replace
from typing import Any

from fairlead.cluster.kubernetes.api.objects import pod_requests, read_pod
from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.informers.autoscalers import (
    UPDATED,
    gpu_labels,
    prices_within,
    read_pools,
    read_status,
    spot_labels,
)
from fairlead.cluster.kubernetes.informers.pod_index import PodIndex
from fairlead.cluster.kubernetes.manifests.placeholders import PRIORITY, render_placeholder, render_priority_class
from fairlead.cluster.kubernetes.manifests.pods import render_pod
from fairlead.policy.placement.node_eligibility import PRICE_LABEL, SPOT_MARKS
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.state.capacity_requests import Amount, Source
from tests.kubernetes.builders import GIB, SETTINGS, UID, a_creation, a_training, a_workload
from tests.kubernetes.goldens import check_golden

EIGHT = DeviceResource(name="nvidia.com/gpu", count=8)
NOW = 1_790_000_000.0


def a_gang(**changes: Any) -> Any:
    resources = Resources(cpu_milli=4000, memory_bytes=16 * GIB, gpu=GpuRequest(milli=8000, model="A100"))
    return a_workload(a_training(nodes=4, resources=resources, **changes))


def a_pool(name: str = "gpu", **changes: Any) -> dict[str, Any]:
    """A NodePool with parts of its spec."""
    return {"metadata": {"name": name}, "spec": {"template": {}, **changes}}


def labelled(model: str, **changes: Any) -> dict[str, Any]:
    return a_pool(template={"metadata": {"labels": {"nvidia.com/gpu.product": model}}}, **changes)


def test_a_placeholder_is_that_of_the_golden_file() -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    tolerations = [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]
    fields = {"affinity": affinity, "tolerations": tolerations, "nodeSelector": {"tier": "training"}}
    labels = [("nvidia.com/gpu.product", "NVIDIA-A100"), ("karpenter.k8s.aws/instance-gpu-name", "a100")]
    run = a_gang(kubernetes=overlay({"spec": fields}))
    check_golden("placeholder.yaml", [render_placeholder(run, 3, SETTINGS, device=EIGHT, labels=labels)])


def test_it_asks_for_exactly_what_the_member_will() -> None:
    run = a_gang()
    for index in (0, 1):
        member = render_pod(run, a_creation(index=index), SETTINGS, device=EIGHT)
        placeholder = render_placeholder(run, index, SETTINGS, device=EIGHT)
        assert pod_requests(placeholder["spec"]) == pod_requests(member["spec"])


def test_it_is_found_by_none_of_the_labels_of_members_and_goes_with_its_training() -> None:
    pod = render_placeholder(a_gang(), 0, SETTINGS, device=EIGHT)
    assert "fairlead.dev/run-uid" not in pod["metadata"]["labels"]
    assert [owner["uid"] for owner in pod["metadata"]["ownerReferences"]] == [UID]


def test_its_priority_is_below_all_runs_and_above_what_the_cluster_autoscaler_ignores() -> None:
    content = render_priority_class()
    assert -10 <= PRIORITY < 0
    assert (content["value"], content["preemptionPolicy"], content["globalDefault"]) == (PRIORITY, "Never", False)


def test_one_that_is_bound_takes_no_room_from_any_run() -> None:
    content = render_placeholder(a_gang(), 0, SETTINGS, device=EIGHT)
    content["metadata"] |= {"resourceVersion": "1", "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}
    content["spec"]["nodeName"] = "a"
    moment = "2026-01-01T00:00:30Z"
    content["status"] = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": moment}]}
    pod = read_pod(content)
    assert (pod.run_uid, pod.room_for, pod.bound_at) == ("", UID, 1_767_225_630.0)
    index = PodIndex()
    index.follow(pod.key, pod)
    assert not index.on_node(pod.node)


def test_a_configured_image_needs_no_python() -> None:
    settings = replace(SETTINGS, placeholder_image="pause:3")
    (container,) = render_placeholder(a_gang(), 0, settings, device=EIGHT)["spec"]["containers"]
    assert container["image"] == "pause:3"
    assert "command" not in container


def test_node_pools_tell_their_models_and_what_their_limits_leave() -> None:
    pool = labelled("NVIDIA-A100", limits={"nvidia.com/gpu": 32, "cpu": "1k", "memory": "2Ti"})
    pool["status"] = {"resources": {"nvidia.com/gpu": "24", "cpu": "500"}}
    growth = read_pools([pool])
    assert growth is not None
    assert growth.sources == (
        Source(
            name="NodePool gpu",
            models=("NVIDIA-A100",),
            most=Amount(cpu_milli=1_000_000, memory_bytes=2 * 1024**4, gpus=32),
            left=Amount(cpu_milli=500_000, memory_bytes=2 * 1024**4, gpus=8),
        ),
    )


def test_a_pool_that_is_not_ready_or_on_its_way_out_brings_nothing() -> None:
    unready = {**a_pool(), "status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    leaving = {**a_pool(), "metadata": {"name": "gpu", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert read_pools([unready, leaving]) is None


def test_a_model_is_asked_for_by_the_labels_that_tell_it_before_the_node_is_there() -> None:
    requirement = {"key": "cloud.google.com/gke-accelerator", "operator": "In", "values": ["nvidia-h100-80gb"]}
    google = a_pool(template={"spec": {"requirements": [requirement]}})
    amazon = a_pool(template={"spec": {"nodeClassRef": {"group": "karpenter.k8s.aws"}}})
    pools = [labelled("NVIDIA-A100"), google, amazon]
    assert gpu_labels(pools, "H100") == [
        ("cloud.google.com/gke-accelerator", "nvidia-h100-80gb"),
        ("karpenter.k8s.aws/instance-gpu-name", "h100"),
    ]
    assert gpu_labels([a_pool()], "H100") == []


def test_no_spot_node_is_asked_for_that_the_run_may_not_use() -> None:
    assert spot_labels([a_pool()]) == (("karpenter.sh/capacity-type", "spot"),)
    assert set(spot_labels([])) == set(SPOT_MARKS)
    for labels in ((), (("a", "x"), ("b", "y"))):
        pod = render_placeholder(a_gang(), 0, SETTINGS, device=EIGHT, labels=labels, shunned=[("kind", "spot")])
        required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        without = {"key": "kind", "operator": "NotIn", "values": ["spot"]}
        wanted = [[{"key": key, "operator": "In", "values": [value]}] for key, value in labels] or [[]]
        assert required["nodeSelectorTerms"] == [{"matchExpressions": [*each, without]} for each in wanted]


def test_the_cluster_autoscaler_is_there_while_it_writes_its_status() -> None:
    def written(at: str) -> dict[str, Any]:
        return {"metadata": {"annotations": {UPDATED: at}}}

    fresh = read_status(written("2026-09-21 14:10:00.123 +0000 UTC"), NOW)
    assert fresh is not None
    assert fresh.by == "the Cluster Autoscaler"
    assert read_status(written("2026-09-21 10:00:00.123 +0000 UTC"), NOW) is None
    assert read_status({}, NOW) is None


def test_it_asks_only_for_nodes_within_the_max_price_of_its_run() -> None:
    pools = [
        a_pool(name, template={"metadata": {"labels": {PRICE_LABEL: price}}})
        for name, price in (("a", "1.50"), ("b", "3.5"), ("c", "unknown"))
    ]
    found = read_pools([*pools, a_pool("d")])
    assert found is not None
    assert [source.price_per_hour for source in found.sources] == [1.5, 3.5, None, None]
    assert prices_within(pools, 2.0) == ("1.50",)
    pod = render_placeholder(a_gang(), 0, SETTINGS, device=EIGHT, prices=prices_within(pools, 2.0))
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": PRICE_LABEL, "operator": "In", "values": ["1.50"]}]
