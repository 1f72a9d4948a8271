"""The example, unchanged, on two real nodes under the real operator: its ranks learn what they learn on this machine.

Then a rank is killed and a node is drained while it runs, and nobody acts. What only real nodes show: PyTorch and gloo
between pods, a kubelet that gives a stop notice, a checkpoint on a volume, a process that is killed inside a container.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.api import read
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import Access, load_access
from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.pod_environment import POD_DIR
from fairlead.cluster.kubernetes.manifests.roles import render_operator_bindings, render_roles
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.manifests.workdir import WORKDIR, pack, render_parts
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import Resources
from fairlead.specs.training import Checkpoint, Training
from fairlead.state.snapshot import Phase, Workload
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import operating
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_real_nodes import kubectl, new_namespace, pod
from tests.kubernetes.testcluster import own_python, volumes
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes, pytest.mark.torch]

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, EVERY = 90, 15
RANKS = "ranks"
PATIENCE_S = 900.0  # a busy machine takes minutes to import PyTorch
BITS = re.compile(r"bits per byte: unigram (?P<unigram>[\d.]+), model (?P<model>[\d.]+)")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    archive = tmp_path_factory.mktemp("image") / "image.tar"

    def make() -> RealCluster:
        own_python.write_image(archive)
        return RealCluster(2, given=own_python.DIRECTORIES)

    with started(make, request) as made:
        made.import_image(archive)
        for each in (*definitions(), *render_roles()):
            applied(made, each)
        yield made


@pytest.fixture(scope="module")
def access(cluster: RealCluster) -> Access:
    return load_access((cluster.kubeconfig(),))


def the_example(**changes: Any) -> Training:
    """The run of the example's own file, for two nodes with one rank each."""
    (spec,) = read(EXAMPLES / "language_model.yaml")
    assert isinstance(spec, Training)
    run = f"{spec.run} --steps {STEPS}"
    return replace(spec, run=run, nodes=2, ranks_per_node=1, **changes)


def on_kubernetes(cluster: RealCluster, namespace: str) -> Training:
    """The same with what a cluster needs to know: an image, room, and a place for checkpoints that all nodes reach."""
    volumes.share(cluster, namespace, "checkpoints")
    claim = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}
    mount = {"name": "checkpoints", "mountPath": "/checkpoints"}
    spec = {"volumes": [claim], "containers": [{"name": RANKS, "volumeMounts": [mount]}]}
    return the_example(
        team=namespace,
        image=own_python.NAME,
        resources=Resources(cpu_milli=900, memory_bytes=2 * 1024**3),
        checkpoint=Checkpoint(to="/checkpoints", every_steps=EVERY),
        kubernetes=overlay({"spec": spec}),
    )


def submit(cluster: KubernetesCluster, spec: Training) -> None:
    """Submit with the working directory, whose parts come after the run that owns them; pods wait for them."""
    archive = pack(EXAMPLES)
    assert archive is not None
    body = write_object(spec)
    body["metadata"]["annotations"] = {WORKDIR: archive.annotation}
    cluster.client.create(f"/apis/fairlead.dev/v1alpha1/namespaces/{spec.team}/trainings", body)
    for part in render_parts(archive, spec.team, cluster.named(spec.name, spec.team)):
        cluster.client.create(f"/api/v1/namespaces/{spec.team}/configmaps", part)


