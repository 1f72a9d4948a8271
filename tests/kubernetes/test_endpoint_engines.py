"""Engines of endpoints: what each is given, how its status reads in our words, and what is refused with it."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.client.cluster_inventory import Inventory, look_around
from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.engines.endpoint_port import GIVEN, Handover, Version, rendered
from fairlead.cluster.kubernetes.engines.table import driver_of
from fairlead.cluster.kubernetes.operator.engines.endpoint_controller import handover_of, trouble_of
from fairlead.errors import InvalidSpec
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.serialization import to_json
from fairlead.specs.serving import Serving
from fairlead.state.endpoint_detail import CanaryTrial, Revision, ServingDetail
from fairlead.state.snapshot import Workload
from tests.kubernetes.builders import UID, a_workload

KEYS = {"run": "serve --port $PORT", "image": "registry.example/serve:1", "team": "research"}


def spec(engine: str, **changes: str) -> Serving:
    keys = {**KEYS, "engine": engine, **changes}
    lines = (f"{key}: {value}" for key, value in keys.items() if value)
    (found,) = parse("\n".join(["kind: Serving", "name: chat", *lines]))
    assert isinstance(found, Serving)
    return found


def an_endpoint(spec: Serving) -> Workload[Serving]:
    return a_workload(spec)  # type: ignore[arg-type, return-value]


def handed(engine: str, **changes: str) -> Handover:
    found = spec(engine, **changes)
    return Handover(workload=an_endpoint(found), target=Version(name="r1", spec=found))


def content(engine: str, **changes: str) -> dict[str, Any]:
    return rendered(driver_of(EndpointEngine(engine)), handed(engine, **changes))


def pod_of(engine: EndpointEngine, content: dict[str, Any]) -> dict[str, Any]:
    """The spec of the pod in an engine's object."""
    found: dict[str, Any]
    if engine is EndpointEngine.KSERVE:
        found = content["spec"]["predictor"]
    elif engine is EndpointEngine.KNATIVE:
        found = content["spec"]["template"]["spec"]
    else:
        found = content["spec"]["predictors"][0]["componentSpecs"][0]["spec"]
    return found


@pytest.mark.parametrize("engine", EndpointEngine)
def test_an_object_is_its_endpoints_and_says_what_it_was_given(engine: EndpointEngine) -> None:
    found = content(engine)
    assert (found["metadata"]["name"], found["metadata"]["namespace"]) == ("serve-chat", "research")
    assert found["metadata"]["labels"][names.ENDPOINT_UID] == found["metadata"]["ownerReferences"][0]["uid"] == UID
    given = found["metadata"]["annotations"][GIVEN]
    assert given == content(engine)["metadata"]["annotations"][GIVEN]
    assert given != content(engine, env="{A: b}")["metadata"]["annotations"][GIVEN]


