"""Nodes that get another layout of their GPUs: each step of it, whoever operates, and what people are told."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.objects import read_node
from fairlead.cluster.kubernetes.informers.node_capacity import node_of
from fairlead.cluster.kubernetes.manifests.roles import OPERATOR, render_node_partitioner
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.operator.partitions.node_layouts import partitioned_node, read_change, render_step
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.overlay import overlay
from fairlead.specs.pool import GpuLayout, Hardware, Partitions, Pool, PoolGpu
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.sharing import Sharing
from fairlead.specs.training import Training
from fairlead.state.partitions import ManagerState, PartitionAction, PartitionChange, PartitionStep
from fairlead.state.snapshot import Phase
from tests.kubernetes.operating import GIB, comes_to
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import COMMAND
from tests.kubernetes.test_team_controller import POOLS, condition
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.kubernetes.testcluster.mig_manager import MigManager
from tests.waiting import until

PARTS, WHOLE = "all-1g.10gb", "all-disabled"
LAYOUTS = {PARTS: GpuLayout(instances={"1g.10gb": "7"}), WHOLE: GpuLayout()}
OFFERED = {PARTS: {"nvidia.com/mig-1g.10gb": 7}, WHOLE: {"nvidia.com/gpu": 1}}
WAY = "fairlead.dev/partitioning"


def a_pool(name: str, **changes: Any) -> Pool:
    gpu = PoolGpu(model="H100", memory_bytes=80 * 10**9)
    hardware = Hardware(cpu_milli=96_000, memory_bytes=2**40, gpu=gpu)
    partitions = Partitions(layouts=LAYOUTS, reconfigure_s=1.0)
    return replace(Pool(name=name, hardware=hardware, labels={"pool": name}, partitions=partitions), **changes)


def a_node(labels: dict[str, str], offered: dict[str, int], **annotations: str) -> dict[str, Any]:
    resources = {"cpu": "96", "memory": "1Ti", "pods": "110", **{name: str(n) for name, n in offered.items()}}
    about = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559", **labels}
    noted = {f"fairlead.dev/{name}": text for name, text in annotations.items()}
    return {
        "metadata": {"name": "a", "resourceVersion": "7", "labels": about, "annotations": noted},
        "spec": {},
        "status": {"allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]},
    }


@pytest.mark.parametrize(
    ("labels", "offered", "layout", "said"),
    [
        ({}, {"nvidia.com/gpu": 1}, WHOLE, ManagerState.UNKNOWN),
        ({"mig.config": PARTS, "mig.config.state": "success"}, OFFERED[PARTS], PARTS, ManagerState.SUCCESS),
        ({"mig.config": PARTS, "mig.config.state": "pending"}, {"nvidia.com/gpu": 1}, WHOLE, ManagerState.PENDING),
        ({"mig.config": PARTS, "mig.config.state": "rebooting"}, {}, None, ManagerState.PENDING),
        ({"mig.config": PARTS, "mig.config.state": "failed"}, {"nvidia.com/gpu": 1}, WHOLE, ManagerState.FAILED),
        ({}, {"nvidia.com/mig-3g.40gb": 2}, None, ManagerState.UNKNOWN),
    ],
)
def test_a_node_tells_its_layout_by_its_devices_and_its_managers_word_by_a_label(
    labels: dict[str, str], offered: dict[str, int], layout: str | None, said: ManagerState
) -> None:
    seen = read_node(a_node({f"nvidia.com/{name}": text for name, text in labels.items()}, offered))
    found = partitioned_node(a_pool("p"), seen, node_of(seen, 0))
    assert (found.layout, found.manager_state, found.requested) == (layout, said, labels.get("mig.config"))


def test_each_step_is_one_write_for_one_version_of_a_node() -> None:
    seen = read_node(a_node({}, {"nvidia.com/gpu": 1}))
    resting = partitioned_node(a_pool("p"), seen, node_of(seen, 0))

    def patch(action: PartitionAction, to: str = PARTS, failed: str | None = None, **changes: Any) -> dict[str, Any]:
        step = PartitionStep(node="a", action=action, to=to, why="", failed=failed)
        found = render_step(step, replace(resting, **changes), seen, 50.0)
        assert found["metadata"].pop("resourceVersion") == "7"
        return found

    way = PartitionChange(to=PARTS, back=WHOLE, since=50.0)
    begun = patch(PartitionAction.CORDON)
    assert begun["spec"] == {"unschedulable": True}
    assert read_change(begun["metadata"]["annotations"][WAY]) == way
    asked = patch(PartitionAction.RELABEL, change=replace(way, since=1.0))
    assert asked["metadata"]["labels"] == {"nvidia.com/mig.config": PARTS, "nvidia.com/mig.config.state": "pending"}
    assert read_change(asked["metadata"]["annotations"][WAY]) == way
    back = patch(PartitionAction.REVERT, WHOLE, PARTS, change=way)
    assert back["metadata"]["labels"]["nvidia.com/mig.config"] == WHOLE
    assert json.loads(back["metadata"]["annotations"]["fairlead.dev/partitions-failed"]) == {PARTS: 50.0}
    done = patch(PartitionAction.UNCORDON, change=way)
    assert done == {"metadata": {"annotations": {WAY: None}}, "spec": {"unschedulable": None}}
    shared = Partitions(layouts={"shared": GpuLayout(replicas=4), "whole": GpuLayout()})
    asked = patch(PartitionAction.RELABEL, "shared", pool=a_pool("p", partitions=shared), change=way)
    assert asked["metadata"]["labels"] == {"nvidia.com/device-plugin.config": "shared"}


@pytest.mark.parametrize("text", ["", "null", "{}", "no JSON", "[1]", '{"to": "a", "back": "b", "since": "soon"}'])
def test_a_way_that_cannot_be_read_is_none(text: str) -> None:
    assert read_change(text) is None


class _Operators:
    """Operators of the whole cluster, one after another, with the rights of `fairlead install --partitions`."""

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path) -> None:
        self._namespace = namespace
        config = yaml.safe_load(plane.kubeconfig().read_text())
        config["users"][0]["user"]["as"] = f"system:serviceaccount:{namespace}:{OPERATOR}"
        self._config, self._log = directory / "operator.yaml", directory / "operator.log"
        self._config.write_text(yaml.safe_dump(config))

    def said(self) -> str:
        """The last that they logged."""
        return self._log.read_text()[-2000:]

    @contextmanager
    def one(self) -> Iterator[None]:
        """An operator that is killed with SIGKILL at the end of the block."""
        variables = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
        arguments = ["operator", "--namespace", self._namespace, "--listen", "127.0.0.1:0"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*COMMAND, *arguments], cwd="/", env={**variables, "KUBECONFIG": str(self._config)}, stderr=log,
                stdout=log,
            )  # fmt: skip
            try:
                yield
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait(timeout=30)


@pytest.mark.long
def test_an_operator_killed_at_each_step_is_followed_by_one_that_goes_on(
    access: ClusterAccess, plane: ControlPlane, cluster: WorkloadApi, namespace: str, tmp_path: Path
) -> None:
    """A whole GPU is in use; the node is to have sevenths; then a run that waits has it whole again.

    Each operator waits for the Lease of the one before, which takes 15 s.
    """
    for content in render_node_partitioner(namespace):
        applied(plane, content)
    labels = {"pool": namespace}
    (name,) = add_nodes(plane, 1, prefix=f"mig-{namespace}", gpus=1, labels=labels)
    path, manager = f"/api/v1/nodes/{name}", MigManager(plane, [name], OFFERED)
    operators = _Operators(plane, namespace, tmp_path)

    def node() -> dict[str, Any]:
        found: dict[str, Any] = plane.request("GET", path)
        return found

    def way() -> PartitionChange | None:
        return read_change((node()["metadata"].get("annotations") or {}).get(WAY, ""))

    def label(which: str) -> str | None:
        found: str | None = node()["metadata"]["labels"].get(f"nvidia.com/{which}")
        return found

    def asks(what: str, milli: int, **fakes: str) -> None:
        sharing = () if milli == 1000 else (Sharing.MIG,)
        resources = Resources(cpu_milli=1000, memory_bytes=GIB, gpu=GpuRequest(milli=milli), sharing=sharing)
        annotations = {f"fake/{key}": value for key, value in fakes.items()}
        spec = Training(name=what, team=namespace, run="work", resources=resources)
        there = overlay({"metadata": {"annotations": annotations}, "spec": {"nodeSelector": labels}})
        cluster.submit(replace(spec, kubernetes=there))

    try:
        until(lambda: is_ready(node()))
        cluster.client.create(POOLS, write_object(a_pool(namespace)))
        asks("large", 1000)
        with operators.one():
            comes_to(cluster, "large", Phase.RUNNING)
        # As one left it that was killed once the node was cordoned.
        begun = json.dumps({"to": PARTS, "back": WHOLE, "since": time.time()})
        cordoned = {"metadata": {"annotations": {WAY: begun}}, "spec": {"unschedulable": True}}
        plane.request("PATCH", path, cordoned, kind="merge-patch+json")
        with operators.one():
            comes_to(cluster, "large", Phase.PENDING)
            until(lambda: label("mig.config") == PARTS)
        assert label("mig.config.state") == "pending"
        assert node()["spec"]["unschedulable"]
        with manager.at_work():
            until(lambda: label("mig.config.state") == "success")
        asks("small", 100, run="2s")
        assert way() is not None
        with operators.one():
            until(lambda: way() is None)
        assert "unschedulable" not in node()["spec"]
        with operators.one():
            comes_to(cluster, "small", Phase.SUCCEEDED)
            # Nobody is there any more, and the large run has waited for long enough.
            until(lambda: (found := way()) is not None and found.to == WHOLE)
        with operators.one(), manager.at_work():
            comes_to(cluster, "large", Phase.RUNNING)
            said = f"1 node with {WHOLE}"
            until(lambda: condition(cluster, f"{POOLS}/{namespace}", "Partitions").get("message") == said)
        assert way() is None
        told = plane.request("GET", f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}")
        reasons = [each["reason"] for each in told["items"] if each["reason"].startswith("Partition")]
        assert sorted(reasons) == sorted(
            ["PartitionBegun", *["PartitionRequested"] * 2, *["Partitioned"] * 2]
        )  # the first was begun by the test
        events = [event.reason.message for event in cluster.events(cluster.named("large", namespace).uid)]
        assert any("its GPUs get another layout" in each for each in events), events
    finally:
        plane.request("DELETE", f"{POOLS}/{namespace}")
        plane.request("DELETE", path)


@pytest.mark.slow
def test_a_layout_that_fails_is_taken_back_and_told_of(
    access: ClusterAccess, plane: ControlPlane, cluster: WorkloadApi, namespace: str, tmp_path: Path
) -> None:
    for content in render_node_partitioner(namespace):
        applied(plane, content)
    (name,) = add_nodes(plane, 1, prefix=f"mig-{namespace}", gpus=1, labels={"pool": namespace})
    path, manager = f"/api/v1/nodes/{name}", MigManager(plane, [name], OFFERED)
    manager.fails.add(PARTS)
    operators = _Operators(plane, namespace, tmp_path)

    def annotations() -> dict[str, str]:
        found: dict[str, str] = plane.request("GET", path)["metadata"].get("annotations") or {}
        return found

    def others() -> list[dict[str, Any]]:
        """Return the nodes that other tests have left."""
        return [each["metadata"] for each in plane.request("GET", "/api/v1/nodes")["items"]]

    try:
        until(lambda: is_ready(plane.request("GET", path)))
        cluster.client.create(POOLS, write_object(a_pool(namespace)))
        resources = Resources(
            cpu_milli=1000, memory_bytes=GIB, gpu=GpuRequest(milli=100), sharing=(Sharing.MIG,)
        )  # fmt: skip
        run = Training(name="small", team=namespace, run="work", resources=resources)
        there = replace(run, kubernetes=overlay({"spec": {"nodeSelector": {"pool": namespace}}}))
        cluster.submit(there)
        with operators.one(), manager.at_work():
            until(
                lambda: "fairlead.dev/partitions-failed" in annotations() and WAY not in annotations(),
                lambda: (annotations(), cluster.named("small", namespace).status, others(), operators.said()),
                timeout_s=120.0,
            )
            # The pass after the last step of the node writes it.
            says = f"it fits where a node's GPUs have the layout {PARTS}"
            until(lambda: cluster.named("small", namespace).status.reason.message.startswith(says), timeout_s=60.0)
        assert PARTS in json.loads(annotations()["fairlead.dev/partitions-failed"])
        node = plane.request("GET", path)
        assert node["metadata"]["labels"]["nvidia.com/mig.config"] == WHOLE
        assert "unschedulable" not in node["spec"]
    finally:
        plane.request("DELETE", f"{POOLS}/{namespace}")
        plane.request("DELETE", path)
