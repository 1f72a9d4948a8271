"""Gives each sweep that has an engine its Experiment, reads what that proposes, and tells it how trials ended.

Level-triggered and without memory: an Experiment's name follows from its sweep and the start, which of its Trials have
a run follows from the sweep's status, and how those ended from the runs.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.watching import ObjectCache
from fairlead.cluster.kubernetes.engines.search_port import ProposedTrial, SearchDriver
from fairlead.cluster.kubernetes.engines.table import AnyEngine, driver_of, path_of
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Turn
from fairlead.cluster.kubernetes.operator.engines.parent_engine_controller import EngineWatch, ParentEngineController
from fairlead.cluster.kubernetes.operator.pods import pod_rejections as refusals
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.frozen import dataclass
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.sweep import detail_of, num_wanted, trials_of
from fairlead.policy.search.trials import TrialRecord, TrialState
from fairlead.specs.sweep import Sweep
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.state.engine_searches import EngineSearch
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import AnyWorkload, Phase, Snapshot, Workload

_FAILED = "the failure of {}"
"""The part of a sweep's problems that is why its Experiment of that name failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experiment:
    """An Experiment without its template.

    Attributes:
        sweep: Namespace and name of the sweep that it names as its owner.
    """

    key: str
    version: int
    uid: str
    sweep_uid: str
    sweep: str
    attempt: int
    content: Mapping[str, Any]
    is_leaving: bool
    is_over: bool
    has_failed: bool

    @property
    def name(self) -> str:
        return self.key.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A Trial, with uid and name of the Experiment that Katib made it for."""

    key: str
    version: int
    uid: str
    experiment_uid: str
    experiment: str
    trial: ProposedTrial


class SearchController(ParentEngineController[Sweep, SearchDriver, EngineSearch]):
    """Creates, answers and ends the objects of sweeps whose trials an engine proposes."""

    name = "searches"
    uid_label = names.SWEEP_UID

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        searches = self.look(snapshot)
        return replace(snapshot, engine_searches=searches) if searches else snapshot

    def parents(self, snapshot: Snapshot) -> list[Workload[Sweep]]:
        """Return the sweeps of a snapshot that have an engine."""
        sweeps = cast("list[Workload[Sweep]]", [run for run in snapshot.parents if isinstance(run.spec, Sweep)])
        return [sweep for sweep in sweeps if sweep.spec.engine is not None]

    def owners(self, snapshot: Snapshot) -> list[Workload[Sweep]]:
        """Return all sweeps that have an engine, also those that are over, which a snapshot does not show."""
        sweeps = (item.workload for item in self._view.cache_of(Sweep.__name__).all())
        return [sweep for sweep in sweeps if sweep is not None and sweep.spec.engine is not None]

    def read_name(self, parent: Workload[Sweep]) -> str:
        """Name what is read for a sweep."""
        return f"search of {parent.spec.team}/{parent.spec.name}"

    def work_name(self, parent: Workload[Sweep]) -> str:
        """Name what is done for a sweep."""
        return f"experiment of {parent.spec.team}/{parent.spec.name}"

    def report(self, parent: Workload[Sweep]) -> EngineSearch:
        """Return what its engine proposes for a sweep."""
        watch = self.watch_of(parent)
        if not watch.is_synced:
            return EngineSearch(message=watch.problem() or "")
        refusal = self._problems.refusal(parent.uid)
        experiment = experiment_of(watch, parent)
        if experiment is None:
            return EngineSearch(message="" if refusal is None else refusal.problem)
        own = (item.trial for item in trials_made(watch, parent) if item.experiment == experiment.name)
        search = watch.driver.observe(experiment.content, own)
        if search.has_failed:
            # The sweep ends with the first words of a failure, so that it waits for those that say why.
            why = self._problems.finding(parent.uid, _FAILED.format(experiment.name))
            return replace(search, is_over=bool(why), has_failed=bool(why), message=why)
        return replace(search, message=search.message or self._problems.finding(parent.uid))

    def act_on(self, parent: Workload[Sweep], turn: Turn) -> bool:
        """Queue the work that one sweep needs; return whether more is to come."""
        agent, sweep, watch = turn.agent, parent, self.watch_of(parent)
        if not watch.is_synced:
            return True
        is_behind = self._tell_ends(agent, sweep, self._children(turn.snapshot, sweep), watch)
        experiment = experiment_of(watch, sweep)
        if sweep.status.phase is Phase.RUNNING and experiment is None:
            is_behind = True
            self._give(agent, sweep)
        if experiment is None or experiment.is_leaving:
            return is_behind
        if experiment.is_over:
            return self._explain(agent, sweep, experiment) or is_behind
        if (end := _end_of(sweep)) is not None:
            agent.submit(sweep.uid, f"end experiment {experiment.key}", partial(self._end, sweep, experiment, *end))
            return True
        if sweep.status.phase is Phase.RUNNING:
            return self._ask_why(agent, sweep, experiment, watch) or is_behind
        return is_behind

    def watch_of(self, sweep: Workload[Sweep]) -> EngineWatch[SearchDriver]:
        """Return the watches of a sweep's engine."""
        assert sweep.spec.engine is not None
        return self.watch(sweep.spec.engine)

    def begin(self, engine: AnyEngine) -> EngineWatch[SearchDriver]:
        """Return the watches of an engine, not yet started."""
        driver = driver_of(SweepEngine(engine))
        kind, plural = driver.trial
        return EngineWatch(
            engine=engine,
            driver=driver,
            objects=self.cache_of(engine, driver.api, driver.plural, partial(_read_experiment, driver)),
            parts=self.cache_of(engine, driver.api, plural, partial(_read_trial, driver)),
            made=(kind, driver.api),
        )

    def _children(self, snapshot: Snapshot, sweep: Workload[Sweep]) -> dict[str, AnyWorkload]:
        """The runs of a sweep by their names within it, as a snapshot has them where it shows them."""
        shown: dict[str, AnyWorkload] = {
            child.uid: child for child in (*snapshot.workloads, *snapshot.ended) if child.parent == sweep.uid
        }
        prefix = f"{sweep.spec.name}-"
        return {
            child.name.removeprefix(prefix): shown.get(child.uid, child.workload)
            for child in self._view.children_of(sweep.uid)
            if child.workload is not None
        }

    def _give(self, agent: PodAgent, sweep: Workload[Sweep]) -> None:
        if not self._problems.is_paused(sweep.uid):
            what = f"create experiment {sweep.spec.team}/{self.watch_of(sweep).driver.name_of(sweep)}"
            agent.submit(sweep.uid, what, partial(self._create, sweep))

    def _create(self, sweep: Workload[Sweep]) -> None:
        detail, watch = detail_of(sweep), self.watch_of(sweep)
        num_trials = num_wanted(sweep.spec, detail.pruned) - detail.submitted
        if num_trials < 1 or experiment_of(watch, sweep) is not None or not self._may_act():
            return
        driver = watch.driver
        content = driver.render(sweep, num_trials)
        problem: str | None = None
        try:
            watch.objects.put(self._client.create(path_of(driver, sweep.spec.team), content))
        except ApiError as error:
            if error.reason == "AlreadyExists":
                name = content["metadata"]["name"]
                problem = (
                    f"an {driver.kind} named {name} exists and is not this sweep's; delete it, or give the sweep "
                    "another name"
                )
            else:
                phase, problem = refusals.explain(error, sweep.spec.team, kind=driver.kind)
                if phase is None:
                    raise
        self._problems.answered(sweep.uid, problem)
        self._view.wake()

    def _tell_ends(
        self,
        agent: PodAgent,
        sweep: Workload[Sweep],
        children: Mapping[str, AnyWorkload],
        watch: EngineWatch[SearchDriver],
    ) -> bool:
        """Tell the engine which trials are over; return whether any had to be told."""
        assert sweep.spec.objective is not None
        detail, end, experiment = detail_of(sweep), _end_of(sweep), experiment_of(watch, sweep)
        numbers = {name: number for number, name in enumerate(detail.proposed)}
        records: dict[int, TrialRecord] | None = None
        has_told = False
        for item in trials_made(watch, sweep):
            if item.trial.is_completed:
                continue
            number = numbers.get(item.trial.name)
            # One of an Experiment before, which ended with an earlier stop, gets no run any more.
            is_searching = end is None and experiment is not None and item.experiment == experiment.name
            if number is None and is_searching:
                continue
            if records is None:
                records = {trial.number: trial for trial in trials_of(sweep, Family(children=children))}
            record = None if number is None else records.get(number)
            if record is not None and record.state is TrialState.ACTIVE:
                continue
            has_told = True
            job = partial(self._end_trial, watch, item, record, sweep.spec.objective.metric, is_searching)
            agent.submit(item.uid, f"tell the end of {item.key}", job)
        return has_told

    def _end_trial(
        self,
        watch: EngineWatch[SearchDriver],
        item: _Trial,
        record: TrialRecord | None,
        metric: str,
        is_searching: bool,
    ) -> None:
        if self._may_act():
            status = watch.driver.ended_trial(item.trial, record, metric, time.time(), is_searching=is_searching)
            self._write(watch.parts, watch.driver, watch.driver.trial[1], item, status)

    def _end(self, sweep: Workload[Sweep], experiment: _Experiment, phase: Phase, reason: Reason) -> None:
        watch = self.watch_of(sweep)
        if self._may_act():
            status = watch.driver.ended(experiment.content, phase, reason, time.time())
            self._write(watch.objects, watch.driver, watch.driver.plural, experiment, status)

    def _write(
        self,
        cache: ObjectCache[Any],
        driver: SearchDriver,
        plural: str,
        item: _Experiment | _Trial,
        status: Mapping[str, Any],
    ) -> None:
        """Write the status of an engine's object, as long as it is as it was read."""
        namespace, _, name = item.key.partition("/")
        body = {"metadata": {"uid": item.uid, "resourceVersion": str(item.version)}, "status": status}
        try:
            content = self._client.merge(f"{_path(driver, plural, namespace, name)}/status", body)
        except ApiError as error:
            # The engine wrote something in between, or it is gone: the watch tells what is to be done then.
            if error.status not in (404, 409):
                raise
            return
        cache.put(content)

    def _ask_why(
        self, agent: PodAgent, sweep: Workload[Sweep], experiment: _Experiment, watch: EngineWatch[SearchDriver]
    ) -> bool:
        """Ask why nothing is proposed while no trial runs; return whether to come again."""
        trials = trials_made(watch, sweep)
        if any(not trial.trial.is_completed for trial in trials):
            self._problems.clear(sweep.uid)
            return False
        if self._problems.is_due(sweep.uid):
            since = max((trial.trial.created for trial in trials), default="")
            ask = partial(self._ask, sweep, experiment.name, since)
            agent.submit(sweep.uid, f"ask why {experiment.key} proposes nothing", ask)
        return True

    def _ask(self, sweep: Workload[Sweep], experiment: str, since: str) -> None:
        """Take what the Deployment of the engine's algorithm says of itself; else the newest warning of the engine."""
        query = {"labelSelector": f"{names.SWEEP_UID}={sweep.uid}"}
        problem = ""
        for deployment in self._client.items(f"/apis/apps/v1/namespaces/{segment(sweep.spec.team)}/deployments", query):
            problem = trouble_of(deployment) or problem
        if not problem:
            query = {"fieldSelector": f"type=Warning,involvedObject.name={experiment}"}
            events = self._client.items(f"/api/v1/namespaces/{segment(sweep.spec.team)}/events", query)
            problem = self.watch_of(sweep).driver.warning_of(events, since)
        if self._problems.find(sweep.uid, problem):
            self._view.wake()

    def _explain(self, agent: PodAgent, sweep: Workload[Sweep], experiment: _Experiment) -> bool:
        """Ask why an Experiment failed whose sweep does not know yet; return whether to come again."""
        is_known = self._problems.finding(sweep.uid, _FAILED.format(experiment.name))
        if sweep.status.phase is not Phase.RUNNING or is_known or not experiment.has_failed:
            return False
        agent.submit(sweep.uid, f"ask why {experiment.key} failed", partial(self._ask_failure, sweep, experiment))
        return True

    def _ask_failure(self, sweep: Workload[Sweep], experiment: _Experiment) -> None:
        """Take what the engine's algorithm says of its failure, which the Experiment does not repeat."""
        driver = self.watch_of(sweep).driver
        suggestion: Mapping[str, Any] = {}
        try:
            suggestion = self._client.get(_path(driver, driver.suggestions, sweep.spec.team, experiment.name))
        except ApiError as error:
            # Without it, as without the right to read it, the words of the Experiment have to do.
            if error.status not in (403, 404):
                raise
        why = driver.failure_of(experiment.content, suggestion)
        self._problems.find(sweep.uid, why, _FAILED.format(experiment.name))
        self._view.wake()