@pytest.mark.parametrize("engine", EndpointEngine)
def test_the_container_is_that_of_the_spec_and_fit_for_a_restricted_namespace(engine: EndpointEngine) -> None:
    found = content(engine, predictor="serve:Model", run="", model="/models/a", probe="/up", env="{COST: $1}")
    (container,) = pod_of(engine, found)["containers"]
    assert container["image"] == KEYS["image"]
    assert container["command"] == ["sh", "-c", "exec python -m fairlead.runtime.serving"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/up"
    env = {each["name"]: each["value"] for each in container["env"]}
    told = {name: env[name] for name in ("HOST", "FAIRLEAD_MODEL", "FAIRLEAD_PREDICTOR", "FAIRLEAD_SERVICE", "COST")}
    assert told == {
        "HOST": "0.0.0.0", "FAIRLEAD_MODEL": "/models/a", "FAIRLEAD_PREDICTOR": "serve:Model",
        "FAIRLEAD_SERVICE": "chat", "COST": "$$1",
    }  # fmt: skip
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    # Knative sets it, and lets nobody else.
    assert ("PORT" in env) is (engine is not EndpointEngine.KNATIVE)


def test_kserve_brings_a_model_that_is_a_url_and_keda_scales_by_a_query() -> None:
    query = "{prometheus: {url: 'http://prometheus:9090', query: sum(waiting), target: 20}}"
    found = content("kserve", model="s3://models/chat", replicas="2..8", scale=query, rollout="0")
    assert found["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "keda"
    predictor = found["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (2, 8)
    assert predictor["deploymentStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    (metric,) = predictor["autoScaling"]["metrics"]
    assert metric["external"] == {
        "metric": {"backend": "prometheus", "serverAddress": "http://prometheus:9090", "query": "sum(waiting)"},
        "target": {"type": "Value", "value": "20"},
    }
    env = {each["name"]: each["value"] for each in predictor["containers"][0]["env"]}
    assert (env["STORAGE_URI"], env["FAIRLEAD_MODEL"]) == ("s3://models/chat", "/mnt/models")
    assert content("kserve")["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "none"


def test_gpus_of_a_model_are_found_by_labels_of_nodes_and_the_overlay_is_laid_over() -> None:
    start = replace(
        handed("kserve", resources="{gpu: A100}", kubernetes="{spec: {nodeSelector: {zone: a}}}"),
        device=DeviceResource(name="nvidia.com/gpu", count=1), models=(("nvidia.com/gpu.product", "NVIDIA-A100"),),
    )  # fmt: skip
    predictor = rendered(driver_of(EndpointEngine.KSERVE), start)["spec"]["predictor"]
    assert predictor["nodeSelector"] == {"zone": "a"}
    assert predictor["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "NVIDIA-A100" in str(predictor["affinity"]["nodeAffinity"])


def test_what_an_overlay_says_of_the_pod_itself_comes_to_the_pod() -> None:
    more = "{metadata: {labels: {cost: chat}, annotations: {note: a}}, spec: {nodeSelector: {zone: a}}}"
    predictor = content("kserve", kubernetes=more)["spec"]["predictor"]
    assert (predictor["labels"]["cost"], predictor["annotations"]) == ("chat", {"note": "a"})
    (component,) = content("seldon", kubernetes=more)["spec"]["predictors"][0]["componentSpecs"]
    assert component["metadata"]["annotations"] == {"note": "a"}
    assert component["metadata"]["labels"]["cost"] == "chat"
    assert component["metadata"]["labels"][names.ENDPOINT_UID] == UID
    assert component["spec"]["nodeSelector"] == {"zone": "a"}


def test_seldon_has_one_predictor_that_nothing_stands_before_and_keda_scales_it_by_a_query() -> None:
    query = "{prometheus: {url: 'http://prometheus:9090', query: sum(waiting), target: 20}, window: 90s, idle: 5m}"
    found = content("seldon", replicas="2..8", scale=query, grace="8s", ready_within="90s", model="s3://models/chat")
    (predictor,) = found["spec"]["predictors"]
    assert predictor["annotations"] == {"seldon.io/no-engine": "true"}
    assert predictor["labels"][names.REVISION] == "r1"
    (component,) = predictor["componentSpecs"]
    (container,) = component["spec"]["containers"]
    assert predictor["graph"]["name"] == container["name"]
    assert predictor["graph"]["endpoint"]["httpPort"] == container["ports"][0]["containerPort"]
    # A server that takes a while to be ready is not killed meanwhile, and still hears of its end in its grace.
    assert (container["livenessProbe"]["initialDelaySeconds"], predictor["progressDeadlineSeconds"]) == (90, 90)
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sh", "-c", "sleep 4"]
    assert component["spec"]["terminationGracePeriodSeconds"] == 8
    keda = component["kedaSpec"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"], keda["cooldownPeriod"]) == (2, 8, 300)
    assert keda["triggers"][0]["metadata"]["query"] == "sum(waiting)"
    assert "kedaSpec" not in content("seldon", replicas="2")["spec"]["predictors"][0]["componentSpecs"][0]
    assert content("seldon", replicas="2")["spec"]["predictors"][0]["replicas"] == 2


def test_knative_scales_by_requests_in_flight_and_names_a_revision_by_all_that_is_in_it() -> None:
    found = content("knative", replicas="0..4", scale="{concurrency: 3, idle: 2m}", max_concurrency="5", timeout="30s")
    template = found["spec"]["template"]
    told = {name.partition("/")[2]: value for name, value in template["metadata"]["annotations"].items()}
    assert (told["min-scale"], told["max-scale"], told["target"]) == ("0", "4", "3")
    assert (told["scale-to-zero-pod-retention-period"], told["target-utilization-percentage"]) == ("120s", "100")
    assert (template["spec"]["containerConcurrency"], template["spec"]["timeoutSeconds"]) == (5, 30)
    name = template["metadata"]["name"]
    assert name.startswith("serve-chat-r1-")
    assert found["spec"]["traffic"] == [{"revisionName": name, "percent": 100}]
    # Else Knative would refuse the same revision with other bounds.
    assert content("knative", replicas="0..5")["spec"]["template"]["metadata"]["name"] != name


def test_knative_divides_requests_between_a_canary_and_the_revision_before_it() -> None:
    old, new = spec("knative", canary="{steps: [10%]}"), spec("knative", canary="{steps: [10%]}", run="other")
    told = [Revision(number=n, spec=to_json(each), replica="", created_at=0.0) for n, each in enumerate((old, new), 1)]
    trial = CanaryTrial(name="r2", old=1, began_at=0.0, rules="")
    endpoint = an_endpoint(new)
    before = replace(endpoint.status, detail=ServingDetail(revisions=(told[0],), asked=1, target=1))
    detail = ServingDetail(revisions=tuple(told), asked=2, target=2, serving=1, canary=trial)
    driver = driver_of(EndpointEngine.KNATIVE)
    first = handover_of(replace(endpoint, spec=old, status=before))
    both = handover_of(replace(endpoint, status=replace(endpoint.status, detail=detail)))
    assert first is not None
    assert both is not None
    (was,) = driver.render(first)["spec"]["traffic"]
    traffic = driver.render(both)["spec"]["traffic"]
    assert [each["percent"] for each in traffic] == [10, 90]
    assert traffic[1]["revisionName"] == was["revisionName"]
    # The same while the canary is not ready, so that at no time it gets more than its part.
    waiting = handover_of(replace(endpoint, status=replace(endpoint.status, detail=replace(detail, canary=None))))
    assert waiting is not None
    assert driver.render(waiting)["spec"]["traffic"] == traffic
    # Nothing but all of it for the revision that nothing serves beside.
    alone = handover_of(
        replace(endpoint, status=replace(endpoint.status, detail=replace(detail, canary=None, serving=2)))
    )
    assert alone is not None
    assert [each["percent"] for each in driver.render(alone)["spec"]["traffic"]] == [100]


def an_object(engine: str, *, ready: str = "True", message: str = "", **status: Any) -> dict[str, Any]:
    found = content(engine)
    found["metadata"]["generation"] = 2
    condition = {"type": "Ready", "status": ready, "message": message}
    found["status"] = {"observedGeneration": 2, "conditions": [condition], "url": "http://chat", **status}
    return found


def a_deployment(revision: str = "r1", **status: Any) -> dict[str, Any]:
    counts = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, "readyReplicas": 2}
    metadata = {"labels": {names.REVISION: revision}, "generation": 7}
    return {"metadata": metadata, "status": {"observedGeneration": 7, **counts, **status}}


def test_kserve_has_a_revision_ready_when_its_deployment_has_rolled_to_it() -> None:
    driver = driver_of(EndpointEngine.KSERVE)
    there = driver.observe(an_object("kserve"), [a_deployment()])
    assert (there.ready, there.applied_revision, there.url, there.replicas) == (True, "r1", "http://chat", 2)
    behind: list[list[dict[str, Any]]] = [
        [],
        [a_deployment("r0")],
        [a_deployment(updatedReplicas=1)],
        [a_deployment(observedGeneration=6)],
        [a_deployment(availableReplicas=0)],
    ]
    assert not any(driver.observe(an_object("kserve"), each).ready for each in behind)
    told = driver.observe(an_object("kserve", ready="False", message="No pods.\n"), [a_deployment()])
    assert (told.ready, told.message) == (False, "No pods")


def a_seldon_deployment(state: str, **status: Any) -> dict[str, Any]:
    url = "http://serve-chat-default.research.svc.cluster.local:8080/api/v1.0/predictions"
    return {**content("seldon"), "status": {"state": state, "address": {"url": url}, **status}}


def test_seldon_has_a_revision_ready_when_its_deployment_has_rolled_to_it() -> None:
    driver = driver_of(EndpointEngine.SELDON)
    there = driver.observe(a_seldon_deployment("Available"), [a_deployment()])
    assert (there.ready, there.applied_revision, there.replicas, there.message) == (True, "r1", 2, "")
    assert there.url == "http://serve-chat-default.research.svc.cluster.local:8080"
    behind: list[list[dict[str, Any]]] = [[], [a_deployment("r0")], [a_deployment(updatedReplicas=1)]]
    told = [driver.observe(a_seldon_deployment("Available"), each) for each in behind]
    assert [(each.ready, each.message) for each in told] == [
        (False, "0 of its pods are of r1, 0 available"),
        (False, "its Deployment is of r0 still"),
        (False, "1 of its pods is of r1, 2 available"),
    ]
    assert not driver.observe(a_seldon_deployment("Creating"), [a_deployment()]).ready


def test_seldon_says_why_it_is_not_ready() -> None:
    driver = driver_of(EndpointEngine.SELDON)
    failed = a_seldon_deployment("Failed", description='Deployment.apps "x" is invalid: name.\n')
    assert driver.observe(failed, []).message == 'Deployment.apps "x" is invalid: name'
    conditions = [{"type": "Ready", "status": "False", "reason": "Deployment Is Not Ready"}]
    creating = a_seldon_deployment("Creating", conditions=conditions)
    assert driver.observe(creating, []).message == "Deployment Is Not Ready"
    lacks = [{"type": "Available", "status": "False", "message": "Deployment does not have minimum availability."}]
    told = driver.observe(creating, [a_deployment(conditions=lacks)])
    assert told.message == "Deployment does not have minimum availability"


def test_knative_is_ready_by_what_it_says_of_the_object_as_it_is() -> None:
    driver = driver_of(EndpointEngine.KNATIVE)
    revisions: list[dict[str, Any]] = [
        {"status": {"actualReplicas": 1}},
        {"status": {"actualReplicas": 2}},
        {"status": None},
    ]
    there = driver.observe(an_object("knative"), revisions)
    assert (there.ready, there.replicas, there.kind) == (True, 3, "Knative Service")
    assert not driver.observe(an_object("knative", observedGeneration=1), revisions).ready
    told = driver.observe(an_object("knative", ready="Unknown", message="Waiting for it."), [])
    assert (told.ready, told.message) == (False, "Waiting for it")


def test_nothing_is_known_of_an_object_without_a_status() -> None:
    for engine in EndpointEngine:
        told = driver_of(engine).observe({"metadata": {"name": "x"}}, [{"metadata": None}])
        assert (told.ready, told.is_there, told.message) == (False, True, "")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available."}]},
            "kube-scheduler finds no place for p: 0/2 nodes are available",
        ),
        (
            {"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            "c of p waits: ImagePullBackOff",
        ),
        (
            {"containerStatuses": [{"name": "c", "lastState": {"terminated": {"exitCode": 3}}}]},
            "c of p ended with exit code 3",
        ),
        (
            {"containerStatuses": [{"name": "c", "state": {"running": {}}, "ready": False}]},
            "c of p runs and does not answer its probe yet",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "queue-proxy", "state": {"running": {}}, "ready": False},
                    {"name": "server", "state": {"terminated": {"exitCode": 3}}, "ready": False},
                ]
            },
            "server of p ended with exit code 3",
        ),
        ({"containerStatuses": [{"name": "c", "state": {"running": {}}, "ready": True}]}, ""),
    ],
)
def test_a_pod_that_is_not_ready_says_why(status: dict[str, Any], said: str) -> None:
    assert trouble_of({"metadata": {"name": "p"}, "status": status}) == said


@pytest.mark.parametrize(
    ("engine", "changes", "said"),
    [
        ("kserve", {"image": ""}, "`engine: kserve` makes the pods: give the `image`"),
        ("knative", {"workdir": "."}, "no files go along"),
        ("kserve", {"canary": "{steps: [10%]}"}, "KServe ignores a canary's weight in Standard mode"),
        ("knative", {"canary": "{steps: [10%, 20%]}"}, "give one weight"),
        ("knative", {"canary": "{steps: [10%], latency: 250ms}"}, "give one weight"),
        ("knative", {"canary": "{steps: [2.5%]}"}, "by whole percents"),
        ("kserve", {"replicas": "0..2"}, "keeps one replica at least"),
        ("kserve", {"replicas": "1..2"}, "does not count requests"),
        ("kserve", {"max_concurrency": "4"}, "ignores it"),
        ("kserve", {"timeout": "30s"}, "ignores it"),
        ("knative", {"timeout": "20m"}, "give `timeout: 10m` or less"),
        ("knative", {"access": "{}"}, "no gateway checks keys"),
        ("kserve", {"priority": "3"}, "leave `priority` out"),
        ("knative", {"capacity": "{spot: true}"}, "`capacity` cannot choose their nodes"),
        ("knative", {"resources": "{gpu: A100}"}, "ask for a number of GPUs"),
        ("kserve", {"resources": "{gpu: 0.5}"}, "ask for whole GPUs"),
        ("knative", {"replicas": "0..2", "scale": "{latency: 250ms}"}, "leave `latency` out"),
        ("knative", {"replicas": "0..2", "scale": "{window: 2s}"}, "give `window: 6s` or more"),
        ("knative", {"kubernetes": "{spec: {nodeSelector: {a: b}}}"}, "leave `kubernetes` out"),
        ("seldon", {"canary": "{steps: [10%]}"}, "only where Istio or Ambassador brings them"),
        ("seldon", {"replicas": "0..2"}, "wakes nothing at a request"),
        ("seldon", {"replicas": "1..2"}, "does not count requests"),
        ("seldon", {"max_concurrency": "4"}, "leave `max_concurrency` out"),
        ("seldon", {"timeout": "30s"}, "leave `timeout` out"),
        ("seldon", {"replicas": "1", "scale": "{concurrency: 3}"}, "leave `concurrency` out"),
        ("seldon", {"rollout": "0"}, "leave `rollout` out"),
        ("seldon", {"kubernetes": "{spec: {securityContext: {fsGroup: 1}}}"}, "leave `securityContext` of the pod out"),
    ],
)
def test_what_an_engine_would_not_honour_is_refused(engine: str, changes: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        spec(engine, **changes)
    assert said in str(error.value)


def test_doctor_names_the_engines_of_endpoints() -> None:
    apis = frozenset({"serving.kserve.io/v1beta1", "serving.knative.dev/v1", "machinelearning.seldon.io/v1"})
    found = Inventory(nodes=(), apis=apis, controllers=(), storage_classes=())
    says = next(each.says for each in look_around(found) if each.what == "engines")
    assert "`engine: kserve`" in says
    assert "`engine: knative`" in says
    assert "`engine: seldon`" in says
