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
from fairlead.cluster.kubernetes.engines.search_port import ProposedTrial, SearchDriver
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
            "parameters": [_parameter(parameter, spec.chosen_sampler) for parameter in spec.space],
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
    parameters = [parameter.name for parameter in space]
    env = [{"name": name, "value": f"${{trialParameters.{name}}}"} for name in parameters]
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
        "trialParameters": [{"name": name, "reference": name} for name in parameters],
        "trialSpec": job,
    }


def read_trial(content: Mapping[str, Any]) -> ProposedTrial:
    """Read a Trial, whatever is missing of it."""
    metadata = content["metadata"]
    assigned = (content.get("spec") or {}).get("parameterAssignments") or ()
    return ProposedTrial(
        name=str(metadata["name"]),
        created=str(metadata.get("creationTimestamp") or ""),
        values={str(parameter.get("name")): str(parameter.get("value")) for parameter in assigned},
        is_created=condition(content, "Created") is not None,
        is_completed=any(condition(content, type_) is not None for type_ in _COMPLETED),
        status=content.get("status") or {},
    )


def observe(experiment: Mapping[str, Any], trials: Iterable[ProposedTrial]) -> EngineSearch:
    """Read what an Experiment and its Trials say."""
    failed, done = condition(experiment, "Failed"), condition(experiment, "Succeeded")
    ended = failed or done
    waiting = [trial for trial in trials if trial.is_created and not trial.is_completed]
    waiting.sort(key=lambda trial: (trial.created, trial.name))
    message = "" if ended is None else words(ended, fallback="it does not say why")
    return EngineSearch(
        proposals=tuple(Proposal(name=trial.name, values=trial.values) for trial in waiting),
        is_over=ended is not None,
        has_failed=failed is not None,
        message=message if ended is None else _ENOUGH.get(str(ended.get("reason")), message),
    )


def failure_of(experiment: Mapping[str, Any], suggestion: Mapping[str, Any]) -> str:
    """Return why an Experiment failed, as a clause: what its Suggestion says, where that has failed too."""
    failure = condition(suggestion, "Failed") or condition(experiment, "Failed") or {}
    return _plain(words(failure, fallback="it does not say why"))


def warning_of(events: Iterable[Mapping[str, Any]], since: str) -> str:
    """Return the newest warning of an Experiment or its Suggestion, as a clause; empty if there is none.

    Args:
        events: Warnings of objects of the Experiment's name.
        since: The time, as Kubernetes writes it, before which warnings are of no interest.
    """
    newest = "", ""
    for event in events:
        at = str(event.get("lastTimestamp") or event.get("eventTime") or "")
        kind = event["involvedObject"].get("kind")
        if kind in (KIND, "Suggestion") and at >= since:
            newest = max(newest, (at, f"its {kind} says: {_plain(words(event, fallback='nothing'))}"))
    return newest[1]


def _plain(message: str) -> str:
    """Strip the gRPC prefix from a Katib message."""
    return re.sub(r"rpc error: code = \w+ desc = ", "", message)


def ended_trial(
    trial: ProposedTrial, record: TrialRecord | None, metric: str, now: float, *, is_searching: bool
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
    others = [item for item in before.get("conditions") or () if item.get("type") != type_]
    conditions = [
        {**other, "status": "False", **times} if other.get("type") == "Running" else dict(other) for other in others
    ]
    # Katib takes the last one for what holds now.
    conditions.append({"type": type_, "status": "True", "reason": reason, "message": message, **times})
    return {"conditions": conditions, "completionTime": at}


class Katib(SearchDriver):
    """The port to Katib."""

    engine = SweepEngine.KATIB
    api, kind, plural = API, KIND, EXPERIMENTS
    trial = ("Trial", TRIALS)
    suggestions = SUGGESTIONS

    def name_of(self, sweep: Workload[Sweep]) -> str:
        """Return the name of the Experiment of a sweep's start."""
        return experiment_name(sweep)

    def render(self, sweep: Workload[Sweep], num_trials: int) -> Object:
        """Render the Experiment of a start of a sweep."""
        return render(sweep, num_trials)

    def read_trial(self, content: Mapping[str, Any]) -> ProposedTrial:
        """Read a Trial, whatever is missing of it."""
        return read_trial(content)

    def observe(self, content: Mapping[str, Any], trials: Iterable[ProposedTrial]) -> EngineSearch:
        """Read what an Experiment and its Trials say."""
        return observe(content, trials)

    def ended_trial(
        self, trial: ProposedTrial, record: TrialRecord | None, metric: str, now: float, *, is_searching: bool
    ) -> Object:
        """Return the status of a Trial whose run is over."""
        return ended_trial(trial, record, metric, now, is_searching=is_searching)

    def ended(self, content: Mapping[str, Any], phase: Phase, reason: Reason, now: float) -> Object:
        """Return the status of an Experiment whose sweep is over."""
        return ended_experiment(content, phase, reason, now)

    def failure_of(self, content: Mapping[str, Any], suggestion: Mapping[str, Any]) -> str:
        """Return why an Experiment failed, as a clause."""
        return failure_of(content, suggestion)

    def warning_of(self, events: Iterable[Mapping[str, Any]], since: str) -> str:
        """Return the newest warning of an Experiment or its Suggestion, as a clause; empty if there is none."""
        return warning_of(events, since)


DRIVER = Katib()
