"""What becomes of a pod that the API server does not take, by the words of real API servers."""

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.operator.pods.pod_rejections import explain
from fairlead.state.snapshot import PodPhase

CASES = {
    'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4': (
        403, PodPhase.REFUSED, "the quota q of namespace ns is used up (pods: 1 asked for, 4 of 4 used); wait for",
    ),
    "exceeded quota: q, requested: cpu=2,requests.memory=4Gi, used: cpu=900m,requests.memory=1Gi, limited: cpu=2500m,"
    "requests.memory=3Gi": (
        403, PodPhase.REFUSED, "the quota q of namespace ns can never hold it (cpu: 2 asked for, 900m of 2500m used; "
        "requests.memory: 4Gi asked for, 1Gi of 3Gi used); have the quota raised, or ask for less",
    ),
    "exceeded quota: as no API server says it today": (
        403, PodPhase.REFUSED, "the quota of namespace ns is used up (exceeded quota: as no API server says it today)",
    ),
    'pods "x" is forbidden: unable to create new content in namespace ns because it is being terminated': (
        403, PodPhase.LOST, "submit the run in another",
    ),
    'admission webhook "v.example.com" denied the request: no root': (
        403, PodPhase.FAILED, "v.example.com denied the pod: no root",
    ),
    "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'owners' with binding 'all' denied request: no label `owner`": (
        422, PodPhase.FAILED, "the admission policy owners denied the pod: no label `owner`; change what it objects to",
    ),
    'pods "x" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes': (
        403, PodPhase.FAILED, "does not admit the pod: PodSecurity",
    ),
    'pods is forbidden: User "system:serviceaccount:f:o" cannot create resource "pods" in API group ""': (
        403, PodPhase.LOST, "the operator may not create the pod in namespace ns",
    ),
    'namespaces "ns" not found': (404, PodPhase.LOST, "namespace ns is gone"),
    'Pod "x" is invalid: spec.volumes[0].name: Required value': (422, PodPhase.FAILED, "rejected the pod"),
    "etcdserver: request timed out": (500, None, "request timed out"),
}  # fmt: skip


@pytest.mark.parametrize(("said", "expected"), CASES.items())
def test_a_refusal_says_whether_a_later_try_may_pass(said: str, expected: tuple[int, PodPhase | None, str]) -> None:
    status, phase, sentence = expected
    found, message = explain(ApiError("POST pods", status, "", said), "ns")
    assert found is phase
    assert sentence in message


def test_a_quota_that_holds_each_pod_but_not_all_of_the_gang_can_never_hold_it() -> None:
    error = ApiError("POST pods", 403, "", "exceeded quota: q, requested: gpu=8, used: gpu=8, limited: gpu=12")
    messages = [explain(error, "ns", num_pods=number)[1] for number in (1, 2)]
    assert messages[0].startswith("the quota q of namespace ns is used up (gpu: 8 asked for, 8 of 12 used)")
    assert messages[1].startswith(
        "the quota q of namespace ns can never hold it (gpu: 8 asked for, 8 of 12 used; the gang needs 2 times as much)"
    )


def test_what_comes_with_the_pods_is_told_by_its_kind_and_asked_for_again_where_roles_may_not_be_read_yet() -> None:
    denied = ApiError("POST services", 403, "", 'admission webhook "v.example.com" denied the request: no Services')
    assert explain(denied, "ns", kind="Service") == (
        PodPhase.FAILED,
        "the admission webhook v.example.com denied the Service that its pods need: no Services; ask the "
        "administrators of the cluster to allow it",
    )
    starting = ApiError("POST services", 403, "", 'User "o" cannot create resource "services" in API group ""')
    assert explain(starting, "ns", kind="Service")[0] is None
