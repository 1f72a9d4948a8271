"""Ten thousand hostile objects of one team beside a running operator: nothing ends, and another team does not wait."""

import json
import statistics
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.names import ACCESS_KEYS, ATTEMPT, INDEX
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.keys import API_VERSION
from tests.kubernetes.operating import HARMLESS
from tests.kubernetes.test_faces import COMMAND, a_desk
from tests.kubernetes.test_poison import BRACKETS, TENANT, TOO_MUCH, _hostile, a_training, other, starts
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.ports import free_port
from tests.processes import Child
from tests.waiting import until

__all__ = ["other"]

NUM_OBJECTS, NUM_PLANTERS = 10_000, 8
NUM_ROUNDS, NUM_STARTS, MOST_HARMLESS = 4, 3, 250
MOST_GROWTH_BYTES = 300 * 1024**2
"""30 KB for each object: what it is known by, and what was told of it."""
MOST_DELAY_S = 1.0
A_REQUEST = 500
"""Objects of a request to list or delete them."""


def hostile(random: Random, number: int) -> dict[str, Any]:
    """A spec, annotation, key, nested value, sweep or pod that means harm."""
    kind = random.randrange(8)
    if kind < 4:
        return _hostile(random, number)
    if kind == 4:
        nested: Any = "x"
        for _ in range(random.randint(20, 400)):
            nested = {"a": nested} if random.random() < 0.5 else [nested]
        return a_training(f"h{number}", kubernetes={"spec": {"affinity": nested}}, resources=TOO_MUCH)
    if kind == 5:
        values = random.choice(["1..", "log 0..1", "9" * 5_000, "a | b when x", "[" * 3_000])
        spec = {"parameters": {"lr": values}, "trial": {"run": "train", "resources": TOO_MUCH}}
        return {"apiVersion": API_VERSION, "kind": "Sweep", "metadata": {"name": f"h{number}"}, "spec": spec}
    owner = {
        "apiVersion": API_VERSION, "kind": "Training", "name": f"h{random.randrange(1 + number)}", "controller": True,
        "uid": random.choice(["no-uid", "x" * 200, f"{number}"]),
    }  # fmt: skip
    labels = {ATTEMPT: random.choice(["0", "9" * 60, "x"]), INDEX: random.choice(["0", "9" * 60, "-1"])}
    annotations = {"fake/message": BRACKETS[:9_000], "fairlead.dev/family": random.choice(["[" * 900, "{}", "9" * 900])}
    container = {"name": "ranks", "image": "python:3.12", "securityContext": HARMLESS}
    about = {"name": f"h{number}", "labels": labels, "annotations": annotations, "ownerReferences": [owner]}
    spec = {"containers": [container], "schedulingGates": [{"name": "example.com/never"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def planted(plane: ControlPlane, namespace: str, content: dict[str, Any]) -> str:
    """Create an object as the tenant; its kind, or the status of the API server's own refusal."""
    kind = content["kind"]
    core = {"ConfigMap": "configmaps", "Pod": "pods"}
    path = f"/api/v1/namespaces/{namespace}/{core[kind]}" if kind in core else objects_path(kind, namespace)
    try:
        plane.request("POST", path, content, user=TENANT)
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    return str(kind)


@pytest.fixture
def reader(cluster: WorkloadApi, plane: ControlPlane, namespace: str) -> Iterator[None]:
    """The tenant may also write keys and pods, as a fairlead-admin of the namespace; what it leaves is deleted.

    That comes before the cleaning up of ``cluster``, which takes objects one by one, longer than a storm of 10,000.
    """
    del cluster
    for role in ("edit", "fairlead-admin"):
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"tenant-{role}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": TENANT}],
        }
        plane.request("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", binding)
    yield
    core = f"/api/v1/namespaces/{namespace}"
    for path in (*(objects_path(kind, namespace) for kind in ("Sweep", "Training")), f"{core}/pods", f"{core}/events"):
        while len(plane.request("DELETE", f"{path}?limit={A_REQUEST}")["items"]) == A_REQUEST:
            pass
        held = [item["metadata"] for page in pages(plane, path) for item in page if item["metadata"].get("finalizers")]
        for metadata in held:  # by an operator that has ended
            free = {"metadata": {"finalizers": None}}
            plane.request("PATCH", f"{path}/{metadata['name']}", free, kind="merge-patch+json")


