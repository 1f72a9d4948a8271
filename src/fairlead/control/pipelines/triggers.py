"""Submits pipelines from `fairlead apply` when their schedule, data or drift triggers them.

One file stores the applied pipeline, another its state. The state is written after the run is submitted; the label of
the run names its trigger, so that after a kill in between the successor finds the run and submits no second one.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.home import Home
from fairlead.cluster.selection import FINISHED, RunSelection
from fairlead.control.admission import free_name
from fairlead.control.pipelines import drift
from fairlead.control.pipelines.drift import DriftFinding
from fairlead.control.pipelines.submission import driver_of, pipeline_of
from fairlead.control.pipelines.watched import content_of, signature_of
from fairlead.errors import ClusterError, Conflict, FairleadError, InvalidSpec, NameTaken
from fairlead.frozen import dataclass
from fairlead.policy.kinds.schedule import WatchedData, has_settled, next_time, turn
from fairlead.policy.kinds.standing_pipeline import TRIGGER
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.pipeline import Drift, On, Pipeline, Schedule
from fairlead.specs.training import Training
from fairlead.state.cron_times import zone_of
from fairlead.state.plan import Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Phase
from fairlead.untrusted_json import parse_object

MOST_FINDING_BYTES = 1 << 20
log = logging.getLogger(__name__)

# Schedules have a resolution of one minute; data is checked at its own interval.
LOOK_S = 1.0
# Timeout of a check for drift, as on an unresponsive file system, after which it is killed and retried.
DRIFT_LOOK_S = 3_600.0
KILLED_S = 1.0
DRIFT = "drift-"
# Number of newest finished runs among which the last run of a pipeline is searched.
MOST_LOOKED_AT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPipeline:
    """An applied pipeline, which its triggers submit.

    Attributes:
        spec: Admitted workload that runs it.
        environ: Environment that it inherits.
        at: Unix time at which it was applied.
    """

    pipeline: Pipeline
    spec: Training | Pipeline
    environ: Mapping[str, str]
    at: float

    @property
    def key(self) -> str:
        """Return its unique name among applied pipelines."""
        return f"{self.pipeline.team}.{self.pipeline.name}"

    def watched(self) -> tuple[Path, ...]:
        """Return the files and directories whose changes trigger it."""
        return (
            ()
            if self.pipeline.on is None
            else tuple(self.base / Path(path).expanduser() for path in self.pipeline.on.data)
        )

    @property
    def base(self) -> Path:
        """Return the base of its relative paths."""
        driver = driver_of(self.spec)
        assert driver is not None, "checked when it was read"
        return Path(driver.workdir or Path.home())

    def next_at(self, state: Mapping[str, Any], now: float) -> float | None:
        """Return the next time of its schedule; None without a schedule."""
        schedule = self.pipeline.schedule
        if schedule is None:
            return None
        return next_time(schedule, max(now, float(state.get("handled_until", self.at))), zone_of(schedule.timezone))


def check(applied: AppliedPipeline) -> None:
    """Refuse a pipeline that could never run.

    Raises:
        Conflict: The time zone is unknown, data is missing, or drift cannot be detected.
    """
    name = applied.pipeline.name
    check_timezone(applied.pipeline)
    for path in applied.watched():
        if not path.exists():
            raise Conflict(f"{name}: on.data: {path} is not there.")
    if applied.pipeline.on is not None and applied.pipeline.on.drift is not None:
        drift.check(name, applied.pipeline.on.drift, applied.base)


def check_timezone(pipeline: Pipeline) -> None:
    """Refuse a schedule in a time zone that this machine does not know.

    Raises:
        Conflict: The time zone is unknown.
    """
    if pipeline.schedule is None:
        return
    try:
        zone_of(pipeline.schedule.timezone)
    except (KeyError, ValueError, OSError) as error:
        raise Conflict(
            f"{pipeline.name}: schedule.timezone: this machine knows no time zone {pipeline.schedule.timezone!r}; give "
            "one such as Europe/Berlin, or UTC."
        ) from error


def keep(home: Home, applied: AppliedPipeline) -> bool:
    """Store an applied pipeline; return whether it differs from before.

    Raises:
        ClusterError: It cannot be stored.
    """
    place = home.triggers / f"{applied.key}.json"
    try:
        before = _read(place)
    except ClusterError:
        before = None  # replaced, since it cannot be read
    if before is not None and (before.pipeline, before.spec) == (applied.pipeline, applied.spec):
        return False
    content = {"spec": to_json(applied.spec), "environ": dict(applied.environ), "at": applied.at}
    state = {"at": applied.at, "handled_until": applied.at, "content": content_of(applied.watched()), "signature": ""}
    try:
        home.triggers.mkdir(mode=0o700, exist_ok=True)
        write_json(place, content)
        write_json(place.with_suffix(".state"), state)
    except OSError as error:
        raise ClusterError(f"{place}: {error.strerror or error}") from error
    return True


def remove(home: Home, team: str, name: str) -> bool:
    """Remove an applied pipeline; return whether it existed."""
    place = home.triggers / f"{team}.{name}.json"
    exists = place.exists()
    place.unlink(missing_ok=True)
    place.with_suffix(".state").unlink(missing_ok=True)
    return exists


def all_applied(home: Home) -> Iterator[tuple[AppliedPipeline, dict[str, Any]]]:
    """Yield the applied pipelines with their states, by name.

    Raises:
        ClusterError: A file cannot be read.
    """
    for place in _places(home):
        applied = _read(place)
        if applied is not None:
            yield applied, _state(place, applied)


def state_of(home: Home, applied: AppliedPipeline) -> dict[str, Any]:
    """Return the state of an applied pipeline."""
    return _state(home.triggers / f"{applied.key}.json", applied)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A check for drift in progress.

    Attributes:
        process: Process that runs the check.
        at: Time at which the pipeline was applied, to recognize a later apply.
        until: Deadline by the monotonic clock.
        cycle: State to store afterwards: the training from which rows count, and the state of knowledge then.
    """

    process: subprocess.Popen[bytes]
    at: float
    until: float
    cycle: Mapping[str, Any]


