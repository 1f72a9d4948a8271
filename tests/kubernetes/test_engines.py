"""Drivers of engines: what each is given, whole for one of them, and how its status reads in our words."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.objects import PodObject, ResourceAmounts
from fairlead.cluster.kubernetes.client.cluster_inventory import Inventory, look_around
from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.engines import kueue
from fairlead.cluster.kubernetes.engines.port import EngineStage, Object, Submission
from fairlead.cluster.kubernetes.engines.table import driver_of
from fairlead.cluster.kubernetes.informers.engine_members import absent, explained
from fairlead.cluster.kubernetes.informers.engine_objects import EngineObject
from fairlead.cluster.kubernetes.manifests.network_policies import render_run_policy
from fairlead.cluster.kubernetes.workloads.pod_reports import Ending
from fairlead.control.admission import check
from fairlead.errors import Conflict, InvalidSpec
from fairlead.runtime.inpod import as_member
from fairlead.specs.engines import Engine
from fairlead.specs.formats.reading import parse
from fairlead.specs.overlay import RANKS, overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.state.snapshot import Pod, PodPhase, RankExit
from tests.kubernetes.builders import GIB, SETTINGS, UID, a_creation, a_training, a_workload
from tests.kubernetes.goldens import check_golden

NODES = 3
AT = 1_000_000.0


def start(engine: Engine, *, queue: str | None = None, attempt: int = 2, **changes: Any) -> Submission:
    resources = Resources(cpu_milli=4000, memory_bytes=16 * GIB, gpu=GpuRequest(milli=2000, model="A100"))
    if engine is Engine.KUEUE:
        queue = queue or "team-a"
    changes.setdefault("image", "rayproject/ray:2.40.0")
    spec = a_training(nodes=NODES, engine=engine, queue=queue, ranks_per_node=2, resources=resources, **changes)
    device = DeviceResource(name="nvidia.com/gpu", count=2)
    models = (("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB"),)
    return Submission(workload=a_workload(spec), attempt=attempt, settings=SETTINGS, device=device, models=models)


def templates(content: Any) -> list[Object]:
    """Every pod template in an object: what has containers."""
    if isinstance(content, dict):
        if "containers" in (content.get("spec") or {}):
            return [content]
        return [found for each in content.values() for found in templates(each)]
    return [found for each in content for found in templates(each)] if isinstance(content, list) else []


def members(engine: Engine) -> list[Object]:
    """The templates of pods of the gang."""
    (*_, content) = driver_of(engine).render(start(engine))
    if engine is Engine.KUBEFLOW_TRAINER:
        content = driver_of(engine).render(start(engine))[0]
    return [each for each in templates(content) if names.ENGINE in each["metadata"].get("labels", {})]


@pytest.mark.parametrize("engine", Engine)
def test_every_object_is_the_runs_and_named_by_its_start(engine: Engine) -> None:
    for content in driver_of(engine).render(start(engine)):
        metadata = content["metadata"]
        assert (metadata["name"], metadata["namespace"]) == ("train-llama-2", "research")
        assert metadata["ownerReferences"][0]["uid"] == UID
        assert metadata["labels"][names.RUN_UID] == UID
        assert metadata["labels"][names.ATTEMPT] == "2"
        assert metadata["labels"][names.ENGINE] == engine


@pytest.mark.parametrize("engine", Engine)
def test_pods_are_those_that_we_would_create(engine: Engine) -> None:
    found = members(engine)
    assert found
    for pod in found:
        assert pod["metadata"]["labels"][names.RUN_UID] == UID
        assert pod["metadata"]["labels"][names.ATTEMPT] == "2"
        spec = pod["spec"]
        container = names.container_of(engine)
        assert pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == container
        (ranks,) = (each for each in spec["containers"] if each["name"] == container)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert "hostname" not in spec
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert terms == [{"matchExpressions": [
            {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A100-SXM4-80GB"]},
        ]}]  # fmt: skip
        is_launcher = engine is Engine.MPIJOB and "nvidia.com/gpu" not in ranks["resources"]["limits"]
        assert is_launcher or ranks["resources"]["limits"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize("engine", [each for each in Engine if each not in (Engine.MPIJOB, Engine.RAYJOB)])
def test_every_place_in_the_gang_is_taken_once_and_the_first_reports(engine: Engine) -> None:
    places: list[int] = []
    driver = driver_of(engine)
    for content in driver.render(start(engine)):
        for group in _groups(content):
            pod, count = group["template"], _count(group)
            base = int(pod["metadata"]["labels"][names.INDEX_BASE])
            places += range(base, base + count)
            has_reporter = any(each["name"] == "fairlead-reporter" for each in pod["spec"].get("initContainers", ()))
            assert has_reporter == (base == 0)
            env = {each["name"]: each for each in pod["spec"]["containers"][0]["env"]}
            assert env["FAIRLEAD_INDEX_BASE"]["value"] == str(base)
            field = env["FAIRLEAD_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
            assert field.removeprefix("metadata.labels['").removesuffix("']") in (
                names.JOB_INDEX, names.REPLICA_INDEX, names.TASK_INDEX,
            )  # fmt: skip
    assert sorted(places) == list(range(NODES))


def _groups(content: Any) -> list[Object]:
    """Find what holds a template of the gang beside how many pods it makes."""
    if isinstance(content, dict):
        template = content.get("template")
        if isinstance(template, dict) and "containers" in (template.get("spec") or {}):
            return [content]
        return [found for each in content.values() for found in _groups(each)]
    return [found for each in content for found in _groups(each)] if isinstance(content, list) else []


def _count(group: Object) -> int:
    return int(group["completions"] if "completions" in group else group["replicas"])


def test_a_jobset_is_this() -> None:
    given = start(Engine.JOBSET, queue="team-a", kubernetes=overlay({"spec": {"nodeSelector": {"disk": "fast"}}}))
    check_golden("engine_jobset.yaml", list(driver_of(Engine.JOBSET).render(given)))


def test_a_ray_job_is_this() -> None:
    check_golden("engine_rayjob.yaml", list(driver_of(Engine.RAYJOB).render(start(Engine.RAYJOB))))


@pytest.mark.parametrize("engine", [each for each in Engine if each is not Engine.VOLCANO])
def test_a_queue_is_kueues_label_on_an_object_that_is_suspended(engine: Engine) -> None:
    content = driver_of(engine).render(start(engine, queue="team-b"))[-1]
    assert content["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-b"
    spec = content["spec"]
    assert (spec.get("runPolicy") or spec)["suspend"] is True


def test_a_queue_of_volcano_is_its_own() -> None:
    (content,) = driver_of(Engine.VOLCANO).render(start(Engine.VOLCANO, queue="team-b"))
    assert content["spec"]["queue"] == "team-b"
    assert content["spec"]["minAvailable"] == NODES


def test_mpi_starts_all_ranks_from_a_launcher_without_gpus() -> None:
    (content,) = driver_of(Engine.MPIJOB).render(start(Engine.MPIJOB))
    roles = content["spec"]["mpiReplicaSpecs"]
    assert (roles["Launcher"]["replicas"], roles["Worker"]["replicas"], content["spec"]["slotsPerWorker"]) == (1, 3, 2)
    launcher = roles["Launcher"]["template"]["spec"]["containers"][0]
    env = {each["name"]: each.get("value") for each in launcher["env"]}
    assert env["FAIRLEAD_COMMAND"] == "mpirun -n 6 --hostfile /etc/mpi/hostfile sh -c 'python train.py'"
    assert json.loads(str(env["FAIRLEAD_INSTRUCTIONS"]))["ranks"] == [0]
    assert "nvidia.com/gpu" not in launcher["resources"]["limits"]


@pytest.mark.parametrize(
    ("engine", "content", "stage", "message"),
    [
        (Engine.JOBSET, {"spec": {"suspend": True}}, EngineStage.WAITING,
         "its JobSet is suspended and not admitted yet"),
        (Engine.JOBSET, {}, EngineStage.WAITING, "its JobSet has no pods yet; waits for its controller to create them"),
        (Engine.JOBSET, {"status": {"replicatedJobsStatus": [{"name": "first", "active": 1}]}},
         EngineStage.RUNNING, ""),
        (Engine.JOBSET, {"status": {"conditions": [{"type": "Completed", "status": "True"}]}},
         EngineStage.SUCCEEDED, ""),
        (Engine.JOBSET, {"status": {"conditions": [{"type": "Failed", "status": "True", "message": "a Job failed."}]}},
         EngineStage.FAILED, "its JobSet failed: a Job failed"),
        (Engine.KUEUE, {"spec": {"suspend": True}}, EngineStage.WAITING, "Kueue has not admitted it yet"),
        (Engine.KUEUE, {"spec": {"suspend": False}, "status": {"active": 2}}, EngineStage.RUNNING, ""),
        (Engine.KUEUE, {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimit"}]}},
         EngineStage.FAILED, "its Job failed: BackoffLimit"),
        (Engine.PYTORCHJOB, {"status": {"conditions": [
            {"type": "Running", "status": "False"}, {"type": "Failed", "status": "True", "message": "worker 0"},
        ]}}, EngineStage.FAILED, "its PyTorchJob failed: worker 0"),
        (Engine.TFJOB, {"spec": {"runPolicy": {"suspend": True}}}, EngineStage.WAITING,
         "its TFJob is suspended and not admitted yet"),
        (Engine.XGBOOSTJOB, {"status": {"conditions": [{"type": "Running", "status": "True"}]}},
         EngineStage.RUNNING, ""),
        (Engine.MPIJOB, {"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}},
         EngineStage.SUCCEEDED, ""),
        (Engine.KUBEFLOW_TRAINER, {"status": {"conditions": [{"type": "Complete", "status": "True"}]}},
         EngineStage.SUCCEEDED, ""),
        (Engine.RAYJOB, {"status": {"jobDeploymentStatus": "Initializing"}}, EngineStage.WAITING,
         "its Ray cluster is Initializing"),
        (Engine.RAYJOB, {"status": {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"}},
         EngineStage.RUNNING, ""),
        (Engine.RAYJOB, {"status": {"jobStatus": "FAILED", "message": "exit code 1"}}, EngineStage.FAILED,
         "its RayJob failed: exit code 1"),
        (Engine.RAYJOB, {"status": {"jobStatus": "SUCCEEDED"}}, EngineStage.SUCCEEDED, ""),
        (Engine.VOLCANO, {"spec": {"queue": "a"}, "status": {"state": {"phase": "Pending"}}}, EngineStage.WAITING,
         "its Volcano Job in queue a is Pending"),
        (Engine.VOLCANO, {"status": {"state": {"phase": "Running"}}}, EngineStage.RUNNING, ""),
        (Engine.VOLCANO, {"status": {"state": {"phase": "Aborted", "reason": "PodFailed"}}}, EngineStage.FAILED,
         "its Volcano Job is Aborted: PodFailed"),
    ],
)  # fmt: skip
def test_a_status_reads_in_our_words(engine: Engine, content: Object, stage: EngineStage, message: str) -> None:
    found = driver_of(engine).observe(content)
    assert (found.stage, found.message) == (stage, message)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([], "Kueue has not admitted it from queue a: it has not looked at it yet"),
        ([{"type": "QuotaReserved", "status": "False", "message": "8 more needed."}],
         "Kueue has not admitted it from queue a: 8 more needed"),
        ([{"type": "QuotaReserved", "status": "True"}],
         "Kueue has reserved quota for it in queue a, and waits for its admission checks"),
        ([{"type": "QuotaReserved", "status": "True"}, {"type": "Admitted", "status": "True"}], ""),
        ([{"type": "Evicted", "status": "True", "message": "Preempted"}],
         "Kueue took it back into queue a: Preempted"),
    ],
)  # fmt: skip
def test_kueue_says_why_it_waits(conditions: list[Object], message: str) -> None:
    assert kueue.explain({"spec": {"queueName": "a"}, "status": {"conditions": conditions}}) == message


def test_kueue_says_which_clusters_or_checks_an_admission_waits_for() -> None:
    reserved: Object = {"conditions": [{"type": "QuotaReserved", "status": "True"}]}
    begin = "Kueue has reserved quota for it in queue a, and waits for "
    asked = {"spec": {"queueName": "a"}, "status": {**reserved, "nominatedClusterNames": ["east", "west"]}}
    assert kueue.explain(asked) == f"{begin}room in east or west, where MultiKueue has asked for it"
    checks = [{"name": "done", "state": "Ready"}, {"name": "nodes", "state": "Pending", "message": "Coming."}]
    checked = {"spec": {"queueName": "a"}, "status": {**reserved, "admissionChecks": checks}}
    assert kueue.explain(checked) == f"{begin}admission checks: nodes (Coming)"


BEGAN, BEGAN_S = "2026-01-31T12:00:00Z", 1769860800.0


def elsewhere(status: Object, *, suspend: bool = False, cluster: str = "east") -> EngineObject:
    """A Job of two pods that MultiKueue gave to another cluster."""
    spec = {"managedBy": kueue.MULTIKUEUE, "suspend": suspend, "completions": 2}
    content = {"spec": spec, "status": {"startTime": BEGAN, **status}}
    found = an_object(Engine.KUEUE, content)
    return replace(found, is_dispatched=kueue.is_dispatched(content), is_suspended=suspend, cluster=cluster)


def test_a_member_in_another_cluster_is_what_the_copied_status_says() -> None:
    starting = an_absent(elsewhere({"active": 2, "ready": 1}))
    assert (starting.phase, starting.message) == (
        PodPhase.CREATED, "its pods are starting in cluster east: 1 of 2 are ready"
    )  # fmt: skip
    running = an_absent(elsewhere({"active": 2, "ready": 2}))
    assert (running.phase, running.started_at, running.cluster) == (PodPhase.RUNNING, BEGAN_S, "east")
    # One that is ready no more has not gone.
    assert an_absent(elsewhere({"active": 2, "ready": 1}), has_run=True).phase is PodPhase.RUNNING
    done = an_absent(elsewhere({"conditions": [{"type": "Complete", "status": "True"}]}))
    assert (done.phase, done.cluster) == (PodPhase.SUCCEEDED, "east")


def test_a_member_that_kueue_took_back_is_lost_once_it_has_run() -> None:
    waiting = an_absent(elsewhere({}, suspend=True, cluster=""))
    assert (waiting.phase, waiting.message) == (PodPhase.CREATED, "Kueue has not admitted it yet")
    assert an_absent(elsewhere({}, suspend=True, cluster=""), has_run=True).phase is PodPhase.LOST


@pytest.mark.parametrize(
    ("said", "code", "number"),
    [
        ("Container ranks for pod ml/train-2-0-x7k2p failed with exit code 3 matching FailJob rule", 3, None),
        ("Container ranks for pod ml/train-2-0-x7k2p failed with exit code 137 matching FailJob rule", None, 9),
    ],
)  # fmt: skip
def test_how_a_pod_of_another_cluster_ended_is_in_its_jobs_words(
    said: str, code: int | None, number: int | None
) -> None:
    failed = {"type": "Failed", "status": "True", "message": said, "lastTransitionTime": BEGAN}
    there = elsewhere({"conditions": [failed]})
    pod = an_absent(there, ranks=4)
    assert pod.phase is PodPhase.FAILED
    assert pod.exits == (RankExit(rank=0, exit_code=code, signal=number, at=BEGAN_S),)
    other = absent(
        UID, replace(a_creation(attempt=2), index=1), AT, driver_of(Engine.KUEUE), there,
        told_at=None, coming=False, created=True,
    )  # fmt: skip
    assert (other.phase, other.exits, other.message) == (PodPhase.FAILED, (), "its Job ended it")


def test_a_pod_that_its_node_lost_in_another_cluster_is_no_failure_of_the_program() -> None:
    said = "Pod ml/train-2-0-x7k2p has condition DisruptionTarget matching FailJob rule at index 0"
    there = elsewhere({"conditions": [{"type": "Failed", "status": "True", "message": said}]})
    pod = an_absent(there)
    assert (pod.phase, pod.message) == (PodPhase.LOST, f"its Job failed: {said}, in cluster east")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queue: a", "give `engine` too"),
        ("engine: kueue", "needs the LocalQueue"),
        ("engine: jobset\nnodes: 2..4", "a gang cannot change its size there"),
        ("engine: jobset\npriority: 5", "its queue has an order of its own"),
        ("engine: jobset\nresources: {gpu: 0.5}", "ask for whole GPUs"),
        ("engine: jobset\ncapacity: {max_price: 3}", "give `max_cost`"),
        ("engine: rayjob", "give an image that has Python, and Ray or mpirun"),
        ("engine: mpijob\nsetup: pip install x", "put what it does into the image"),
        ("engine: rayjob\nframework: torch", "leave `framework` out"),
        (f"engine: jobset\nname: {'n' * 41}", "at most 40 characters"),
        ("engine: jobsets", "jobset"),
    ],
)
def test_what_an_engine_cannot_honour_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse(f"{'' if 'name:' in text else 'name: train'}\nrun: work\n{text}\n")
    assert said in str(refused.value)


def test_the_local_cluster_refuses_an_engine_and_says_what_helps() -> None:
    with pytest.raises(Conflict) as refused:
        check(a_training(engine=Engine.JOBSET), ())
    assert "the local cluster has none. Remove `engine`" in str(refused.value)


def test_doctor_says_which_engines_a_cluster_has() -> None:
    apis = frozenset({"jobset.x-k8s.io/v1alpha2", "kubeflow.org/v1"})
    findings = {
        each.what: each.says for each in look_around(Inventory(apis=apis, nodes=(), controllers=(), storage_classes=()))
    }
    assert "JobSet (its kinds are installed, but no controller was found) for `engine: jobset`" in findings["engines"]
    assert "for `engine: pytorchjob | tfjob | xgboostjob | mpijob`" in findings["engines"]


def test_a_member_takes_its_place_from_its_index() -> None:
    told = {
        "uid": f"{UID}-2-0",
        "ranks": [0, 1],
        "env": {"FAIRLEAD_POD_UID": f"{UID}-2-0", "GROUP_RANK": "0", "NODE_RANK": "0", "WORLD_SIZE": "6"},
        "workdir": None,
    }
    assert as_member(told, 2) == {
        "uid": f"{UID}-2-2",
        "ranks": [4, 5],
        "env": {"FAIRLEAD_POD_UID": f"{UID}-2-2", "GROUP_RANK": "2", "NODE_RANK": "2", "WORLD_SIZE": "6"},
        "workdir": None,
    }


def an_object(engine: Engine = Engine.JOBSET, content: Object | None = None) -> EngineObject:
    observed = driver_of(engine).observe(content or {})
    return EngineObject(
        key="research/train-llama-2", version=1, uid="u", engine=engine, run_uid=UID,
        run_key=("Training", "research/train-llama"), attempt=2, observed=observed, is_leaving=False,
    )  # fmt: skip


def an_absent(there: EngineObject | None, **changes: Any) -> Pod:
    asked: dict[str, Any] = {"told_at": None, "coming": False, "created": False, **changes}
    engine = Engine.JOBSET if there is None else there.engine
    return absent(UID, a_creation(attempt=2), AT, driver_of(engine), there, **asked)


FAILED = {"status": {"conditions": [{"type": "Failed", "status": "True", "message": "why"}]}}


def test_a_member_lives_as_long_as_its_object() -> None:
    waiting = an_absent(an_object(), told_at=AT, created=True)
    assert (waiting.phase, waiting.terminating_since) == (PodPhase.CREATED, AT)
    assert an_absent(None, told_at=AT).phase is PodPhase.FAILED
    assert an_absent(None, told_at=AT, coming=True).phase is PodPhase.CREATED
    gone = an_absent(None, created=True)
    assert (gone.phase, gone.message) == (PodPhase.LOST, "its JobSet was deleted")
    assert an_absent(None).phase is PodPhase.CREATED
    failed = an_absent(an_object(content=FAILED))
    assert (failed.phase, failed.message) == (PodPhase.LOST, "its JobSet failed: why")
    done = an_absent(an_object(content={"status": {"conditions": [{"type": "Completed", "status": "True"}]}}))
    assert done.phase is PodPhase.SUCCEEDED


def test_those_that_are_ended_for_one_that_failed_are_no_cause() -> None:
    base = an_absent(None, created=True)
    guilty = replace(base, phase=PodPhase.FAILED, exits=(RankExit(rank=0, exit_code=1, at=AT),))
    ended = replace(base, index=1, message="it was deleted, as by `kubectl delete pod`")
    found = explained((guilty, ended), {}, driver_of(Engine.JOBSET), an_object())
    assert [(pod.phase, pod.message) for pod in found[1:]] == [(PodPhase.FAILED, "its JobSet ended it")]
    assert found[0] is guilty


def test_who_launches_the_program_says_how_it_ended() -> None:
    running = replace(an_absent(None), phase=PodPhase.RUNNING)
    done = an_object(Engine.RAYJOB, {"status": {"jobStatus": "SUCCEEDED"}})
    (pod,) = explained((running,), {}, driver_of(Engine.RAYJOB), done)
    assert pod.phase is PodPhase.SUCCEEDED
    failed = an_object(Engine.RAYJOB, {"status": {"jobStatus": "FAILED", "message": "exit code 1"}})
    (pod,) = explained((running,), {}, driver_of(Engine.RAYJOB), failed)
    assert (pod.phase, pod.message) == (PodPhase.LOST, "its RayJob failed: exit code 1")


@pytest.mark.parametrize("digits", [10, 5000])
def test_an_exit_code_that_no_program_has_is_not_read(digits: int) -> None:
    words = f"Container ranks for pod ml/train-2-0-x7k2p failed with exit code {'9' * digits} matching FailJob rule"
    for engine, status in (
        (Engine.RAYJOB, {"jobStatus": "FAILED", "message": words}),
        (Engine.KUEUE, {"conditions": [{"type": "Failed", "status": "True", "message": words}]}),
    ):
        seen = driver_of(engine).observe({"status": status})
        assert (seen.stage, seen.index) == (EngineStage.FAILED, None)


class TestAHostedProgram:
    """A program of an engine whose container goes on: its pod reports how it ended."""

    ray = driver_of(Engine.RAYJOB)
    message = "Job entrypoint command failed with exit code 3, last available logs (truncated to 20,000 chars):\n line"
    there = an_object(Engine.RAYJOB, {"status": {"jobStatus": "FAILED", "message": message}})
    head = PodObject(
        key="research/h", version=1, uid="h", phase="Running", node="n", requests=ResourceAmounts(), created_at=AT,
        started_at=AT,
    )  # fmt: skip
    pods = tuple(replace(an_absent(None), phase=PodPhase.RUNNING, index=index) for index in range(2))

    def test_its_gang_goes_on_until_the_head_has_reported(self) -> None:
        assert explained(self.pods, {0: self.head}, self.ray, self.there) == self.pods
        succeeded = an_object(Engine.RAYJOB, {"status": {"jobStatus": "SUCCEEDED"}})
        assert explained(self.pods, {0: self.head}, self.ray, succeeded) == self.pods

    def test_its_gang_starts_until_ray_has_the_program(self) -> None:
        coming = an_object(Engine.RAYJOB, {"status": {"jobDeploymentStatus": "Initializing"}})
        for pod in explained(self.pods, {0: self.head}, self.ray, coming):
            assert (pod.phase, pod.started_at) == (PodPhase.STARTING, None)
            assert pod.message == "its Ray cluster is Initializing"
        running = an_object(Engine.RAYJOB, {"status": {"jobStatus": "RUNNING"}})
        assert explained(self.pods, {0: self.head}, self.ray, running) == self.pods

    def test_its_end_is_what_the_head_has_reported(self) -> None:
        exits = (RankExit(rank=0, exit_code=3, at=AT, tail=("ValueError: no",)),)
        there = replace(self.there, ending=Ending(exits=exits))
        first, second = explained(self.pods, {0: self.head}, self.ray, there)
        assert (first.phase, first.exits) == (PodPhase.FAILED, exits)
        assert (second.phase, second.exits, second.message) == (PodPhase.FAILED, (), "its RayJob ended it")
        nothing = replace(self.there, ending=Ending(message="the working directory did not arrive"))
        first, _ = explained(self.pods, {0: self.head}, self.ray, nothing)
        assert (first.phase, first.message) == (PodPhase.FAILED, "the working directory did not arrive")

    @pytest.mark.parametrize("changes", [{"told_at": AT}, {"phase": "Failed"}, {"started_at": None}])
    def test_without_a_head_rays_exit_code_counts(self, changes: dict[str, Any]) -> None:
        first, _ = explained(self.pods, {0: replace(self.head, **changes)}, self.ray, self.there)
        assert (first.phase, [each.exit_code for each in first.exits]) == (PodPhase.FAILED, [3])

    def test_without_that_too_its_pods_are_lost_and_no_output_is_in_the_reason(self) -> None:
        lost = an_object(Engine.RAYJOB, {"status": {"jobDeploymentStatus": "Failed", "message": "no head"}})
        assert {(pod.phase, pod.message) for pod in explained(self.pods, {}, self.ray, lost)} == {
            (PodPhase.LOST, "its RayJob failed: no head")
        }
        assert self.there.observed.message == "its RayJob failed: Job entrypoint command failed with exit code 3"

    def test_its_instructions_say_that_it_is_hosted(self) -> None:
        told = []
        for template in members(Engine.RAYJOB):
            for each in template["spec"]["containers"][0]["env"]:
                told += [json.loads(each["value"])] if each["name"] == "FAIRLEAD_INSTRUCTIONS" else []
        assert [each["is_hosted"] for each in told] == [True]


def test_kuberay_may_ask_the_head_of_a_ray_cluster_and_nobody_else_may() -> None:
    ray, other = (render_run_policy(start(engine).workload) for engine in (Engine.RAYJOB, Engine.JOBSET))
    (_, asked) = ray["spec"]["ingress"]
    assert [each["port"] for each in asked["ports"]] == [8265]
    (name,) = asked["from"][0]["podSelector"]["matchExpressions"]
    assert (name["key"], name["values"]) == ("app.kubernetes.io/name", ["kuberay", "kuberay-operator"])
    assert len(other["spec"]["ingress"]) == 1


def test_the_container_of_the_ranks_is_called_as_its_engine_looks_for_it() -> None:
    assert names.container_of(None) == names.container_of("jobset") == RANKS
    assert names.container_of("pytorchjob") == "pytorch"
