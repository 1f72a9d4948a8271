"""The objects that a cluster's own autoscaler is given for an endpoint, and what is refused with it."""

from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.manifests.autoscalers import complaint, render_autoscaler
from fairlead.cluster.kubernetes.manifests.crds import definition
from fairlead.errors import InvalidSpec
from fairlead.policy.kinds.serving import spec_of
from fairlead.policy.serving.replica_count import wanted_replicas
from fairlead.specs.formats.reading import parse
from fairlead.specs.serving import Serving, scaled_as
from fairlead.state.endpoint_detail import ServingDetail
from tests.kubernetes.builders import a_workload
from tests.policy.test_serving import World

TARGET = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Serving", "name": "chat"}
KEDA = "{by: keda, prometheus: {url: 'http://p:9090', query: sum(waiting), target: 5%s}, idle: 2m}"


def spec(scale: str, replicas: str = "1..8") -> Serving:
    (found,) = parse(f"kind: Serving\nname: chat\nteam: research\nrun: serve\nreplicas: {replicas}\nscale: {scale}")
    assert isinstance(found, Serving)
    return found


def rendered(scale: str, replicas: str = "1..8") -> dict[str, object]:
    return render_autoscaler(a_workload(spec(scale, replicas)))  # type: ignore[arg-type]


def test_a_horizontal_pod_autoscaler_has_the_endpoint_and_what_it_goes_by() -> None:
    metric = "{name: DCGM_FI_DEV_GPU_UTIL, target: 70, aggregation: mean, labels: {service: chat}}"
    found = rendered(f"{{by: hpa, cpu: 80%, external_metric: {metric}, window: 90s}}", "2..8")
    assert found["spec"] == {
        "scaleTargetRef": TARGET,
        "minReplicas": 2,
        "maxReplicas": 8,
        "metrics": [
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
            },
            {
                "type": "External",
                "external": {
                    "metric": {"name": "DCGM_FI_DEV_GPU_UTIL", "selector": {"matchLabels": {"service": "chat"}}},
                    "target": {"type": "Value", "value": "70000m"},
                },
            },
        ],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 90}},
    }


def test_a_scaled_object_has_the_endpoint_and_its_query() -> None:
    found = rendered(KEDA % "", "0..8")["spec"]
    assert isinstance(found, dict)
    assert (found["minReplicaCount"], found["maxReplicaCount"], found["cooldownPeriod"]) == (0, 8, 120)
    assert found["scaleTargetRef"] == TARGET
    (trigger,) = found["triggers"]
    assert trigger["metricType"] == "AverageValue"
    assert trigger["metadata"] == {
        "serverAddress": "http://p:9090", "query": "sum(waiting)", "threshold": "5", "ignoreNullValues": "false",
    }  # fmt: skip
    mean = rendered(KEDA % ", aggregation: mean")["spec"]
    assert isinstance(mean, dict)
    assert mean["triggers"][0]["metricType"] == "Value"


def test_the_kind_can_be_scaled() -> None:
    (version,) = definition("Serving")["spec"]["versions"]
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.scale.replicas"
    (version,) = definition("Sweep")["spec"]["versions"]
    assert "scale" not in version["subresources"]


def test_its_number_is_taken_within_the_bounds_and_nothing_else_counts() -> None:
    unset = spec("{by: hpa, cpu: 70%}", "2..8")
    for number, wanted in ((None, 2), (5, 5), (0, 2), (20, 8)):
        asked = replace(unset, scale=replace(unset.scale, replicas=number))
        assert wanted_replicas(asked, None, None, 4, 0.0) == wanted
    assert wanted_replicas(spec(KEDA % "", "0..8"), None, None, 0, 0.0) == 1


def test_another_number_is_no_other_revision_and_a_revision_has_none() -> None:
    world = World(spec("{by: hpa, cpu: 70%}"))
    world.run(20)
    asked = replace(world.spec, scale=replace(world.spec.scale, replicas=3))
    world.change(asked)
    world.run(20)
    detail = world.serving.status.detail
    assert isinstance(detail, ServingDetail)
    assert (len(detail.revisions), detail.ready) == (1, 3)
    assert any("to 3 replicas, by its HorizontalPodAutoscaler" in each for each in world.events)
    assert spec_of(detail.revisions[0]).scale.replicas is None


def test_the_same_file_again_keeps_the_number() -> None:
    file = spec("{by: hpa, cpu: 70%}")
    there = replace(file, scale=replace(file.scale, replicas=5))
    assert scaled_as(file, there) == there
    assert scaled_as(spec("4"), there) == spec("4")
    assert scaled_as(file, spec("4")) == file


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, None),
        ({"conditions": [{"type": "ScalingActive", "status": "True"}]}, None),
        (
            {"conditions": [{"type": "ScalingActive", "status": "False", "message": "no metrics\nreturned."}]},
            "its HorizontalPodAutoscaler says no metrics returned",
        ),
        ({"conditions": [{"type": "ScalingLimited", "status": "False", "message": "within range"}]}, None),
    ],
)
def test_an_autoscaler_that_cannot_scale_says_why(status: dict[str, object], said: str | None) -> None:
    assert complaint({"kind": "HorizontalPodAutoscaler", "status": status}) == said


@pytest.mark.parametrize(
    ("scale", "replicas", "said"),
    [
        ("{by: hpa}", "1..2", "no metric is given"),
        ("{by: keda}", "1..2", "give `prometheus"),
        ("{by: hpa, cpu: 70%}", "0..2", "keeps one at least"),
        ("{by: hpa, cpu: 70%, concurrency: 3}", "1..2", "it is for Fairlead's own scaling"),
        ("{by: hpa, cpu: 70%, latency: 200ms}", "1..2", "it is for Fairlead's own scaling"),
        ("{by: hpa, cpu: 70%, idle: 20s}", "1..2", "keeps one replica at least"),
        ("{by: keda, cpu: 70%, prometheus: {url: 'http://p', query: q, target: 1}}", "1..2", "KEDA scales by"),
        ("{by: hpa, prometheus: {url: 'http://p', query: q, target: 1}}", "1..2", "asks none"),
        ("{cpu: 70%}", "1..2", "give `by: hpa`"),
        ("{replicas: 2}", "1..2", "it is set by a cluster's own autoscaler"),
        ("{by: hpa, cpu: 70%}", "2", "always 2"),
    ],
)
def test_what_an_autoscaler_cannot_do_is_refused(scale: str, replicas: str, said: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        spec(scale, replicas)
    assert said in str(error.value)


def test_while_it_cannot_scale_the_replicas_stay_and_it_is_told_once() -> None:
    world = World(spec("{by: hpa, cpu: 70%}"), measure=lambda _: "its HorizontalPodAutoscaler says no metrics")
    world.run(20)
    (told,) = (each for each in world.events if "MetricUnavailable" in each)
    assert told.endswith("1 replica stays until it is scaled again: its HorizontalPodAutoscaler says no metrics")
    assert world.serving.status.reason.message.endswith("; its HorizontalPodAutoscaler says no metrics")