def harmless(number: int) -> dict[str, Any]:
    """An object of the size of a hostile one that Fairlead does not read."""
    metadata = {"name": f"harmless-{number}"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": BRACKETS[:2_000]}}


@pytest.mark.usefixtures("reader")
@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")  # a hostile pattern
@pytest.mark.long
@pytest.mark.parametrize("count", [pytest.param(NUM_OBJECTS, marks=pytest.mark.timeout(1800)), 1_000, 100])
def test_hostile_objects_end_nothing_delay_nobody_and_fill_no_memory(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, other: str, tmp_path: Path,
    count: int,
) -> None:  # fmt: skip
    """The delay is that beside as many objects that Fairlead does not read, by turns: a busy machine delays both."""
    del cluster  # its bindings and its cleaning up
    (tmp_path / "desk").mkdir()
    desk, random, port = a_desk(plane, namespace, tmp_path / "desk"), Random(count), free_port()
    command = [*COMMAND, "operator", "--namespace", namespace, "--listen", f"127.0.0.1:{port}"]
    environ = {**desk.environ, "KUBECONFIG": str(desk.operator_config)}
    kinds, delays = Counter[str](), {"quiet": list[float](), "harmless": [], "hostile": [], "after": []}

    def measure(what: str, contents: list[dict[str, Any]]) -> None:
        """Start runs of the other team while the tenant creates these objects."""
        starts_s = delays[what]
        enough = len(starts_s) + NUM_STARTS
        with ThreadPoolExecutor(NUM_PLANTERS) as planters:
            work = [planters.submit(partial(planted, plane, namespace, content)) for content in contents]
            while len(starts_s) < enough or not all(plant.done() for plant in work):
                starts_s.append(starts(access, other, f"{what}-{len(starts_s)}"))
        kinds.update(f"{what} {plant.result()}" for plant in work)

    with (
        (tmp_path / "operator.log").open("wb") as log,
        Child(command, env=environ, cwd="/", stdout=log, stderr=log, limit_s=1700.0) as operator,
    ):
        measure("quiet", [])
        memory, began = psutil.Process(operator.pid).memory_info().rss, time.monotonic()
        record = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ACCESS_KEYS}, "data": {"k": BRACKETS}}
        contents = [record, *(hostile(random, number) for number in range(count))]
        size = -(-len(contents) // NUM_ROUNDS)
        for number in range(NUM_ROUNDS):
            first = number * size
            measure("harmless", [harmless(first + place) for place in range(min(size, MOST_HARMLESS))])
            measure("hostile", contents[first : first + size])
        planted_s = time.monotonic() - began
        until(lambda: not unanswered(plane, namespace), lambda: len(unanswered(plane, namespace)), timeout_s=900)
        answered_s = time.monotonic() - began
        measure("after", [])
        grown = psutil.Process(operator.pid).memory_info().rss - memory
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            figures = dict(
                line.split() for line in answer.read().decode().splitlines() if line[0] != "#" and "{" not in line
            )
        print(
            json.dumps({
                "kinds": kinds, "planted_s": round(planted_s), "answered_s": round(answered_s),
                "memory_mib": round(memory / 2**20), "grown_mib": round(grown / 2**20),
                **{name: [round(min(s), 2), round(statistics.median(s), 2), round(max(s), 2), len(s)]
                   for name, s in delays.items()},
                **{name: figures[f"fairlead_{name}"] for name in
                   ("internal_errors_total", "unreadable_objects", "refused_objects", "foreign_objects", "leader")},
            })
        )  # fmt: skip
        assert operator.poll() is None
        assert float(figures["fairlead_leader"]) == 1.0
        assert float(figures["fairlead_internal_errors_total"]) == 0.0
        assert grown < MOST_GROWTH_BYTES
        most_s = MOST_DELAY_S * (1 if count <= 1_000 else 5)  # 0.4 s with 1,000 at 37 a second, on two cores
        assert statistics.median(delays["hostile"]) < statistics.median(delays["harmless"]) + most_s
        assert min(delays["after"]) < min(delays["quiet"]) + MOST_DELAY_S
        told = Counter(
            (event["involvedObject"]["name"], event["reason"])
            for page in pages(plane, f"/api/v1/namespaces/{namespace}/events")
            for event in page
            if event["reason"] in ("InvalidSpec", "Unreadable", "NotOfItsOwner", "InternalError", "StatusRefused")
        )
        assert told
        assert max(told.values()) == 1, told.most_common(5)
        assert not [key for key in told if key[1] in ("InternalError", "StatusRefused")]
        operator.terminate()


def unanswered(plane: ControlPlane, namespace: str) -> list[str]:
    """The hostile runs and sweeps whose status says nothing yet."""
    return [
        each["metadata"]["name"]
        for kind in ("Training", "Sweep")
        for page in pages(plane, objects_path(kind, namespace))
        for each in page
        if not (each.get("status") or {}).get("phase")
    ]


def pages(plane: ControlPlane, path: str) -> Iterator[list[dict[str, Any]]]:
    token = ""
    while True:
        page = plane.request("GET", f"{path}?limit={A_REQUEST}&continue={token}")
        yield page["items"]
        token = page["metadata"].get("continue") or ""
        if not token:
            return
