"""A run whose spec somebody edits with kubectl, or changes with a command, goes on with the new one."""

import json
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.client.user_client import UserClient
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.updates import carry_out, plan_update
from fairlead.policy.kinds.table import leaf
from fairlead.specs.formats.settings import read_setting
from fairlead.specs.training import Training
from fairlead.state.snapshot import Intent, Phase
from tests.kubernetes.operating import comes_to, gang, live_pods, operating
from tests.waiting import until

INTENT = "fairlead.dev/intent"


def path_of(spec: Training) -> str:
    return f"/apis/fairlead.dev/v1alpha1/namespaces/{spec.team}/trainings/{spec.name}"


def edit(cluster: WorkloadApi, spec: Training, changes: dict[str, Any], wish: str | None = None) -> None:
    """What `kubectl edit` and `kubectl annotate` send."""
    cluster.client.merge(path_of(spec), {"spec": changes})
    if wish is not None:
        cluster.client.merge(path_of(spec), {"metadata": {"annotations": {INTENT: wish}}})


def told_of_changes(cluster: WorkloadApi, uid: str) -> list[str]:
    return [each.reason.message for each in cluster.events(uid) if each.type == "Changed"]


def ignored(cluster: WorkloadApi, uid: str) -> list[str]:
    return [each.reason.message for each in cluster.events(uid) if each.type == "Ignored"]


def pods_env(cluster: WorkloadApi, spec: Training, name: str) -> dict[str, str]:
    pod = cluster.client.get(f"/api/v1/namespaces/{spec.team}/pods/{name}")
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    found: dict[str, str] = json.loads(env["FAIRLEAD_INSTRUCTIONS"])["env"] | {"run": env["FAIRLEAD_COMMAND"]}
    return found


def test_a_failed_run_that_was_edited_goes_on_with_the_new_spec(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    spec = gang(namespace, nodes=1, run="0.2s", exit_code="1")
    with operating(access, namespace):
        cluster.submit(spec)
        failed = comes_to(cluster, "train", Phase.FAILED)
        annotations = {"fake/run": None, "fake/exit-code": None}
        laid = {"kubernetes": {"metadata": {"annotations": annotations}}}
        edit(cluster, spec, {"nodes": 2, "retry": {"program": 3}, "run": "work harder", **laid}, "run:2")
        run = comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        assert live_pods(cluster, namespace) == ["train-1-0", "train-1-1"]
        assert (run.spec.nodes, run.spec.retry.program, run.status.failures.program) == (2, 3, 0)
        env = pods_env(cluster, spec, "train-1-0")
        assert (env["WORLD_SIZE"], env["run"]) == ("16", "work harder")
    (told,) = told_of_changes(cluster, failed.uid)
    assert "run: work -> work harder, nodes: 1 -> 2, retry.program: 0 -> 3" in told
    assert failed.uid == run.uid


@pytest.mark.slow
def test_an_edit_alone_is_told_and_survives_the_operator(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    spec = gang(namespace, nodes=1)
    with operating(access, namespace):
        cluster.submit(spec)
        comes_to(cluster, "train", Phase.RUNNING)
        cluster.set_intent(cluster.named("train", namespace).uid, Intent.SUSPEND)
        uid = comes_to(cluster, "train", Phase.SUSPENDED).uid
    edit(cluster, spec, {"priority": 3})
    assert told_of_changes(cluster, uid) == []
    edit(cluster, spec, {"priority": 7})
    with operating(access, namespace):
        until(lambda: told_of_changes(cluster, uid) == ["priority: 0 -> 7"], lambda: cluster.events(uid))
        assert cluster.named("train", namespace).status.phase is Phase.SUSPENDED
        cluster.set_intent(uid, Intent.RUN)
        assert comes_to(cluster, "train", Phase.RUNNING).spec.priority == 7
    assert told_of_changes(cluster, uid) == ["priority: 0 -> 7"]


def test_a_running_run_is_not_edited_and_kubectl_says_why(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    spec = gang(namespace, nodes=1)
    with operating(access, namespace):
        cluster.submit(spec)
        comes_to(cluster, "train", Phase.RUNNING)
        with pytest.raises(ApiError) as refused:
            edit(cluster, spec, {"nodes": 2})
        assert "it is Running with the spec that it was started with. Suspend it first" in str(refused.value)
        assert "`kubectl annotate training train fairlead.dev/intent=suspend --overwrite`" in str(refused.value)
        assert live_pods(cluster, namespace) == ["train-0-0"]


@pytest.mark.slow
def test_a_wish_that_there_is_not_changes_nothing_and_is_told_once(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    spec = gang(namespace, nodes=1)
    with operating(access, namespace):
        cluster.submit(spec)
        uid = comes_to(cluster, "train", Phase.RUNNING).uid
        edit(cluster, spec, {}, "halt")
        told = 'the annotation fairlead.dev/intent is "halt", which changes nothing; it may be run, suspend, stop'
        until(lambda: ignored(cluster, uid) == [told], lambda: cluster.events(uid))
        edit(cluster, spec, {}, "suspend")
        comes_to(cluster, "train", Phase.SUSPENDED)
        edit(cluster, spec, {"priority": 3}, "go:2")
        until(lambda: len(ignored(cluster, uid)) == 2 and told_of_changes(cluster, uid), lambda: cluster.events(uid))
        edit(cluster, spec, {}, "run:3")
        assert comes_to(cluster, "train", Phase.RUNNING).spec.priority == 3
    assert ignored(cluster, uid)[1:] == [told.replace("halt", "go")]


def test_a_waiting_gang_that_is_edited_is_placed_by_the_new_spec(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    spec = gang(namespace, nodes=3)
    with operating(access, namespace):
        cluster.submit(gang(namespace, "first", nodes=1))
        comes_to(cluster, "first", Phase.RUNNING)
        cluster.submit(gang(namespace, nodes=2))
        until(lambda: "needs 2 nodes" in cluster.named("train", namespace).status.reason.message)
        edit(cluster, spec, {"nodes": 1})
        assert comes_to(cluster, "train", Phase.RUNNING).spec.nodes == 1
        assert live_pods(cluster, namespace) == ["first-0-0", "train-0-0"]


def test_a_person_changes_a_run_with_the_command(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    desk = UserClient(cluster.client, namespace=namespace)
    spec = gang(namespace, nodes=1, run="0.2s", exit_code="1")
    with operating(access, namespace):
        run = desk.submit(spec)
        comes_to(cluster, "train", Phase.FAILED)
        given = [read_setting("nodes=2"), read_setting("kubernetes=null"), read_setting("ranks_per_node=2")]
        update = plan_update(desk, leaf(desk.get(run.uid)), given)
        assert {each.key: each.new for each in update.differences}["nodes"] == "2"
        # What was chosen for eight ranks is chosen anew for two.
        carry_out(desk, update)
        desk.set_intent(run.uid, Intent.RUN)
        after = comes_to(cluster, "train", Phase.RUNNING)
        assert live_pods(cluster, namespace) == ["train-1-0", "train-1-1"]
        assert (after.spec.kubernetes.pod, after.spec.ranks_per_node) == ({}, 2)
