"""On a control plane: an operator that goes by another policy, and those who ask what it would do."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.client import operator_lease as leasing
from fairlead.cluster.kubernetes.client.checkup import _operator
from fairlead.cluster.kubernetes.client.discovery import InstalledOperator
from fairlead.cluster.kubernetes.client.user_client import UserClient
from fairlead.cluster.kubernetes.names import LEASE, POLICY
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.errors import ClusterError
from fairlead.specs.overlay import overlay
from fairlead.specs.training import Training
from fairlead.state.scheduling_policy import DEFAULT, POLICIES
from fairlead.state.snapshot import Intent, Phase
from tests.kubernetes.operating import comes_to, gang, operating
from tests.waiting import until

PINNED = overlay({"spec": {"nodeSelector": {"kubernetes.io/hostname": "a-gpu-0"}}})


@pytest.fixture(autouse=True)
def _lease_of_this_test(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing, "SYSTEM_NAMESPACE", namespace)


def lasting(namespace: str, name: str, seconds: float) -> Training:
    """A run that needs the whole of one node."""
    return replace(gang(namespace, name, nodes=1), kubernetes=PINNED, expected_duration_s=seconds)


@pytest.mark.slow
def test_a_long_run_gives_way_to_a_short_one_where_the_operator_goes_by_such_a_policy(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    with operating(access, namespace, policy="preempting"):
        long = cluster.submit(lasting(namespace, "long", 360_000.0))
        comes_to(cluster, "long", Phase.RUNNING)
        cluster.submit(lasting(namespace, "short", 600.0))
        short = comes_to(cluster, "short", Phase.RUNNING)
        assert comes_to(cluster, "long", Phase.PENDING).status.attempt == 1
        cluster.set_intent(short.uid, Intent.STOP)
        comes_to(cluster, "long", Phase.RUNNING, attempt=1)
    stopped = [event.reason.message for event in cluster.events(long.uid) if event.type == "Stopping"]
    assert stopped == ["preempted by short, which has less left to do"]


def test_whoever_asks_what_would_happen_is_answered_by_the_rules_of_the_operator_that_leads(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    client = cluster.client
    assert leasing.rules_of(leasing.leader_there(client)) == DEFAULT
    with operating(access, namespace, policy="shortest") as operator:
        until(lambda: operator.election.is_leader, "leader")
        leader = leasing.holder_of(client, namespace)
        assert UserClient(client, namespace=namespace).snapshot().rules == POLICIES["shortest"]
    assert leader is not None
    assert leader.policy == "shortest"
    says = _operator(InstalledOperator(namespace=namespace, leader=leader), "here", "0").says
    assert "policy shortest; it runs outside of the cluster" in says
    with operating(access, namespace) as operator:
        until(lambda: operator.election.is_leader, "leader")
        assert leasing.rules_of(leasing.leader_there(client)) == DEFAULT


def test_a_policy_of_a_newer_operator_is_told_and_not_taken_for_the_usual_one(
    cluster: WorkloadApi, namespace: str
) -> None:
    cluster.client.create(
        f"{leasing.API}/namespaces/{namespace}/leases",
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": LEASE, "annotations": {POLICY: "fastest"}},
            "spec": {
                "holderIdentity": "somebody",
                "leaseDurationSeconds": 15,
                "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        },
    )
    with pytest.raises(
        ClusterError, match="by the policy 'fastest', and this version of fairlead knows fifo, backfill"
    ):
        leasing.rules_of(leasing.leader_there(cluster.client))
