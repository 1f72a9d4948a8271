"""Gives each sweep that has an engine its Experiment, reads what that proposes, and tells it how trials ended.

Level-triggered and without memory: an Experiment's name follows from its sweep and the start, which of its Trials have
a run follows from the sweep's status, and how those ended from the runs.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.watching import IDLE_S, Cache
from fairlead.cluster.kubernetes.engines import katib
from fairlead.cluster.kubernetes.engines.katib import KatibTrial
from fairlead.cluster.kubernetes.engines.table import missing
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.cluster.kubernetes.operator.engines.engine_problems import EngineProblems
from fairlead.cluster.kubernetes.operator.pods import pod_rejections as refusals
from fairlead.cluster.kubernetes.operator.pods.pod_agent import Agent
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

    @property
    def name(self) -> str:
        return self.key.partition("/")[2]

    @property
    def is_over(self) -> bool:
        return katib.observe(self.content, ()).is_over


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A Trial, with uid and name of the Experiment that Katib made it for."""

    key: str
    version: int
    uid: str
    experiment_uid: str
    experiment: str
    trial: KatibTrial


@dataclass(frozen=True, slots=True, kw_only=True)
class _Caches:
    """The watches, which begin with the first sweep that has the engine."""

    experiments: Cache[_Experiment]
    trials: Cache[_Trial]

    @property
    def is_synced(self) -> bool:
        return self.experiments.is_synced and self.trials.is_synced

    def experiment(self, sweep: Workload[Sweep]) -> _Experiment | None:
        """The Experiment that still proposes, as one does through a suspension; else that of the sweep's start."""
        own = self._experiments_of(sweep)
        open_ = [each for each in own if not each.is_over and not each.is_leaving]
        of_start = [each for each in own if each.attempt == sweep.status.attempt]
        return max(open_ or of_start, key=lambda each: each.attempt, default=None)

    def _experiments_of(self, sweep: Workload[Sweep]) -> list[_Experiment]:
        key = f"{sweep.spec.team}/{sweep.spec.name}"
        return [
            experiment
            for experiment in self.experiments.all()
            if (experiment.sweep_uid, experiment.sweep) == (sweep.uid, key)
        ]

    def trials_of(self, sweep: Workload[Sweep]) -> list[_Trial]:
        """The Trials of the Experiments of a sweep, of which each is in the namespace of its Experiment."""
        own = {(each.uid, each.key) for each in self._experiments_of(sweep)}
        team = sweep.spec.team
        return [
            trial
            for trial in self.trials.all()
            if (trial.experiment_uid, f"{team}/{trial.experiment}") in own and trial.key.startswith(f"{team}/")
        ]


