"""Katib: an Experiment that proposes the values of trials, which stay runs of Fairlead. Pure.

Each of Katib's Trials makes the Job of the template, which is suspended and never runs: Fairlead submits a run with the
Trial's values in its place, and writes into the Trial how that ended. So the trials of a sweep are the same whoever
chooses their values, and Katib needs no rights and no configuration for them. See docs/decisions/0125.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.engines.port import Object, condition, words
from fairlead.frozen import dataclass
from fairlead.policy.search.trials import TrialRecord, TrialState
from fairlead.specs.search_space import Parameter, show_value
from fairlead.specs.sweep import Sampler, Sweep
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.state.engine_searches import EngineSearch, Proposal
from fairlead.state.snapshot import Workload

API = "kubeflow.org/v1beta1"
KIND, EXPERIMENTS, TRIALS = "Experiment", "experiments", "trials"
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
_COMPLETED = (*(type_ for type_, _ in _ENDS.values()), "MetricsUnavailable")
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
        space: Object = {"list": [show_value(value) for value in parameter.choices]}
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
        status: As it was read, with ``version`` of the object.
    """

    name: str
    version: str
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
        version=str(metadata.get("resourceVersion") or ""),
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
    waiting = [each for each in trials if each.is_created and not each.is_completed]
    waiting.sort(key=lambda each: (each.created, each.name))
    return EngineSearch(
        proposals=tuple(Proposal(name=each.name, values=each.values) for each in waiting),
        is_over=ended is not None,
        has_failed=failed is not None,
        message="" if ended is None else words(ended, fallback="it does not say why"),
    )


def ended_status(trial: KatibTrial, record: TrialRecord | None, metric: str, now: float) -> Object:
    """Return the status of a Trial whose run is over, with what it already says of its beginning.

    Args:
        record: The run's; None for a Trial that got none and is to get none any more.
    """
    state = TrialState.STOPPED if record is None else record.state
    type_, why = _ENDS[state]
    at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    times = {"lastUpdateTime": at, "lastTransitionTime": at}
    before = [each for each in trial.status.get("conditions") or () if each.get("type") != type_]
    conditions = [
        {**each, "status": "False", **times} if each.get("type") == "Running" else dict(each) for each in before
    ]
    conditions.append({"type": type_, "status": "True", "reason": f"Trial{type_}", "message": why, **times})
    value = None if record is None else record.value
    status: Object = {"conditions": conditions, "completionTime": at}
    if value is not None and math.isfinite(value) and state in (TrialState.SUCCEEDED, TrialState.PRUNED):
        shown = repr(value)
        status["observation"] = {"metrics": [{"name": metric, "min": shown, "max": shown, "latest": shown}]}
    return status
