"""The operator and an engine that is only its kind: the test plays the controller, on a real API server."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.engines.table import driver_of, path_of
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.engines import Engine
from fairlead.specs.training import Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase
from tests.kubernetes.operating import comes_to, gang, loosely_defined, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

DRIVERS = [driver_of(each) for each in Engine]
# What the driver of Trainer refers to, and where Kueue explains itself.
OTHERS = (
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", "trainingruntimes"),
    ("kueue.x-k8s.io/v1beta2", "Workload", "workloads"),
)


@pytest.fixture(scope="module")
def kinds(plane: ControlPlane) -> Iterator[None]:
    """Kinds of all engines that take anything; what they really take, long tests tell."""
    named = [(each.api, each.kind, each.plural) for each in DRIVERS if each.engine is not Engine.KUEUE]
    with loosely_defined(plane, [*named, *OTHERS]):
        yield


def handed(namespace: str, to: Engine, **changes: Any) -> Training:
    queue = "team-a" if to is Engine.KUEUE else None
    return replace(
        gang(namespace, gpus=0), **{"engine": to, "queue": queue, "image": "image:1", "grace_s": 1.0, **changes}
    )


def say(cluster: WorkloadApi, path: str, status: dict[str, Any]) -> None:
    """Play the controller: write the status of an object."""
    cluster.client.merge(f"{path}/status", {"status": status})


def reason(cluster: WorkloadApi, namespace: str) -> str:
    return cluster.named("train", namespace).status.reason.message


SAYS: dict[Engine, tuple[dict[str, Any], dict[str, Any]]] = {
    Engine.RAYJOB: ({"jobDeploymentStatus": "Initializing"}, {"jobStatus": "SUCCEEDED"}),
    Engine.VOLCANO: ({"state": {"phase": "Pending"}}, {"state": {"phase": "Completed"}}),
}
DONE = {
    Engine.JOBSET: "Completed",
    Engine.KUBEFLOW_TRAINER: "Complete",
    **dict.fromkeys((Engine.PYTORCHJOB, Engine.TFJOB, Engine.XGBOOSTJOB, Engine.MPIJOB), "Succeeded"),
}


# Before the kinds are there.
@pytest.mark.slow
def test_a_cluster_without_the_engine_ends_the_run_with_what_to_do(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    cluster.submit(handed(namespace, Engine.VOLCANO))
    with operating(access, namespace):
        run = comes_to(cluster, "train", Phase.FAILED)
    assert run.status.reason.code is Code.START_FAILED
    assert (
        "this cluster has no Job (batch.volcano.sh/v1alpha1), which `engine: volcano` needs"
        in run.status.reason.message
    )


@pytest.mark.slow
@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("engine", [each for each in Engine if each is not Engine.KUEUE])
def test_each_start_is_one_object_whose_words_and_end_are_the_runs(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, engine: Engine
) -> None:
    driver = driver_of(engine)
    place = path_of(driver, namespace)
    cluster.submit(handed(namespace, engine))
    with operating(access, namespace):
        until(lambda: len(list(cluster.client.items(place))) == 1)
        waits, done = SAYS.get(engine, ({}, {"conditions": [{"type": DONE.get(engine, ""), "status": "True"}]}))
        if waits:
            say(cluster, f"{place}/train-0", waits)
        expected = driver.observe({**cluster.client.get(f"{place}/train-0"), "status": waits}).message
        until(lambda: reason(cluster, namespace) == expected, lambda: reason(cluster, namespace))
        assert cluster.named("train", namespace).status.phase is Phase.STARTING
        say(cluster, f"{place}/train-0", done)
        run = comes_to(cluster, "train", Phase.SUCCEEDED)
        assert [each["metadata"]["name"] for each in cluster.client.items(place)] == ["train-0"]
        cluster.set_intent(run.uid, Intent.DELETE)
        until(lambda: not cluster.workloads())


@pytest.mark.slow
@pytest.mark.usefixtures("kinds")
def test_an_operator_that_is_killed_at_any_moment_leaves_one_object(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    place = path_of(driver_of(Engine.JOBSET), namespace)
    cluster.submit(handed(namespace, Engine.JOBSET))
    uids = set()
    for _ in range(4):
        with operating(access, namespace):
            until(lambda: list(cluster.client.items(place)))
        uids |= {each["metadata"]["uid"] for each in cluster.client.items(place)}
    assert len(uids) == 1


@pytest.mark.usefixtures("kinds")
def test_an_object_that_somebody_deletes_is_followed_by_another_and_never_two_at_once(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    place = path_of(driver_of(Engine.JOBSET), namespace)
    cluster.submit(handed(namespace, Engine.JOBSET))
    with operating(access, namespace):
        until(lambda: list(cluster.client.items(place)))
        until(lambda: "waits for its controller to create them" in reason(cluster, namespace))
        cluster.client.delete(f"{place}/train-0", {})
        until(lambda: [each["metadata"]["name"] for each in cluster.client.items(place)] == ["train-1"])
        told = [event.reason.message for event in cluster.events()]
        assert any("its JobSet was deleted" in message for message in told)


@pytest.mark.usefixtures("kinds")
def test_somebody_elses_object_of_the_name_is_left_alone_and_told_of(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    driver = driver_of(Engine.JOBSET)
    theirs = {"apiVersion": driver.api, "kind": driver.kind, "metadata": {"name": "train-0"}}
    cluster.client.create(path_of(driver, namespace), theirs)
    cluster.submit(handed(namespace, Engine.JOBSET))
    with operating(access, namespace):
        run = comes_to(cluster, "train", Phase.FAILED)
    assert "a JobSet named train-0 exists that Fairlead did not create" in run.status.reason.message


@pytest.mark.usefixtures("kinds")
def test_kueues_words_are_the_reason_while_it_waits(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    cluster.submit(handed(namespace, Engine.KUEUE))
    with operating(access, namespace):
        until(lambda: "Kueue has not admitted it yet" in reason(cluster, namespace))
        job = cluster.client.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/train-0")
        place = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads"
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-0", "uid": job["metadata"]["uid"]}
        cluster.client.create(place, {
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"name": "job-train-0", "ownerReferences": [{**owner, "controller": True}]},
            "spec": {"queueName": "team-a"},
        })  # fmt: skip
        said = "insufficient unused quota for nvidia.com/gpu in flavor default, 8 more needed"
        say(cluster, f"{place}/job-train-0", {
            "conditions": [{"type": "QuotaReserved", "status": "False", "message": said}],
        })  # fmt: skip
        until(lambda: reason(cluster, namespace) == f"Kueue has not admitted it from queue team-a: {said}")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"queue": "a"}, "give `engine` too"),
        ({"engine": "kueue"}, "needs the LocalQueue"),
        ({"engine": "jobset", "nodes": "2..4"}, "a gang cannot change its size there"),
        ({"engine": "jobset", "priority": 4}, "its queue has an order of its own"),
        ({"engine": "jobset", "capacity": {"max_price": 2}}, "give `max_cost`"),
        ({"engine": "rayjob"}, "give an image"),
        ({"engine": "mpijob", "image": "a", "setup": "x"}, "have no `setup` step"),
        ({"engine": "mpijob", "image": "a", "framework": "torch"}, "leave `framework` out"),
    ],
)
@pytest.mark.usefixtures("plane")
def test_the_api_server_refuses_what_an_engine_cannot_honour(
    cluster: WorkloadApi, namespace: str, spec: dict[str, Any], said: str
) -> None:
    content = write_object(gang(namespace))
    content["spec"] = {"run": "work", **spec}
    with pytest.raises(ApiError) as refused:
        cluster.client.create(f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings", content)
    assert said in str(refused.value)


def test_what_only_the_operator_reads_is_told_by_it(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    content = write_object(gang(namespace))
    content["spec"] = {"run": "work", "engine": "jobset", "resources": {"gpu": "0.5"}}
    path = f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings"
    cluster.client.create(path, content)
    with operating(access, namespace):
        until(lambda: (cluster.client.get(f"{path}/train").get("status") or {}).get("phase") == "Failed")
    assert "ask for whole GPUs" in cluster.client.get(f"{path}/train")["status"]["message"]
    cluster.client.delete(f"{path}/train", {})
