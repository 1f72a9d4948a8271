"""Polls runs for their reports: the last line of the log of each run's reporter.

Pods cannot reach the API server; kubelet's log endpoint is always available. Each poll is a request, so a run is
polled less often the longer it has reported nothing new, and one that cannot be polled, because its node is slow or
has no kubelet, half as often each time.

A new leader knows nothing of a run until it has answered, which is no sign of a stall: the silence of a run counts up
to its last answer.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.engines.table import driver_of
from fairlead.cluster.kubernetes.informers.engine_members import awaits_ending
from fairlead.cluster.kubernetes.manifests.driver_bundle import is_watch
from fairlead.cluster.kubernetes.manifests.pods import REPORTER, is_followed
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.workloads.pod_reports import PodReport, read_report
from fairlead.cluster.kubernetes.workloads.run_record import TrainingObject
from fairlead.policy.kinds.workspace_idle import look_s
from fairlead.state.shared_limits import fair_parts
from fairlead.state.snapshot import is_workspace

EVERY_S, MOST_S = 5.0, 900.0
# A driver that submits runs, whose steps wait until its report is read.
FOLLOWED_EVERY_S = 1.0
# A run that watches data: a change is as good as any other sign of life, however long there was none.
WATCH_MOST_S = 30.0
# News may be late by this share of the time since the last news, and by this share of the stall timeout.
LATE = 0.25
# For all runs together, divided among teams: a thousand runs of one team that report all the time are polled every
# 200 s, and those of another team as often as if there were no others. See decision 199.
PER_SECOND = 5.0
MOST_BYTES = 65_536


@dataclass(slots=True)
class _Turn:
    """A run that is polled, first a while after its start.

    Attributes:
        most_s: The most seconds between two polls.
        least_s: The fewest seconds between two polls.
        asked_at: When it was last polled; None before it has its place in the order.
        can_stall: Silence may count as a stall, or as a lack of activity.
        num_failed: The number of failed polls since the last success.
    """

    pod: PodObject
    most_s: float
    news_at: float
    least_s: float = EVERY_S
    asked_at: float | None = None
    can_stall: bool = False
    num_failed: int = 0
    last_report: PodReport | None = None

    def every_s(self, now: float, turn_s: float = 0.0) -> float:
        """Return the seconds between two polls when its turn comes so often."""
        silent_s = max(self.least_s, min(LATE * (now - self.news_at), self.most_s))
        failing_s = min(self.least_s * 2.0 ** min(self.num_failed, 10), MOST_S)
        return max(silent_s, failing_s, min(turn_s, self.most_s))

    @property
    def team(self) -> str:
        """Its namespace."""
        return self.pod.key.partition("/")[0]


def turns_of_teams(teams: Iterable[str]) -> dict[str, float]:
    """Return the seconds after which all runs of a team were polled, by team; ``teams`` has an entry for each run."""
    counts = Counter(teams)
    parts = fair_parts({team: count / EVERY_S for team, count in counts.items()}, PER_SECOND)
    return {team: count / parts[team] for team, count in counts.items()}


class Listener(Controller):
    """Polls the running runs in turn.

    Args:
        devices: Called with the GPUs that the container of a pod was given.
    """

    name = "reports of runs"

    def __init__(
        self, cluster: KubernetesCluster, *, devices: Callable[[PodObject, tuple[str, ...]], None] = lambda _, __: None
    ) -> None:
        self._cluster = cluster
        self._devices = devices
        self._marks = cluster.view.marks()
        self._turns: dict[str, _Turn] = {}
        self._ended: list[tuple[str, _Turn]] = []
        self.num_asked = 0

    @property
    def is_busy(self) -> bool:
        """Return whether any run is polled more often than the loop itself runs."""
        return any(turn.least_s < EVERY_S for turn in self._turns.values())

    def act(self, turn: Turn) -> None:
        """Poll the runs that are due, and once more those whose reporting pod has ended."""
        agent, now = turn.agent, turn.now
        for uid in self._marks.take()[0]:
            with self._cluster.view.isolation.of(f"reports of run {uid}"):
                self._meet(uid, now)
        for uid, poll in self._ended:
            self.num_asked += 1
            agent.submit(uid, f"ask {poll.pod.key} for its last report", partial(self._ask, uid, poll, now))
        self._ended = []
        turns_s = turns_of_teams(poll.team for poll in self._turns.values())
        for uid, poll in self._turns.items():
            every_s = poll.every_s(now, turns_s[poll.team])
            if poll.asked_at is None:
                # The polls of a thousand runs that appear at once are spread out, now and later.
                poll.asked_at = now - _share(uid) * every_s
            if now - poll.asked_at >= every_s:
                poll.asked_at = now
                self.num_asked += 1
                agent.submit(uid, f"ask {poll.pod.key}", partial(self._ask, uid, poll, now))

    def numbers(self) -> Mapping[str, float]:
        return {"fairlead_log_requests_total": float(self.num_asked)}

    def _meet(self, uid: str, now: float) -> None:
        """Start or stop polling a run."""
        pod, known = self._reporter(uid), self._turns.get(uid)
        if pod is None:
            if known is not None:
                del self._turns[uid]
                self._ended.append((uid, known))
        elif known is not None and known.pod.uid == pod.uid:
            if self._awaits_ending(uid, pod):
                known.least_s = known.most_s = FOLLOWED_EVERY_S
        else:
            run_object = self._cluster.view.find(uid)
            stall_s = (
                run_object.workload.spec.stall_timeout_s
                if run_object is not None and run_object.workload is not None
                else None
            )
            most_s = MOST_S if stall_s is None else min(MOST_S, LATE * stall_s)
            # A run that has been silent for an hour is polled as rarely as by the previous leader.
            news_at = max(_last_news(run_object), pod.started_at or now)
            if run_object is not None and run_object.workload is not None and is_followed(run_object.workload):
                turn = _Turn(pod=pod, most_s=FOLLOWED_EVERY_S, news_at=news_at, least_s=FOLLOWED_EVERY_S)
            elif run_object is not None and run_object.workload is not None and is_watch(run_object.workload.spec):
                turn = _Turn(pod=pod, most_s=WATCH_MOST_S, news_at=news_at)
            elif run_object is not None and run_object.workload is not None and is_workspace(run_object.workload):
                # Activity after silence is to be known at once, and silence of the node is no lack of activity.
                look = max(EVERY_S, look_s(run_object.workload.spec.idle.after_s))
                turn = _Turn(pod=pod, most_s=look, news_at=news_at, can_stall=True)
            else:
                turn = _Turn(pod=pod, most_s=most_s, news_at=news_at, can_stall=stall_s is not None)
            self._turns[uid] = turn

    def _awaits_ending(self, uid: str, pod: PodObject) -> bool:
        """Return whether an engine's job is over, and its pod has not yet reported how."""
        engine_object = self._cluster.view.engines.of_run(uid).get(pod.attempt)
        return engine_object is not None and awaits_ending(driver_of(engine_object.engine), engine_object, pod)

    def _reporter(self, uid: str) -> PodObject | None:
        """Return the pod that reports for a run; None while none runs."""
        run_object = self._cluster.view.find(uid)
        if (
            run_object is None
            or run_object.workload is None
            or run_object.state.gang is None
            or run_object.state.status.phase.is_final
        ):
            return None
        for pod in self._cluster.view.pods_of(uid).values():
            if pod.index == 0 and pod.attempt == run_object.state.gang.attempt:
                return pod if pod.started_at is not None and not pod.is_over else None
        return None

    def _ask(self, uid: str, turn: _Turn, now: float) -> None:
        namespace, _, name = turn.pod.key.partition("/")
        query = {"container": REPORTER, "tailLines": "1", "limitBytes": str(MOST_BYTES)}
        try:
            text = self._cluster.client.text(f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}/log", query)
        except ApiError as error:
            if error.status in (400, 404, 500, 502, 503):
                turn.num_failed += 1
                return
            raise
        turn.num_failed = 0
        report = read_report(text.strip())
        if report is not None and report != turn.last_report:
            turn.last_report = report
            turn.news_at = now if report.active_at is None else min(now, report.active_at)
            self._cluster.reports.note(
                uid, report.progress, report.active_at, attempt=turn.pod.attempt, events=report.events
            )
            self._devices(turn.pod, report.gpus)
        if report is not None and report.ending is not None:
            engine_object = self._cluster.view.engines.of_run(uid).get(turn.pod.attempt)
            if engine_object is not None:
                self._cluster.view.engines.note_ending(engine_object, report.ending)
        if report is not None and turn.can_stall:
            self._cluster.view.note_heard(uid, now)


def _share(uid: str) -> float:
    """Return a share of a wait that is fixed for each run, from 0 to 1."""
    return zlib.crc32(uid.encode()) / 2**32


def _last_news(run_object: TrainingObject | None) -> float:
    progress = run_object.state.progress if run_object is not None else None
    return 0.0 if progress is None else progress.updated_at