def on_this_machine(directory: Path) -> float:
    """Bits per byte that the same run reaches here."""
    spec = "\n".join((
        "kind: Training", "name: language-model", f"workdir: {EXAMPLES}", "nodes: 2", "ranks_per_node: 1",
        f"run: {the_example().run}", f"checkpoint: {{every: {EVERY} steps}}",
    ))  # fmt: skip
    (directory / "here.yaml").write_text(spec)
    bin_ = Path(sys.executable).parent
    environ = {**os.environ, "FAIRLEAD_HOME": str(directory / "home"), "PATH": f"{bin_}:{os.environ['PATH']}"}
    argv = [str(bin_ / "fairlead"), "run", "here.yaml"]
    done = subprocess.run(
        argv, cwd=directory, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return model_bits(done.stdout + done.stderr)


def model_bits(output: str) -> float:
    found = BITS.search(output)
    assert found is not None, output
    return float(found["model"])


class Watch:
    """A run that is followed, and when what happened to it."""

    def __init__(self, cluster: KubernetesCluster, spec: Training) -> None:
        self.cluster, self.spec, self.began = cluster, spec, time.monotonic()

    @property
    def run(self) -> Workload:
        return self.cluster.named(self.spec.name, self.spec.team)

    def until(self, phase: Phase, attempt: int) -> Workload:
        def told() -> object:
            return self.run.status, [event.reason.message for event in self.cluster.events(self.run.uid)]

        def reached() -> bool:
            status = self.run.status
            there = (status.phase, status.attempt) == (phase, attempt)
            assert there or not status.phase.is_final, told()
            return there

        until(reached, told, timeout_s=PATIENCE_S)
        self.say(f"{phase.value}, attempt {attempt}")
        return self.run

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s  {what}", flush=True)


def report_of(cluster: RealCluster, namespace: str, pod: str) -> dict[str, Any]:
    """What rank 0 last said, from the file in its pod; empty before it said anything."""
    try:
        text = kubectl(cluster, namespace, "exec", pod, "-c", RANKS, "--", "cat", f"{POD_DIR}/rank-0.json")
    except subprocess.CalledProcessError:  # nothing is there yet, or not any more
        return {}
    found: dict[str, Any] = json.loads(text)
    return found


def until_between_checkpoints(watch: Watch, cluster: RealCluster, pod: str, step: int) -> int:
    """The step of a run that is past this one, well after its newest checkpoint was complete."""
    found = [0]

    def reached() -> bool:
        assert not watch.run.status.phase.is_final, watch.run.status
        report = report_of(cluster, watch.spec.team, pod)
        found[0], saved = report.get("step") or 0, report.get("checkpoint_step") or 0
        return found[0] >= step and EVERY // 3 <= found[0] - saved < EVERY

    until(reached, lambda: (watch.run, report_of(cluster, watch.spec.team, pod)), timeout_s=PATIENCE_S)
    return found[0]


def occupy(cluster: RealCluster, namespace: str) -> None:
    """Pods of somebody else on both nodes, beside which each holds only one member of the gang."""
    resources = {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}
    for node in cluster.nodes:
        body = pod(f"other-{node}", node, "import time; time.sleep(3600)", container=resources)
        body["spec"]["terminationGracePeriodSeconds"] = 1
        cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)


def test_the_example_survives_a_killed_rank_and_a_drained_node_and_learns_the_same(
    cluster: RealCluster, access: Access, tmp_path: Path
) -> None:
    here = on_this_machine(tmp_path)
    new_namespace(cluster, "lm")
    for binding in render_operator_bindings("lm"):
        applied(cluster, binding)
    occupy(cluster, "lm")
    spec = on_kubernetes(cluster, "lm")
    runs = KubernetesCluster(Client(access), namespace="lm")
    name = spec.name
    with operating(access, "lm"):
        submit(runs, spec)
        watch = Watch(runs, spec)
        watch.until(Phase.RUNNING, 0)
        pods = [cluster.request("GET", f"/api/v1/namespaces/lm/pods/{name}-0-{index}") for index in range(2)]
        assert {each["spec"]["nodeName"] for each in pods} == set(cluster.nodes)

        step = until_between_checkpoints(watch, cluster, f"{name}-0-0", 2 * EVERY)
        ranks = f"import json; print(json.load(open('{POD_DIR}/started.json'))['pids']['1'])"
        pid = kubectl(cluster, "lm", "exec", f"{name}-0-1", "-c", RANKS, "--", "python", "-c", ranks).strip()
        kubectl(cluster, "lm", "exec", f"{name}-0-1", "-c", RANKS, "--", "sh", "-c", f"kill -9 {pid}")
        watch.say(f"killed rank 1 with SIGKILL, after step {step}")
        killed = watch.until(Phase.RUNNING, 1)
        assert killed.status.last_failure is not None
        watch.say(killed.status.last_failure.message)

        # Room for both members on one node; now, as the run goes on meanwhile.
        kubectl(cluster, "lm", "delete", "pod", *(f"other-{node}" for node in cluster.nodes))
        step = until_between_checkpoints(watch, cluster, f"{name}-1-0", 3 * EVERY)
        resumed = report_of(cluster, "lm", f"{name}-1-0")["resumed_step"]
        reached = killed.status.failed_step
        assert reached is not None
        assert 0 <= reached - resumed <= EVERY, (reached, resumed)
        watch.say(f"it went on from step {resumed}; at step {step} node-2 is drained")
        kubectl(cluster, "lm", "drain", "node-2", "--delete-emptydir-data", "--force", "--ignore-daemonsets")
        watch.say("drained")
        drained = watch.until(Phase.RUNNING, 2)
        assert drained.status.last_failure is not None
        watch.say(drained.status.last_failure.message)

        done = watch.until(Phase.SUCCEEDED, 2)
        assert done.progress is not None
        watch.say(f"it went on from step {done.progress.resumed_step}, and ended after step {done.progress.step}")
        # The stop notice of the drain left time for a checkpoint of the very step, so that nothing was redone.
        assert done.progress.resumed_step is not None
        assert done.progress.resumed_step >= step
    there = model_bits(kubectl(cluster, "lm", "logs", f"{name}-2-0", "-c", RANKS))
    watch.say(f"bits per byte: {there} there, {here} on this machine")
    assert there == pytest.approx(here, abs=0.002)
