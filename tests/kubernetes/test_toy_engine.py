"""A toy engine of each capability is one class and one entry of the table: its controllers ask the port alone."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.api.watching import ObjectCache
from fairlead.cluster.kubernetes.engines.endpoint_port import EndpointDriver, Handover
from fairlead.cluster.kubernetes.engines.pod_template import metadata
from fairlead.cluster.kubernetes.engines.port import Driver, EngineStage, EngineStatus, Object, Submission
from fairlead.cluster.kubernetes.engines.search_port import ProposedTrial, SearchDriver
from fairlead.cluster.kubernetes.engines.table import HOMES, driver_of, missing, needs_of, path_of
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.operator.cluster import transition_of
from fairlead.cluster.kubernetes.operator.engines.endpoint_controller import EndpointController
from fairlead.cluster.kubernetes.operator.engines.engine_controller import EngineController
from fairlead.cluster.kubernetes.operator.engines.search_controller import SearchController
from fairlead.cluster.kubernetes.workloads.run_record import recorded, state_plain
from fairlead.policy.decide import decide
from fairlead.policy.search.trials import TrialRecord
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.engines import Engine
from fairlead.specs.formats.reading import parse
from fairlead.specs.sweep import Sweep
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.specs.training import Training
from fairlead.state.engine_endpoints import EngineEndpoint
from fairlead.state.engine_searches import EngineSearch, Proposal
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Phase, Snapshot, Workload
from tests.kubernetes.builders import a_workload
from tests.kubernetes.turns import a_turn

API, MOMENT, NOW = "toys.example/v1", "2026-01-01T00:00:00Z", 2e9
VERSIONS = itertools.count(1)
CLIENT = Client(ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous()))


class ToyRuns(Driver):
    """Winds up a toy for each attempt, with the defaults of the port for all that few engines need."""

    engine = Engine.JOBSET
    api, kind, plural = API, "Toy", "toys"

    def render(self, start: Submission) -> tuple[Object, ...]:
        head = {"apiVersion": self.api, "kind": self.kind, "metadata": metadata(start, self.engine)}
        return ({**head, "spec": {"turns": start.workload.spec.nodes}},)

    def observe(self, content: Mapping[str, Any]) -> EngineStatus:
        if (content.get("status") or {}).get("wound"):
            return EngineStatus(stage=EngineStage.RUNNING)
        return EngineStatus(stage=EngineStage.WAITING, message="its Toy is not wound up yet")


class ToyEndpoints(EndpointDriver):
    """Serves an endpoint from a shop of toys."""

    engine = EndpointEngine.KSERVE
    api, kind, plural = API, "Shop", "shops"
    made = (API, "shelves")

    def render(self, handover: Handover) -> Object:
        return {"apiVersion": self.api, "kind": self.kind, "metadata": {"name": handover.workload.spec.name}}

    def observe(self, content: Mapping[str, Any], made: Iterable[Mapping[str, Any]]) -> EngineEndpoint:
        return EngineEndpoint(kind=self.kind, is_there=True, ready=True, replicas=len(tuple(made)))


class ToySearch(SearchDriver):
    """Proposes what a toy's dice show."""

    engine = SweepEngine.KATIB
    api, kind, plural = API, "Game", "games"
    trial = ("Throw", "throws")
    suggestions = "dice"

    def name_of(self, sweep: Workload[Sweep]) -> str:
        return f"{sweep.spec.name}-{sweep.status.attempt}"

    def render(self, sweep: Workload[Sweep], num_trials: int) -> Object:
        return {"apiVersion": self.api, "kind": self.kind, "metadata": {"name": self.name_of(sweep)}}

    def read_trial(self, content: Mapping[str, Any]) -> ProposedTrial:
        return ProposedTrial(
            name=content["metadata"]["name"],
            created=MOMENT,
            values=content["spec"],
            is_created=True,
            is_completed=False,
            status={},
        )

    def observe(self, content: Mapping[str, Any], trials: Iterable[ProposedTrial]) -> EngineSearch:
        return EngineSearch(proposals=tuple(Proposal(name=trial.name, values=trial.values) for trial in trials))

    def ended_trial(
        self, trial: ProposedTrial, record: TrialRecord | None, metric: str, now: float, *, is_searching: bool
    ) -> Object:
        return {"over": True}

    def ended(self, content: Mapping[str, Any], phase: Phase, reason: Reason, now: float) -> Object:
        return {"over": True}

    def failure_of(self, content: Mapping[str, Any], suggestion: Mapping[str, Any]) -> str:
        return "the dice are lost"

    def warning_of(self, events: Iterable[Mapping[str, Any]], since: str) -> str:
        return ""