class Triggers:
    """Submits due pipelines. An instance belongs to the supervisor."""

    def __init__(self, home: Home, cluster: LocalCluster) -> None:
        self._home = home
        self._cluster = cluster
        self._look_at = 0.0
        self._data_at: dict[str, float] = {}
        self._drift_at: dict[str, float] = {}
        self._looks: dict[str, Look] = {}
        self._reported: dict[str, str] = {}

    def look(self, now: float) -> int:
        """Submit every due pipeline; return their number."""
        if time.monotonic() < self._look_at:
            return 0
        self._look_at = time.monotonic() + LOOK_S
        submitted = 0
        places = _places(self._home)
        for key in self._looks.keys() - {place.stem for place in places}:
            self._end_look(key)
        for place in places:
            try:
                applied = _read(place)
                if applied is not None:
                    submitted += self._look(applied, _state(place, applied), now)
                self._reported.pop(place.stem, None)
            except (FairleadError, OSError, ValueError, KeyError) as error:
                # A failing pipeline blocks no others, nor any run, and is retried.
                if self._reported.get(place.stem) != str(error):
                    self._reported[place.stem] = str(error)
                    log.error("%s cannot be run when it is due: %s", place.stem, error)
        return submitted

    @property
    def is_looking(self) -> bool:
        """Return whether a check for drift is in progress."""
        return bool(self._looks)

    def _look(self, applied: AppliedPipeline, state: dict[str, Any], now: float) -> int:
        submitted = 0
        looking = self._looks.get(applied.key)
        if looking is not None and looking.at != applied.at:
            self._end_look(applied.key)
        if applied.pipeline.schedule is not None:
            submitted += self._by_time(applied, applied.pipeline.schedule, state, now)
        on = applied.pipeline.on
        if on is not None and on.data and time.monotonic() >= self._data_at.get(applied.key, 0.0):
            self._data_at[applied.key] = time.monotonic() + on.every_s
            submitted += self._by_data(applied, on, state, now)
        if on is not None and on.drift is not None:
            submitted += self._by_drift(applied, on, on.drift, state, now)
        return submitted

    def _by_time(self, applied: AppliedPipeline, schedule: Schedule, state: dict[str, Any], now: float) -> int:
        zone, going = zone_of(schedule.timezone), self._going(applied)
        decided = turn(schedule, float(state["handled_until"]), now, is_going=going is not None, zone=zone)
        if decided.due is not None:
            moment = datetime.fromtimestamp(decided.due, zone)
            self._submit(applied, f"schedule-{decided.due:.0f}", f"its schedule: {moment:%Y-%m-%d %H:%M %Z}", now)
        if decided.skip_message is not None:
            log.info("%s is not run: %s", applied.key, decided.skip_message)
            if going is not None:
                self._note(going, "NotScheduled", decided.skip_message, now)
        if decided.handled_until != state["handled_until"]:
            self._keep(applied, state, handled_until=decided.handled_until)
        return int(decided.due is not None)

    def _by_data(self, applied: AppliedPipeline, on: On, state: dict[str, Any], now: float) -> int:
        signature = signature_of(applied.watched())
        if signature == state.get("looked"):
            return 0
        seen = WatchedData(signature=state["signature"], content=state["content"])
        if not has_settled(seen, signature):
            self._keep(applied, state, signature=signature)
            return 0
        # Checked first: otherwise each check would read all data in vain until that run ends.
        if self._going(applied) is not None:
            return 0
        content = content_of(applied.watched())
        if content == seen.content:
            self._keep(applied, state, looked=signature)
            return 0
        number = int(state.get("number", 0)) + 1
        self._submit(applied, f"data-{applied.at:.0f}-{number}", f"changed data: {', '.join(on.data)}", now)
        self._keep(applied, state, content=content, looked=signature, number=number)
        return 1

    def _by_drift(self, applied: AppliedPipeline, on: On, watched: Drift, state: dict[str, Any], now: float) -> int:
        """Start a check in another process, or act on a finished one."""
        looking = self._looks.get(applied.key)
        if looking is None:
            if time.monotonic() >= self._drift_at.get(applied.key, 0.0) and self._going(applied) is None:
                self._drift_at[applied.key] = time.monotonic() + on.every_s
                self._start_look(applied, watched, state)
            return 0
        if looking.process.poll() is None:
            if time.monotonic() < looking.until:
                return 0
            self._end_look(applied.key)
            raise ClusterError(f"on.drift: looking at {watched.data} had not ended after {DRIFT_LOOK_S:g} s")
        del self._looks[applied.key]
        with looking.process as process:
            assert process.stdout is not None
            output = process.stdout.read()
        if process.returncode != 0:
            raise ClusterError(f"looking for drift ended with exit code {process.returncode}")
        try:
            finding = DriftFinding(**parse_object(output, max_bytes=MOST_FINDING_BYTES))
        except (ValueError, TypeError) as error:
            raise ClusterError(f"on.drift: what looked at {watched.data} answered something else: {error}") from error
        if finding.problem is not None:
            self._keep(applied, state, drift_said=finding.problem)
            raise ClusterError(f"on.drift: {finding.problem}")
        return self._act_on(finding, looking, applied, state, now)

    def _end_look(self, key: str) -> None:
        """Kill a check whose result is no longer needed."""
        process = self._looks.pop(key).process
        process.kill()
        assert process.stdout is not None
        process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang on a dead file system
            process.wait(KILLED_S)

    def _start_look(self, applied: AppliedPipeline, watched: Drift, state: dict[str, Any]) -> None:
        signature = signature_of(
            tuple(applied.base / Path(path).expanduser() for path in (watched.data, watched.reference) if path)
        )
        # With a reference file, all rows are compared, regardless of trainings.
        over = self._newest_over(applied) if watched.reference is None else None
        trained = over is not None and over.uid != state.get("drift_run") and _ends_a_cycle(over)
        if not trained and signature == state.get("drift_looked"):
            return
        is_new = bool(state.get("drift_is_new", True))
        fresh, begin = state.get("drift_fresh"), state.get("drift_begin", 0)
        number = int(state.get("drift_number", 0))
        if trained:
            # After a success the new model is in use from here on; otherwise the model is unchanged.
            assert over is not None
            fresh, begin, is_new = state.get("drift_fresh_now"), None, over.status.phase is Phase.SUCCEEDED
            label = over.spec.labels.get(TRIGGER, "")
            if label.startswith(DRIFT):
                # The process that submitted it may have died before storing that number.
                number = max(number, int(label.rpartition("-")[2]))
        wanted = drift.request_of(watched, applied.base, begin=begin, fresh=fresh, is_new=is_new)
        looking = subprocess.Popen(
            [sys.executable, "-m", drift.__name__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
        assert looking.stdin is not None
        with looking.stdin as pipe:
            pipe.write(json.dumps(asdict(wanted)).encode())
        cycle = {
            "drift_run": over.uid if trained and over is not None else state.get("drift_run"),
            "drift_fresh": fresh,
            "drift_is_new": is_new,
            "drift_looked": signature,
            "drift_number": number,
        }
        until = time.monotonic() + DRIFT_LOOK_S
        self._looks[applied.key] = Look(process=looking, at=applied.at, until=until, cycle=cycle)

    def _act_on(
        self, finding: DriftFinding, look: Look, applied: AppliedPipeline, state: dict[str, Any], now: float
    ) -> int:
        changes: dict[str, Any] = {
            **look.cycle,
            "drift_begin": finding.begin,
            "drift_fresh_now": finding.fresh,
            "drift_said": finding.reason,
        }
        if finding.is_due:
            number = changes["drift_number"] + 1
            self._submit(applied, f"{DRIFT}{applied.at:.0f}-{number}", f"drift: {finding.reason}", now)
            changes["drift_number"] = number
        self._keep(applied, state, **changes)
        return int(finding.is_due)

    def _newest_over(self, applied: AppliedPipeline) -> AnyWorkload | None:
        """Return the newest finished run of the pipeline since it was applied."""
        name = applied.pipeline.name
        for run in self._cluster.select(RunSelection(phases=FINISHED), limit=MOST_LOOKED_AT):
            if run.created_at < applied.at:
                return None
            if run.spec.team == applied.pipeline.team and run.spec.name.startswith(name[:45]):
                own_pipeline = pipeline_of(run.spec)
                if own_pipeline is not None and own_pipeline.name == name:
                    return run
        return None

    def _going(self, applied: AppliedPipeline) -> AnyWorkload | None:
        """Return an unfinished run of the pipeline, also under another name."""
        for run in self._cluster.unfinished(applied.pipeline.team):
            own_pipeline = pipeline_of(run.spec)
            if run.spec.name == applied.pipeline.name or (
                own_pipeline is not None and own_pipeline.name == applied.pipeline.name
            ):
                return run
        return None

    def _submit(self, applied: AppliedPipeline, label: str, why: str, now: float) -> None:
        selection = RunSelection(labels=((TRIGGER, label),))
        ours = (other for other in self._cluster.select(selection) if other.spec.team == applied.pipeline.team)
        if any(
            (own_pipeline := pipeline_of(other.spec)) is not None and own_pipeline.name == applied.pipeline.name
            for other in ours
        ):
            return  # a previous supervisor submitted it, and died before recording that
        spec = replace(applied.spec, labels={**applied.spec.labels, TRIGGER: label})
        try:
            run = self._cluster.submit(replace(spec, name=free_name(self._cluster, spec)), environ=applied.environ)
        except NameTaken:
            return  # a user has just started it manually, which serves the purpose
        self._note(run, "Triggered", f"by {why}", now)

    def _note(self, run: AnyWorkload, kind: str, message: str, now: float) -> None:
        self._cluster.store.note(run.uid, Event(type=kind, reason=Reason(code=Code.REPORTED, message=message)), now)

    def _keep(self, applied: AppliedPipeline, state: dict[str, Any], **changes: object) -> None:
        state |= changes
        write_json(self._home.triggers / f"{applied.key}.state", state)


def _ends_a_cycle(run: AnyWorkload) -> bool:
    """Return whether a finished run made a model, or was triggered by drift and failed, without an immediate retry."""
    return run.status.phase is Phase.SUCCEEDED or run.spec.labels.get(TRIGGER, "").startswith(DRIFT)


def _places(home: Home) -> list[Path]:
    return sorted(home.triggers.glob("*.json")) if home.triggers.is_dir() else []


def _read(place: Path) -> AppliedPipeline | None:
    """Read an applied pipeline from its file; return None if it was just removed.

    Raises:
        ClusterError: The content is invalid, or the spec of the pipeline is gone.
    """
    content = read_json(place)
    if content is None and not place.exists():
        return None
    try:
        if content is None:
            raise ValueError("no JSON object")
        spec = from_json(content["spec"])
        if not isinstance(spec, (Training, Pipeline)):
            raise ValueError("it is not a run")
        pipeline = pipeline_of(spec)
        if pipeline is not None:
            return AppliedPipeline(pipeline=pipeline, spec=spec, environ=content["environ"], at=float(content["at"]))
        problem = "its pipeline is no longer kept"
    except (InvalidSpec, KeyError, ValueError, TypeError) as error:
        problem = f"what was applied cannot be read: {error}"
    team, _, name = place.stem.partition(".")
    raise ClusterError(
        f"{place}: {problem}. Apply it again, or let it run no more: `fairlead apply --remove {name} --team {team}`."
    )


def _state(place: Path, applied: AppliedPipeline) -> dict[str, Any]:
    state = read_json(place.with_suffix(".state"))
    if state is not None and state.get("at") == applied.at:
        return state
    # The apply was killed before writing the state.
    return {"at": applied.at, "handled_until": applied.at, "content": "", "signature": ""}
