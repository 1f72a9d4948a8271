"""Reconciles a fleet: observe every cluster, decide, record the decision, and apply it to the clusters.

Crash-only: a decision is recorded before it is applied to any cluster, and each visit compares the actual state of a
cluster with the desired one. Each cluster has a thread of its own, so that an unresponsive one delays no other.

See decision 64.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.kubernetes.manifests.pod_environment import checkpoint_place
from fairlead.cluster.selection import RunSelection
from fairlead.control.admission import admit, free_name
from fairlead.control.fleets.journal import ClusterNote, FleetJournal
from fairlead.control.opening import open_named
from fairlead.errors import (
    CannotFit,
    ClusterError,
    Conflict,
    FairleadError,
    InvalidSpec,
    NameTaken,
    NotAllowed,
    NotFound,
)
from fairlead.policy.fleet.placement import decide_fleet, has_started_meanwhile
from fairlead.policy.fleet.room import room_of
from fairlead.specs.fleet import Fleet, Member
from fairlead.specs.workload import renamed
from fairlead.state.fleets import ClusterSeen, Copy, FleetRun, FleetSnapshot, FleetStage, Room
from fairlead.state.snapshot import Intent, Phase, Workload, is_leaf

log = logging.getLogger("fairlead.fleet")

LABEL = "fleet-run"
"""Label that identifies a copy in its cluster by the uid of the run in the fleet."""

ROUND_S = 2.0
# A note without news is written anew after this time, so that a reader knows until when a controller was there.
NOTE_S = 60.0
# A cluster that has not answered within this time counts as unreachable in this round.
VISIT_S = 15.0

Open = Callable[[Member], ClusterClient]


def open_member(member: Member) -> ClusterClient:
    """Open a cluster of a fleet."""
    return open_named(member.context, member.namespace)


class FleetController:
    """The controller of a fleet; one per journal."""

    def __init__(self, journal: FleetJournal, *, open_cluster: Open = open_member, visit_s: float = VISIT_S) -> None:
        self._journal = journal
        self._visit_s = visit_s
        self._visitors = {
            name: _Visitor(member, open_cluster, journal.files_of) for name, member in journal.fleet().clusters.items()
        }
        self._notes: dict[str, ClusterNote] = {}
        # Cache of finished runs, which do not change; reloaded after another run ends.
        self._ended: tuple[FleetRun, ...] | None = None
        self._stopping = threading.Event()

    def run(self, *, round_s: float = ROUND_S) -> None:
        """Run rounds until ``stop``."""
        while not self._stopping.is_set():
            try:
                self.act(time.time())
            except ClusterError as error:  # of the journal itself: usually a full disk
                log.error("%s", error)
            self._stopping.wait(round_s)

    def stop(self) -> None:
        """Make ``run`` return soon. Safe from any thread."""
        self._stopping.set()

    def close(self) -> None:
        """Close the clusters without waiting for one that does not answer."""
        for visitor in self._visitors.values():
            visitor.close()

    def act(self, now: float) -> int:
        """Run one round: apply earlier decisions to each cluster, and decide on the observations.

        Returns:
            The number of runs that have changed.
        """
        fleet, runs = self._journal.fleet(), self._journal.runs(unfinished=True)
        seen = self._visit(fleet, runs, now)
        if self._ended is None:
            self._ended = self._journal.ended()
        changed = decide_fleet(FleetSnapshot(runs=(*self._ended, *runs), seen=seen), fleet, now)
        notes = self._note(seen, now)
        if changed or notes:
            self._journal.record(changed, notes, now)
        if any(run.stage is FleetStage.ENDED for run in changed):
            self._ended = None
        for run in changed:
            log.info("%s: %s, %s", run.spec.name, run.stage, run.reason)
        return len(changed)

    def _visit(self, fleet: Fleet, runs: tuple[FleetRun, ...], now: float) -> dict[str, ClusterSeen]:
        deadline = time.monotonic() + self._visit_s
        for name, visitor in self._visitors.items():
            own = [run for run in runs if run.cluster == name]
            # The room of a cluster matters only while runs are unfinished.
            looks = not fleet.clusters[name].is_rented and bool(runs)
            visitor.begin(own, looks=looks, now=now)
        return {name: visitor.await_answer(deadline) for name, visitor in self._visitors.items()}

    def _note(self, seen: Mapping[str, ClusterSeen], now: float) -> dict[str, ClusterNote]:
        """Return the notes on clusters that are news, or as old as `NOTE_S`, and log changes of reachability."""
        changed = {}
        for name, cluster in seen.items():
            before = self._notes.get(name)
            is_news = before is None or (before.trouble is None) != (cluster.trouble is None)
            if is_news and before is not None:
                log.info(
                    "%s %s", name, "answers again" if cluster.trouble is None else f"is unreachable: {cluster.trouble}"
                )
            if is_news or before is None or before.trouble != cluster.trouble or now - before.at >= NOTE_S:
                since = now if is_news or before is None else before.since
                self._notes[name] = changed[name] = ClusterNote(at=now, trouble=cluster.trouble, since=since)
        return changed


class _Visitor:
    """Visits one cluster in a thread of its own, since a client belongs to one thread."""

    def __init__(self, member: Member, open_cluster: Open, files_of: Callable[[str], Path]) -> None:
        self._member = member
        self._open = open_cluster
        self._files_of = files_of
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleet")
        self._client: ClusterClient | None = None
        self._visit: Future[ClusterSeen] | None = None
        self._is_late = False
        self._trouble: str | None = None

    def begin(self, runs: list[FleetRun], *, looks: bool, now: float) -> None:
        """Start a visit, unless the last one is still in progress."""
        if self._visit is None or self._visit.done():
            self._is_late = False
            self._visit = self._thread.submit(self._look, runs, looks, now)

    def await_answer(self, deadline: float) -> ClusterSeen:
        """Return the result of the visit; one with ``trouble`` if it has not ended by the deadline.

        A visit that has timed out once is polled without waiting, so as not to delay the rounds of other clusters.
        A cluster that is out of reach times out in some rounds and fails in others; the reason of the last failure is
        kept through the time-outs.
        """
        assert self._visit is not None, "a visit was begun"
        try:
            seen = self._visit.result(timeout=0.0 if self._is_late else max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            self._is_late = True
            return ClusterSeen(trouble=self._trouble or "no answer in time")
        self._trouble = seen.trouble
        return seen

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look(self, runs: list[FleetRun], looks: bool, now: float) -> ClusterSeen:
        try:
            if self._client is None:
                self._client = self._open(self._member)
            client = self._client
            if (trouble := client.trouble()) is not None:
                raise ClusterError(trouble)
            copies = _copies(client, runs)
            refused, has_sent = self._follow(client, runs, copies)
            if has_sent:
                client.nudge()
                copies = _copies(client, runs)
            room = None
            if looks:
                room = _room(client, copies, now)
            return ClusterSeen(copies=copies, refused=refused, room=room)
        except FairleadError as error:  # any error concerns this cluster alone, and it is retried
            self._forget()
            return ClusterSeen(trouble=str(error))

    def _forget(self) -> None:
        """Close the client; the next visit opens a new one."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except FairleadError as error:
                log.debug("closing: %s", error)

    def _follow(
        self, client: ClusterClient, runs: list[FleetRun], copies: Mapping[str, Copy]
    ) -> tuple[dict[str, str], bool]:
        """Apply decisions to the cluster.

        Returns:
            The reasons why the cluster refused runs, by their uids; and whether any request was made.
        """
        refused: dict[str, str] = {}
        has_sent = False
        for run in runs:
            copy = copies.get(run.uid)
            try:
                if copy is None:
                    if run.stage is FleetStage.PLACING and run.intent is Intent.RUN:
                        self._submit(client, run)
                        has_sent = True
                    continue
                wanted = _wanted(run, copy)
                if wanted is not None and wanted is not copy.intent:
                    client.set_intent(copy.uid, wanted)
                    has_sent = True
            except (InvalidSpec, Conflict, CannotFit, NameTaken, NotFound) as error:
                if run.stage is FleetStage.PLACING:
                    refused[run.uid] = str(error)
                else:  # it has changed meanwhile; the next round observes it again
                    log.debug("%s in %s: %s", run.spec.name, run.cluster, error)
        return refused, has_sent

    def _submit(self, client: ClusterClient, run: FleetRun) -> None:
        spec = replace(run.spec, labels={**run.spec.labels, LABEL: run.uid})
        if run.origin is not None:
            spec = replace(spec, checkpoint=replace(spec.checkpoint, origin=run.origin))
        admitted = admit(client, spec, self._files_of(run.uid))
        client.launch(renamed(admitted.spec, free_name(client, admitted.spec)), directory=admitted.directory)


