"""Objects that name a run, an endpoint or a sweep as their owner which does not have them: every reader ignores them.

Whoever may create pods in a namespace of his own writes labels and owner references as he likes; a uid is no secret.
"""

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.api.objects import read_node, read_pod
from fairlead.cluster.kubernetes.api.pod_owner import is_pod_of
from fairlead.cluster.kubernetes.api.watching import ObjectCache
from fairlead.cluster.kubernetes.engines import katib
from fairlead.cluster.kubernetes.engines.port import EngineStage
from fairlead.cluster.kubernetes.informers.daemonsets import due, read_daemon
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.informers.snapshot_cache import SnapshotCache
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.operator.cluster import transition_of
from fairlead.cluster.kubernetes.operator.engines.endpoint_controller import EndpointController, made_from, object_of
from fairlead.cluster.kubernetes.operator.engines.search_controller import SearchController, experiment_of, trials_made
from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecorder, PendingEvent
from fairlead.cluster.kubernetes.operator.events.foreign_objects import MOST_AT_ONCE, ForeignObjects
from fairlead.cluster.kubernetes.operator.pods.autoscaler_controller import AutoscalerController
from fairlead.cluster.kubernetes.operator.pods.disruption_budgets import DisruptionBudgets
from fairlead.cluster.kubernetes.workloads.run_record import recorded, state_plain
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.policy.decide import decide
from fairlead.policy.kinds.parents import families_of
from fairlead.runtime.reporting import FORM
from fairlead.specs.engines import Engine
from fairlead.specs.formats.reading import parse
from fairlead.specs.keys import API_VERSION
from fairlead.specs.serving import Serving
from fairlead.specs.sweep import Sweep
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.specs.training import Training
from fairlead.state.snapshot import Workload
from tests.kubernetes.builders import a_workload
from tests.kubernetes.turns import a_turn

MOMENT, NOW = "2026-01-01T00:00:00Z", 2e9
RUN, JOBS, SWEEP, JOB_UID = "uid-of-run", "uid-of-jobs", "uid-of-sweep", "uid-of-pytorchjob"
VERSIONS = itertools.count(1)
Object = dict[str, Any]
ROOM: Object = {"room-for": RUN}
GIVES_WAY: Object = {"priorityClassName": names.PLACEHOLDER_CLASS, "terminationGracePeriodSeconds": 0}


def metadata(name: str, namespace: str = "victim", **more: Any) -> Object:
    found = {"name": name, "uid": f"{namespace}-{name}", "resourceVersion": str(next(VERSIONS)), **more}
    return {"namespace": namespace, "creationTimestamp": MOMENT, **found}


