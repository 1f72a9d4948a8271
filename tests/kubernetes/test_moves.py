"""On a control plane: a run moves for one that needs a whole node, with pods created, deleted and bound for real."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.policy import pass_cache
from fairlead.policy.disruption import defragmentation
from fairlead.specs.overlay import overlay
from fairlead.state.snapshot import Intent, Phase
from tests.kubernetes.operating import GPUS, comes_to, gang, operating

NODES = ("a-gpu-0", "a-gpu-1")


@pytest.mark.slow
def test_a_run_moves_for_one_that_needs_a_whole_node(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pods of the test cluster say nothing of checkpoints.
    for module in (defragmentation, pass_cache):
        monkeypatch.setattr(module, "can_resume", lambda workload: True)
    for node in NODES:
        pinned = overlay({"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}})
        cluster.submit(replace(gang(namespace, f"filler-{node}", nodes=1, gpus=5), kubernetes=pinned))
    with operating(access, namespace):
        for node in NODES:
            comes_to(cluster, f"filler-{node}", Phase.RUNNING)
        for name in ("one", "two"):
            cluster.submit(gang(namespace, name, nodes=1, gpus=3))
            comes_to(cluster, name, Phase.RUNNING)
        for node in NODES:
            cluster.set_intent(cluster.named(f"filler-{node}", namespace).uid, Intent.STOP)
            comes_to(cluster, f"filler-{node}", Phase.STOPPED)
        cluster.submit(gang(namespace, "wide", nodes=1, gpus=GPUS))
        comes_to(cluster, "wide", Phase.RUNNING)
        runs = [cluster.named(name, namespace) for name in ("one", "two")]
        (moved,) = (run for run in runs if run.status.migration.decided_at is not None)
        comes_to(cluster, moved.spec.name, Phase.RUNNING, attempt=1)
    told = [event.reason.message for event in cluster.events(moved.uid) if event.type == "Stopping"]
    assert len(told) == 1
    assert "so that wide fits" in told[0]
    live = [pod for pod in cluster.client.items(f"/api/v1/namespaces/{namespace}/pods") if _is_live(pod)]
    nodes = {pod["metadata"]["name"].partition("-")[0]: pod["spec"]["nodeName"] for pod in live}
    assert nodes["one"] == nodes["two"] != nodes["wide"]


def _is_live(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
