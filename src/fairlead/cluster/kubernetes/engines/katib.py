"""Katib: an Experiment that proposes the values of trials, which stay runs of Fairlead. Pure.

Each of Katib's Trials makes the Job of the template, which is suspended and never runs: Fairlead submits a run with the
Trial's values in its place, and writes into the Trial how that ended. So the trials of a sweep are the same whoever
chooses their values, and Katib needs no rights and no configuration for them. See docs/decisions/0125.
"""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.engines.port import Object, condition, words
from fairlead.frozen import dataclass
from fairlead.policy.search.trials import TrialRecord, TrialState
from fairlead.specs.search_space import Parameter
from fairlead.specs.sweep import Sampler, Sweep
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.state.engine_searches import EngineSearch, Proposal
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Phase, Workload

API = "kubeflow.org/v1beta1"
KIND, EXPERIMENTS, TRIALS, SUGGESTIONS = "Experiment", "experiments", "trials", "suggestions"
LABEL = "katib.kubeflow.org/experiment"
"""Label by which Katib tells whose a Trial, or a Deployment of its own, is."""
_ALGORITHMS = {
    Sampler.RANDOM: "random",
    Sampler.GRID: "grid",
    Sampler.TPE: "tpe",
    Sampler.CMA_ES: "cmaes",
    Sampler.GP: "bayesianoptimization",
}
_ENDS = {
    TrialState.SUCCEEDED: ("Succeeded", "the run succeeded"),
    TrialState.FAILED: ("Failed", "the run failed"),
    TrialState.PRUNED: ("EarlyStopped", "Fairlead pruned the run"),
    TrialState.STOPPED: ("Killed", "the run was stopped"),
}
"""Katib's condition for the end of a trial, and why it holds."""
_WITH_VALUE = ("Succeeded", "EarlyStopped")
"""Conditions that need a value: without one Katib's algorithms propose fewer values, or none at all."""
_COMPLETED = (*(type_ for type_, _ in _ENDS.values()), "MetricsUnavailable")
_ENOUGH = {
    "ExperimentGoalReached": "the target is reached",
    "ExperimentMaxTrialsReached": "it has proposed all trials",
    "ExperimentSuggestionEndReached": "its algorithm has no more values",
}
"""Why Katib ended an Experiment without an error, by the reason of its condition."""
_CONTAINER = "values"


def experiment_name(sweep: Workload[Sweep]) -> str:
    """Return the name of the Experiment of a sweep's start, of which a resumed sweep has another."""
    return f"{sweep.spec.name}-{sweep.status.attempt}"


def labels(sweep: Workload[Sweep]) -> dict[str, str]:
    """Return the labels of an Experiment, which Katib gives to its Trials too."""
    return {names.SWEEP_UID: sweep.uid, names.ENGINE: SweepEngine.KATIB.value, names.ATTEMPT: str(sweep.status.attempt)}


def render(sweep: Workload[Sweep], num_trials: int) -> Object:
    """Render the Experiment of a start of a sweep.

    Args:
        num_trials: Trials that are still to be proposed.
    """
    spec, objective = sweep.spec, sweep.spec.objective
    assert objective is not None
    metric = objective.metric
    target = {} if spec.stop.target is None else {"goal": spec.stop.target}
    settings = [] if spec.chosen_sampler is Sampler.GRID else [{"name": "random_state", "value": str(spec.seed)}]
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {
            "name": experiment_name(sweep),
            "namespace": spec.team,
            "labels": labels(sweep),
            "ownerReferences": [names.owner(sweep)],
        },
        "spec": {
            "objective": {
                "type": objective.goal.value,
                "objectiveMetricName": metric,
                "metricStrategies": [{"name": metric, "value": "latest"}],
                **target,
            },
            "algorithm": {"algorithmName": _ALGORITHMS[spec.chosen_sampler], "algorithmSettings": settings},
            "parameters": [_parameter(each, spec.chosen_sampler) for each in spec.space],
            "parallelTrialCount": min(spec.parallel or 1, num_trials),
            "maxTrialCount": num_trials,
            "resumePolicy": "Never",
            # Katib adds no container and collects nothing: values are pushed, as by the status of a Trial.
            "metricsCollectorSpec": {"collector": {"kind": "Push"}},
            "trialTemplate": _template(spec.space),
        },
    }


def _parameter(parameter: Parameter, sampler: Sampler) -> Object:
    if parameter.choices:
        space: Object = {"list": list(parameter.texts)}
        return {"name": parameter.name, "parameterType": "categorical", "feasibleSpace": space}
    low, high = (str(int(bound)) if parameter.is_whole else repr(bound) for bound in (parameter.low, parameter.high))
    space = {"min": low, "max": high, "distribution": "logUniform" if parameter.is_log else "uniform"}
    if parameter.is_whole and sampler is Sampler.GRID:
        space["step"] = "1"
    return {"name": parameter.name, "parameterType": "int" if parameter.is_whole else "double", "feasibleSpace": space}


