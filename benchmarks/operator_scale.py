"""The operator's cost on a large cluster, and how soon it notices a lost pod.

    python -m benchmarks.operator_scale [--nodes 5000] [--pods 10000] [--losses 100] [--settle 300] [--idle 60]
                                       [--json]

kwok simulates nodes of 8 GPUs; runs of 8 pods with one GPU each make up the pods. Each node reports its status every
five minutes, with its images, as kubelet does; there are no Leases of nodes, which the operator never reads. The
operator is a separate process with its default limits. *Caught up* is the time from its start until it has all nodes,
pods and runs, and leads. At rest its memory is measured, its CPU time as a share of one core, and its requests an hour,
from those in the measured time: renewals of its Lease, and all others. kwok's pods have no logs, so each run is polled
less and less often: 5 times a second in all while many are new, four times an hour each in the end. *Reaction* is from
the answer to the deletion of one pod of a run until a watch shows it in the run's status; the deletions are half a
second apart. The bars: 300 MB, 2 % of a core.

Seen on two cores: caught up in 17.2 s, 197 MB, from the fourth to the sixth minute after a start 1.52 % of a core,
with 17 node reports a second and 5 polls of runs a second, and 60 other requests an hour; a lost pod was reported
after 0.70 s, 1.51 s at the 99th percentile. On other days 10.5 s, 191 MB, 1.47 %, 0.66 s and 1.34 s; and 14.2 s,
205 MB, 1.83 %, 1.1 s and 2.5 s.
"""

import argparse
import json
import os
import statistics
import threading
import time

import psutil

from benchmarks.fake_fleet import NAMESPACE, POD_PATH, OperatorProcess, beating, fleet, in_parallel, until
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.operator.leader_election import RENEW_EVERY_S
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.errors import ClusterError
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training

SIZE = 8
TRAININGS = f"/apis/fairlead.dev/v1alpha1/namespaces/{NAMESPACE}/trainings"
BETWEEN_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000, help="fake nodes of 8 GPUs (default 5000)")
    parser.add_argument("--pods", type=int, default=10_000, help="running pods (default 10000)")
    parser.add_argument("--losses", type=int, default=100, help="pods that are deleted (default 100)")
    parser.add_argument("--settle", type=float, default=300.0, help="seconds from its start to rest (default 300)")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds at rest (default 60)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    figures = measure(arguments.nodes, arguments.pods, arguments.losses, arguments.settle, arguments.idle)
    if arguments.json:
        print(json.dumps(figures))
        return
    print(f"{arguments.nodes:,} nodes, {arguments.pods:,} pods in runs of {SIZE}, {os.cpu_count()} cores")
    for name, value in figures.items():
        print(f"{name:44}{value:>10.2f}")


def measure(num_nodes: int, num_pods: int, num_losses: int, settle_s: float, idle_s: float) -> dict[str, float]:
    """All figures, by what they are."""
    with fleet(num_nodes, leases=False) as (plane, client), beating(client, num_nodes):
        operator = OperatorProcess(plane)
        operator.start()
        begun = time.monotonic()
        _fill(client, num_pods)
        filled_s = time.monotonic() - begun
        operator.stop()
        caught_up_s = operator.start()
        time.sleep(settle_s)
        process = psutil.Process(operator.pid)
        before, at, cpu = operator.numbers(), time.monotonic(), sum(process.cpu_times()[:2])
        time.sleep(idle_s)
        after, took_s = operator.numbers(), time.monotonic() - at
        idle_percent = 100 * (sum(process.cpu_times()[:2]) - cpu) / took_s
        requests = (after["fairlead_api_requests_total"] - before["fairlead_api_requests_total"]) / took_s * 3600
        asked = (after["fairlead_log_requests_total"] - before["fairlead_log_requests_total"]) / took_s * 3600
        reactions = sorted(_reactions(client, num_losses))
        return {
            "load of the machine": os.getloadavg()[0],
            "s, submitting all until all run": filled_s,
            "s, start to caught up": caught_up_s,
            "MB resident at rest": process.memory_info().rss / 1e6,
            "% of a core at rest": idle_percent,
            "requests an hour at rest: of the Lease": 3600 / RENEW_EVERY_S,
            "requests an hour at rest: asking runs": asked,
            "requests an hour at rest: others": max(0.0, requests - asked - 3600 / RENEW_EVERY_S),
            "s, reaction to a lost pod, median": statistics.median(reactions),
            "s, reaction to a lost pod, 99th percentile": reactions[
                min(len(reactions) - 1, int(0.99 * len(reactions)))
            ],
        }


def _fill(client: Client, num_pods: int) -> None:
    cluster = WorkloadApi(client, namespace=NAMESPACE)
    one = Resources(cpu_milli=1000, memory_bytes=2**30, gpu=GpuRequest(milli=1000))

    def submit(number: int) -> None:
        cluster.submit(Training(name=f"run-{number}", team=NAMESPACE, run="work", nodes=SIZE, resources=one))

    in_parallel(submit, range(num_pods // SIZE))
    until(
        lambda: all((run.get("status") or {}).get("phase") == "Running" for run in client.items(TRAININGS)), every_s=5
    )


def _reactions(client: Client, num_losses: int) -> list[float]:
    """Seconds from the loss of a pod to a status that tells of it."""
    told: dict[str, float] = {}
    version = str(client.get(TRAININGS, {"limit": "1"})["metadata"]["resourceVersion"])
    watching = threading.Thread(target=_watch, args=(client, version, told, num_losses), daemon=True)
    watching.start()
    lost: dict[str, float] = {}
    for number in range(num_losses):
        client.delete(f"{POD_PATH}/run-{number}-0-{number % SIZE}", {"gracePeriodSeconds": 0})
        lost[f"run-{number}"] = time.monotonic()
        time.sleep(BETWEEN_S)
    until(lambda: len(told) >= num_losses)
    return [max(0.0, told[name] - at) for name, at in lost.items()]


def _watch(client: Client, version: str, told: dict[str, float], num_losses: int) -> None:
    while len(told) < num_losses:
        try:
            with client.stream(TRAININGS, {"watch": "true", "resourceVersion": version}, idle_s=60) as stream:
                for line in stream:
                    run = json.loads(line)["object"]
                    version = run["metadata"]["resourceVersion"]
                    if (run.get("status") or {}).get("attempt"):
                        told.setdefault(run["metadata"]["name"], time.monotonic())
        except ClusterError:  # it was silent or ended; the next goes on from there
            time.sleep(0.05)


if __name__ == "__main__":
    main()