def _wanted(run: FleetRun, copy: Copy) -> Intent | None:
    """Return the intent to set on a copy; None for no change."""
    if copy.phase.is_final:
        return None
    if run.intent is Intent.STOP:
        return Intent.STOP
    if run.stage is not FleetStage.LEAVING or has_started_meanwhile(run, copy):
        return None
    # Only a suspended copy without pods, which has saved its progress, is deleted.
    return Intent.DELETE if copy.phase is Phase.SUSPENDED and not copy.has_pods else Intent.SUSPEND


def _copies(client: ClusterClient, runs: list[FleetRun]) -> dict[str, Copy]:
    """Return the copies of runs in a cluster, by the uids of the runs: the unfinished one, or else the newest."""
    workloads: dict[str, Workload] = {}
    wanted = {run.uid for run in runs}
    for workload in client.select(RunSelection(labels=((LABEL, None),))) if runs else ():
        uid = workload.spec.labels[LABEL]
        if uid not in wanted or not is_leaf(workload):
            continue
        if uid not in workloads or (workloads[uid].status.phase.is_final and not workload.status.phase.is_final):
            workloads[uid] = workload
    copies = {}
    for uid, workload in workloads.items():
        try:
            copies[uid] = _copy(client, workload)
        except NotFound:  # deleted since the list
            log.debug("%s is gone", workload.spec.name)
    return copies


