"""An operator says in its log and in an Event that another one leads beside it."""

import logging
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.names import WATCHES
from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecorder, PendingEvent
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.control.other_leaders import AGAIN_S, OtherLeaders
from tests.kubernetes.turns import a_turn

NOW = 1_800_000_000.0


def lease(namespace: str, holder: str, *, watches: str | None = "", age_s: float = 0.0) -> dict[str, Any]:
    renewed = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() - age_s))
    annotations = {} if watches is None else {WATCHES: watches}
    return {
        "metadata": {"name": "fairlead-operator", "namespace": namespace, "uid": f"uid-{namespace}"}
        | {"annotations": annotations},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed},
    }


class Cluster:
    """Leases as the API server lists them, an agent that acts at once, and the Events recorded."""

    def __init__(self, *leases: dict[str, Any]) -> None:
        self.leases = leases
        self.labelled = {"away", "old"}
        self.told: list[PendingEvent] = []
        self.refusal: ApiError | None = None
        self.leads = True
        client, recorder = cast(Client, SimpleNamespace(items=self.items)), cast(EventRecorder, self)
        self.found = OtherLeaders(client, recorder, "home", may_act=lambda: self.leads)

    def items(self, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
        if path.endswith("/namespaces"):
            assert query == {"labelSelector": "fairlead.dev/operator=enabled"}
            return [{"metadata": {"name": name}} for name in sorted(self.labelled)]
        assert query == {"fieldSelector": "metadata.name=fairlead-operator"}
        if self.refusal is not None:
            raise self.refusal
        return list(self.leases)

    def submit(self, queue: str, job: str, work: Any) -> None:
        work()

    def tell(self, agent: PodAgent, record: PendingEvent, now: float) -> None:
        self.told.append(record)

    def look(self, now: float = NOW) -> list[str]:
        """Return the notes of the Events of a look."""
        self.told.clear()
        self.found._next_at = float("-inf")
        self.found.act(a_turn(self, now))
        return [each.note for each in self.told]


def test_another_leader_is_named_in_the_log_and_by_an_event_of_the_lease(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(lease("home", "here"), lease("away", "there", watches=None))
    with caplog.at_level(logging.WARNING, "fairlead.operator"):
        (note,) = cluster.look()
    assert "there in namespace away" in note
    assert "all with `--namespace home` take turns" in note
    assert [each.getMessage() for each in caplog.records if "label" not in each.getMessage()] == [note]
    (record,) = cluster.told
    assert record.is_warning
    assert record.regarding == {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": "fairlead-operator", "namespace": "home",
        "uid": "uid-home",
    }  # fmt: skip


def test_it_is_said_again_after_an_hour_and_at_once_when_it_comes_back() -> None:
    cluster = Cluster(lease("home", "here"), lease("away", "there"))
    assert len(cluster.look(NOW)) == 1
    assert cluster.look(NOW + 60.0) == []
    assert len(cluster.look(NOW + AGAIN_S)) == 1
    both, cluster.leases = cluster.leases, cluster.leases[:1]
    assert cluster.look(NOW + AGAIN_S + 60.0) == []
    cluster.leases = both
    assert len(cluster.look(NOW + AGAIN_S + 120.0)) == 1


@pytest.mark.parametrize(
    ("own", "other", "is_conflict"),
    [("", "", True), ("", "a", True), ("a", "", True), ("a", "a", True), ("a", "b", False)],
)
def test_operators_of_separate_namespaces_are_none_of_each_others_business(
    own: str, other: str, is_conflict: bool
) -> None:
    cluster = Cluster(lease("home", "here", watches=own), lease("away", "there", watches=other))
    assert bool(cluster.look()) is is_conflict


def test_a_lease_that_ran_out_or_was_released_is_no_leader() -> None:
    assert Cluster(lease("home", "here"), lease("away", "there", age_s=600.0), lease("old", "")).look() == []


def test_a_lease_that_a_tenant_wrote_in_a_namespace_of_his_own_is_no_leader() -> None:
    cluster = Cluster(lease("home", "here"), lease("tenant", "forged"))
    assert cluster.look() == []
    cluster.labelled.add("tenant")
    assert len(cluster.look()) == 1, "an administrator labelled it"


def test_an_operator_that_others_do_not_see_says_once_how_they_would(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(lease("home", "here"))
    with caplog.at_level(logging.WARNING, "fairlead.operator"):
        cluster.look()
        cluster.look()
    (record,) = caplog.records
    assert record.getMessage().endswith("kubectl label namespace home fairlead.dev/operator=enabled")
    caplog.clear()
    cluster.labelled.add("home")
    cluster.look()
    assert not caplog.records


def test_nothing_is_said_by_one_that_does_not_lead() -> None:
    cluster = Cluster(lease("home", "here"), lease("away", "there"))
    cluster.leads = False
    assert cluster.look() == []
    assert Cluster(lease("away", "there")).look() == []


def test_without_the_right_to_list_leases_nothing_is_said_and_nothing_fails() -> None:
    cluster = Cluster(lease("home", "here"), lease("away", "there"))
    cluster.refusal = ApiError("GET", 403, "Forbidden", "no")
    assert cluster.look() == []
    assert cluster.found._next_at > time.monotonic() + 600.0
