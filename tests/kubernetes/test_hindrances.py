"""Pods that are bound and do not start, where only the Events of their kubelet say why."""

import pytest

from fairlead.cluster.kubernetes.api.config import Access
from fairlead.cluster.kubernetes.operating import hindrances
from fairlead.cluster.kubernetes.operating.cluster import KubernetesCluster
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase
from tests.kubernetes.operating import comes_to, gang, live_pods, operating
from tests.waiting import until

MOUNT = 'MountVolume.SetUp failed for volume "keys" : secret "nope" not found'


def test_a_volume_that_cannot_be_mounted_is_told_until_it_is(
    access: Access, cluster: KubernetesCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hindrances, "FIRST_S", 3.0)

    def reason() -> Reason:
        return cluster.named("train", namespace).status.reason

    cluster.submit(gang(namespace, start="30s"))
    with operating(access, namespace):
        until(lambda: len(live_pods(cluster, namespace)) == 2)
        say(cluster, namespace, "FailedMount", "Warning", MOUNT)
        until(lambda: reason().code is Code.START_DELAYED, reason)
        assert reason().message.startswith("pod 0 of 2 has not started: a volume cannot be mounted on a-gpu-")
        assert f": {MOUNT}; create what it refers to, or correct the name under" in reason().message
        assert cluster.named("train", namespace).status.phase is Phase.STARTING
        say(cluster, namespace, "Pulling", "Normal", "Pulling image")
        until(lambda: reason().code is Code.PLACED, reason)
        comes_to(cluster, "train", Phase.RUNNING, attempt=0)


def say(cluster: KubernetesCluster, namespace: str, reason: str, kind: str, message: str) -> None:
    """What a kubelet says of the first pod."""
    pod = cluster.client.get(f"/api/v1/namespaces/{namespace}/pods/train-0-0")
    event = {
        "metadata": {"name": f"train-0-0.{reason.lower()}"},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "train-0-0", "uid": pod["metadata"]["uid"]},
        "reason": reason,
        "type": kind,
        "message": message,
        "source": {"component": "kubelet"},
    }
    cluster.client.create(f"/api/v1/namespaces/{namespace}/events", event)
