"""Keeps the snapshot of a cluster up to date: a look costs only what has changed since the one before.

It keeps the entry of each run in the snapshot, and for each node its capacity and what others hold there.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import replace

from fairlead.cluster.kubernetes.api.objects import NodeObject
from fairlead.cluster.kubernetes.informers import node_capacity as rooms
from fairlead.cluster.kubernetes.informers.daemonsets import due
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.informers.pod_status import stray
from fairlead.cluster.kubernetes.workloads.run_record import TrainingObject
from fairlead.cluster.port import MOST_COMPLETED
from fairlead.frozen import dataclass
from fairlead.policy.queue.run_limits import LimitedRuns
from fairlead.state.idleness import Idleness
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.snapshot import (
    AnyWorkload,
    Completed,
    Grant,
    Intent,
    Node,
    Phase,
    Pod,
    Progress,
    Snapshot,
    Workload,
    is_leaf,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run in the snapshot; ``place`` is its index."""

    place: tuple[float, str]
    workload: Workload
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A node, and what others hold there; ``seen`` is what it was read from."""

    seen: NodeObject
    node: Node
    others: Pod


PriceOf = Callable[[NodeObject], float | None]
IdleOf = Callable[[Workload], Idleness | None]


class SnapshotCache:
    """One reader's snapshot. Not thread-safe: an instance belongs to one thread.

    Args:
        namespace: Include only runs of this namespace; None for all.
        progress_of: Returns the last report of a run, if it is newer than its object.
        price_of: Returns the price of a node in dollars an hour; by default that of its label.
        idle_of: Returns how idle a run is; None if it is not, or that is not measured.
    """

    def __init__(
        self,
        view: Informers,
        *,
        namespace: str | None,
        progress_of: Callable[[str], Progress | None],
        rules: SchedulingPolicy = DEFAULT,
        price_of: PriceOf | None = None,
        idle_of: IdleOf = lambda _: None,
    ) -> None:
        self._view = view
        self._price_of = price_of
        self._namespace = namespace
        self._progress_of = progress_of
        self._idle_of = idle_of
        self._marks = view.marks()
        self._runs: dict[str, _Run] = {}
        self._order: list[tuple[float, str]] = []
        self._places: dict[str, _Place] = {}
        self._names: list[str] = []
        self._granted: dict[str, dict[str, Pod]] = {}
        self._parents: dict[str, AnyWorkload] = {}
        self._failing: dict[str, str] = {}
        self._limited = LimitedRuns()
        self._ended: dict[str, tuple[float, Completed]] = {}
        self._completed: tuple[Completed, ...] | None = None
        self._shown = Snapshot(nodes=(), workloads=(), pods=(), rules=rules)

    def look(self) -> Snapshot:
        """Return the current snapshot of the cluster."""
        uids, names = self._marks.take()
        known = sorted(self._view.teams.all(), key=lambda team: team.key)
        teams = tuple(team.spec for team in known if team.spec is not None)
        if not uids and not names and teams == self._shown.teams and not self._failing:
            return self._shown
        for uid in (uids | self._failing.keys()) if self._failing else uids:
            try:
                names |= self._look_at_run(uid)
            except Exception as error:  # noqa: BLE001
                # Whatever one run holds, the others are observed; nothing is decided for it, and it is tried again.
                self._fail(uid, error)
            else:
                if self._failing and self._failing.pop(uid, None) is not None:
                    self._view.isolation.settle(f"run {uid}")
        for name in names:
            with self._view.isolation.of(f"node {name}"):
                self._look_at_node(name)
        runs = [self._runs[uid] for _, uid in self._order]
        places = [self._places[name] for name in self._names]
        nothing = Grant()
        parents = sorted(self._parents.values(), key=lambda parent: (parent.created_at, parent.uid))
        if self._completed is None:
            newest = heapq.nlargest(MOST_COMPLETED, self._ended.items(), key=lambda entry: (entry[1][0], entry[0]))
            self._completed = tuple(completed for _, (_, completed) in newest)
        self._shown = Snapshot(
            teams=teams,
            completed=self._completed,
            rules=self._shown.rules,
            nodes=tuple(place.node for place in places),
            workloads=self._limited.of((run.workload for run in runs), teams),
            pods=(
                *(pod for run in runs for pod in run.pods),
                *(place.others for place in places if place.others.grant != nothing),
            ),
            parents=tuple(parents),
            ended=tuple(child for parent in parents for child in self._ended_children(parent.uid)),
            unreadable=dict(self._failing),
        )
        return self._shown

    def _fail(self, uid: str, error: Exception) -> None:
        """Note that a run could not be observed; it is shown as it was last seen, or without pods."""
        workload_object = self._view.find_any(uid)
        name = f"run {uid}" if workload_object is None else f"{workload_object.kind} {workload_object.key}"
        self._failing[uid] = self._view.isolation.note(name, error)
        if workload_object is None or workload_object.workload is None or uid in self._runs or uid in self._parents:
            return
        if is_leaf(workload_object.workload):
            run = _Run(place=(workload_object.created_at, uid), workload=workload_object.workload, pods=())
            insort(self._order, run.place)
            self._runs[uid] = run
        else:
            self._parents[uid] = workload_object.workload

    def _ended_children(self, parent: str) -> Iterator[AnyWorkload]:
        """Return the ended children of a parent that are not shown otherwise."""
        for child in self._view.children_of(parent):
            if child.workload is not None and child.uid not in self._runs and child.uid not in self._parents:
                yield self._up_to_date(child.workload)

    def _up_to_date(self, workload: AnyWorkload) -> AnyWorkload:
        """Return a workload with its last report."""
        progress = self._progress_of(workload.uid) or workload.progress
        return workload if progress is workload.progress else replace(workload, progress=progress)

    def _look_at_run(self, uid: str) -> set[str]:
        """Return the names of nodes of which the run holds another part than before."""
        self._look_at_parent(uid)
        run_object = self._view.find(uid)
        self._note_end(uid, run_object)
        before, after = self._runs.get(uid), self._run(uid, run_object)
        if before is not None and (after is None or after.place != before.place):
            del self._runs[uid]
            del self._order[bisect_left(self._order, before.place)]
        if after is not None:
            if uid not in self._runs:
                insort(self._order, after.place)
            self._runs[uid] = after
        return self._grant(before.pods if before is not None else (), after.pods if after is not None else ())

    def _look_at_parent(self, uid: str) -> None:
        workload_object = self._view.find_parent(uid)
        parent = None if workload_object is None else workload_object.workload
        if parent is not None and self._namespace in (None, parent.spec.team) and _is_wanted(parent):
            self._parents[uid] = parent
        else:
            self._parents.pop(uid, None)

    def _note_end(self, uid: str, run_object: TrainingObject | None) -> None:
        """Record how long a successful run took."""
        status = run_object.state.status if run_object is not None and run_object.workload is not None else None
        ended = None
        if run_object is not None and status is not None and status.phase is Phase.SUCCEEDED:
            began, over = status.started_at, status.finished_at
            if began is not None and over is not None:
                ended = (
                    over,
                    Completed(
                        team=run_object.namespace,
                        name=run_object.name,
                        took_s=over - began,
                        at=over,
                        used=status.measured.usage,
                    ),
                )
        if ended != self._ended.get(uid):
            self._completed = None
            if ended is None:
                del self._ended[uid]
            else:
                self._ended[uid] = ended

    def _run(self, uid: str, run_object: TrainingObject | None) -> _Run | None:
        run = run_object.workload if run_object is not None else None
        if run_object is None or run is None or self._namespace not in (None, run_object.namespace):
            return None
        pods = tuple(pod for pod in everyone(self._view, run_object) if run.is_told_by(pod))
        if not _is_wanted(run) and all(pod.phase.is_final for pod in pods):
            return None
        progress, idle = self._progress_of(uid) or run.progress, self._idle_of(run)
        workload = run if progress is run.progress else replace(run, progress=progress)
        if idle is not None:
            workload = replace(workload, idle=idle)
        return _Run(place=(run_object.created_at, uid), workload=workload, pods=pods)

    def _grant(self, before: tuple[Pod, ...], after: tuple[Pod, ...]) -> set[str]:
        """Record what a run's pods hold; return the nodes concerned."""
        gone = {pod.uid: pod for pod in before if not pod.phase.is_final}
        new = {pod.uid: pod for pod in after if not pod.phase.is_final}
        changed = set()
        for uid, pod in gone.items():
            if new.get(uid) is not pod:
                del self._granted[pod.node][uid]
                changed.add(pod.node)
        for uid, pod in new.items():
            if gone.get(uid) is not pod:
                self._granted.setdefault(pod.node, {})[uid] = pod
                changed.add(pod.node)
        return changed

    def _look_at_node(self, name: str) -> None:
        seen, before = self._view.nodes.get(name), self._places.get(name)
        if seen is None:
            if self._places.pop(name, None) is not None:
                del self._names[bisect_left(self._names, name)]
            return
        if before is None:
            insort(self._names, name)
        bound = self._view.pods_on(name)
        coming = due(self._view.daemons.all(), seen, bound)
        num_pods = len(bound) + len(coming)
        closed = rooms.closed(seen, num_pods)
        is_same = before is not None and before.seen is seen and before.node.closed == closed
        node = before.node if before is not None and is_same else rooms.node_of(seen, num_pods)
        if self._price_of is not None and (price := self._price_of(seen)) != node.price_per_hour:
            node = replace(node, price_per_hour=price)
        more = (*coming, *self._view.claimed_on(name))
        others = rooms.rest(seen, bound, self._granted.get(name, {}).values(), more)
        if before is not None and before.others == others:
            others = before.others
        self._places[name] = _Place(seen=seen, node=node, others=others)


def _is_wanted(workload: AnyWorkload) -> bool:
    """Return whether a workload is unfinished, or has an unfulfilled intent."""
    return not workload.status.phase.is_final or workload.intent in (Intent.RUN, Intent.DELETE)


def everyone(view: Informers, run_object: TrainingObject) -> tuple[Pod, ...]:
    """Return the members of a run's latest gang, and live pods of any other."""
    gang = run_object.state.gang
    others = (
        pod
        for pod in view.pods_of(run_object.uid).values()
        if not pod.is_over and (gang is None or not gang.has(pod.attempt, pod.index, pod.replacement))
    )
    return (*view.members(run_object), *(stray(pod) for pod in others))
