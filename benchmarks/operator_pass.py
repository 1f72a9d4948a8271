"""CPU time and memory of one pass of the operator, for a number of runs: `python -m benchmarks.operator_pass`.

    python -m benchmarks.operator_pass [--nodes 5000] [--pods 10000]

The watches are filled directly with objects as an API server sends them: nodes of 8 GPUs, and runs of 8 pods, all
running. No request is made. CPU time of this thread, the least of 30, so that other load does not count; *one pod
changed* includes taking in the change, the snapshot, the decision and the actions. At rest a pass is made every 5 s.

Seen on one of two cores at a load of 30: 1.5 ms when nothing changed, 10.5 ms after one change, 69 MB; the first pass
took 0.7 s.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import psutil

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.manifests.pods import PodSettings, render_pod
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.cluster.kubernetes.workloads.run_record import recorded, state_plain
from fairlead.policy.decide import decide
from fairlead.state.plan import Change, CreatePod
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Phase, Status
from fairlead.state.transitions import transition

SIZE, REPEATS = 8, 30
MOMENT = "2026-01-01T00:00:00Z"
AMOUNTS = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=10_000)
    arguments = parser.parse_args()
    view = Informers(Client(ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous())))
    began = time.thread_time()
    last = fill(view, arguments.nodes, arguments.pods)
    filled_s = time.thread_time() - began
    cluster = KubernetesCluster(view.client, view=view)
    agent = PodAgent(cluster, PodSettings(runtime="none"))

    def one_pass() -> None:
        assert not decide(cluster.snapshot(), 2e9).changes
        agent.act(2e9)

    began = time.thread_time()
    one_pass()
    first_s = time.thread_time() - began

    def pass_after_a_change() -> None:
        last["metadata"]["resourceVersion"] = str(int(last["metadata"]["resourceVersion"]) + 1)
        last["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = (
            f"2026-01-01T00:00:{next(moments):02}Z"
        )
        view.pods.put(json.loads(json.dumps(last)))
        one_pass()

    moments = iter(range(1, 60))
    print(f"{arguments.nodes:,} nodes, {arguments.pods:,} pods in runs of {SIZE}")
    print(f"to make the objects and take them in: {filled_s:.1f} s of CPU; the first pass {1000 * first_s:.0f} ms")
    print(
        f"a pass: nothing changed {least_ms(one_pass):.2f} ms, one pod changed {least_ms(pass_after_a_change):.2f} ms"
    )
    print(f"resident: {psutil.Process().memory_info().rss / 1e6:.0f} MB")
    agent.close()


def least_ms(work: Callable[[], None]) -> float:
    """Milliseconds of CPU of the quickest."""
    taken = []
    for _ in range(REPEATS):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return 1000 * min(taken)


def fill(view: Informers, num_nodes: int, num_pods: int) -> dict[str, Any]:
    """Put everything in; the last pod."""
    ready = [{"type": "Ready", "status": "True"}]
    for number in range(num_nodes):
        metadata = {"name": f"node-{number}", "resourceVersion": str(number + 1)}
        view.nodes.put({"metadata": metadata, "status": {"allocatable": dict(AMOUNTS), "conditions": ready}})
    pod: dict[str, Any] = {}
    for number in range(num_pods // SIZE):
        pod = _run(view, number, num_nodes)
    return pod


def _run(view: Informers, number: int, num_nodes: int) -> dict[str, Any]:
    """A run with all of its pods; the last of them."""
    nodes = [f"node-{(SIZE * number + index) % num_nodes}" for index in range(SIZE)]
    metadata = {
        "name": f"run-{number}", "namespace": "team", "uid": f"uid-{number}", "resourceVersion": "1",
        "creationTimestamp": MOMENT, "finalizers": ["fairlead.dev/run"],
    }  # fmt: skip
    resources = {"gpu": 1, "cpu": 1, "memory": "1Gi"}
    content = {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Training", "metadata": metadata,
        "spec": {"run": "work", "nodes": SIZE, "resources": resources},
    }  # fmt: skip
    found = view.trainings.put(content)
    assert found is not None
    assert found.workload is not None
    members = tuple(
        CreatePod(attempt=0, index=index, node=node, grant=_grant(number, index, num_nodes))
        for index, node in enumerate(nodes)
    )
    reason = Reason(code=Code.RANKS_STARTED, message="8 ranks started")
    status = Status(phase=Phase.RUNNING, reason=reason, since=1.0, started_at=1.0)
    change = Change(workload_uid=found.uid, version=found.workload.version, status=status, create=members)
    effect = transition(found.workload, change, 1.0)
    assert effect is not None
    state = recorded(found, effect, 1.0, event_id=1)
    pods = [render_pod(found.workload, member, PodSettings(runtime="none")) for member in members]
    for index, pod in enumerate(pods):
        pod["metadata"] |= {"uid": f"pod-{number}-{index}", "resourceVersion": "1", "creationTimestamp": MOMENT}
        pod["spec"]["nodeName"] = nodes[index]
        for container in pod["spec"]["containers"]:
            container["resources"]["requests"]["nvidia.com/gpu"] = "1"
        running = {"name": "ranks", "state": {"running": {"startedAt": MOMENT}}}
        pod["status"] = {"phase": "Running", "containerStatuses": [running]}
        view.pods.put(pod)
    metadata["resourceVersion"] = "2"
    view.trainings.put({**content, "status": {"state": state_plain(state)}})
    return pods[-1]


def _grant(number: int, index: int, num_nodes: int) -> Grant:
    place = SIZE * number + index
    uuid = f"nvidia.com/gpu#{place // num_nodes % 8}"
    return Grant(cpu_milli=1000, memory_bytes=2**30, gpu_uuids=(uuid,), gpu_milli=1000)


if __name__ == "__main__":
    main()
