"""The example, unchanged, on two real nodes under the real operator: its ranks learn what they learn on this machine.

Then a rank is killed and a node is drained while it runs, and nobody acts. What only real nodes show: PyTorch and gloo
between pods, a kubelet that gives a stop notice, a checkpoint on a volume, a process that is killed inside a container.
"""

import json
import os
import re
import secrets
import shutil
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
from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.pod_environment import POD_DIR
from fairlead.cluster.kubernetes.manifests.roles import render_operator_bindings, render_roles
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.manifests.workdir import WORKDIR, pack, render_parts
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import Resources
from fairlead.specs.training import Checkpoint, Elastic, Training
from fairlead.state.snapshot import Phase, Workload
from tests.home import end_everything
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import operating
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_real_nodes import kubectl, new_namespace, pod
from tests.kubernetes.testcluster import own_python, volumes
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.runtime.test_elastic import TOLERANCE, elastic, losses
from tests.waiting import MOST_S, until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes, pytest.mark.torch, pytest.mark.timeout(1200)]

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, EVERY = 60, 10
RANKS = "ranks"
PATIENCE_S = 300.0  # a busy machine takes minutes to import PyTorch
READ = ("cat", "/checkpoints/said/losses.jsonl")
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
def access(cluster: RealCluster) -> ClusterAccess:
    return load_access((cluster.kubeconfig(),))


def the_example(**changes: Any) -> Training:
    """The run of the example's own file, for two nodes with one rank each."""
    (spec,) = read(EXAMPLES / "language_model.yaml")
    assert isinstance(spec, Training)
    run = f"{spec.run} --steps {STEPS}"
    return replace(spec, run=run, nodes=2, ranks_per_node=1, **changes)


def for_pods(cluster: RealCluster, namespace: str, every_steps: int) -> dict[str, Any]:
    """Return the keys that a cluster needs: an image, room, and a place for checkpoints that all nodes reach."""
    volumes.share(cluster, namespace, "checkpoints")
    claim = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}
    mount = {"name": "checkpoints", "mountPath": "/checkpoints"}
    spec = {"volumes": [claim], "containers": [{"name": RANKS, "volumeMounts": [mount]}]}
    return {
        "team": namespace,
        "image": own_python.NAME,
        "resources": Resources(cpu_milli=900, memory_bytes=2 * 1024**3),
        "checkpoint": Checkpoint(to="/checkpoints", every_steps=every_steps),
        "kubernetes": overlay({"spec": spec}),
    }


def submit(cluster: WorkloadApi, spec: Training, workdir: Path = EXAMPLES) -> None:
    """Submit with the working directory, whose parts come after the run that owns them; pods wait for them."""
    archive = pack(workdir)
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
    done = subprocess.run(argv, cwd=directory, env=environ, capture_output=True, text=True, check=False, timeout=MOST_S)
    end_everything(directory / "home")
    assert done.returncode == 0, done.stdout + done.stderr
    return model_bits(done.stdout + done.stderr)


def model_bits(output: str) -> float:
    found = BITS.search(output)
    assert found is not None, output
    return float(found["model"])


class Watch:
    """A run that is followed, and when what happened to it."""

    def __init__(self, cluster: WorkloadApi, spec: Training) -> None:
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


def kill_rank(cluster: RealCluster, namespace: str, pod: str, rank: int) -> None:
    """Kill a rank in its pod, without a word."""
    read = f"import json; print(json.load(open('{POD_DIR}/started.json'))['pids']['{rank}'])"
    pid = kubectl(cluster, namespace, "exec", pod, "-c", RANKS, "--", "python", "-c", read).strip()
    kubectl(cluster, namespace, "exec", pod, "-c", RANKS, "--", "sh", "-c", f"kill -9 {pid}")


@pytest.fixture
def namespace(cluster: RealCluster) -> Iterator[str]:
    """A namespace with pods of somebody else on both nodes, beside which each holds only one member of a gang."""
    name = f"t-{secrets.token_hex(3)}"
    new_namespace(cluster, name)
    for binding in render_operator_bindings(name):
        applied(cluster, binding)
    kubectl(cluster, name, "uncordon", *cluster.nodes)  # one may have been drained
    resources = {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}
    for node in cluster.nodes:
        body = pod(f"other-{node}", node, "import time; time.sleep(3600)", container=resources)
        body["spec"]["terminationGracePeriodSeconds"] = 1
        cluster.request("POST", f"/api/v1/namespaces/{name}/pods", body)
    yield name
    # What is left would take the room that the next test needs.
    kubectl(cluster, name, "delete", "pods", "--all", "--wait", f"--timeout={PATIENCE_S:g}s")


