"""Time from submitting a gang until all of its pods are bound, beside bare pods, a Job and Kueue, on one control plane.

    python -m benchmarks.kubernetes_gangs [--sizes 8,100,1000] [--repeats 3] [--nodes 200]
                                          [--limits lifted|shipped] [--pods same|plain] [--json]

kwok simulates nodes of 8 GPUs; every pod requests one. In each repeat all four take turns, once the API server is idle,
so that other load affects them alike; the figures are medians, with the least and the most.

All create the *same* pod, the one that Fairlead renders for a gang: restricted, with shared memory, a ConfigMap, a
probe and the variables of a rendezvous. With `--pods plain` the others' pods are one container without any of that and
a third as large, which matters to an API server that shares two cores with everything else.

*Bare pods* are created over 50 connections and are no gang. *Job* is one of Kubernetes, indexed, with kube-scheduler.
*Kueue* admits such a Job. kube-scheduler, the controller manager and Kueue may each send 5,000 requests a second, far
above their defaults, and the client that creates bare pods as many as it can; Fairlead has its defaults, 200 with 2,000
at once. With `--limits shipped` the others have the defaults of their releases too, which most clusters run with:
kube-scheduler 50 a second with 100 at once, the controller manager 20 with 30, Kueue 50 with 100.

Then 100 gangs of 8 are submitted at once, in order, where 60 fit: the time until 480 pods are bound, how many gangs are
complete and how many partial, and whether the first 60 are those that run. Kueue's quota says that 60 fit; Fairlead and
kube-scheduler find it from the nodes. Kueue needs root, and is left out without it.

Seen on two cores with nothing beside it, in seconds, medians of five turns with the least and the most: 8 pods: bare
pods 0.09, Job 0.12, Kueue 0.17 (0.15 to 0.24), Fairlead 0.11 (0.10 to 0.20); 100: 1.0, 1.0, 1.1 (0.8 to 1.4), 1.0 (0.7
to 1.2); 1,000: 13.4, 13.1, 12.7 (10.9 to 15.0), 12.7 (8.2 to 13.6), of which Fairlead's were the sooner in four turns
of five, by a tenth on average. The crowd: Job 8.5 with 59 gangs whole and 2 in part, Kueue 12.5 and Fairlead 10.3, both
with 60 whole, none in part, in order. On another day, with 64 pods created at a time: 8: 0.05, 0.12, 0.15, 0.13; 100:
1.1, 1.0, 0.93, 0.78; 1,000: 9.5, 8.3, 8.3, 8.4; the crowd 6.3, 8.9 and 5.9. How much time the API server takes for the
same 1,000 pods varies from 7 to 18 s of CPU, and decides who is ahead. Operators taken in turns, without the other
beside: Kueue 9.6 and Fairlead 7.9 (four turns), 9.5 and 13.3 (three), 10.4 and 10.4 (two).
With plain pods it was last seen with fewer requests at once, and behind: of 100, bare 0.7 to 1.8, Kueue 1.1 to 2.3,
Fairlead 2.1 to 3.4.

With the limits that they ship with, medians of three turns (least to most): 8: bare pods 0.07 (0.06 to 0.11), Job 0.09,
Kueue 0.12 (0.12 to 0.22), Fairlead 0.11 (0.07 to 0.13); 100: 0.9, 3.8, 4.0, 1.1; 1,000: 18.2, 49.5, 49.7 and 18.2; the
crowd: Job 28.4 with 59 gangs whole and 2 in part, Kueue 35.7 and Fairlead 8.4, both with 60 whole, none in part, in
order. What others wait for is the controller manager, which creates 20 pods a second; Fairlead waits for kube-scheduler
alone, as bare pods do.
"""

import argparse
import json
import os
import statistics
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import kueue_server
from benchmarks.fake_fleet import (
    CLIENT_QPS,
    NAMESPACE,
    POD_PATH,
    Counting,
    OperatorProcess,
    create_pod,
    delete_pods,
    fleet,
    in_parallel,
    plain_pod,
    until,
    until_quiet,
)
from fairlead.cluster.kubernetes.api.client import Client, Object
from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.manifests.pods import PodSettings, render_pod
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.plan import CreatePod
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Phase, Status, Workload
from tests.kubernetes.testcluster.control_plane import ControlPlane

JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
GPUS_ON_A_NODE, SIZE_OF_MANY, NUM_MANY, NUM_FITTING = 8, 8, 100, 60
SETTLE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to have gangs: how one is submitted, and how all are taken away."""

    name: str
    submit: Callable[[str, int], object]
    clean: Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8,100,1000", help="pods of a gang (default 8,100,1000)")
    parser.add_argument("--repeats", type=int, default=3, help="times that each is measured (default 3)")
    parser.add_argument("--nodes", type=int, default=200, help="fake nodes of 8 GPUs (default 200)")
    parser.add_argument(
        "--limits", choices=("lifted", "shipped"), default="lifted", help="of the others' clients (default lifted)"
    )
    parser.add_argument(
        "--pods", choices=("same", "plain"), default="same", help="what the others create (default same)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    load_before = os.getloadavg()[0]
    is_lifted = arguments.limits == "lifted"
    with fleet(arguments.nodes, client_qps=CLIENT_QPS if is_lifted else None) as (plane, client):
        pod = _same_pod if arguments.pods == "same" else plain_pod
        ways = _ways(plane, client, arguments.nodes, pod, is_lifted=is_lifted)
        taken: dict[tuple[str, int], list[float]] = {}
        for size in sizes:
            for _ in range(arguments.repeats):
                for way in ways:
                    until_quiet(client)
                    taken.setdefault((way.name, size), []).append(_measure(plane, way, size))
                    way.clean()
                    _say(f"{way.name}, {size}: {taken[way.name, size][-1]:.2f} s at a load of {os.getloadavg()[0]:.1f}")
        crowds = _crowds(plane, client, ways, arguments.nodes)
    if arguments.json:
        seconds = [{"way": name, "size": size, "seconds": found} for (name, size), found in taken.items()]
        print(json.dumps({"load": load_before, "limits": arguments.limits, "bound": seconds, "crowds": crowds}))
        return
    print(f"{arguments.nodes} nodes, {os.cpu_count()} cores, load {load_before:.1f} to {os.getloadavg()[0]:.1f}")
    print(f"clients' limits {arguments.limits}, pods {arguments.pods}")
    print(f"{'seconds until all are bound':28}" + "".join(f"{size:>20,}" for size in sizes))
    for way in ways:
        cells = (taken[way.name, size] for size in sizes)
        shown = (f"{statistics.median(cell):.2f} ({min(cell):.2f}-{max(cell):.2f})" for cell in cells)
        print(f"{way.name:28}" + "".join(f"{cell:>20}" for cell in shown))
    print(f"{NUM_MANY} gangs of {SIZE_OF_MANY} where {NUM_FITTING} fit")
    for name, crowd in crowds.items():
        print(f"{name:28}" + ", ".join(f"{what} {value}" for what, value in crowd.items()))


def _ways(
    plane: ControlPlane, client: Client, num_nodes: int, pod: Callable[[str], Object], *, is_lifted: bool
) -> list[Way]:
    template = pod("")

    def bare(name: str, size: int) -> None:
        pods = [pod(f"{name}-{index}") for index in range(size)]
        in_parallel(lambda index: create_pod(client, pods[index]), range(size))

    def clean_jobs() -> None:
        for job in list(client.items(JOBS)):
            client.delete(f"{JOBS}/{job['metadata']['name']}", {"propagationPolicy": "Background"})
        delete_pods(client)

    cluster = WorkloadApi(client, namespace=NAMESPACE)

    def submit(name: str, size: int) -> None:
        cluster.submit(_training(name, size))

    def clean_runs() -> None:
        for run in cluster.workloads():
            cluster.set_intent(run.uid, Intent.DELETE)
        until(lambda: not cluster.workloads())
        delete_pods(client)

    ways = [
        Way(name="bare pods", submit=bare, clean=lambda: delete_pods(client)),
        Way(name="Job", submit=lambda name, size: client.create(JOBS, _job(name, size, template)), clean=clean_jobs),
    ]
    if os.geteuid() == 0:
        qps, burst = (CLIENT_QPS,) * 2 if is_lifted else (kueue_server.SHIPPED_QPS, kueue_server.SHIPPED_BURST)
        kueue_server.start(plane, qps=qps, burst=burst)
        _set_quota(plane, GPUS_ON_A_NODE * num_nodes)
        queued = {"kueue.x-k8s.io/queue-name": kueue_server.QUEUE}
        ways.append(
            Way(
                name="Kueue",
                submit=lambda name, size: client.create(JOBS, _job(name, size, template, labels=queued)),
                clean=clean_jobs,
            )
        )
    OperatorProcess(plane).start()
    return [*ways, Way(name="Fairlead", submit=submit, clean=clean_runs)]


def _measure(plane: ControlPlane, way: Way, size: int) -> float:
    counting = Counting(plane, size)
    begun = time.time()
    way.submit(f"gang-{size}", size)
    return counting.wait() - begun


def _crowds(plane: ControlPlane, client: Client, ways: list[Way], num_nodes: int) -> dict[str, dict[str, object]]:
    """More gangs than fit, for each way but bare pods, which are no gangs."""
    for index in range(NUM_FITTING * SIZE_OF_MANY // GPUS_ON_A_NODE, num_nodes):
        client.merge(f"/api/v1/nodes/fake-{index}", {"spec": {"unschedulable": True}})
    if os.geteuid() == 0:
        _set_quota(plane, NUM_FITTING * SIZE_OF_MANY)
    found: dict[str, dict[str, object]] = {}
    for way in ways[1:]:
        until_quiet(client)
        counting = Counting(plane, NUM_FITTING * SIZE_OF_MANY)
        begun = time.time()
        for number in range(NUM_MANY):
            way.submit(f"gang-{number:03}", SIZE_OF_MANY)
        took = counting.wait() - begun
        time.sleep(SETTLE_S)
        bound = Counter(_gang_of(pod) for pod in client.items(POD_PATH) if pod["spec"].get("nodeName"))
        whole = [name for name, number in bound.items() if number == SIZE_OF_MANY]
        first = {f"gang-{number:03}" for number in range(NUM_FITTING)}
        found[way.name] = {
            "seconds": round(took, 1),
            "whole": len(whole),
            "in part": len(bound) - len(whole),
            "of the first 60": len(first & set(whole)),
        }
        _say(f"{way.name}: {found[way.name]}")
        way.clean()
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _gang_of(pod: Object) -> str:
    labels = pod["metadata"]["labels"]
    return str(labels.get("batch.kubernetes.io/job-name") or labels.get("fairlead.dev/run"))


def _set_quota(plane: ControlPlane, gpus: int) -> None:
    kueue_server.set_quota(plane, NAMESPACE, {"cpu": gpus, "memory": f"{gpus}Gi", "nvidia.com/gpu": gpus})


def _training(name: str, size: int) -> Training:
    one = Resources(cpu_milli=1000, memory_bytes=2**30, gpu=GpuRequest(milli=1000))
    return Training(name=name, team=NAMESPACE, run="work", nodes=size, resources=one)


def _same_pod(name: str) -> Object:
    """The pod of a member that Fairlead renders, but for whose it is and where it goes; without a name a template."""
    reason = Reason(code=Code.PLACED, message="placed")
    status = Status(phase=Phase.STARTING, reason=reason, since=0.0)
    run = Workload(
        uid=str(uuid.UUID(int=1)), spec=_training("gang", 8), intent=Intent.RUN, status=status, version=1,
        created_at=0.0,
    )  # fmt: skip
    grant = Grant(cpu_milli=1000, memory_bytes=2**30)
    member = CreatePod(attempt=0, index=1, node="", grant=grant)
    device = DeviceResource(name="nvidia.com/gpu", count=1)
    pod = render_pod(run, member, PodSettings(runtime=bundle_name()), device=device, taints=())
    del pod["metadata"]["ownerReferences"]
    if name:
        pod["metadata"]["name"] = pod["spec"]["hostname"] = name
    else:
        del pod["metadata"]["name"], pod["metadata"]["namespace"], pod["spec"]["hostname"]
    return pod


def _job(name: str, size: int, template: Object, *, labels: dict[str, str] | None = None) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "parallelism": size,
            "completions": size,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "suspend": labels is not None,
            "template": template,
        },
    }


if __name__ == "__main__":
    main()