def experiment_of(watch: EngineWatch[SearchDriver], sweep: Workload[Sweep]) -> _Experiment | None:
    """Return the Experiment that still proposes, as one does through a suspension; else that of the sweep's start."""
    own = _experiments_of(watch, sweep)
    open_ = [item for item in own if not item.is_over and not item.is_leaving]
    of_start = [item for item in own if item.attempt == sweep.status.attempt]
    return max(open_ or of_start, key=lambda item: item.attempt, default=None)


def trials_made(watch: EngineWatch[SearchDriver], sweep: Workload[Sweep]) -> list[_Trial]:
    """Return the Trials of the Experiments of a sweep, of which each is in the namespace of its Experiment."""
    own = {(item.uid, item.key) for item in _experiments_of(watch, sweep)}
    team = sweep.spec.team
    return [
        item
        for item in watch.parts.all()
        if (item.experiment_uid, f"{team}/{item.experiment}") in own and item.key.startswith(f"{team}/")
    ]


def _experiments_of(watch: EngineWatch[SearchDriver], sweep: Workload[Sweep]) -> list[_Experiment]:
    key = f"{sweep.spec.team}/{sweep.spec.name}"
    return [item for item in watch.objects.all() if (item.sweep_uid, item.sweep) == (sweep.uid, key)]


