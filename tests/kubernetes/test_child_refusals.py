"""A child that the API server refuses holds up its parent, and nobody else."""

from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.config import Access
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.events.event_recorder import child_refusal_of
from fairlead.cluster.kubernetes.operator.runs.informers import Informers
from fairlead.errors import ClusterError
from fairlead.policy.kinds.parents import submit
from fairlead.state.plan import Change, Plan
from fairlead.state.snapshot import Phase
from tests.builders import status
from tests.kubernetes.builders import a_training

MOMENT = "2026-01-01T00:00:00Z"
QUOTA = "exceeded quota: runs, requested: count/trainings.fairlead.dev=1, used: 5, limited: 5"


def an_object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {
        "name": name, "namespace": "research", "uid": f"uid-of-{name}", "resourceVersion": "7", "generation": 1,
        "creationTimestamp": MOMENT, "finalizers": ["fairlead.dev/run"],
    }  # fmt: skip
    return {"apiVersion": "fairlead.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


SWEEP = an_object("Sweep", "rates", {"parameters": {"lr": "0.1 | 0.2"}, "trial": {"run": "train"}})
RUN = an_object("Training", "other", {"run": "train"})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> KubernetesCluster:
    """One whose API server takes any status, but no new object."""
    client = Client(Access(context="none", server="http://127.0.0.1:9", credentials=Anonymous()))
    view = Informers(client)
    view.parents["Sweep"].put(SWEEP)
    view.trainings.put(RUN)

    def written(path: str, body: dict[str, Any]) -> dict[str, Any]:
        known = RUN if "trainings" in path else SWEEP
        return {**known, "metadata": {**known["metadata"], "resourceVersion": "8"}, "status": body["status"]}

    monkeypatch.setattr(client, "apply", written)
    monkeypatch.setattr(client, "get", lambda _: SWEEP)
    return KubernetesCluster(client, view=view)


def changes(cluster: KubernetesCluster) -> Plan:
    """The first trial of the sweep, and a status of the other run."""
    (sweep,), (other,) = cluster.snapshot().parents, cluster.snapshot().workloads
    order = submit(sweep, "0", a_training(team="research"))
    return Plan(
        changes=(
            Change(workload_uid=sweep.uid, version=sweep.version, submit=(order,)),
            Change(workload_uid=other.uid, version=other.version, status=status(Phase.PENDING)),
        )
    )


def test_a_child_that_is_refused_holds_up_its_parent_alone_and_is_told_once(
    cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> dict[str, Any]:
        raise ApiError("POST trainings", 403, "Forbidden", QUOTA)

    monkeypatch.setattr(cluster.client, "create", refused)
    assert cluster.apply(changes(cluster)) == (False, True)
    ((parent, said),) = cluster.take_refusals()
    assert parent.name == "rates"
    assert QUOTA in said
    told = child_refusal_of(parent, said, 1.0)
    assert (told.reason, told.is_warning, told.regarding["kind"]) == ("ChildRefused", True, "Sweep")
    assert cluster.apply(changes(cluster))[0] is False
    assert cluster.take_refusals() == []


def test_an_api_server_that_does_not_answer_is_no_refusal(
    cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(*_: object) -> dict[str, Any]:
        raise ClusterError("There is no answer.")

    monkeypatch.setattr(cluster.client, "create", unanswered)
    with pytest.raises(ClusterError, match="no answer"):
        cluster.apply(changes(cluster))
    assert cluster.take_refusals() == []