def owner(name: str, uid: str, kind: str = "Training", api: str = API_VERSION) -> list[Object]:
    return [{"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}]


def a_pod(
    name: str, owners: list[Object], namespace: str = "victim", *, index: int = 0, ended: bool = False, **labels: Any
) -> Object:
    """A pod on the first node, with an address; its labels are those of a gang's first attempt."""
    message = json.dumps({"form": FORM, "ranks": [], "progress": {"step": 7, "loss": 1.0}})
    over = {"terminated": {"exitCode": 0, "startedAt": MOMENT, "finishedAt": MOMENT, "message": message}}
    status = {"name": "ranks", "state": over if ended else {"running": {"startedAt": MOMENT}}}
    named = {names.ATTEMPT: "0", names.INDEX: str(index), **{f"{names.DOMAIN}/{k}": v for k, v in labels.items()}}
    return {
        "metadata": metadata(name, namespace, labels=named, ownerReferences=owners),
        "spec": {"nodeName": "n0", "containers": [{"name": "ranks", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {
            "phase": "Succeeded" if ended else "Running", "podIP": "10.6.6.6" if namespace != "victim" else "10.0.0.1",
            "containerStatuses": [status], "conditions": [{"type": "Ready", "status": "True"}],
        },
    }  # fmt: skip


def of_engine(name: str, owners: list[Object], namespace: str = "victim", **more: Any) -> Object:
    told = {"engine": "pytorchjob", "run": "jobs", "run-uid": JOBS, **more}
    return a_pod(name, owners, namespace, **told)


PYTORCHJOB = owner("jobs-0", JOB_UID, "PyTorchJob", "kubeflow.org/v1")
FOREIGN: Mapping[str, Callable[..., Object]] = {
    "another namespace": lambda **more: a_pod("train-0-0", owner("train", RUN), "evil", **more),
    "another name": lambda **more: a_pod("mine", owner("train", RUN), **more),
    "another owner of the uid": lambda **more: a_pod("mine-0-0", owner("mine", RUN), **more),
    "another kind of owner": lambda **more: a_pod("train-0-0x", owner("train", RUN, "Replica"), **more),
    "no controller": lambda **more: a_pod("train-0-2", [{**owner("train", RUN)[0], "controller": False}], **more),
    "labels of an engine alone": lambda **more: of_engine("mine", [], "evil", **more),
    "labels of an engine alone, here": lambda **more: of_engine("mine", [], **more),
    "an engine's object in another namespace": lambda **more: of_engine("jobs-0-worker-0", PYTORCHJOB, "evil", **more),
    "an engine's object of another uid": lambda **more: of_engine(
        "mine", owner("jobs-0", "other", "PyTorchJob", "kubeflow.org/v1"), **more
    ),
    "another kind of engine's object": lambda **more: of_engine(
        "mine", owner("jobs-0", JOB_UID, "Job", "batch/v1"), **more
    ),
    "an engine that the run does not have": lambda **more: a_pod(
        "mine", owner("train-0", "o", "Job", "batch/v1"), **{"engine": "kueue", "run": "train", "run-uid": RUN, **more}
    ),
    "no engine for a run that has one": lambda **more: a_pod("jobs-0-0", owner("jobs", JOBS), **more),
    "a placeholder in another namespace": lambda **more: a_pod(
        "train-room-0", owner("train", RUN), "evil", **ROOM, **more
    ),
}  # fmt: skip

UNNAMED = (
    "another name",
    "another kind of owner",
    "labels of an engine alone, here",
    "another kind of engine's object",
)
"""Those that commands, which list the pods of the run's namespace alone, tell from its own without the run."""


class World:
    """A run with its two pods, a run of an engine with its object and two pods, and a sweep with a trial."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ObjectCache, "start", lambda _: None)
        self.client = Client(ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous()))
        self.view = Informers(self.client)
        for name in ("n0", "n1"):
            self.view.nodes.put({
                "metadata": metadata(name), "spec": {},
                "status": {
                    "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            })  # fmt: skip
        self.submit(Training(name="train", team="victim", run="work", nodes=2), RUN)
        self.submit(Training(name="jobs", team="victim", run="work", nodes=2, engine=Engine.PYTORCHJOB), JOBS)
        (sweep,) = parse("kind: Sweep\nname: rates\nteam: victim\nparameters: {lr: 1 | 2}\ntrial: {run: work}")
        self.submit(sweep, SWEEP)
        self.submit(Training(name="rates-0", team="victim", run="work"), "trial", owners=owner("rates", SWEEP, "Sweep"))
        jobs = self.view.find(JOBS)
        assert jobs is not None
        assert jobs.workload is not None
        self.view.engines.watch(jobs.workload.spec, JOBS)
        self.view.engines.put(Engine.PYTORCHJOB, self.engine_object())
        for change in decide(self.snapshot(), NOW).changes:
            found = self.view.find(change.workload_uid)
            if found is not None and found.workload is not None and change.create:
                effect = transition_of(self.view, found, change, NOW)
                assert effect is not None
                state = recorded(found, effect, NOW, event_id=1)
                owners = owner("rates", SWEEP, "Sweep") if found.uid == "trial" else None
                self.submit(found.workload.spec, found.uid, owners=owners, status={"state": state_plain(state)})
        # The least that others hold of a node counts as a reporter of our own.
        self.view.pods.put(a_pod("plain", [], "other"))
        for index in range(2):
            self.view.pods.put(a_pod(f"train-0-{index}", owner("train", RUN), index=index))
            self.view.pods.put(of_engine(f"jobs-0-worker-{index}", PYTORCHJOB, index=index))

    def submit(self, spec: Any, uid: str, *, owners: list[Object] | None = None, **more: Any) -> None:
        content = write_object(spec)
        content["metadata"] = metadata(spec.name, spec.team, ownerReferences=owners or []) | {"uid": uid}
        self.view.cache_of(type(spec).__name__).put({**content, **more})

    def engine_object(self, namespace: str = "victim", **about: Any) -> Object:
        labels = {names.RUN_UID: JOBS, names.ATTEMPT: "0", names.ENGINE: "pytorchjob"}
        made = metadata("jobs-0", namespace, labels=labels, ownerReferences=owner("jobs", JOBS)) | {"uid": JOB_UID}
        running = {"conditions": [{"type": "Running", "status": "True"}]}
        return {"kind": "PyTorchJob", "metadata": {**made, **about}, "status": running}

    def snapshot(self) -> Any:
        return SnapshotCache(self.view, namespace=None, progress_of=lambda uid: self.view.last_words(uid)).look()

    def readings(self) -> dict[str, object]:
        """What each reader makes of the pods and objects."""
        view, seen = self.view, self.snapshot()
        runs = {uid: view.find(uid) for uid in (RUN, JOBS)}
        return {
            "pods": {uid: dict(view.pods_of(uid)) for uid in runs},
            "members": {uid: view.members(found) for uid, found in runs.items() if found is not None},
            "how far it came": {uid: view.last_words(uid) for uid in runs},
            "how pods ended": {uid: view.over(uid) for uid in runs},
            "engine's objects": {uid: view.engines.of_run(uid) for uid in runs},
            "children": {each.key: each.workload for each in view.children_of(SWEEP)},
            "families": {uid: dict(family.children) for uid, family in families_of(seen).items()},
            "pods in the snapshot": {pod.uid: pod for pod in seen.pods if pod.workload_uid},
            "workloads of the team": {each.uid: each for each in seen.workloads if each.spec.team == "victim"},
            "decisions": [change for change in decide(seen, NOW + 1).changes if change.workload_uid in runs],
        }

    def held_by_others(self, node: str) -> int:
        return sum(pod.grant.cpu_milli for pod in self.snapshot().pods if not pod.workload_uid and pod.node == node)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_the_true_pods_and_objects_are_read(world: World) -> None:
    """Without it the other tests would hold of a reader that ignores everything."""
    seen = world.readings()
    assert [sorted(pods) for pods in cast("dict[str, dict[str, object]]", seen["pods"]).values()] == [
        ["victim/train-0-0", "victim/train-0-1"],
        ["victim/jobs-0-worker-0", "victim/jobs-0-worker-1"],
    ]
    assert sorted(cast("dict[str, object]", seen["pods in the snapshot"])) == [
        "trial-0-0",
        *(f"{uid}-0-{index}" for uid in (JOBS, RUN) for index in range(2)),
    ]
    assert list(cast("dict[str, object]", seen["children"])) == ["victim/rates-0"]
    assert cast("dict[str, dict[str, object]]", seen["families"])[SWEEP].keys() == {"0"}


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
@pytest.mark.parametrize("what", FOREIGN)
def test_a_pod_of_somebody_else_counts_for_no_reader_and_is_reported(world: World, what: str, ended: bool) -> None:
    before, held = world.readings(), world.held_by_others("n0")
    content = FOREIGN[what](ended=ended)
    foreign, held_now = read_pod(content), world.view.pods.put(content)
    assert world.readings() == before
    if held_now is None:  # it takes no room, and is not even held in memory
        assert foreign.is_over
        assert not foreign.claim
        return
    assert world.view.run_of(foreign) == ""
    assert all(not pod.run_uid for pod in world.view.pods_on("n0") if pod.uid == foreign.uid)
    if what in UNNAMED:
        assert not is_pod_of(content["metadata"], foreign.claim)
    if "placeholder" not in what and "controller" not in what:
        assert [pod.uid for pod in world.view.foreign_pods()] == [foreign.uid]
    if not ended:
        assert world.held_by_others("n0") - held == 1000, "what it holds of the node is taken from nobody's share"
    world.view.pods.drop(foreign.key, foreign.version)
    assert world.readings() == before


def test_a_pod_that_only_says_it_gives_way_counts_on_its_node(world: World) -> None:
    content = a_pod("train-room-0", owner("train", RUN), **ROOM)
    held = world.held_by_others("n0")
    world.view.pods.put(content)
    assert world.held_by_others("n0") == held + 1000
    true = a_pod("train-room-1", owner("train", RUN), index=1, **ROOM)
    true["spec"] |= GIVES_WAY
    world.view.pods.put(true)
    assert world.held_by_others("n0") == held + 1000


@pytest.mark.parametrize(
    ("name", "namespace", "owners"),
    [
        ("train-room-1", "evil", owner("train", RUN)),
        ("mine-room-1", "victim", owner("mine", RUN)),
        ("train-room-1", "victim", owner("train", "another")),
        ("train-room-1", "victim", owner("train", RUN, "Replica")),
        ("pool-ahead-room-1", "evil", owner("ahead", "pool", "Pool")),
    ],
    ids=["another namespace", "another name", "another uid", "another kind", "a pool's in a tenant's namespace"],
)
def test_a_pod_that_is_like_a_placeholder_of_somebody_else_neither_frees_nor_takes_its_node(
    world: World, name: str, namespace: str, owners: list[Object]
) -> None:
    held = world.held_by_others("n0")
    content = a_pod(name, owners, namespace, index=1, **ROOM)
    content["spec"] |= GIVES_WAY
    pod = world.view.pods.put(content)
    assert pod is not None
    assert pod.room_for
    assert world.held_by_others("n0") == held + 1000
    assert not world.view.placeholders_on("n0")
    assert not world.view.nodes_with_room()


def test_a_placeholder_that_leaves_late_does_not_give_way(world: World) -> None:
    held = world.held_by_others("n0")
    content = a_pod("train-room-1", owner("train", RUN), index=1, **ROOM)
    content["spec"] |= {**GIVES_WAY, "terminationGracePeriodSeconds": 3600}
    world.view.pods.put(content)
    assert world.held_by_others("n0") == held + 1000


def test_a_placeholder_counts_by_its_run_whichever_of_both_is_seen_first(world: World) -> None:
    following = SnapshotCache(world.view, namespace=None, progress_of=lambda _: None)
    content = a_pod("late-room-0", owner("late", "late"), **ROOM)
    content["spec"] |= GIVES_WAY
    world.view.pods.put(content)

    def held() -> int:
        return next(pod.grant.cpu_milli for pod in following.look().pods if not pod.workload_uid and pod.node == "n0")

    before = held()
    world.submit(Training(name="late", team="victim", run="work", nodes=2), "late")
    assert held() == before - 1000
    assert world.view.nodes_with_room() == {"n0"}
    world.view.trainings.drop("victim/late", 10**6)
    assert held() == before


@pytest.mark.parametrize(
    ("namespace", "about"),
    [
        ("evil", {}),
        ("victim", {"name": "mine"}),
        ("victim", {"name": "mine-0", "ownerReferences": owner("mine", JOBS)}),
        ("victim", {"name": "jobs-1", "ownerReferences": []}),
    ],
)
def test_an_engines_object_of_somebody_else_counts_for_no_run(
    world: World, namespace: str, about: Mapping[str, Any]
) -> None:
    before = world.readings()
    foreign = world.engine_object(namespace, **{"uid": "foreign", **about})
    foreign["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "forged"}]}
    world.view.engines.put(Engine.PYTORCHJOB, foreign)
    assert world.readings() == before


def test_what_kueue_says_counts_only_in_the_namespace_of_its_object(world: World) -> None:
    spec = Training(name="jobs", team="victim", run="work", nodes=2, engine=Engine.PYTORCHJOB, queue="a")
    world.view.engines.watch(spec, JOBS)
    waiting = world.engine_object()
    waiting["spec"], waiting["status"] = {"runPolicy": {"suspend": True}}, {}
    world.view.engines.put(Engine.PYTORCHJOB, waiting)
    queue = world.view.engines._queue
    assert queue is not None

    def said(namespace: str, message: str) -> str:
        reserved = {"type": "QuotaReserved", "status": "False", "message": message}
        queue.put({
            "metadata": metadata(f"w-{namespace}", namespace, ownerReferences=PYTORCHJOB),
            "spec": {"queueName": "a"}, "status": {"conditions": [reserved]},
        })  # fmt: skip
        (there,) = world.view.engines.of_run(JOBS).values()
        assert there.observed.stage is EngineStage.WAITING
        return there.observed.message

    assert said("victim", "no quota").endswith("no quota")
    assert said("evil", "forged").endswith("no quota")


@pytest.mark.parametrize(
    ("name", "team", "parent"),
    [("rates-1", "evil", "rates"), ("mine", "victim", "rates"), ("train2", "victim", "rates")],
)
def test_a_run_of_another_namespace_or_name_is_no_trial_of_a_sweep(
    world: World, name: str, team: str, parent: str
) -> None:
    before = world.readings()
    world.submit(Training(name=name, team=team, run="work"), "foreign", owners=owner(parent, SWEEP, "Sweep"))
    after = world.readings()
    assert {each: after[each] for each in ("children", "families")} == {
        each: before[each] for each in ("children", "families")
    }
    found = world.view.find("foreign")
    assert found is not None
    assert found.workload is not None
    assert found.workload.parent is None
    assert [each.uid for each in world.view.foreign_children()] == ["foreign"]


def test_a_foreign_run_is_no_trial_whichever_of_both_is_seen_first(world: World) -> None:
    following = SnapshotCache(world.view, namespace=None, progress_of=lambda _: None)
    (late,) = parse("kind: Sweep\nname: late\nteam: victim\nparameters: {lr: 1 | 2}\ntrial: {run: work}")
    world.submit(Training(name="late-0", team="evil", run="work"), "foreign", owners=owner("late", "late", "Sweep"))
    following.look()
    world.submit(late, "late")
    assert not families_of(following.look())["late"].children


def test_of_two_pods_of_one_index_that_an_engine_made_the_one_that_lives_counts(world: World) -> None:
    found = world.view.find(JOBS)
    assert found is not None
    first = world.view.members(found)[0]
    world.view.pods.put(of_engine("jobs-0-worker-9", PYTORCHJOB, ended=True))
    assert world.view.members(found)[0] == first


def test_a_pod_of_another_namespace_is_not_that_of_a_daemon_set() -> None:
    daemon = read_daemon({"metadata": metadata("agent", "kube-system") | {"uid": "d"}, "spec": {"template": {}}})
    assert daemon is not None
    assert read_daemon({"metadata": metadata("agent", "evil") | {"uid": "d"}, "spec": {"template": {}}}) is None
    node = read_node({"metadata": metadata("n0")})
    owners = owner("agent", "d", "DaemonSet", "apps/v1")
    own, foreign = (read_pod(a_pod("agent-1", owners, namespace)) for namespace in ("kube-system", "evil"))
    assert due([daemon], node, [own]) == []
    assert len(due([daemon], node, [foreign])) == 1


def test_only_the_object_of_its_name_and_owner_serves_an_endpoint(world: World) -> None:
    (spec,) = parse("kind: Serving\nname: web\nteam: victim\nrun: serve\nimage: i\nengine: kserve")
    assert isinstance(spec, Serving)
    endpoint = cast("Workload[Serving]", a_workload(cast("Any", spec), uid="e"))
    controller = EndpointController(world.client, world.view)
    assert spec.engine is not None
    watch = controller.watch(spec.engine)
    labels = {names.ENDPOINT_UID: "e", names.ENGINE: "kserve"}

    def put(cache: Any, name: str, namespace: str, uid: str, owners: list[Object]) -> None:
        cache.put({"metadata": metadata(name, namespace, labels=labels, ownerReferences=owners) | {"uid": uid}})

    put(watch.objects, "serve-web", "evil", "1", owner("web", "e", "Serving"))
    put(watch.objects, "other", "victim", "2", owner("web", "e", "Serving"))
    assert object_of(watch, endpoint) is None
    put(watch.objects, "serve-web", "victim", "3", owner("web", "e", "Serving"))
    there = object_of(watch, endpoint)
    assert there is not None
    assert there.uid == "3"
    of_kserve = "serving.kserve.io/v1beta1"
    put(watch.parts, "a", "victim", "4", owner("serve-web", "3", "InferenceService", of_kserve))
    put(watch.parts, "a", "evil", "5", owner("serve-web", "3", "InferenceService", of_kserve))
    put(watch.parts, "b", "victim", "6", owner("mine", "x", "InferenceService", of_kserve))
    assert [each.uid for each in made_from(watch, there)] == ["4"]


def test_only_experiments_of_a_sweep_and_their_own_trials_propose_values(world: World) -> None:
    (spec,) = parse(
        "kind: Sweep\nname: rates\nteam: victim\nengine: katib\nobjective: loss\ntrials: 3\nparallel: 1\n"
        "parameters: {lr: log 1e-4..1e-1}\ntrial: {run: work, image: i}"
    )
    assert isinstance(spec, Sweep)
    sweep = cast("Workload[Sweep]", a_workload(cast("Any", spec), uid="s"))
    watch = SearchController(world.client, world.view).watch(SweepEngine.KATIB)
    labels = katib.labels(sweep)
    of_sweep, of_katib = owner("rates", "s", "Sweep"), "kubeflow.org/v1beta1"

    def put(cache: Any, name: str, namespace: str, uid: str, owners: list[Object]) -> None:
        cache.put({"metadata": metadata(name, namespace, labels=labels, ownerReferences=owners) | {"uid": uid}})

    put(watch.objects, "rates-0", "evil", "1", of_sweep)
    put(watch.objects, "mine", "victim", "2", of_sweep)
    put(watch.objects, "rates-1", "victim", "3", [])
    assert experiment_of(watch, sweep) is None
    put(watch.objects, "rates-0", "victim", "4", of_sweep)
    there = experiment_of(watch, sweep)
    assert there is not None
    assert there.uid == "4"
    put(watch.parts, "a", "victim", "5", owner("rates-0", "4", "Experiment", of_katib))
    put(watch.parts, "b", "evil", "6", owner("rates-0", "4", "Experiment", of_katib))
    put(watch.parts, "c", "victim", "7", owner("rates-0", "1", "Experiment", of_katib))
    put(watch.parts, "d", "victim", "8", [])
    assert [each.uid for each in trials_made(watch, sweep)] == ["5"]


@pytest.mark.parametrize("uid", [RUN, SWEEP])
def test_an_object_is_owned_in_the_namespace_and_by_the_name_of_its_owner_alone(world: World, uid: str) -> None:
    name, kind = {RUN: ("train", "Training"), SWEEP: ("rates", "Sweep")}[uid]

    def owns(namespace: str, owners: list[Object]) -> bool:
        return world.view.owns(uid, metadata("x", namespace, ownerReferences=owners))

    assert owns("victim", owner(name, uid, kind))
    assert not owns("evil", owner(name, uid, kind))
    assert not owns("victim", owner("mine", uid, kind))
    assert not owns("victim", owner(name, "other", kind))
    assert not owns("victim", [])
    left = metadata("x", "victim", ownerReferences=owner("gone", "gone"))
    assert world.view.owns("gone", left), "what is left of one that is gone may be removed"


def test_disruption_budgets_and_autoscalers_of_somebody_else_take_no_place_of_the_true_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec,) = parse("kind: Serving\nname: web\nteam: victim\nrun: serve\nimage: i")
    world.submit(spec, "e")

    def items(_: object, path: str, query: Mapping[str, str]) -> list[Object]:
        labels = {names.ENDPOINT_UID: "e"}
        return [
            {"metadata": metadata("serve-web", namespace, labels=labels, ownerReferences=owner("web", "e", "Serving"))}
            for namespace in ("victim", "evil")
        ]

    monkeypatch.setattr(Client, "items", items)
    budgets = DisruptionBudgets(world.client, world.view, may_act=lambda: True)
    budgets._survey()
    assert budgets._written is not None
    assert [each.path.split("/")[-3] for each in budgets._written.values()] == ["victim"]
    autoscalers = AutoscalerController(world.client, world.view, may_act=lambda: True)
    autoscalers._survey()
    assert autoscalers._autoscalers is not None
    assert [each.path.split("/")[-3] for each in autoscalers._autoscalers.values()] == ["victim"]


class _Recorder:
    def __init__(self) -> None:
        self.told: list[PendingEvent] = []

    def tell_once(self, agent: object, telling: PendingEvent) -> None:
        self.told.append(telling)


def test_each_foreign_object_is_reported_once_and_a_flood_slowly(world: World) -> None:
    recorder = _Recorder()
    foreign = ForeignObjects(world.view, cast("EventRecorder", recorder))
    foreign.act(a_turn(None, NOW))
    world.view.pods.put(FOREIGN["another name"]())
    for at in range(1, 300, 10):
        foreign.act(a_turn(None, NOW + at))
        assert len(recorder.told) == 1
    (told,) = recorder.told
    assert (told.regarding["namespace"], told.regarding["name"], told.reason) == ("victim", "mine", "NotOfItsOwner")
    for index in range(100):
        world.view.pods.put(a_pod(f"mine-{index}", owner("train", RUN), "evil"))
    foreign.act(a_turn(None, NOW + 400))
    foreign.act(a_turn(None, NOW + 401))
    assert (foreign.number, len(recorder.told)) == (101, 1 + MOST_AT_ONCE)


def test_a_foreign_pod_that_is_gone_before_the_next_look_is_reported_too(world: World) -> None:
    recorder = _Recorder()
    foreign = ForeignObjects(world.view, cast("EventRecorder", recorder))
    foreign.act(a_turn(None, NOW))
    pod = world.view.pods.put(FOREIGN["another namespace"]())
    assert pod is not None
    world.view.pods.drop(pod.key, pod.version)
    foreign.act(a_turn(None, NOW + 1))
    assert [each.regarding["namespace"] for each in recorder.told] == ["evil"]


def test_children_are_of_their_parents_namespace_and_name_also_without_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `fairlead status` and the page read them; a run that is its own parent is no endless family."""
    spec: Object = {"run": "train"}
    kind: Object = {"apiVersion": API_VERSION, "kind": "Training", "spec": spec}
    runs = [
        {**kind, "metadata": metadata(name, namespace, uid=f"{namespace}-{name}", ownerReferences=parent)}
        for namespace, name, parent in (
            ("victim", "grid-0", owner("grid", SWEEP, "Sweep")),
            ("victim", "other-0", owner("grid", SWEEP, "Sweep")),
            ("thief", "grid-1", owner("grid", SWEEP, "Sweep")),
        )
    ]
    sweep_spec: Object = {"parameters": {"lr": "0.1 | 0.2"}, "trial": spec}
    grid: Object = {
        "apiVersion": API_VERSION,
        "kind": "Sweep",
        "spec": sweep_spec,
        "metadata": metadata("grid", uid=SWEEP),
    }
    grid["metadata"]["ownerReferences"] = owner("grid", SWEEP, "Sweep")
    client = Client(ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous()))

    def items(path: str, _: object = None) -> list[Object]:
        return {"sweeps": [grid], "trainings": runs}.get(path.rpartition("/")[2], [])

    monkeypatch.setattr(client, "items", items)
    assert [child.uid for child in WorkloadApi(client).children(SWEEP)] == ["victim-grid-0"]