RUNS, ENDPOINTS, SEARCH = ToyRuns(), ToyEndpoints(), ToySearch()


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> Informers:
    """Informers whose watches have listed what the test puts there, and toys in place of three engines."""
    monkeypatch.setattr(ObjectCache, "start", lambda _: None)
    monkeypatch.setattr(ObjectCache, "is_synced", property(lambda _: True))
    for engine, name in ((Engine.JOBSET, "RUNS"), (EndpointEngine.KSERVE, "ENDPOINTS"), (SweepEngine.KATIB, "SEARCH")):
        monkeypatch.setitem(HOMES, engine, f"{__name__}:{name}")
    return Informers(CLIENT)


def head(name: str, owner: Object | None = None, **labels: str) -> Object:
    owners = [] if owner is None else [{**owner, "controller": True}]
    return {
        "name": name, "namespace": "t", "uid": f"uid-of-{name}", "resourceVersion": str(next(VERSIONS)),
        "creationTimestamp": MOMENT, "labels": labels, "ownerReferences": owners,
    }  # fmt: skip


def started(view: Informers, spec: Training) -> None:
    """Put a run there that was decided to start."""
    view.nodes.put({
        "metadata": {"name": "n0", "uid": "n0", "resourceVersion": "1", "creationTimestamp": MOMENT}, "spec": {},
        "status": {
            "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })  # fmt: skip
    content = {**write_object(spec), "metadata": head(spec.name)}
    item = view.trainings.put(content)
    assert item is not None
    assert item.workload is not None
    (change,) = decide(Snapshot(nodes=(), workloads=(item.workload,), pods=()), NOW).changes
    effect = transition_of(view, item, change, NOW)
    assert effect is not None
    state = state_plain(recorded(item, effect, NOW, event_id=1))
    version = {"resourceVersion": str(next(VERSIONS))}
    view.trainings.put({**content, "metadata": content["metadata"] | version, "status": {"state": state}})


def test_a_run_becomes_the_object_of_a_toy_engine_and_has_its_words(view: Informers) -> None:
    created: list[tuple[str, Object]] = []

    def create(path: str, content: Object, *, patience_s: float) -> Object:
        created.append((path, content))
        stamp = {"uid": "uid-of-toy", "resourceVersion": str(next(VERSIONS)), "creationTimestamp": MOMENT}
        return {**content, "metadata": content["metadata"] | stamp}

    def submit(uid: str, name: str, job: Callable[[], None]) -> None:
        job()

    started(view, Training(name="train", team="t", run="work", nodes=2, image="image:1", engine=Engine.JOBSET))
    agent = SimpleNamespace(submit=submit, equipping_refusal=lambda *_: None)
    cluster = SimpleNamespace(view=view, client=SimpleNamespace(create=create))
    controller = EngineController(
        cast(Any, cluster), cast(Any, agent), PodSettings(runtime="none"), may_act=lambda: True, create_s=1.0
    )
    controller.act(a_turn(agent, now=NOW))
    ((path, content),) = created
    assert path == "/apis/toys.example/v1/namespaces/t/toys"
    assert (content["kind"], content["metadata"]["name"], content["spec"]) == ("Toy", "train-0", {"turns": 2})
    (toy,) = view.engines.of_run("uid-of-train").values()
    assert (toy.observed.stage, toy.observed.message) == (EngineStage.WAITING, "its Toy is not wound up yet")
    stamp = {"uid": "uid-of-toy", "resourceVersion": str(next(VERSIONS)), "creationTimestamp": MOMENT}
    view.engines.put(Engine.JOBSET, {**content, "metadata": content["metadata"] | stamp, "status": {"wound": True}})
    (toy,) = view.engines.of_run("uid-of-train").values()
    assert toy.observed.stage is EngineStage.RUNNING
    controller.act(a_turn(agent, now=NOW))
    assert len(created) == 1, "an attempt has one object"


@pytest.mark.usefixtures("view")
def test_a_toy_engine_has_the_ports_defaults_and_its_own_path() -> None:
    driver = driver_of(Engine.JOBSET)
    assert (driver.launches, driver.reports_end, driver.beside) == (False, False, ())
    assert path_of(driver, "t", "train-0") == "/apis/toys.example/v1/namespaces/t/toys/train-0"
    assert needs_of(Training(name="a", run="b", image="c", engine=Engine.JOBSET)) == (("Toy", API),)
    assert "this cluster has no Toy (toys.example/v1)" in missing(Engine.JOBSET, driver.kind, driver.api)


def test_an_endpoint_is_what_a_toy_engine_says_of_its_object(view: Informers) -> None:
    (spec,) = parse("kind: Serving\nname: web\nteam: t\nrun: serve\nimage: i\nengine: kserve")
    endpoint = cast(Any, a_workload(cast(Any, spec), uid="uid-of-web"))
    controller = EndpointController(CLIENT, view)
    snapshot = Snapshot(nodes=(), workloads=(), pods=(), parents=(endpoint,))
    assert controller.look(snapshot) == {"uid-of-web": EngineEndpoint(kind="Shop")}
    labels = {names.ENDPOINT_UID: "uid-of-web", names.ENGINE: "kserve"}
    owner = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Serving", "name": "web", "uid": "uid-of-web"}
    watch = controller.watch(EndpointEngine.KSERVE)
    watch.objects.put({"metadata": head("serve-web", owner, **labels)})
    shop = {"apiVersion": API, "kind": "Shop", "name": "serve-web", "uid": "uid-of-serve-web"}
    watch.parts.put({"metadata": head("shelf", shop, **labels)})
    report = EngineEndpoint(kind="Shop", is_there=True, ready=True, replicas=1)
    assert controller.extend(snapshot, NOW).engine_endpoints == {"uid-of-web": report}


def test_a_sweep_gets_the_proposals_of_a_toy_engine(view: Informers) -> None:
    (spec,) = parse(
        "kind: Sweep\nname: rates\nteam: t\nengine: katib\nobjective: loss\ntrials: 3\nparallel: 1\n"
        "parameters: {lr: log 1e-4..1e-1}\ntrial: {run: work, image: i}"
    )
    sweep = cast(Any, a_workload(cast(Any, spec), uid="uid-of-rates"))
    controller = SearchController(CLIENT, view)
    labels = {names.SWEEP_UID: "uid-of-rates", names.ENGINE: "katib", names.ATTEMPT: str(sweep.status.attempt)}
    owner = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Sweep", "name": "rates", "uid": "uid-of-rates"}
    watch = controller.watch(SweepEngine.KATIB)
    game = SEARCH.name_of(sweep)
    watch.objects.put({"metadata": head(game, owner, **labels)})
    of_game = {"apiVersion": API, "kind": "Game", "name": game, "uid": f"uid-of-{game}"}
    watch.parts.put({"metadata": head("throw", of_game, **labels), "spec": {"lr": "0.01"}})
    snapshot = Snapshot(nodes=(), workloads=(), pods=(), parents=(sweep,))
    report = EngineSearch(proposals=(Proposal(name="throw", values={"lr": "0.01"}),))
    assert controller.extend(snapshot, NOW).engine_searches == {"uid-of-rates": report}