def _template(space: Iterable[Parameter]) -> Object:
    """Render the template of a Trial: a Job that nobody starts, with the Trial's values in it."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    env = [{"name": each.name, "value": f"${{trialParameters.{each.name}}}"} for each in space]
    container = {"name": _CONTAINER, "image": "none", "env": env, "securityContext": restricted}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }
    holds = 'status.conditions.#(type=="{}")#|#(status=="True")#'.format
    return {
        "primaryContainerName": _CONTAINER,
        "successCondition": holds("Complete"),
        "failureCondition": holds("Failed"),
        "trialParameters": [{"name": each.name, "reference": each.name} for each in space],
        "trialSpec": job,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class KatibTrial:
    """A Trial of Katib.

    Attributes:
        is_created: Katib's controller has taken it in, and follows its status.
        is_completed: Its end is written.
        status: As it was read.
    """

    name: str
    created: str
    values: Mapping[str, str]
    is_created: bool
    is_completed: bool
    status: Mapping[str, Any]


def read_trial(content: Mapping[str, Any]) -> KatibTrial:
    """Read a Trial, whatever is missing of it."""
    metadata = content["metadata"]
    assigned = (content.get("spec") or {}).get("parameterAssignments") or ()
    return KatibTrial(
        name=str(metadata["name"]),
        created=str(metadata.get("creationTimestamp") or ""),
        values={str(each.get("name")): str(each.get("value")) for each in assigned},
        is_created=condition(content, "Created") is not None,
        is_completed=any(condition(content, type_) is not None for type_ in _COMPLETED),
        status=content.get("status") or {},
    )


def observe(experiment: Mapping[str, Any], trials: Iterable[KatibTrial]) -> EngineSearch:
    """Read what an Experiment and its Trials say."""
    failed, done = condition(experiment, "Failed"), condition(experiment, "Succeeded")
    ended = failed or done
    waiting = [trial for trial in trials if trial.is_created and not trial.is_completed]
    waiting.sort(key=lambda each: (each.created, each.name))
    said = "" if ended is None else words(ended, fallback="it does not say why")
    return EngineSearch(
        proposals=tuple(Proposal(name=each.name, values=each.values) for each in waiting),
        is_over=ended is not None,
        has_failed=failed is not None,
        message=said if ended is None else _ENOUGH.get(str(ended.get("reason")), said),
    )


def failure_of(experiment: Mapping[str, Any], suggestion: Mapping[str, Any]) -> str:
    """Return why an Experiment failed, as a clause: what its Suggestion says, where that has failed too."""
    found = condition(suggestion, "Failed") or condition(experiment, "Failed") or {}
    return _plain(words(found, fallback="it does not say why"))


def warning_of(events: Iterable[Mapping[str, Any]], since: str) -> str:
    """Return the newest warning of an Experiment or its Suggestion, as a clause; empty if there is none.

    Args:
        events: Warnings of objects of the Experiment's name.
        since: The time, as Kubernetes writes it, before which warnings are of no interest.
    """
    said: list[tuple[str, str]] = []
    for event in events:
        at = str(event.get("lastTimestamp") or event.get("eventTime") or "")
        kind = event["involvedObject"].get("kind")
        if kind in (KIND, "Suggestion") and at >= since:
            said.append((at, f"its {kind} says: {_plain(words(event, fallback='nothing'))}"))
    return max(said, default=("", ""))[1]


def _plain(said: str) -> str:
    """Return what a program of Katib's says, without what its transport puts before it."""
    return re.sub(r"rpc error: code = \w+ desc = ", "", said)


def ended_trial(
    trial: KatibTrial, record: TrialRecord | None, metric: str, now: float, *, is_searching: bool
) -> Object:
    """Return the status of a Trial whose run is over, with what it already says of its beginning.

    Args:
        record: The run's; None for a Trial that got none and is to get none any more.
        is_searching: Katib still proposes values, and gives this end to its algorithm.
    """
    state = TrialState.STOPPED if record is None else record.state
    value = None if record is None or record.value is None or not math.isfinite(record.value) else record.value
    type_, why = _ENDS[state]
    if type_ in _WITH_VALUE and value is None:
        type_, why = "Failed", f"{why}; it reported no finite {metric}"
    elif type_ == "Killed" and is_searching:
        # Goptuna, Katib's program for cmaes, refuses to propose anything beside a Trial that was killed.
        type_ = "Failed"
    status = _ended(trial.status, type_, f"Trial{type_}", why, now)
    if type_ in _WITH_VALUE:
        shown = repr(value)
        status["observation"] = {"metrics": [{"name": metric, "min": shown, "max": shown, "latest": shown}]}
    return status


def ended_experiment(experiment: Mapping[str, Any], phase: Phase, reason: Reason, now: float) -> Object:
    """Return the status of an Experiment whose sweep is over, with what it already says of its beginning.

    Katib then removes its algorithm, and neither proposes nor restarts anything.
    """
    type_ = "Failed" if phase is Phase.FAILED else "Succeeded"
    return _ended(experiment.get("status") or {}, type_, f"Sweep{phase.value}", reason.message, now)


def _ended(before: Mapping[str, Any], type_: str, reason: str, message: str, now: float) -> Object:
    at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    times = {"lastUpdateTime": at, "lastTransitionTime": at}
    others = [each for each in before.get("conditions") or () if each.get("type") != type_]
    conditions = [
        {**other, "status": "False", **times} if other.get("type") == "Running" else dict(other) for other in others
    ]
    # Katib takes the last one for what holds now.
    conditions.append({"type": type_, "status": "True", "reason": reason, "message": message, **times})
    return {"conditions": conditions, "completionTime": at}