def trouble_of(deployment: Mapping[str, Any]) -> str:
    """Return why a Deployment of Katib's has no pod that is ready, as a clause; empty where it has."""
    status, name = deployment.get("status") or {}, deployment["metadata"]["name"]
    if status.get("readyReplicas"):
        return ""
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    failure = conditions.get("ReplicaFailure") or {}
    if failure.get("status") == "True":
        why = " ".join(str(failure.get("message") or "").split()).rstrip(".")[:400]
        return f"the pod of {name} is refused: {why}"
    return f"its Deployment {name} has no pod that is ready"


def _end_of(sweep: Workload[Sweep]) -> tuple[Phase, Reason] | None:
    """Return how a sweep has ended, or will once its runs have stopped; None while it searches or is to continue."""
    status = sweep.status
    if status.phase.is_final:
        return status.phase, status.reason
    if status.after_stop.phase is not None and status.after_stop.phase.is_final:
        return status.after_stop.phase, status.after_stop.reason or status.reason
    return None


def _path(driver: SearchDriver, plural: str, namespace: str, name: str) -> str:
    return f"/apis/{driver.api}/namespaces/{segment(namespace)}/{plural}/{segment(name)}"


def _read_experiment(driver: SearchDriver, content: dict[str, Any]) -> _Experiment | None:
    metadata = content["metadata"]
    labels, owner = metadata.get("labels") or {}, names.controller_of(metadata)
    if names.SWEEP_UID not in labels or labels[names.SWEEP_UID] != owner.get("uid"):
        return None
    attempt = str(labels.get(names.ATTEMPT) or "0")
    if not attempt.isdigit() or metadata["name"] != names.engine_object_name_of(str(owner.get("name")), int(attempt)):
        return None
    state = {"status": content.get("status")}
    search = driver.observe(state, ())
    return _Experiment(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        uid=str(metadata["uid"]),
        sweep_uid=str(labels[names.SWEEP_UID]),
        sweep=f"{metadata['namespace']}/{owner['name']}",
        attempt=int(attempt),
        content=state,
        is_leaving="deletionTimestamp" in metadata,
        is_over=search.is_over,
        has_failed=search.has_failed,
    )


def _read_trial(driver: SearchDriver, content: dict[str, Any]) -> _Trial | None:
    metadata = content["metadata"]
    owner = names.controller_of(metadata)
    if names.SWEEP_UID not in (metadata.get("labels") or {}) or owner.get("kind") != driver.kind:
        return None
    return _Trial(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        uid=str(metadata["uid"]),
        experiment_uid=str(owner.get("uid") or ""),
        experiment=str(owner.get("name") or ""),
        trial=driver.read_trial(content),
    )
