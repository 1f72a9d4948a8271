"""The Experiment of a sweep: what Katib is given, how its status reads in our words, and what is refused with it."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.client.cluster_inventory import Inventory, look_around
from fairlead.cluster.kubernetes.engines.katib import (
    ended_experiment,
    ended_trial,
    failure_of,
    observe,
    read_trial,
    render,
    warning_of,
)
from fairlead.cluster.kubernetes.operator.engines.search_controller import trouble_of
from fairlead.errors import InvalidSpec
from fairlead.policy.search.trials import TrialRecord, TrialState
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.formats.reading import parse
from fairlead.specs.sweep import Sweep
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase, Workload
from tests.kubernetes.builders import UID, a_workload

KEYS = {
    "parameters": "{lr: log 1e-4..1e-1, layers: 1..8, optimizer: sgd | adam}",
    "objective": "{metric: accuracy, goal: maximize}",
    "trials": "6",
    "parallel": "2",
    "seed": "7",
    "stop": "{target: 0.9}",
}


def a_sweep(**changes: str) -> Workload[Sweep]:
    keys = {**KEYS, **changes}
    lines = (f"{key}: {value}" for key, value in keys.items() if value)
    trial = "trial: {run: 'train --lr {{lr}} --layers {{layers}} --optimizer {{optimizer}}'}"
    head = ["kind: Sweep", "name: rates", "team: research", "engine: katib", trial]
    if "lr" not in keys["parameters"]:
        head[-1] = "trial: {run: train}"
    (found,) = parse("\n".join([*head, *lines]))
    assert isinstance(found, Sweep)
    return a_workload(found)  # type: ignore[arg-type, return-value]


def test_an_experiment_is_its_sweeps_and_has_its_objective_and_its_ranges() -> None:
    content = render(a_sweep(), 6)
    metadata, spec = content["metadata"], content["spec"]
    assert (content["apiVersion"], content["kind"]) == ("kubeflow.org/v1beta1", "Experiment")
    assert (metadata["name"], metadata["namespace"]) == ("rates-0", "research")
    assert metadata["labels"] == {names.SWEEP_UID: UID, names.ENGINE: "katib", names.ATTEMPT: "0"}
    assert metadata["ownerReferences"][0]["kind"] == "Sweep"
    assert spec["objective"] == {
        "type": "maximize", "objectiveMetricName": "accuracy", "goal": 0.9,
        "metricStrategies": [{"name": "accuracy", "value": "latest"}],
    }  # fmt: skip
    assert spec["algorithm"] == {
        "algorithmName": "tpe", "algorithmSettings": [{"name": "random_state", "value": "7"}],
    }  # fmt: skip
    assert [each["feasibleSpace"] for each in spec["parameters"]] == [
        {"min": "0.0001", "max": "0.1", "distribution": "logUniform"},
        {"min": "1", "max": "8", "distribution": "uniform"},
        {"list": ["sgd", "adam"]},
    ]
    assert [each["parameterType"] for each in spec["parameters"]] == ["double", "int", "categorical"]
    assert (spec["parallelTrialCount"], spec["maxTrialCount"], spec["resumePolicy"]) == (2, 6, "Never")


def test_the_template_is_a_job_that_nobody_starts_with_the_values_in_it() -> None:
    template = render(a_sweep(), 6)["spec"]["trialTemplate"]
    job = template["trialSpec"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert (job["kind"], job["spec"]["suspend"]) == ("Job", True)
    assert container["name"] == template["primaryContainerName"]
    assert {"name": "lr", "value": "${trialParameters.lr}"} in container["env"]
    assert {each["reference"] for each in template["trialParameters"]} == {"lr", "layers", "optimizer"}


@pytest.mark.parametrize(
    ("changes", "algorithm"),
    [
        ({"sampler": "random"}, "random"),
        ({"sampler": "gp"}, "bayesianoptimization"),
        ({"sampler": "cma-es", "parameters": "{x: 0.0..1.0, y: 1..8}"}, "cmaes"),
        ({"sampler": "grid", "parameters": "{x: 1..3, y: a | b}", "seed": ""}, "grid"),
    ],
)
def test_each_sampler_is_katibs_of_that_kind(changes: dict[str, str], algorithm: str) -> None:
    spec = render(a_sweep(**changes), 6)["spec"]
    assert spec["algorithm"]["algorithmName"] == algorithm
    # Katib's grid has to know how far apart whole numbers are, and takes no seed.
    steps = [each["feasibleSpace"].get("step") for each in spec["parameters"]]
    assert ("1" in steps) is (algorithm == "grid")
    assert bool(spec["algorithm"]["algorithmSettings"]) is (algorithm != "grid")


def test_a_resumed_sweep_has_another_experiment_for_what_is_left() -> None:
    sweep = a_sweep()
    content = render(replace(sweep, status=replace(sweep.status, attempt=2)), 1)
    assert content["metadata"]["name"] == "rates-2"
    assert (content["spec"]["parallelTrialCount"], content["spec"]["maxTrialCount"]) == (1, 1)


def a_trial(name: str, *conditions: str, created: str = "2026-11-01T10:00:00Z") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": "5", "creationTimestamp": created},
        "spec": {"parameterAssignments": [{"name": "lr", "value": "0.01"}]},
        "status": {"conditions": [{"type": each, "status": "True"} for each in conditions]},
    }


def test_proposals_are_the_trials_that_katib_follows_and_that_have_no_end() -> None:
    trials = [
        a_trial("new"), a_trial("later", "Created", created="2026-11-01T10:00:05Z"),
        a_trial("first", "Created", "Running"), a_trial("done", "Created", "Succeeded"),
        a_trial("gone", "Created", "Killed"),
    ]  # fmt: skip
    found = observe({"status": {}}, map(read_trial, trials))
    assert [each.name for each in found.proposals] == ["first", "later"]
    assert found.proposals[0].values == {"lr": "0.01"}
    assert not found.is_over


@pytest.mark.parametrize(("type_", "has_failed"), [("Succeeded", False), ("Failed", True)])
def test_an_experiment_that_is_over_says_why(type_: str, has_failed: bool) -> None:
    conditions = [{"type": type_, "status": "True", "message": "Suggestion has\n failed."}]
    found = observe({"status": {"conditions": conditions}}, ())
    assert (found.is_over, found.has_failed, found.message) == (True, has_failed, "Suggestion has failed")


def test_what_is_missing_of_their_objects_is_nothing() -> None:
    assert observe({}, [read_trial({"metadata": {"name": "x"}})]).proposals == ()


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("ExperimentGoalReached", "the target is reached"),
        ("ExperimentMaxTrialsReached", "it has proposed all trials"),
        ("ExperimentSuggestionEndReached", "its algorithm has no more values"),
    ],
)
def test_the_end_of_a_search_reads_in_our_words(reason: str, said: str) -> None:
    succeeded = {"type": "Succeeded", "status": "True", "reason": reason, "message": "Experiment has succeeded because"}
    assert observe({"status": {"conditions": [succeeded]}}, ()).message == said


@pytest.mark.parametrize(
    ("state", "type_", "has_value"),
    [
        (TrialState.SUCCEEDED, "Succeeded", True), (TrialState.PRUNED, "EarlyStopped", True),
        (TrialState.FAILED, "Failed", False), (TrialState.STOPPED, "Killed", False),
    ],
)  # fmt: skip
def test_the_end_of_a_run_is_written_as_katib_would(state: TrialState, type_: str, has_value: bool) -> None:
    trial = read_trial(a_trial("first", "Created", "Running"))
    record = TrialRecord(number=0, values={}, state=state, value=0.25)
    status = ended_trial(trial, record, "accuracy", 0.0, is_searching=False)
    told = {each["type"]: each["status"] for each in status["conditions"]}
    assert told == {"Created": "True", "Running": "False", type_: "True"}
    assert status["completionTime"] == "1970-01-01T00:00:00Z"
    metric = {"name": "accuracy", "min": "0.25", "max": "0.25", "latest": "0.25"}
    assert status.get("observation") == ({"metrics": [metric]} if has_value else None)
    after = read_trial({"metadata": {"name": "first"}, "status": status})
    assert after.is_completed


@pytest.mark.parametrize("state", [TrialState.STOPPED, None])
def test_a_run_that_is_stopped_while_katib_searches_has_failed_as_goptuna_takes_no_killed_ones(
    state: TrialState | None,
) -> None:
    record = None if state is None else TrialRecord(number=0, values={}, state=state, value=0.25)
    status = ended_trial(read_trial(a_trial("a", "Created")), record, "loss", 0.0, is_searching=True)
    end = status["conditions"][-1]
    assert (end["type"], end["reason"], end["message"]) == ("Failed", "TrialFailed", "the run was stopped")


@pytest.mark.parametrize("state", [TrialState.SUCCEEDED, TrialState.PRUNED])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), None])
def test_a_run_without_a_finite_value_has_failed_as_katib_would_wait_for_one(
    state: TrialState, value: float | None
) -> None:
    record = TrialRecord(number=0, values={}, state=state, value=value)
    status = ended_trial(read_trial(a_trial("a", "Created")), record, "loss", 0.0, is_searching=True)
    assert "observation" not in status
    assert status["conditions"][-1]["type"] == "Failed"
    assert status["conditions"][-1]["message"].endswith("; it reported no finite loss")


@pytest.mark.parametrize(
    ("phase", "type_"), [(Phase.STOPPED, "Succeeded"), (Phase.SUCCEEDED, "Succeeded"), (Phase.FAILED, "Failed")]
)
def test_an_experiment_ends_as_its_sweep_does(phase: Phase, type_: str) -> None:
    reason = Reason(code=Code.STOPPED, message="stopped on request")
    created, running = ({"type": each, "status": "True", "reason": "x"} for each in ("Created", "Running"))
    before = {"status": {"conditions": [created, running], "trials": 2}}
    status = ended_experiment(before, phase, reason, 0.0)
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [
        ("Created", "True"), ("Running", "False"), (type_, "True"),
    ]  # fmt: skip
    end = status["conditions"][-1]
    assert (end["reason"], end["message"]) == (f"Sweep{phase.value}", "stopped on request")
    assert observe({"status": status}, ()).is_over


def test_a_search_that_failed_says_what_its_algorithm_says() -> None:
    failed = {"type": "Failed", "status": "True", "message": "Suggestion has failed"}
    experiment = {"status": {"conditions": [failed]}}
    refused = "Validation failed: rpc error: code = Unknown desc = unsupported algorithm"
    suggestion = {"status": {"conditions": [{**failed, "message": refused}]}}
    assert failure_of(experiment, suggestion) == "Validation failed: unsupported algorithm"
    assert failure_of(experiment, {}) == "Suggestion has failed"


def a_warning(kind: str, at: str, message: str) -> dict[str, Any]:
    return {"involvedObject": {"kind": kind, "name": "rates-0"}, "lastTimestamp": at, "message": message}


def test_why_katib_proposes_nothing_is_the_newest_warning_since_the_last_trial() -> None:
    internal = "rpc error: code = Internal desc = no such sampler"
    warnings = [
        a_warning("Suggestion", "2026-11-01T10:00:01Z", internal), a_warning("Pod", "2026-11-01T10:00:09Z", "else"),
        a_warning("Suggestion", "2026-11-01T09:59:59Z", "connection refused"),
    ]  # fmt: skip
    assert warning_of(warnings, "2026-11-01T10:00:00Z") == "its Suggestion says: no such sampler"
    assert warning_of(warnings, "2026-11-01T10:00:02Z") == ""


def test_why_katib_proposes_nothing_is_what_its_deployment_says() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity.\n"}
    metadata = {"name": "rates-0-tpe"}
    refused = trouble_of({"metadata": metadata, "status": {"conditions": [failure]}})
    assert refused == "the pod of rates-0-tpe is refused: violates PodSecurity"
    assert trouble_of({"metadata": metadata}) == "its Deployment rates-0-tpe has no pod that is ready"
    assert trouble_of({"metadata": metadata, "status": {"readyReplicas": 1}}) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": "", "stop": "", "sampler": "random"}, "it searches for the best value of one metric"),
        ({"objective": "", "stop": "", "objectives": "[loss, cost]"}, "give `objective` instead of `objectives`"),
        ({"parallel": "free"}, "give `parallel` a number"),
        ({"parameters": "{lr: a | b, layers: 1..8 when lr=a, optimizer: sgd | adam}"}, "leave `when` out"),
        ({"sampler": "cma-es"}, "cma-es has ranges only there"),
        ({"sampler": "grid", "parameters": "{lr: 0.1 | 0.2, layers: 1..8, optimizer: a | b}"}, "leave `seed` out"),
        ({"prune": "pbt"}, "another rule than pbt"),
        ({"trials": "2000"}, "there are at most 1000"),
    ],
)
def test_what_katib_would_not_honour_is_refused(changes: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        a_sweep(**changes)
    assert said in str(refused.value)


def test_a_name_that_leaves_no_room_for_katibs_suffixes_is_refused() -> None:
    with pytest.raises(BrokenRules, match="at most 38 characters"):
        replace(a_sweep().spec, name="a" * 39)


def test_doctor_names_katib() -> None:
    found = Inventory(apis=frozenset({"kubeflow.org/v1beta1"}), nodes=(), controllers=(), storage_classes=())
    says = next(each.says for each in look_around(found) if each.what == "engines")
    assert "`engine: katib`" in says