class SearchController(Controller):
    """Creates, answers and ends the Experiments of sweeps whose trials an engine proposes.

    Args:
        may_act: Whether we still lead; asked before each request.
    """

    name = "searches"
    stage = PassStage.CHANGES

    def __init__(
        self, client: Client, view: Informers, *, may_act: Callable[[], bool] = lambda: True, idle_s: float = IDLE_S
    ) -> None:
        self._client = client
        self._view = view
        self._may_act = may_act
        self._idle_s = idle_s
        self._caches: _Caches | None = None
        self._problems = EngineProblems()
        self._is_behind = False

    @property
    def is_behind(self) -> bool:
        """Return whether something is still to be done, or asked."""
        return self._is_behind

    @property
    def caches(self) -> list[Cache[Any]]:
        """The caches, once a sweep uses the engine."""
        return [] if self._caches is None else [self._caches.experiments, self._caches.trials]

    def stop(self) -> None:
        """End all watches."""
        for cache in self.caches:
            cache.stop()

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        searches = self.look(snapshot)
        return replace(snapshot, engine_searches=searches) if searches else snapshot

    def look(self, seen: Snapshot) -> Mapping[str, EngineSearch]:
        """Return what the engine proposes for the sweeps of a snapshot, by uid."""
        found = {}
        for sweep in _sweeps(seen):
            with self._view.isolation.of(f"search of {sweep.spec.team}/{sweep.spec.name}"):
                found[sweep.uid] = self._look(sweep, self._watch())
        return found

    def _look(self, sweep: Workload[Sweep], caches: _Caches) -> EngineSearch:
        if not caches.is_synced:
            return EngineSearch(message=self._problem(caches))
        refusal = self._problems.refusal(sweep.uid)
        there = caches.experiment(sweep)
        if there is None:
            return EngineSearch(message="" if refusal is None else refusal.problem)
        own = (each.trial for each in caches.trials_of(sweep) if each.experiment == there.name)
        found = katib.observe(there.content, own)
        if found.has_failed:
            # The sweep ends with the first words of a failure, so that it waits for those that say why.
            why = self._problems.finding(sweep.uid, _FAILED.format(there.name))
            return replace(found, is_over=bool(why), has_failed=bool(why), message=why)
        return replace(found, message=found.message or self._problems.finding(sweep.uid))

    def act(self, turn: Turn) -> None:
        """Give out what is to be done by a snapshot, and for sweeps that are over, which it does not show."""
        agent, seen = turn.agent, turn.snapshot
        self._is_behind, sweeps = False, self._all_sweeps()
        self._problems.keep({each.uid for each in sweeps})
        for sweep in sweeps:
            with self._view.isolation.of(f"experiment of {sweep.spec.team}/{sweep.spec.name}"):
                self._is_behind = self._act_on(sweep, agent, seen) or self._is_behind

    def _act_on(self, sweep: Workload[Sweep], agent: Agent, seen: Snapshot) -> bool:
        """Queue the work that one sweep needs; return whether more is to come."""
        caches = self._watch()
        if not caches.is_synced:
            return True
        is_behind = self._tell_ends(agent, sweep, self._children(seen, sweep), caches)
        there = caches.experiment(sweep)
        if sweep.status.phase is Phase.RUNNING and there is None:
            is_behind = True
            self._give(agent, sweep)
        if there is None or there.is_leaving:
            return is_behind
        if there.is_over:
            return self._explain(agent, sweep, there) or is_behind
        if (end := _end_of(sweep)) is not None:
            agent.submit(sweep.uid, f"end experiment {there.key}", partial(self._end, there, *end))
            return True
        if sweep.status.phase is Phase.RUNNING:
            return self._ask_why(agent, sweep, there, caches) or is_behind
        return is_behind

    def _all_sweeps(self) -> list[Workload[Sweep]]:
        found = (each.workload for each in self._view.cache_of(Sweep.__name__).all())
        return [each for each in found if each is not None and each.spec.engine is not None]

    def _children(self, seen: Snapshot, sweep: Workload[Sweep]) -> dict[str, AnyWorkload]:
        """The runs of a sweep by their names within it, as a snapshot has them where it shows them."""
        shown: dict[str, AnyWorkload] = {
            each.uid: each for each in (*seen.workloads, *seen.ended) if each.parent == sweep.uid
        }
        prefix = f"{sweep.spec.name}-"
        return {
            each.name.removeprefix(prefix): shown.get(each.uid, each.workload)
            for each in self._view.children_of(sweep.uid)
            if each.workload is not None
        }

    def _give(self, agent: Agent, sweep: Workload[Sweep]) -> None:
        if not self._problems.is_paused(sweep.uid):
            what = f"create experiment {sweep.spec.team}/{katib.experiment_name(sweep)}"
            agent.submit(sweep.uid, what, partial(self._create, sweep))

    def _create(self, sweep: Workload[Sweep]) -> None:
        detail, caches = detail_of(sweep), self._watch()
        num_trials = num_wanted(sweep.spec, detail.pruned) - detail.submitted
        if num_trials < 1 or caches.experiment(sweep) is not None or not self._may_act():
            return
        content = katib.render(sweep, num_trials)
        problem: str | None = None
        try:
            caches.experiments.put(self._client.create(_path(katib.EXPERIMENTS, sweep.spec.team), content))
        except ApiError as error:
            if error.reason == "AlreadyExists":
                name = content["metadata"]["name"]
                problem = (
                    f"an {katib.KIND} named {name} exists and is not this sweep's; delete it, or give the sweep "
                    "another name"
                )
            else:
                phase, problem = refusals.explain(error, sweep.spec.team, kind=katib.KIND)
                if phase is None:
                    raise
        self._problems.answered(sweep.uid, problem)
        self._view.wake()

    def _tell_ends(
        self, agent: Agent, sweep: Workload[Sweep], children: Mapping[str, AnyWorkload], caches: _Caches
    ) -> bool:
        """Tell the engine which trials are over; return whether any had to be told."""
        assert sweep.spec.objective is not None
        detail, end, there = detail_of(sweep), _end_of(sweep), caches.experiment(sweep)
        numbers = {name: number for number, name in enumerate(detail.proposed)}
        records: dict[int, TrialRecord] | None = None
        has_told = False
        for each in caches.trials_of(sweep):
            if each.trial.is_completed:
                continue
            number = numbers.get(each.trial.name)
            # One of an Experiment before, which ended with an earlier stop, gets no run any more.
            is_searching = end is None and there is not None and each.experiment == there.name
            if number is None and is_searching:
                continue
            if records is None:
                records = {one.number: one for one in trials_of(sweep, Family(children=children))}
            record = None if number is None else records.get(number)
            if record is not None and record.state is TrialState.ACTIVE:
                continue
            has_told = True
            told = partial(self._end_trial, each, record, sweep.spec.objective.metric, is_searching)
            agent.submit(each.uid, f"tell the end of {each.key}", told)
        return has_told

    def _end_trial(self, found: _Trial, record: TrialRecord | None, metric: str, is_searching: bool) -> None:
        if self._may_act():
            status = katib.ended_trial(found.trial, record, metric, time.time(), is_searching=is_searching)
            self._write(self._watch().trials, katib.TRIALS, found, status)

    def _end(self, there: _Experiment, phase: Phase, reason: Reason) -> None:
        if self._may_act():
            status = katib.ended_experiment(there.content, phase, reason, time.time())
            self._write(self._watch().experiments, katib.EXPERIMENTS, there, status)

    def _write(self, cache: Cache[Any], plural: str, found: _Experiment | _Trial, status: Mapping[str, Any]) -> None:
        """Write the status of an object of Katib's, as long as it is as it was read."""
        namespace, _, name = found.key.partition("/")
        body = {"metadata": {"uid": found.uid, "resourceVersion": str(found.version)}, "status": status}
        try:
            content = self._client.merge(f"{_path(plural, namespace, name)}/status", body)
        except ApiError as error:
            # Katib wrote something in between, or it is gone: the watch tells what is to be done then.
            if error.status not in (404, 409):
                raise
            return
        cache.put(content)

    def _ask_why(self, agent: Agent, sweep: Workload[Sweep], there: _Experiment, caches: _Caches) -> bool:
        """Ask why nothing is proposed while no trial runs; return whether to come again."""
        trials = caches.trials_of(sweep)
        if any(not trial.trial.is_completed for trial in trials):
            self._problems.clear(sweep.uid)
            return False
        if self._problems.is_due(sweep.uid):
            since = max((trial.trial.created for trial in trials), default="")
            ask = partial(self._ask, sweep, there.name, since)
            agent.submit(sweep.uid, f"ask why {there.key} proposes nothing", ask)
        return True

    def _ask(self, sweep: Workload[Sweep], experiment: str, since: str) -> None:
        """Take what the Deployment of the engine's algorithm says of itself; else the newest warning of the engine."""
        query = {"labelSelector": f"{names.SWEEP_UID}={sweep.uid}"}
        found = self._client.items(f"/apis/apps/v1/namespaces/{sweep.spec.team}/deployments", query)
        problem = ""
        for each in found:
            problem = trouble_of(each) or problem
        if not problem:
            query = {"fieldSelector": f"type=Warning,involvedObject.name={experiment}"}
            problem = katib.warning_of(self._client.items(f"/api/v1/namespaces/{sweep.spec.team}/events", query), since)
        if self._problems.find(sweep.uid, problem):
            self._view.wake()

    def _explain(self, agent: Agent, sweep: Workload[Sweep], there: _Experiment) -> bool:
        """Ask why an Experiment failed whose sweep does not know yet; return whether to come again."""
        is_known = self._problems.finding(sweep.uid, _FAILED.format(there.name))
        if sweep.status.phase is not Phase.RUNNING or is_known or not katib.observe(there.content, ()).has_failed:
            return False
        agent.submit(sweep.uid, f"ask why {there.key} failed", partial(self._ask_failure, sweep, there))
        return True

    def _ask_failure(self, sweep: Workload[Sweep], there: _Experiment) -> None:
        """Take what the engine's algorithm says of its failure, which the Experiment does not repeat."""
        suggestion: Mapping[str, Any] = {}
        try:
            suggestion = self._client.get(_path(katib.SUGGESTIONS, sweep.spec.team, there.name))
        except ApiError as error:
            # Without it, as without the right to read it, the words of the Experiment have to do.
            if error.status not in (403, 404):
                raise
        self._problems.find(sweep.uid, katib.failure_of(there.content, suggestion), _FAILED.format(there.name))
        self._view.wake()

    def _watch(self) -> _Caches:
        if self._caches is None:
            query = {"labelSelector": f"{names.ENGINE}={SweepEngine.KATIB.value},{names.SWEEP_UID}"}

            def cache(plural: str, read: Callable[[dict[str, Any]], Any]) -> Cache[Any]:
                return Cache(
                    self._client, f"/apis/{katib.API}/{plural}", read, lambda *_: self._view.wake(),
                    synced=self._view.wake, query=query, idle_s=self._idle_s,
                )  # fmt: skip

            self._caches = _Caches(
                experiments=cache(katib.EXPERIMENTS, _read_experiment), trials=cache(katib.TRIALS, _read_trial)
            )
            self._caches.experiments.start()
            self._caches.trials.start()
        return self._caches

    def _problem(self, caches: _Caches) -> str:
        """Tell what a cluster lacks for the engine, or does not grant; empty where nothing is known to be missing."""
        for cache, kind in ((caches.experiments, katib.KIND), (caches.trials, "Trial")):
            trouble = None if cache.is_synced else cache.trouble
            if isinstance(trouble, ApiError) and trouble.status == 404:
                return missing(SweepEngine.KATIB, kind, katib.API)
            if isinstance(trouble, ApiError) and trouble.status == 403:
                return f"the operator may not watch {kind} ({katib.API}): `fairlead install` gives it the right"
        return ""


