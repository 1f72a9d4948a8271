"""Gangs that a ResourceQuota refuses, on a real control plane: they wait, whole, and start once it has room."""

from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.training import Retry
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase, Workload
from tests.kubernetes.operating import GPUS, comes_to, gang, live_pods, operating
from tests.waiting import until

RESOURCE = "requests.nvidia.com/gpu"


def a_quota(cluster: WorkloadApi, namespace: str, most: int, *, of: str = RESOURCE) -> None:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    cluster.client.create(path, {"metadata": {"name": "small"}, "spec": {"hard": {of: str(most)}}})
    until(lambda: "hard" in (cluster.client.get(f"{path}/small").get("status") or {}))


def raise_quota(cluster: WorkloadApi, namespace: str, most: int, *, of: str = RESOURCE) -> None:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/small"
    cluster.client.merge(path, {"spec": {"hard": {of: str(most)}}})


def refused(cluster: WorkloadApi, namespace: str, name: str = "train", *, times: int = 1) -> Workload:
    """The run, when it waits and was refused so often."""
    found: list[Workload] = []

    def waits() -> bool:
        found[:] = [cluster.named(name, namespace)]
        status = found[0].status
        return status.phase is Phase.PENDING and status.failures.refusals >= times

    until(waits, lambda: found[0].status)
    return found[0]


@pytest.mark.slow
def test_a_gang_that_a_quota_refuses_waits_and_starts_once_the_quota_is_raised(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    a_quota(cluster, namespace, GPUS)
    cluster.submit(replace(gang(namespace), retry=Retry(infrastructure=0)))
    with operating(access, namespace):
        status = refused(cluster, namespace, times=3).status
        assert status.reason.code is Code.OVER_QUOTA
        assert status.reason.message.partition(" was refused: ")[2] == (
            f"the quota small of namespace {namespace} can never hold it ({RESOURCE}: 8 asked for, 8 of 8 used; the "
            "gang needs 2 times as much); have the quota raised, or ask for less"
        )
        assert status.reason.remedy == "It starts by itself once there is room, at most 5m later."
        assert live_pods(cluster, namespace) == []
        raise_quota(cluster, namespace, 2 * GPUS)
        status = comes_to(cluster, "train", Phase.RUNNING).status
    assert (status.failures.disruptions, status.failures.program, status.failures.last) == (0, 0, None)


@pytest.mark.slow
def test_a_gang_that_a_quota_refuses_starts_when_others_have_left_the_room(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    a_quota(cluster, namespace, GPUS)
    with operating(access, namespace):
        cluster.submit(gang(namespace, "first", nodes=1, gpus=GPUS, run="4s"))
        comes_to(cluster, "first", Phase.RUNNING)
        cluster.submit(gang(namespace, "second", nodes=1, gpus=GPUS // 2))
        message = refused(cluster, namespace, "second").status.reason.message
        assert f"is used up ({RESOURCE}: 4 asked for, 8 of 8 used); wait for other pods there to end" in message
        comes_to(cluster, "first", Phase.SUCCEEDED)
        comes_to(cluster, "second", Phase.RUNNING)


def test_a_quota_may_also_refuse_what_comes_with_the_pods(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    a_quota(cluster, namespace, 0, of="services")
    cluster.submit(gang(namespace))
    with operating(access, namespace):
        message = refused(cluster, namespace).status.reason.message
        assert f"quota small of namespace {namespace} can never hold it (services: 1 asked for, 0 of 0" in message
        raise_quota(cluster, namespace, 1, of="services")
        comes_to(cluster, "train", Phase.RUNNING)


@pytest.mark.slow
def test_gangs_that_each_need_the_whole_quota_run_one_after_the_other(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    a_quota(cluster, namespace, GPUS)
    for name in ("one", "other"):
        cluster.submit(gang(namespace, name, gpus=GPUS // 2, run="1s"))
    with operating(access, namespace):
        for name in ("one", "other"):
            comes_to(cluster, name, Phase.SUCCEEDED)
    assert any(cluster.named(name, namespace).status.attempt for name in ("one", "other"))