def test_the_example_survives_a_killed_rank_and_a_drained_node_and_learns_the_same(
    cluster: RealCluster, access: ClusterAccess, namespace: str, tmp_path: Path
) -> None:
    here = on_this_machine(tmp_path)
    spec = the_example(**for_pods(cluster, namespace, EVERY))
    runs = WorkloadApi(Client(access), namespace=namespace)
    name = spec.name
    with operating(access, namespace):
        submit(runs, spec)
        watch = Watch(runs, spec)
        watch.until(Phase.RUNNING, 0)
        pods = [cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}-0-{index}") for index in range(2)]
        assert {each["spec"]["nodeName"] for each in pods} == set(cluster.nodes)

        step = until_between_checkpoints(watch, cluster, f"{name}-0-0", 2 * EVERY)
        kill_rank(cluster, namespace, f"{name}-0-1", 1)
        watch.say(f"killed rank 1 with SIGKILL, after step {step}")
        killed = watch.until(Phase.RUNNING, 1)
        assert killed.status.failures.last is not None
        watch.say(killed.status.failures.last.message)

        # Room for both members on one node; now, as the run goes on meanwhile.
        kubectl(cluster, namespace, "delete", "pod", *(f"other-{node}" for node in cluster.nodes))
        step = until_between_checkpoints(watch, cluster, f"{name}-1-0", 3 * EVERY)
        resumed = report_of(cluster, namespace, f"{name}-1-0")["resumed_step"]
        reached = killed.status.failures.step
        assert reached is not None
        assert 0 <= reached - resumed <= EVERY, (reached, resumed)
        watch.say(f"it went on from step {resumed}; at step {step} node-2 is drained")
        kubectl(cluster, namespace, "drain", "node-2", "--delete-emptydir-data", "--force", "--ignore-daemonsets")
        watch.say("drained")
        drained = watch.until(Phase.RUNNING, 2)
        assert drained.status.failures.last is not None
        watch.say(drained.status.failures.last.message)

        done = watch.until(Phase.SUCCEEDED, 2)
        assert done.progress is not None
        watch.say(f"it went on from step {done.progress.resumed_step}, and ended after step {done.progress.step}")
        # The stop notice of the drain left time for a checkpoint of the very step, so that nothing was redone.
        assert done.progress.resumed_step is not None
        assert done.progress.resumed_step >= step
    there = model_bits(kubectl(cluster, namespace, "logs", f"{name}-2-0", "-c", RANKS))
    watch.say(f"bits per byte: {there} there, {here} on this machine")
    assert there == pytest.approx(here, abs=0.002)


def test_ranks_in_other_pods_go_on_without_those_that_were_killed_and_take_them_in_again(
    cluster: RealCluster, access: ClusterAccess, namespace: str, tmp_path: Path
) -> None:
    from tests.runtime import elastic_program

    steps = 150
    (tmp_path / "work").mkdir()
    shutil.copy(elastic_program.__file__, tmp_path / "work")
    spec = Training(
        name="steadfast", run=f"mkdir -p /checkpoints/said && python elastic_program.py {steps} /checkpoints/said 0.1",
        nodes=2, ranks_per_node=2, elastic=Elastic.IN_PLACE, env={"OMP_NUM_THREADS": "1"},
        **for_pods(cluster, namespace, 1000),
    )  # fmt: skip
    runs = WorkloadApi(Client(access), namespace=namespace)

    def said() -> dict[int, list[Any]]:
        return steps_of(cluster, namespace, "steadfast-0-1")

    def ranks() -> int:
        return ranks_of(watch, said())

    with operating(access, namespace):
        submit(runs, spec, tmp_path / "work")
        watch = Watch(runs, spec)
        watch.until(Phase.RUNNING, 0)
        place = f"/api/v1/namespaces/{namespace}/pods/steadfast-0"
        pods = [cluster.request("GET", f"{place}-{index}") for index in range(2)]
        assert {each["spec"]["nodeName"] for each in pods} == set(cluster.nodes)
        until(lambda: ranks() == 4 and max(said()) >= 5, said, timeout_s=PATIENCE_S)
        watch.say(f"rank 3 is killed on node {pods[1]['spec']['nodeName']}, after step {max(said())}")
        kill_rank(cluster, namespace, "steadfast-0-1", 3)
        until(lambda: ranks() == 3, said, timeout_s=PATIENCE_S)
        watch.say(f"three ranks go on, at step {max(said())}; rank 0 is killed on the other node")
        kill_rank(cluster, namespace, "steadfast-0-0", 0)
        until(lambda: ranks() < 4, said, timeout_s=PATIENCE_S)
        until(lambda: ranks() == 4, said, timeout_s=PATIENCE_S)
        watch.say(f"four ranks train, at step {max(said())}")
        last = said()
        done = watch.until(Phase.SUCCEEDED, 0)
        told = [(event.type, event.reason.message) for event in runs.events(done.uid)]
    for kind, message in told:
        watch.say(f"{kind}: {message}")
    assert (done.status.failures.program, done.status.failures.disruptions) == (0, 0)
    kinds = [kind for kind, _ in told]
    assert "RankLost" in kinds, told
    assert "RankReturned" in kinds, told
    gang, calm = elastic(tmp_path, "calm", 0.0, steps=max(last))
    with gang:
        gang.finish()
    expected = losses(calm)
    assert sorted(last) == list(range(1, max(last) + 1))
    assert {number for _, number, *_ in last.values()} >= {3, 4}
    assert max(abs(last[step][0] / expected[step][0] - 1) for step in last) < TOLERANCE


