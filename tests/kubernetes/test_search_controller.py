"""The operator and Katib's kinds on a real API server: the test plays Katib's controller, which proposes values."""

import time
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.engines.katib import API, LABEL
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.operator import Operator
from fairlead.policy.kinds.sweep import detail_of
from fairlead.policy.kinds.table import leaf
from fairlead.specs.formats.reading import parse
from fairlead.specs.sweep import Sweep, values_of
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Progress
from tests.kubernetes.operating import loosely_defined, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

KINDS = ((API, "Experiment", "experiments"), (API, "Trial", "trials"), (API, "Suggestion", "suggestions"))


@pytest.fixture(scope="module")
def kinds(plane: ControlPlane) -> Iterator[None]:
    """Katib's kinds that take anything; what Katib itself takes, a long test tells."""
    with loosely_defined(plane, KINDS):
        yield


class Katib:
    """Katib as the operator sees it."""

    def __init__(self, cluster: WorkloadApi, namespace: str) -> None:
        self.client, self.namespace = cluster.client, namespace
        self.place = f"/apis/{API}/namespaces/{namespace}"

    def experiments(self) -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each for each in self.client.items(f"{self.place}/experiments")}

    def propose(self, experiment: str, name: str, **values: object) -> None:
        """A Trial as Katib makes it: with the labels of its Experiment, and its own condition once it follows it."""
        owner = self.client.get(f"{self.place}/experiments/{experiment}")
        self.client.create(f"{self.place}/trials", {
            "apiVersion": API, "kind": "Trial",
            "metadata": {
                "name": f"{experiment}-{name}", "labels": {**owner["metadata"]["labels"], LABEL: experiment},
                "ownerReferences": [{
                    "apiVersion": API, "kind": "Experiment", "name": experiment, "uid": owner["metadata"]["uid"],
                    "controller": True,
                }],
            },
            "spec": {"parameterAssignments": [{"name": key, "value": str(said)} for key, said in values.items()]},
        })  # fmt: skip
        self.say("trials", f"{experiment}-{name}", {"conditions": [{"type": "Created", "status": "True"}]})

    def say(self, plural: str, name: str, status: dict[str, Any]) -> None:
        self.client.merge(f"{self.place}/{plural}/{name}/status", {"status": status})

    def warn(self, experiment: str, message: str) -> None:
        """An Event of Katib's controllers about a Suggestion that they could not reconcile."""
        self.client.create(f"/api/v1/namespaces/{self.namespace}/events", {
            "metadata": {"name": f"{experiment}-warning"}, "type": "Warning", "reason": "ReconcileError",
            "message": message, "lastTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "involvedObject": {"kind": "Suggestion", "name": experiment, "namespace": self.namespace},
        })  # fmt: skip

    def end_of(self, name: str) -> tuple[str, str, str] | None:
        """The last condition of an Experiment, with its reason and message."""
        conditions = (self.experiments()[name].get("status") or {}).get("conditions") or ()
        return (conditions[-1]["type"], conditions[-1]["reason"], conditions[-1]["message"]) if conditions else None

    def ends(self) -> dict[str, tuple[str, str | None]]:
        """The condition in which each Trial that is over ended, and the value that Katib was told."""
        found = {}
        for each in self.client.items(f"{self.place}/trials"):
            status = each["status"]
            if "completionTime" in status:
                metrics = (status.get("observation") or {}).get("metrics") or [{}]
                found[each["metadata"]["name"]] = (status["conditions"][-1]["type"], metrics[0].get("latest"))
        return found


@pytest.fixture
def engine(cluster: WorkloadApi, namespace: str, kinds: None) -> Katib:
    return Katib(cluster, namespace)


def a_sweep(namespace: str, more: str = "trials: 3\n", parameters: str = "lr: log 1e-4..1e-1") -> Sweep:
    fakes = "{fake/start: 0.1s, fake/on-term: ends}"
    (spec,) = parse(
        f"kind: Sweep\nname: rates\nteam: {namespace}\nparallel: 2\nengine: katib\nobjective: loss\n{more}"
        f"parameters: {{{parameters}}}\ntrial:\n  run: train\n  image: python:3.12\n"
        f"  resources: {{cpu: 100m, memory: 64Mi}}\n  kubernetes: {{metadata: {{annotations: {fakes}}}}}\n"
    )
    assert isinstance(spec, Sweep)
    return spec


