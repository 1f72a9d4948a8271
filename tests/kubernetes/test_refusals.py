"""What becomes of a pod that the API server does not take, by the words of real API servers."""

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.operating.refusals import explain
from fairlead.state.snapshot import PodPhase

CASES = {
    'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4': (
        403, PodPhase.LOST, "the quota of namespace ns is used up (q, requested: pods=1",
    ),
    'pods "x" is forbidden: unable to create new content in namespace ns because it is being terminated': (
        403, PodPhase.LOST, "submit the run in another",
    ),
    'admission webhook "v.example.com" denied the request: no root': (
        403, PodPhase.FAILED, "v.example.com denied the pod: no root",
    ),
    'pods "x" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes': (
        403, PodPhase.FAILED, "does not admit the pod: PodSecurity",
    ),
    'pods is forbidden: User "system:serviceaccount:f:o" cannot create resource "pods" in API group ""': (
        403, PodPhase.LOST, "the operator may not create pods in namespace ns",
    ),
    'namespaces "ns" not found': (404, PodPhase.LOST, "namespace ns is gone"),
    'Pod "x" is invalid: spec.volumes[0].name: Required value': (422, PodPhase.FAILED, "finds the pod wrong"),
    "etcdserver: request timed out": (500, None, "request timed out"),
}  # fmt: skip


@pytest.mark.parametrize(("said", "expected"), CASES.items())
def test_a_refusal_says_whether_a_later_try_may_pass(said: str, expected: tuple[int, PodPhase | None, str]) -> None:
    status, phase, sentence = expected
    found, message = explain(ApiError("POST pods", status, "", said), "ns")
    assert found is phase
    assert sentence in message
