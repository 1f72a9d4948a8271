"""Reports of running runs beside their objects: progress, events of ranks, pulls of images. Thread-safe.

It reaches an object with a later write; until then, this is the only place that has it.
"""

import threading

from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.workloads.pod_reports import SeenEvent
from fairlead.state.attempts import ImagePull
from fairlead.state.snapshot import Progress


class RunReports:
    """The latest reports of all runs."""

    def __init__(self, view: Informers) -> None:
        self._view = view
        self._lock = threading.Lock()
        self._progress: dict[str, Progress] = {}
        self._events: dict[str, tuple[int, tuple[SeenEvent, ...]]] = {}
        self._pulls: dict[str, tuple[int, ImagePull]] = {}

    def note(
        self,
        uid: str,
        progress: Progress | None,
        active_at: float | None,
        *,
        attempt: int = 0,
        events: tuple[SeenEvent, ...] = (),
    ) -> None:
        """Take in what an attempt of a run reports."""
        is_new = progress is not None and progress != self._progress.get(uid)
        are_new = bool(events) and (attempt, events) != self._events.get(uid)
        with self._lock:
            if progress is not None:
                self._progress[uid] = progress
            if events:
                self._events[uid] = attempt, events
        if is_new or are_new:
            self._view.look_again(uid)
        self._view.note_active(uid, active_at)

    def note_pull(self, uid: str, attempt: int, pull: ImagePull) -> None:
        """Take in how long an attempt of a run pulled its images."""
        with self._lock:
            self._pulls[uid] = attempt, pull
        self._view.look_again(uid)

    def progress_of(self, uid: str) -> Progress | None:
        """Return what a run last reported, while it ran or as a pod ended."""
        reports = [report for report in (self._progress.get(uid), self._view.last_words(uid)) if report is not None]
        return max(reports, key=lambda report: report.updated_at, default=None)

    def events_of(self, uid: str) -> tuple[int, tuple[SeenEvent, ...]] | None:
        """Return an attempt and the events that its ranks reported; None if none has."""
        return self._events.get(uid)

    def pull_of(self, uid: str, attempt: int) -> ImagePull | None:
        """Return how an attempt of a run pulled its images; None while that is unknown."""
        noted_attempt, pull = self._pulls.get(uid, (-1, None))
        return pull if noted_attempt == attempt else None

    def forget(self, uid: str) -> None:
        """Drop what a run reported."""
        with self._lock:
            self._progress.pop(uid, None)
            self._events.pop(uid, None)
            self._pulls.pop(uid, None)
