"""A control plane with fake nodes for benchmarks, with Fairlead's kinds, its operator, and clients to load it with."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Limits, Object
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.manifests.crds import definitions
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.kubernetes.testcluster.processes import Server
from tests.ports import free_ports

NAMESPACE = "team"
POD_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
CONNECTIONS = 50
CLIENT_QPS = 5_000
PATIENCE_S = 1200.0
STRATEGIC = "application/strategic-merge-patch+json"
STATUS_EVERY_S = 300.0


# Leases of all nodes, ten seconds apart, take the machine of whoever measures, and the operator never sees them.
WITHOUT_LEASES = {
    "kwok": ["--node-lease-duration-seconds=0"],
    "controller-manager": ["--node-monitor-grace-period=24h"],
}
IMAGES = 50  # kubelet reports so many at most, and most nodes have them


@contextmanager
def fleet(
    num_nodes: int, *, leases: bool = True, client_qps: int | None = CLIENT_QPS
) -> Iterator[tuple[ControlPlane, Client]]:
    """A control plane with ready nodes of 8 GPUs, and a client of ours.

    Args:
        leases: The nodes renew theirs, as real ones do.
        client_qps: Requests a second that scheduler and controller manager may send; None for what they ship with.
    """
    os.environ.setdefault("GOMAXPROCS", str(os.cpu_count() or 1))  # not the one that servers of tests have
    with ControlPlane(client_qps=client_qps, flags=None if leases else WITHOUT_LEASES) as plane:
        client = Client(
            load_access((plane.kubeconfig(),)),
            Limits(per_second=1e6, burst=10**6, in_flight=64, try_s=120, patience_s=600),
        )
        for each in definitions():
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{each['metadata']['name']}"
            client.apply(path, each)
        client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        plane.await_namespace(NAMESPACE)
        add_nodes(plane, num_nodes)
        until(lambda: all(is_ready(node) for node in client.items("/api/v1/nodes")))
        until(lambda: _is_served(plane))
        yield plane, client
        client.close()


@contextmanager
def beating(client: Client, num_nodes: int) -> Iterator[None]:
    """Meanwhile each node tells how it is as kubelet does: every five minutes, with the images that it has."""
    over = threading.Event()

    def beat() -> None:
        images = []
        for n in range(IMAGES):
            name = f"registry.example.com/team/image-{n}"
            images.append({"names": [f"{name}@sha256:{n:064x}", f"{name}:v1"], "sizeBytes": 10**9})
        index = 0
        while not over.wait(STATUS_EVERY_S / num_nodes):
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now}
            body = {"status": {"conditions": [ready], "images": images}}
            client.request("PATCH", f"/api/v1/nodes/fake-{index}/status", body, content_type=STRATEGIC)
            index = (index + 1) % num_nodes

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class OperatorProcess:
    """``fairlead operator`` as a process of its own, with its default limits."""

    def __init__(self, plane: ControlPlane) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        os.environ["KUBECONFIG"] = str(plane.kubeconfig())
        argv = ["-m", "fairlead.cli.main", "operator", "--namespace", NAMESPACE, "--listen", f"127.0.0.1:{port}"]
        self._server = Server("operator", [sys.executable, *argv], plane.home / "operator.log")

    def start(self) -> float:
        """Seconds until it leads and has everything."""
        begun = time.monotonic()
        self._server.start()
        self._server.until(lambda: self.numbers().get("fairlead_leader") == 1.0, "leading")
        return time.monotonic() - begun

    def stop(self) -> None:
        """End it."""
        self._server.stop()

    def numbers(self) -> dict[str, float]:
        """What it counts; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
                lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
        except OSError:
            return {}
        return {name: float(value) for name, value in lines}

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._server.pid is not None, self._server.log_tail()
        return self._server.pid


class Counting:
    """Counts pods that get bound, in a process of its own: what is measured must not wait for who measures it."""

    def __init__(self, plane: ControlPlane, most: int) -> None:
        argv = [sys.executable, "-m", "benchmarks.fake_fleet", str(plane.kubeconfig()), str(most)]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def wait(self) -> float:
        """The Unix time at which the last one was bound."""
        out, _ = self._process.communicate(timeout=PATIENCE_S)
        return float(json.loads(out))


def in_parallel(work: Callable[[int], object], items: Sequence[int]) -> None:
    """Do it over so many connections."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(work, items))


def create_pod(client: Client, pod: Object) -> None:
    """Create it, if an earlier try of the same request has not."""
    try:
        client.create(POD_PATH, pod)
    except ApiError as error:
        if not (error.unsure and error.reason == "AlreadyExists"):
            raise


def delete_pods(client: Client) -> None:
    """Take away what pods there are, and wait until they are gone."""
    names = [pod["metadata"]["name"] for pod in client.items(POD_PATH)]
    in_parallel(lambda index: _delete(client, f"{POD_PATH}/{names[index]}"), range(len(names)))
    until(lambda: next(client.items(POD_PATH), None) is None)


def plain_pod(name: str = "") -> Object:
    """A pod of one GPU; without a name it is a template."""
    amounts = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
    metadata = {"metadata": {"name": name}} if name else {}
    return {**metadata, "spec": {"restartPolicy": "Never", "containers": [container]}}


def until(is_so: Callable[[], bool], *, every_s: float = 0.2) -> None:
    """Wait for something that is looked for so often."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(every_s)


def until_quiet(client: Client) -> None:
    """Wait until the garbage collector and others have seen to what was deleted, so that they burden nobody else."""
    before, still = _num_writes(client), 0
    deadline = time.monotonic() + PATIENCE_S
    while still < 3:
        assert time.monotonic() < deadline, "the API server did not come to rest"
        time.sleep(0.5)
        now = _num_writes(client)
        still = still + 1 if now - before < 5 else 0
        before = now


def _num_writes(client: Client) -> float:
    """Writes of anything but Leases, which nodes renew for ever."""
    lines = (
        line
        for line in client.text("/metrics").splitlines()
        if line.startswith("apiserver_request_total{") and 'resource="leases"' not in line
    )
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if re.search(r'verb="(POST|PUT|PATCH|APPLY|DELETE)"', line)
    )


def _delete(client: Client, path: str) -> None:
    try:
        client.delete(path, {"gracePeriodSeconds": 0})
    except ApiError as error:
        if error.status != 404:
            raise


def _is_served(plane: ControlPlane) -> bool:
    try:
        plane.request("GET", "/apis/fairlead.dev/v1alpha1/trainings")
    except urllib.error.HTTPError:
        return False
    return True


def _count(config: str, most: int) -> None:
    """Print ``ready``, and the time when so many pods more have been bound."""
    client = Client(load_access((Path(config),)))
    version = str(client.get(POD_PATH, {"limit": "1"})["metadata"]["resourceVersion"])
    print("ready", flush=True)
    seen = 0
    while seen < most:
        query = {"watch": "true", "resourceVersion": version, "fieldSelector": "spec.nodeName!="}
        with client.stream(POD_PATH, query, idle_s=PATIENCE_S) as stream:
            for line in stream:
                # With this selector a pod is added when it is bound. A server may end a watch; the next goes on.
                seen += line.startswith(b'{"type":"ADDED"')
                begin = line.find(b'"resourceVersion":"') + 19
                version = line[begin : line.find(b'"', begin)].decode()
                if seen >= most:
                    break
    print(time.time(), flush=True)


if __name__ == "__main__":
    _count(sys.argv[1], int(sys.argv[2]))