def runs(cluster: WorkloadApi) -> dict[str, AnyWorkload]:
    return {each.spec.name: each for each in cluster.workloads() if not isinstance(each.spec, Sweep)}


def sweep_of(cluster: WorkloadApi) -> AnyWorkload:
    return next(each for each in cluster.workloads() if isinstance(each.spec, Sweep))


def are_running(cluster: WorkloadApi, *names: str) -> bool:
    found = runs(cluster)
    return all(name in found and found[name].status.phase is Phase.RUNNING for name in names)


def end(operator: Operator, cluster: WorkloadApi, name: str, loss: float) -> None:
    """Have a run tell its loss and its pod succeed."""
    run = runs(cluster)[name]
    operator.cluster.reports.note(run.uid, Progress(loss=loss, step=1, updated_at=1.0), None)
    path = f"/api/v1/namespaces/{run.spec.team}/pods/{name}-0-0"
    cluster.client.merge(path, {"metadata": {"annotations": {"fake/run": "0.1s"}}})
    until(lambda: runs(cluster)[name].status.phase is Phase.SUCCEEDED, lambda: runs(cluster)[name].status)


# Before the kinds are there.
def test_a_cluster_without_katib_says_so_in_the_sweeps_reason(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    cluster.submit(a_sweep(namespace))
    with operating(access, namespace):
        until(lambda: "this cluster has no Experiment" in sweep_of(cluster).status.reason.message)


@pytest.mark.slow
def test_katib_proposes_and_is_told_how_the_runs_ended(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, engine: Katib
) -> None:
    cluster.submit(a_sweep(namespace))
    with operating(access, namespace) as operator:
        until(lambda: "rates-0" in engine.experiments())
        assert engine.experiments()["rates-0"]["spec"]["maxTrialCount"] == 3
        until(lambda: "waits for values that Katib proposes" in sweep_of(cluster).status.reason.message)
        engine.propose("rates-0", "a", lr=0.01)
        engine.propose("rates-0", "b", lr=0.02)
        until(lambda: are_running(cluster, "rates-0", "rates-1"))
        assert values_of(leaf(runs(cluster)["rates-0"]).spec) == {"lr": 0.01}
        end(operator, cluster, "rates-0", 0.5)
        until(lambda: engine.ends() == {"rates-0-a": ("Succeeded", "0.5")}, engine.ends)
        engine.propose("rates-0", "c", lr=0.03)
        until(lambda: are_running(cluster, "rates-1", "rates-2"))
        end(operator, cluster, "rates-1", 0.25)
        end(operator, cluster, "rates-2", 0.75)
        until(lambda: sweep_of(cluster).status.phase is Phase.SUCCEEDED)
        assert "best loss 0.25 by rates-1 (lr 0.02)" in sweep_of(cluster).status.reason.message
        until(lambda: len(engine.ends()) == 3, engine.ends)
        assert engine.ends()["rates-0-b"] == ("Succeeded", "0.25")
        assert detail_of(sweep_of(cluster)).proposed == ("rates-0-a", "rates-0-b", "rates-0-c")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_stop_ends_the_experiment_at_once_and_a_resume_begins_another_experiment(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, engine: Katib
) -> None:
    uid = cluster.submit(a_sweep(namespace)).uid
    with operating(access, namespace):
        until(lambda: "rates-0" in engine.experiments())
        engine.propose("rates-0", "a", lr=0.01)
        until(lambda: are_running(cluster, "rates-0"))
        cluster.set_intent(uid, Intent.SUSPEND)
        until(lambda: sweep_of(cluster).status.phase is Phase.SUSPENDED)
        assert engine.experiments()["rates-0"]["spec"]["maxTrialCount"] == 3
        cluster.set_intent(uid, Intent.RUN)
        until(lambda: are_running(cluster, "rates-0"))
        cluster.set_intent(uid, Intent.STOP)
        until(lambda: sweep_of(cluster).status.phase is Phase.STOPPED)
        until(lambda: engine.end_of("rates-0") == ("Succeeded", "SweepStopped", "stopped on request"))
        until(lambda: engine.ends() == {"rates-0-a": ("Killed", None)}, engine.ends)
        # One that Katib was about to make when it was ended.
        engine.propose("rates-0", "b", lr=0.02)
        until(lambda: engine.ends().get("rates-0-b") == ("Killed", None), engine.ends)
        assert list(runs(cluster)) == ["rates-0"]
        cluster.set_intent(uid, Intent.RUN)
        until(lambda: "rates-2" in engine.experiments())
        assert engine.experiments()["rates-2"]["spec"]["maxTrialCount"] == 2
        # One of the stopped search that nobody told of its end before the sweep was resumed.
        engine.propose("rates-0", "c", lr=0.03)
        until(lambda: engine.ends().get("rates-0-c") == ("Killed", None), engine.ends)
        cluster.set_intent(uid, Intent.DELETE)
        until(lambda: not cluster.workloads())


@pytest.mark.slow
def test_an_operator_that_is_killed_at_any_moment_leaves_one_experiment_and_one_run_a_proposal(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, engine: Katib
) -> None:
    cluster.submit(a_sweep(namespace))
    uids = set()
    for number in range(3):
        with operating(access, namespace):
            until(lambda: "rates-0" in engine.experiments())
            if number == 1:
                engine.propose("rates-0", "a", lr=0.01)
            if number:
                until(lambda: "rates-0" in runs(cluster))
        uids |= {each["metadata"]["uid"] for each in engine.experiments().values()}
    assert len(uids) == 1
    assert list(runs(cluster)) == ["rates-0"]


@pytest.mark.parametrize("has_suggestion", [True, False])
def test_an_experiment_that_failed_fails_the_sweep_with_the_words_of_katibs_algorithm(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, engine: Katib, has_suggestion: bool
) -> None:
    cluster.submit(a_sweep(namespace))
    with operating(access, namespace):
        until(lambda: "rates-0" in engine.experiments())
        failed = {"type": "Failed", "status": "True", "message": "Suggestion has failed"}
        if has_suggestion:
            content = {"apiVersion": API, "kind": "Suggestion", "metadata": {"name": "rates-0"}}
            engine.client.create(f"{engine.place}/suggestions", content)
            engine.say("suggestions", "rates-0", {"conditions": [{**failed, "message": "unsupported algorithm"}]})
        engine.say("experiments", "rates-0", {"conditions": [failed]})
        until(lambda: sweep_of(cluster).status.phase is Phase.FAILED)
    why = "unsupported algorithm" if has_suggestion else "Suggestion has failed"
    assert f"Katib gave the search up: {why}; 0 of 3 trials are over" in sweep_of(cluster).status.reason.message


@pytest.mark.slow
def test_a_trial_that_a_user_stops_is_no_end_of_the_search(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, engine: Katib
) -> None:
    cluster.submit(a_sweep(namespace))
    with operating(access, namespace):
        until(lambda: "rates-0" in engine.experiments())
        engine.propose("rates-0", "a", lr=0.01)
        until(lambda: are_running(cluster, "rates-0"))
        cluster.set_intent(runs(cluster)["rates-0"].uid, Intent.STOP)
        until(lambda: engine.ends() == {"rates-0-a": ("Failed", None)}, engine.ends)
        assert engine.end_of("rates-0") is None
        engine.warn("rates-0", "rpc error: code = Internal desc = no such sampler")
        said = "waits for values that Katib proposes: its Suggestion says: no such sampler"
        until(lambda: said in sweep_of(cluster).status.reason.message, lambda: sweep_of(cluster).status)
        engine.propose("rates-0", "b", lr=0.02)
        until(lambda: are_running(cluster, "rates-1"))
        assert "Suggestion" not in sweep_of(cluster).status.reason.message


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallel": None}, "give `parallel` a number"),
        ({"parallel": "free"}, "give `parallel` a number"),
        ({"objective": None}, "give `objective`"),
        ({"objectives": ["loss", "cost"]}, "give `objective` instead of `objectives`"),
    ],
)
def test_the_api_server_refuses_what_katib_would_not_honour(
    plane: ControlPlane, namespace: str, changes: dict[str, Any], said: str
) -> None:
    content = write_object(a_sweep(namespace))
    content["spec"] = {key: value for key, value in (content["spec"] | changes).items() if value is not None}
    with pytest.raises(urllib.error.HTTPError) as refused:
        plane.request("POST", objects_path("Sweep", namespace), content)
    assert said in refused.value.read().decode()