def trouble_of(deployment: Mapping[str, Any]) -> str:
    """Return why a Deployment of Katib's has no pod that is ready, as a clause; empty where it has."""
    status, name = deployment.get("status") or {}, deployment["metadata"]["name"]
    if status.get("readyReplicas"):
        return ""
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    failure = conditions.get("ReplicaFailure") or {}
    if failure.get("status") == "True":
        said = " ".join(str(failure.get("message") or "").split()).rstrip(".")[:400]
        return f"the pod of {name} is refused: {said}"
    return f"its Deployment {name} has no pod that is ready"


def _end_of(sweep: Workload[Sweep]) -> tuple[Phase, Reason] | None:
    """Return how a sweep has ended, or will once its runs have stopped; None while it searches or is to continue."""
    status = sweep.status
    if status.phase.is_final:
        return status.phase, status.reason
    if status.next_phase is not None and status.next_phase.is_final:
        return status.next_phase, status.next_reason or status.reason
    return None


def _sweeps(seen: Snapshot) -> list[Workload[Sweep]]:
    found = [parent for parent in seen.parents if isinstance(parent.spec, Sweep) and parent.spec.engine is not None]
    return cast("list[Workload[Sweep]]", found)


def _path(plural: str, namespace: str, name: str | None = None) -> str:
    place = f"/apis/{katib.API}/namespaces/{namespace}/{plural}"
    return place if name is None else f"{place}/{name}"