def steps_of(cluster: RealCluster, namespace: str, pod: str) -> dict[int, list[Any]]:
    """Loss and number of ranks of each step, as it was made last."""
    try:
        text = kubectl(cluster, namespace, "exec", pod, "-c", RANKS, "--", *READ)
    except subprocess.CalledProcessError:  # nothing is there yet
        return {}
    return {step: rest for step, *rest in map(json.loads, text.splitlines())}


def ranks_of(watch: Watch, made: dict[int, list[Any]]) -> int:
    """Return how many ranks made the newest step, of a run that goes on in its first attempt."""
    assert watch.run.status.attempt == 0, watch.run.status
    assert not watch.run.status.phase.is_final, watch.run.status
    return int(made[max(made)][1]) if made else 0


@pytest.mark.parametrize("how", ["drained", "dead"])
def test_the_pod_of_a_node_is_lost_alone_and_the_run_grows_again_when_the_node_is_back(
    cluster: RealCluster, access: ClusterAccess, namespace: str, tmp_path: Path, how: str
) -> None:
    from tests.runtime import elastic_program

    steps = 200
    (tmp_path / "work").mkdir()
    shutil.copy(elastic_program.__file__, tmp_path / "work")
    spec = Training(
        name="steadfast", run=f"mkdir -p /checkpoints/said && python elastic_program.py {steps} /checkpoints/said 0.1",
        nodes=2, ranks_per_node=2, elastic=Elastic.IN_PLACE, env={"OMP_NUM_THREADS": "1"}, grace_s=20.0,
        **for_pods(cluster, namespace, 1000),
    )  # fmt: skip
    runs = WorkloadApi(Client(access), namespace=namespace)

    def said() -> dict[int, list[Any]]:
        return steps_of(cluster, namespace, "steadfast-0-0")

    def ranks() -> int:
        return ranks_of(watch, said())

    def told() -> list[tuple[str, str]]:
        return [(event.type, event.reason.message) for event in runs.events(watch.run.uid)]

    with operating(access, namespace):
        submit(runs, spec, tmp_path / "work")
        watch = Watch(runs, spec)
        watch.until(Phase.RUNNING, 0)
        place = f"/api/v1/namespaces/{namespace}/pods/steadfast-0-1"
        node = cluster.request("GET", place)["spec"]["nodeName"]
        until(lambda: ranks() == 4 and max(said()) >= 5, said, timeout_s=PATIENCE_S)
        # Until the operator knows that the ranks have met, a lost pod restarts the run.
        until(lambda: (progress := watch.run.progress) is not None and progress.in_place_attempt == 0, told)
        watch.say(f"node {node} is {how}, after step {max(said())}")
        began = time.monotonic()
        if how == "drained":
            kubectl(cluster, namespace, "drain", node, "--delete-emptydir-data", "--force", "--ignore-daemonsets")
        else:
            cluster.kill_node(node)
        watch.say(f"{how} in {time.monotonic() - began:.1f} s")
        until(lambda: ranks() == 2, lambda: (said(), told()), timeout_s=PATIENCE_S)
        watch.say(f"two ranks train, {time.monotonic() - began:.1f} s later")
        if how == "dead":
            assert "PodLost" not in {kind for kind, _ in told()}, "nobody has said so yet"
            kubectl(cluster, namespace, "delete", "node", node)
        until(lambda: "PodWaits" in {kind for kind, _ in told()}, told, timeout_s=PATIENCE_S)
        watch.say(runs.named(spec.name, namespace).status.reason.message)
        back = time.monotonic()
        if how == "drained":
            kubectl(cluster, namespace, "uncordon", node)
        else:
            cluster.start_node(node)
        until(lambda: "PodReturned" in {kind for kind, _ in told()}, told, timeout_s=PATIENCE_S)
        watch.say(f"its pod runs {time.monotonic() - back:.1f} s after the node is back")
        until(lambda: ranks() == 4, lambda: (said(), told()), timeout_s=PATIENCE_S)
        watch.say(f"four ranks train {time.monotonic() - back:.1f} s after the node is back, at step {max(said())}")
        last = said()
        watch.until(Phase.SUCCEEDED, 0)
        kinds = [kind for kind, _ in told()]
    for kind, message in told():
        watch.say(f"{kind}: {message}")
    assert [each for each in kinds if each.startswith("Pod")] == ["PodLost", "PodWaits", "PodReplaced", "PodReturned"]
    assert (kinds.count("RankLost"), kinds.count("RankReturned")) == (1, 1)
    gang, calm = elastic(tmp_path, "calm", 0.0, steps=max(last))
    with gang:
        gang.finish()
    expected = losses(calm)
    assert sorted(last) == list(range(1, max(last) + 1))
    assert max(abs(last[step][0] / expected[step][0] - 1) for step in last) < TOLERANCE
