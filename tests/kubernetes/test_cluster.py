"""The contract on a real control plane, whose nodes are played by kwok."""

import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Limits
from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.informers.informers import PODS, Informers
from fairlead.cluster.kubernetes.kinds import objects_path, workload_kinds
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.cluster.port import LogLine
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import Resources
from fairlead.specs.training import Training
from fairlead.state.pod_uids import pod_uid
from tests import builders
from tests.cluster.contract import ClusterContract
from tests.cluster.family_contract import FamilyContract
from tests.kubernetes.operating import teach_kinds
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.relays import know_relays
from tests.waiting import until

NUM_NODES = 2
ONE_NAME = "kubernetes: an object has the name of its run, so a finished run makes way for a new one of its name"
NO_KUBELET = "kubernetes on kwok: its pods print and report nothing"


class KubernetesHarness:
    """A view and an agent over kwok; annotations of a pod say how it behaves."""

    moment_s = 1.5

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._starts: dict[str, set[str]] = {}
        self._begin()

    @property
    def cluster(self) -> KubernetesCluster:
        return self._cluster

    def program(
        self,
        duration_s: float = math.inf,
        *,
        exit_code: int = 0,
        signal: int | None = None,
        ignores_term: bool = False,
        steps: int = 0,
        output: tuple[str, ...] = (),
    ) -> Training:
        fakes = {"fake/start": "0.2s", "fake/on-term": "ignores" if ignores_term else "ends"}
        if math.isfinite(duration_s):
            fakes |= {
                "fake/run": f"{duration_s}s",
                "fake/exit-code": str(exit_code if signal is None else 128 + signal),
            }
        spec = builders.training(
            f"run-{secrets.token_hex(4)}", resources=Resources(cpu_milli=100, memory_bytes=64 * 1024**2)
        )
        return replace(spec, kubernetes=overlay({"metadata": {"annotations": fakes}}))

    def now(self) -> float:
        return time.time()

    def advance(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._agent.act(time.time())
            time.sleep(min(0.02, max(0.0, deadline - time.monotonic())))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 40 * self.moment_s
        while not condition():
            assert time.monotonic() < deadline, self.cluster.snapshot()
            self.advance(0.02)

    def crash(self) -> None:
        self.close()
        self._begin()

    def lose(self, pod_uid: str) -> None:
        pod = next(pod for pod in self._view.pods.all() if uid_of(pod) == pod_uid)
        namespace, _, name = pod.key.partition("/")
        self._client.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    def num_starts(self, pod_uid: str) -> int:
        return len(self._starts.get(pod_uid, ()))

    def logs(self, uid: str) -> list[LogLine]:
        pytest.skip(NO_KUBELET)

    def break_down(self) -> None:
        self._client.access = replace(self._access, server="http://127.0.0.1:9")

    def close(self) -> None:
        self._agent.close()
        self._view.stop()

    def clean(self) -> None:
        """Leave nothing to the next test."""
        self.close()
        client = Client(self._access)
        for kind, run in [(each, run) for each in workload_kinds() for run in client.items(objects_path(each))]:
            metadata = run["metadata"]
            path = objects_path(kind, metadata["namespace"], metadata["name"])
            with suppress(ApiError):  # it was leaving already
                client.merge(path, {"metadata": {"finalizers": []}})
                client.delete(path)
        for pod in client.items(PODS):
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            with suppress(ApiError):  # whoever collects what has no owner may have been faster
                client.delete(path, {"gracePeriodSeconds": 0})

    def _begin(self) -> None:
        self._client = Client(self._access, Limits(patience_s=8.0))
        self._view = Informers(self._client)
        self._view.pods.listen(self._note)
        self._view.start()
        self._cluster = KubernetesCluster(self._client, view=self._view)
        settings = PodSettings(runtime=bundle_name())
        self._agent = PodAgent(self._cluster, settings, num_threads=4)

    def _note(self, _: PodObject | None, pod: PodObject | None) -> None:
        if pod is not None and pod.started_at is not None:
            self._starts.setdefault(uid_of(pod), set()).add(pod.uid)


def uid_of(pod: PodObject) -> str:
    """Name the pod as the port does."""
    return pod_uid(pod.run_uid, pod.attempt, pod.index, pod.replacement)


@pytest.fixture(scope="module")
def prepared(plane: ControlPlane) -> ClusterAccess:
    """What the contract needs beside the kinds."""
    add_nodes(plane, NUM_NODES, prefix="contract", gpus=0)
    for name in ("vision", "speech"):
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    until(lambda: all(is_ready(node) for node in plane.request("GET", "/api/v1/nodes")["items"]))
    return load_access((plane.kubeconfig(),))


@pytest.fixture
def harness(prepared: ClusterAccess) -> Iterator[KubernetesHarness]:
    harness = KubernetesHarness(prepared)
    yield harness
    harness.clean()


class TestKubernetesCluster(ClusterContract):
    """Every promise of the port that a control plane without machines can show."""

    def test_a_finished_workload_is_not_resumed_while_another_has_its_name(self, harness: Any) -> None:
        pytest.skip(ONE_NAME)

    def test_a_finished_workload_does_not_come_back_under_a_name_that_is_taken(self, harness: Any) -> None:
        pytest.skip(ONE_NAME)

    def test_reported_steps_are_seen_and_move_no_version(self, harness: Any) -> None:
        pytest.skip(NO_KUBELET)


@pytest.fixture(scope="module")
def related(prepared: ClusterAccess, plane: ControlPlane) -> ClusterAccess:
    """With the toy kind, as any other that is added."""
    with pytest.MonkeyPatch.context() as patch, know_relays(patch):
        teach_kinds(plane)
    return prepared


class TestKubernetesFamilies(FamilyContract):
    """Parents and children, with a kind whose definition comes from the table."""

    makes_uids = True

    @pytest.fixture
    def harness(self, related: ClusterAccess, relays: None) -> Iterator[KubernetesHarness]:
        harness = KubernetesHarness(related)
        yield harness
        harness.clean()