def _read_experiment(content: dict[str, Any]) -> _Experiment | None:
    metadata = content["metadata"]
    found, owner = metadata.get("labels") or {}, names.controller_of(metadata)
    if names.SWEEP_UID not in found or found[names.SWEEP_UID] != owner.get("uid"):
        return None
    attempt = str(found.get(names.ATTEMPT) or "0")
    if not attempt.isdigit() or metadata["name"] != names.engine_object_name_of(str(owner.get("name")), int(attempt)):
        return None
    return _Experiment(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        uid=str(metadata["uid"]),
        sweep_uid=str(found[names.SWEEP_UID]),
        sweep=f"{metadata['namespace']}/{owner['name']}",
        attempt=int(attempt),
        content={"status": content.get("status")},
        is_leaving="deletionTimestamp" in metadata,
    )


def _read_trial(content: dict[str, Any]) -> _Trial | None:
    metadata = content["metadata"]
    owner = names.controller_of(metadata)
    if names.SWEEP_UID not in (metadata.get("labels") or {}) or owner.get("kind") != katib.KIND:
        return None
    return _Trial(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        uid=str(metadata["uid"]),
        experiment_uid=str(owner.get("uid") or ""),
        experiment=str(owner.get("name") or ""),
        trial=katib.read_trial(content),
    )