def _room(client: ClusterClient, copies: Mapping[str, Copy], now: float) -> Room | None:
    """Return the nodes of a cluster, what is held, and other pending runs; None if the user may not see all of it."""
    try:
        return room_of(client.snapshot(), {copy.uid for copy in copies.values()}, now)
    except NotAllowed as error:
        log.debug("its room is not known: %s", error)
        return None


def _copy(client: ClusterClient, workload: Workload) -> Copy:
    status, progress = workload.status, workload.progress
    copy = Copy(
        uid=workload.uid,
        phase=status.phase,
        message=status.reason.message,
        intent=workload.intent,
        has_pods=any(not pod.phase.is_final for pod in client.pods(workload.uid)),
        started_at=status.started_at,
        finished_at=status.finished_at,
    )
    if progress is None:
        return copy
    origin = workload.spec.checkpoint.origin
    # The checkpoint that it was restored from belongs to an earlier copy, in that copy's place.
    has_saved = progress.checkpoint_step is not None and (origin is None or progress.checkpoint_at is not None)
    return replace(
        copy,
        step=progress.step,
        total_steps=progress.total_steps,
        checkpoint_step=progress.checkpoint_step,
        place=_place(workload) if has_saved else None,
    )


def _place(workload: Workload) -> str | None:
    """Return the place of a copy's checkpoints if another cluster may read it: a URL or an absolute path."""
    to = workload.spec.checkpoint.to
    return checkpoint_place(workload, None) if to is not None and ("://" in to or to.startswith("/")) else None
