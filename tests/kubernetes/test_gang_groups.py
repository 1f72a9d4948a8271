"""What becomes of the PodGroups of a gang, by the state of its pods, and what is believed of an API server."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import PodObject, ResourceAmounts
from fairlead.cluster.kubernetes.api.paging import TooLong
from fairlead.cluster.kubernetes.informers.pod_groups import PodGroupObject, PodGroups, read_pod_group
from fairlead.cluster.kubernetes.manifests.pod_groups import render_pod_group
from fairlead.cluster.kubernetes.operator.pods.gang_groups import DeleteGroup, FitGroup, MakeGroup, group_orders
from fairlead.cluster.kubernetes.workloads.run_record import (
    Gang,
    Replacement,
    RunRecord,
    TrainingObject,
    WorkloadObject,
)
from fairlead.specs.overlay import overlay
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Phase, Pod, PodPhase, Status
from tests.kubernetes.builders import UID, a_training, a_workload

RUN_KEY = ("Training", "research/train-llama")
NAME = "fairlead-train-llama-111111-1"


def a_run(
    phase: Phase = Phase.RUNNING, *, size: int = 3, attempt: int = 1, replaced: tuple[Replacement, ...] = ()
) -> TrainingObject:
    status = Status(phase=phase, reason=Reason(code=Code.PLACED, message="placed"), since=0.0, attempt=attempt)
    gang = Gang(
        attempt=1, at=0.0, cpu_milli=1, memory_bytes=1, gpu_milli=0, nodes=("node-a",) * size, gpus=("",) * size,
        replaced=replaced,
    )  # fmt: skip
    return WorkloadObject(
        key="research/train-llama", version=1, uid=UID, namespace="research", name="train-llama", generation=1,
        finalizers=(), is_leaving=False, wish="", workdir="", created_at=0.0,
        state=RunRecord(status=status, gang=gang), workload=a_workload(a_training(nodes=size), status=status),
    )  # fmt: skip


def a_member(index: int, phase: PodPhase = PodPhase.RUNNING, replacement: int = 0) -> Pod:
    return Pod(
        uid=f"{UID}-1-{index}", workload_uid=UID, attempt=1, index=index, replacement=replacement, node="node-a",
        grant=Grant(), phase=phase, created_at=0.0,
    )  # fmt: skip


def a_pod(index: int, *, node: str = "node-a", attempt: int = 1, group: str = NAME, **changes: Any) -> PodObject:
    base = PodObject(
        key=f"research/train-llama-{attempt}-{index}", version=1, uid=f"u{attempt}{index}", phase="Running", node=node,
        requests=ResourceAmounts(), created_at=0.0, run_uid=UID, run_key=RUN_KEY, attempt=attempt, index=index,
        group=group,
    )  # fmt: skip
    return replace(base, **changes)


def a_group(attempt: int = 1, min_count: int = 3, *, is_leaving: bool = False) -> PodGroupObject:
    return PodGroupObject(
        key=f"research/fairlead-train-llama-111111-{attempt}", version=1, uid=f"g{attempt}", run_uid=UID,
        run_key=RUN_KEY, attempt=attempt, min_count=min_count, priority=0, is_whole=True, is_leaving=is_leaving,
    )  # fmt: skip


def named(*groups: PodGroupObject) -> Mapping[str, PodGroupObject]:
    return {group.key.partition("/")[2]: group for group in groups}


MEMBERS = tuple(map(a_member, range(3)))
PODS = tuple(map(a_pod, range(3)))


def test_a_running_gang_with_its_group_needs_nothing() -> None:
    assert group_orders(a_run(), MEMBERS, PODS, named(a_group())) == []


def test_a_group_that_is_missing_is_made_for_the_members_that_live() -> None:
    members = (MEMBERS[0], a_member(1, PodPhase.SUCCEEDED), MEMBERS[2])
    pods = (PODS[0], a_pod(1, phase="Succeeded"), PODS[2])
    assert group_orders(a_run(), members, pods, {}) == [MakeGroup(attempt=1, min_count=2)]


def test_pods_that_name_no_group_get_none() -> None:
    assert group_orders(a_run(), MEMBERS, tuple(a_pod(index, group="") for index in range(3)), {}) == []


def test_a_pod_in_place_of_a_lost_one_does_not_wait_for_those_that_have_ended() -> None:
    """kube-scheduler no longer counts pods that are over, and would never reach the number."""
    run = a_run(replaced=(Replacement(index=1, number=1, at=0.0),))
    members = (MEMBERS[0], a_member(1, PodPhase.CREATED, 1), a_member(2, PodPhase.SUCCEEDED))
    pods = (PODS[0], a_pod(1, phase="Failed"), a_pod(2, phase="Succeeded"))
    fit = FitGroup(key=a_group().key, uid="g1", min_count=2)
    assert group_orders(run, members, pods, named(a_group())) == [fit]
    assert group_orders(run, members, pods, named(a_group(min_count=2))) == []
    created = (*pods, replace(a_pod(1), replacement=1, node=""))
    assert group_orders(run, members, created, named(a_group())) == [fit]
    bound = (*pods, replace(a_pod(1), replacement=1))
    assert group_orders(run, members, bound, named(a_group())) == [], "the number concerns nobody any more"


def test_no_part_of_a_gang_is_placed_while_the_rest_is_refused() -> None:
    members = (a_member(0, PodPhase.STARTING), a_member(1, PodPhase.REFUSED), a_member(2, PodPhase.CREATED))
    pods = (a_pod(0, node="", phase="Pending"),)
    assert group_orders(a_run(Phase.STARTING), members, pods, named(a_group())) == []


def test_a_pod_that_lost_the_name_of_its_group_is_not_waited_for() -> None:
    """As by an API server of several that does not know the field: the others would wait for it for ever."""
    members = tuple(a_member(index, PodPhase.STARTING) for index in range(3))
    pods = (a_pod(0, group=""), a_pod(1, node=""), a_pod(2, node=""))
    fit = FitGroup(key=a_group().key, uid="g1", min_count=2)
    assert group_orders(a_run(Phase.STARTING), members, pods, named(a_group())) == [fit]


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.STOPPED, Phase.RESTARTING, Phase.SUSPENDED, Phase.PENDING])
def test_the_group_of_an_attempt_goes_with_its_last_pod(phase: Phase) -> None:
    over = tuple(a_pod(index, phase="Succeeded") for index in range(3))
    assert group_orders(a_run(phase), MEMBERS, (over[0], over[1], PODS[2]), named(a_group())) == []
    assert group_orders(a_run(phase), MEMBERS, over, named(a_group())) == [DeleteGroup(key=a_group().key, uid="g1")]
    assert group_orders(a_run(phase), MEMBERS, (), named(a_group(is_leaving=True))) == []


def test_the_group_of_an_earlier_attempt_goes_while_the_next_one_runs() -> None:
    earlier = a_group(0)
    pods = (*PODS, a_pod(0, attempt=0, group="fairlead-train-llama-111111-0"))
    assert group_orders(a_run(), MEMBERS, pods, named(a_group(), earlier)) == []
    assert group_orders(a_run(), MEMBERS, PODS, named(a_group(), earlier)) == [DeleteGroup(key=earlier.key, uid="g0")]


def content(**metadata: Any) -> dict[str, Any]:
    rendered = render_pod_group(a_workload(a_training(nodes=3)), 1, 3)
    return {**rendered, "metadata": {**rendered["metadata"], "resourceVersion": "7", "uid": "g", **metadata}}


def test_a_group_is_read_as_it_was_rendered() -> None:
    group = read_pod_group(content())
    assert group is not None
    assert (group.key, group.run_uid, group.run_key, group.attempt) == (f"research/{NAME}", UID, RUN_KEY, 1)
    assert (group.min_count, group.is_whole, group.priority) == (3, True, None)


OWNER = content()["metadata"]["ownerReferences"][0]
LABELS = content()["metadata"]["labels"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "fairlead-train-llama-111111-2"},
        {"name": "mine"},
        {"ownerReferences": []},
        {"ownerReferences": [{**OWNER, "uid": "another"}]},
        {"ownerReferences": [{**OWNER, "name": "another"}]},
        {"ownerReferences": [{**OWNER, "apiVersion": "batch/v1"}]},
        {"ownerReferences": [{**OWNER, "controller": False}]},
        {"labels": {**LABELS, "fairlead.dev/run-uid": "another"}},
        {"labels": {**LABELS, "fairlead.dev/attempt": "2"}},
        {"labels": {**LABELS, "fairlead.dev/attempt": "\u0661"}},
        {"labels": {}},
    ],
)
def test_a_group_that_only_claims_to_be_a_gangs_is_not(metadata: dict[str, Any]) -> None:
    assert read_pod_group(content(**metadata)) is None


@pytest.mark.parametrize("spec", [None, [], {"schedulingPolicy": {"gang": {"minCount": "3"}}}, {"disruptionMode": 1}])
def test_a_group_of_another_shape_counts_as_no_gangs(spec: object) -> None:
    group = read_pod_group({**content(), "spec": spec})
    assert group is not None
    assert (group.min_count, group.is_whole) == (0, False)


def test_the_priority_class_of_pods_is_that_of_their_group() -> None:
    spec = a_training(nodes=2, kubernetes=overlay({"spec": {"priorityClassName": "high"}}))
    assert render_pod_group(a_workload(spec), 0, 2)["spec"]["priorityClassName"] == "high"
    assert "priorityClassName" not in render_pod_group(a_workload(a_training(nodes=2)), 0, 2)["spec"]


def _refuse(error: Exception) -> Callable[[], tuple[object, int]]:
    def page() -> tuple[object, int]:
        raise error

    return page


@pytest.mark.parametrize(
    "answer",
    [
        _refuse(ApiError("GET", 404, "NotFound", "no such version")),
        _refuse(ApiError("GET", 403, "Forbidden", "you may not")),
        _refuse(TooLong("it is too long")),
        lambda: ({}, 2),
        lambda: ({"resources": None}, 2),
        lambda: ({"resources": ["podgroups", 7, {"name": 7}, {"name": "workloads"}]}, 2),
        lambda: ({"resources": {"name": "podgroups"}}, 2),
    ],
)
def test_an_api_server_that_does_not_say_that_it_has_groups_has_none(answer: Callable[[], tuple[object, int]]) -> None:
    class Server(Client):
        def __init__(self) -> None:
            pass

        def page(self, *_: Any, **__: Any) -> Any:
            return answer()

    groups = PodGroups(Server(), lambda _: None, lambda _: None)
    groups.look()
    assert not groups.is_used
    assert not groups.is_due
    assert groups.of_run(UID) == {}
