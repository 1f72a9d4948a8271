"""Runs the pods of the database as processes, as a kubelet does on Kubernetes.

``observe`` reads the files of shims and ranks and records their content; ``act`` starts unclaimed pods and delivers
stop notices. Both rely on files, locks and rows alone, so that a new agent can take over from one that was killed.
"""

import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.cluster import contract
from fairlead.cluster.isolation import Isolation
from fairlead.cluster.local import limits
from fairlead.cluster.local.code.environments import Environments
from fairlead.cluster.local.code.keeping import CodeStore
from fairlead.cluster.local.code.trees import Tree
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.launchers import Launchers
from fairlead.cluster.local.packages.place import complete
from fairlead.cluster.local.packages.requests import request_of
from fairlead.cluster.local.pod_files import (
    MOST_PID,
    NewEvents,
    read_events,
    read_exits,
    read_own_times,
    read_progress,
    read_series,
    read_usage,
)
from fairlead.cluster.local.pod_spec import PodEnvironment, render
from fairlead.cluster.local.ports import port_for
from fairlead.cluster.local.probes import Probes
from fairlead.cluster.local.secret_store import secret_problem
from fairlead.cluster.local.store import LocalStore, PodObservation
from fairlead.cluster.local.tables import PodRow, UnreadableWorkload
from fairlead.errors import ClusterError, NotFound
from fairlead.policy.health.gang_times import GangTimes
from fairlead.policy.kinds.failures import hung
from fairlead.runtime import run_key
from fairlead.runtime.leftovers import kill_leftovers
from fairlead.runtime.podfiles import NO_FILE, held, is_locked, read_json, write_json
from fairlead.state.plan import Event
from fairlead.state.pod_uids import pod_uid
from fairlead.state.reasons import Code, Reason
from fairlead.state.slow_ranks import SlowRankReport
from fairlead.state.snapshot import Node, Pod, PodPhase, Progress, Workload, is_workspace
from fairlead.text.lists import listed
from fairlead.untrusted_json import moment, text, whole

log = logging.getLogger(__name__)

# A launcher that is still importing after this long is given up; the claim on a pod keeps it from starting twice.
START_TIMEOUT_S = 60.0
# A shim that has not ended its pod this long after SIGKILL was due is killed together with all remaining processes.
KILL_SLACK_S = 10.0
# Minimum time between two recorded signs of activity; `stall_timeout` is many times longer.
ACTIVE_STEP_S = 1.0
# A run's files are created just before its row; younger ones may belong to a submission in progress.
SWEEP_AGE_S = 60.0
MESSAGE_LOST = "its supervising process was killed, which ended its ranks"


@dataclass(slots=True)
class _Attempt:
    """The agent's memory of a pod; losing it costs no more than a repeated signal."""

    requested_at: float | None = None
    notified: tuple[float, float] | None = None
    through_launcher: bool = False


class Agent:
    """Manages the pods of this machine.

    Attributes:
        isolation: Keeps failures at one pod from the others.
        unreadable: Why runs could not be observed at the last look, by uid.
    """

    def __init__(self, home: Home, store: LocalStore, node: Node) -> None:
        self.isolation = Isolation()
        self.unreadable: dict[str, str] = {}
        self._home = home
        self._store = store
        self._node = node
        self._code = CodeStore(home)
        # The trees of live pods, and the pods in each.
        self._trees: dict[str, str | None] = {}
        self._in_trees: dict[str, set[str]] = {}
        self._environments = Environments(home, self._code.objects, node)
        self._launchers = Launchers(home)
        self._probes = Probes(home)
        self._attempts: dict[str, _Attempt] = {}
        self._progress: dict[str, Progress] = {}
        # By the uid of the first pod of an attempt.
        self._gang_times: dict[str, GangTimes] = {}
        self._limits = limits.enforcement()
        self._library = _library(home)

    def get_ready(self) -> None:
        """Start the process that makes shims ahead of the first pod, in parallel with other work."""
        self._launchers.get_ready()

    def observe(self, now: float) -> int:
        """Record the state of every live pod; return the number of live pods."""
        rows = self._store.live_pods()
        self._probes.keep({row.pod.uid for row in rows})
        self._find_trees(rows)
        unreadable: dict[str, str] = {}
        for row in rows:
            pod = row.pod
            try:
                self._observe(row, now)
            except Exception as error:
                is_of_disk = isinstance(error, OSError) and error.errno not in NO_FILE
                if is_of_disk or (isinstance(error, ClusterError) and error.concerns_all):
                    raise
                # Whatever a program put into its pod's files, the pods of others are observed.
                unreadable[pod.workload_uid] = self.isolation.note(f"pod {pod.uid}", error)
            else:
                if self.isolation.failing:
                    self.isolation.settle(f"pod {pod.uid}")
        self.unreadable = unreadable
        with self._isolated("links to new files"):
            self._code.sync(key for key, pods in self._in_trees.items() if pods)
        return len(rows)

    def _observe(self, row: PodRow, now: float) -> None:
        """Record the state of one live pod."""
        seen = self._look(row)
        if seen is not None:
            if seen.row.pod.phase.is_final:
                self._leave_tree(seen.row.pod, now)  # first, so that a finished run's files are where they belong
            self._store.observe(seen, now)
            if seen.progress is not None:
                self._progress[seen.row.pod.uid] = seen.progress
            if seen.row.pod.phase.is_final:
                self._tidy(seen.row.pod)

    def act(self, now: float) -> None:
        """Start the pods that are to start and stop those that have a stop notice."""
        for row in self._store.live_pods():
            try:
                with self.isolation.of(f"start or stop of pod {row.pod.uid}"):
                    if row.pod.terminating_since is not None:
                        self._stop(row, now)
                    elif row.pod.phase is PodPhase.CREATED:
                        self._start(row, now)
            except OSError as error:
                # A full disk or a missing directory affects one pod only; the others continue, and the next pass
                # retries.
                log.warning("pod %s: %s", row.pod.uid, error)
        self._environments.collect()
        active = self._store.active_uids()
        self._launchers.reap(active)
        self._home.free_memory(active)
        with self._isolated("files of finished runs"):
            in_use = {key for key, pods in self._in_trees.items() if pods}
            for owner, tree, left in self._code.close(active, in_use):
                self._note_left(owner, tree, left, now)

    def close(self) -> None:
        """Stop the warm launchers; pods live on under their shims."""
        self._environments.close()
        self._launchers.close()
        self._probes.close()

    def sweep(self) -> None:
        """Remove files of forgotten runs; called when a supervisor starts."""
        runs, now = self._home.path / "runs", time.time()
        for directory in runs.iterdir() if runs.is_dir() else ():
            if now - directory.stat().st_mtime < SWEEP_AGE_S:
                continue
            try:
                self._store.get(directory.name)
            except UnreadableWorkload:
                continue  # its files stay for the version that reads it
            except NotFound:
                self._code.forget(directory.name)
                shutil.rmtree(directory, ignore_errors=True)
        self._code.prune()

    def _look(self, row: PodRow) -> PodObservation | None:
        pod = row.pod
        path = self._home.pod(pod.workload_uid, pod.uid)
        ended = read_json(path / "exit.json")
        # The claim is checked first: a shim may take the lock and claim the pod at any moment, and it holds the lock
        # from before its claim until after its record.
        if ended is None and (path / "claimed.json").exists() and not is_locked(path / "shim.lock"):
            ended = read_json(path / "exit.json")
            if ended is None:
                try:
                    killed = kill_leftovers(pod.uid)
                except TimeoutError as error:
                    # The pod is not final while one of its processes lives: the gang must not start beside it.
                    log.error("pod %s: %s", pod.uid, error)
                    return None
                log.warning("pod %s lost its shim; %d leftover processes killed", pod.uid, killed)
                return self._seen(row, replace(pod, phase=PodPhase.LOST, ready=False, message=MESSAGE_LOST), path)
        if ended is not None:
            started = read_json(path / "started.json")
            if started is not None:
                pod = replace(pod, started_at=_started_at(path, started))
            return self._seen(row, _finished(pod, ended), path)
        if pod.phase is not PodPhase.RUNNING:
            started = read_json(path / "started.json")
            if started is not None:
                pod = replace(pod, phase=PodPhase.RUNNING, started_at=_started_at(path, started))
            elif pod.phase is PodPhase.CREATED and (path / "claimed.json").exists():
                pod = replace(pod, phase=PodPhase.STARTING)
        return self._seen(row, self._probed(pod), path)

    def _probed(self, pod: Pod) -> Pod:
        """Return the pod with the last answer of its server to the probe, if it is a replica of an endpoint."""
        if pod.phase is not PodPhase.RUNNING:
            return pod
        if not self._probes.knows(pod.uid):
            probe: str | None = getattr(self._store.get(pod.workload_uid).spec, "probe", None)
            port = 0 if probe is None else port_for(self._home, pod.workload_uid, pod.attempt)
            self._probes.add(pod.uid, port, probe)
        answer = self._probes.answer(pod.uid)
        if answer is None:
            return pod
        return replace(pod, ready=answer.ready and pod.terminating_since is None, message=answer.problem)

    def _seen(self, row: PodRow, pod: Pod, path: Path) -> PodObservation | None:
        """Return the observation to record; None when nothing has changed."""
        progress, active_at = read_progress(path)
        if active_at is not None and active_at - (pod.active_at or 0.0) >= ACTIVE_STEP_S:
            pod = replace(pod, active_at=active_at)
        if pod.index == 0 and progress is not None:
            progress = replace(progress, slow_rank=self._slow_rank(pod, path))
        if pod.index != 0 or progress == self._progress.get(pod.uid):
            progress = None
        events: NewEvents = read_events(path, row.event_offsets)
        series = read_series(path, pod.attempt, events.offsets, is_over=pod.phase.is_final)
        if pod == row.pod and progress is None and not events.events and not series.points:
            return None
        seen = replace(row, pod=pod, event_offsets=series.offsets)
        return PodObservation(row=seen, progress=progress, events=events.events, points=series.points)

    def _slow_rank(self, first: Pod, path: Path) -> SlowRankReport | None:
        """Return the rank of a gang that is slow by the newest reports; None without one."""
        reports = read_own_times(path)
        if not reports:
            return None
        gang = self._store.get(first.workload_uid).gang
        for index in range(1, gang.nodes):
            uid = pod_uid(first.workload_uid, first.attempt, index)
            reports |= read_own_times(self._home.pod(first.workload_uid, uid))
        times = self._gang_times.setdefault(first.uid, GangTimes(gang.world_size))
        return times.observe(reports)

    def _start(self, row: PodRow, now: float) -> None:
        pod = row.pod
        memory = self._attempts.setdefault(pod.uid, _Attempt())
        path = self._home.pod(pod.workload_uid, pod.uid)
        # A launcher that ended without a claim on the pod will never make one, and neither will its shim.
        hopeless = memory.through_launcher and (self._launchers.has_ended(pod.workload_uid) or _shim_has_ended(path))
        if (path / "claimed.json").exists():
            return
        if memory.requested_at is not None and now - memory.requested_at < START_TIMEOUT_S and not hopeless:
            return
        # Checked last, since taking the lock for that instant makes a shim that is about to claim the pod give up.
        if is_locked(path / "shim.lock"):
            return
        workload = self._store.get(pod.workload_uid)
        path.mkdir(parents=True, exist_ok=True)
        (self._home.run(workload.uid) / "files").mkdir(exist_ok=True)
        if is_workspace(workload) and workload.spec.home.path is not None:
            Path(workload.spec.home.path).mkdir(mode=0o700, parents=True, exist_ok=True)
        environ = read_json(self._home.environment(workload.uid))
        if environ is None:
            gone = f"its kept environment is gone; submit {workload.spec.name} again from the shell it is to run in"
            self._cancel(row, path, now, gone)
            return
        packages = None
        if workload.spec.environment is not None:
            request = request_of(workload.spec, self._home, workload.uid)
            packages = None if request is None else complete(self._home, request["digest"])
            if packages is None:
                gone = f"its environment was removed before it started; `fairlead resume {workload.spec.name}` makes it"
                self._cancel(row, path, now, gone)
                return
        if (problem := secret_problem(self._home.secrets, workload.spec)) is not None:
            self._cancel(row, path, now, f"{problem}; then `fairlead resume {workload.spec.name}`")
            return
        if workload.spec.has_rendezvous:
            run_key.create(self._home.run_key(workload.uid))
        spec = self._prepare(workload, pod, environ, packages, now)
        # No process outlives a power cut, so that the file need not be durable.
        write_json(path / "pod.json", spec, durably=False)
        (path / "shim.json").unlink(missing_ok=True)
        # The second try bypasses the launcher, which may be the reason why the first one failed.
        memory.through_launcher = memory.requested_at is None and self._launchers.start(workload, spec, path)
        if not memory.through_launcher:
            self._launchers.start_cold(path)
        memory.requested_at = now
        if pod.index == 0:
            self._environments.record(workload.uid, pod.attempt, spec, now)

    def _prepare(
        self, workload: Workload, pod: Pod, environ: dict[str, Any], packages: Path | None, now: float
    ) -> dict[str, Any]:
        place = self._code.place(workload.uid, self._owner(workload), pod, workload.spec)
        self._trees.pop(pod.uid, None)
        if place.message is not None:
            reason = Reason(code=Code.CODE_EDITED, message=place.message)
            self._store.note(workload.uid, Event(type="CodeEdited", reason=reason), now)
        cgroup = None
        if workload.spec.resources.memory_bytes is not None and self._limits.parent is not None:
            cgroup = limits.create(self._limits.parent, pod.uid, workload.spec.resources.memory_bytes)
        around = PodEnvironment(
            environ=environ,
            own_environ=os.environ,
            master_port=port_for(self._home, workload.uid, pod.attempt, contract.num_ports(workload)),
            library=self._library,
            cgroup=cgroup,
            has_gpus=bool(self._node.gpus),
            place=place,
            packages=packages,
        )
        return render(self._home, workload, pod, around)

    def _stop(self, row: PodRow, now: float) -> None:
        pod, deadline = row.pod, row.kill_at or now
        path = self._home.pod(pod.workload_uid, pod.uid)
        claimed = read_json(path / "claimed.json")
        if claimed is None:
            self._cancel(row, path, now, "stopped before it started")
            return
        memory = self._attempts.setdefault(pod.uid, _Attempt())
        if not is_locked(path / "shim.lock"):
            return
        since = pod.terminating_since or now
        if memory.notified != (since, deadline):
            notice: dict[str, Any] = {"at": since, "grace_s": max(0.0, deadline - since)}
            if hung(self._store.get(pod.workload_uid), pod):
                notice["hangs"] = True
            try:
                write_json(path / "stop.json", notice)
            finally:
                # On a full disk the shim uses the grace period that it was started with.
                _signal(claimed.get("pid"), signal.SIGTERM)
            memory.notified = (since, deadline)
        elif now > deadline + KILL_SLACK_S:
            log.error("pod %s did not end; its shim and all processes are killed", pod.uid)
            _signal(claimed.get("pid"), signal.SIGKILL)
            kill_leftovers(pod.uid)

    def _cancel(self, row: PodRow, path: Path, now: float, why: str) -> None:
        """End a pod that was never claimed, by claiming it: a late shim finds it taken."""
        path.mkdir(parents=True, exist_ok=True)
        with held(path / "shim.lock") as ours:
            if not ours or (path / "claimed.json").exists():
                return
            write_json(path / "claimed.json", {"pid": os.getpid(), "at": now})
        pod = replace(row.pod, phase=PodPhase.FAILED, message=why)
        self._store.observe(PodObservation(row=replace(row, pod=pod)), now)
        self._tidy(pod)

    def _tidy(self, pod: Pod) -> None:
        """Remove the files of a terminated pod, except its log and its records."""
        path = self._home.pod(pod.workload_uid, pod.uid)
        try:
            (path / "pod.json").unlink(missing_ok=True)
        except OSError as error:  # a read-only disk; nothing starts from the file, as the pod is claimed
            log.warning("pod %s: %s", pod.uid, error)
        if self._limits.parent is not None:
            limits.remove(self._limits.parent / pod.uid)
        self._attempts.pop(pod.uid, None)
        self._progress.pop(pod.uid, None)
        self._gang_times.pop(pod.uid, None)
        self._trees.pop(pod.uid, None)

    @contextmanager
    def _isolated(self, name: str) -> Iterator[None]:
        """Work on files in the block: a failure, also one of the disk, is logged once and keeps nothing else up."""
        try:
            with self.isolation.of(name):
                yield
        except OSError as error:
            self.isolation.note(name, error)

    def _find_trees(self, rows: Sequence[PodRow]) -> None:
        """Find the trees in which live pods work."""
        self._in_trees = {}
        for row in rows:
            uid = row.pod.uid
            if uid not in self._trees:
                try:
                    run = self._store.get(row.pod.workload_uid)
                    self._trees[uid] = self._code.tree_of(run.uid, self._owner(run), run.spec)
                except (
                    NotFound,
                    UnreadableWorkload,
                    OSError,
                    ValueError,
                ):  # what is wrong with its files is told where they are needed
                    continue
            if (key := self._trees[uid]) is not None:
                self._in_trees.setdefault(key, set()).add(uid)

    def _owner(self, run: Workload) -> str:
        """Return the outermost parent of a run; its own uid without one."""
        uid, parent = run.uid, run.parent
        while parent is not None:
            try:
                uid, parent = parent, self._store.get(parent).parent
            except (NotFound, UnreadableWorkload):
                break
        return uid

    def _leave_tree(self, pod: Pod, now: float) -> None:
        """Move what programs wrote in a tree to the working directory, once no pod works there any more."""
        key = self._trees.get(pod.uid)
        pods = self._in_trees.get(key or "")
        if key is None or pods is None:
            return
        pods.discard(pod.uid)
        if pods:
            return
        with self._isolated(f"files of pod {pod.uid}"):
            settled = self._code.settle(key)
            if settled is not None:
                self._note_left(pod.workload_uid, *settled, now)

    def _note_left(self, uid: str, tree: Tree, left: tuple[str, ...], now: float) -> None:
        if left:
            reason = Reason(code=Code.CODE_EDITED, message=_say_left(left, tree))
            self._store.note(uid, Event(type="FilesLeft", reason=reason), now)


def _say_left(left: tuple[str, ...], tree: Tree) -> str:
    which = listed(left, 3)
    return (
        f"the run wrote {which}, which {tree.workdir} has another content of or no room for; "
        f"it stays in {tree.cwd} until the run is deleted"
    )


def _started_at(path: Path, started: dict[str, Any]) -> float:
    """Return when a pod was started: as its file tells, or if the program damaged that, when the file was written."""
    at = moment(started.get("at"))
    return (path / "started.json").stat().st_mtime if at is None else at


def _finished(pod: Pod, ended: dict[str, Any]) -> Pod:
    exits = read_exits(ended)
    well = not ended.get("setup_failed") and bool(exits) and all(exit_.ok for exit_ in exits)
    return replace(
        pod,
        phase=PodPhase.SUCCEEDED if well else PodPhase.FAILED,
        exits=exits,
        message=text(ended.get("message")),
        ready=False,
        usage=read_usage(ended),
    )


def _library(home: Home) -> Path:
    """Return a directory that holds the package ``fairlead`` and nothing else, for interpreters that lack it."""
    directory = home.path / "library"
    directory.mkdir(exist_ok=True)
    # Resolved: a supervisor started by a shim may itself have found the package through this very link.
    link, package = directory / "fairlead", Path(__file__).resolve().parents[2]
    if not link.is_symlink() or link.readlink() != package:
        temporary = directory / f".fairlead-{os.getpid()}-{time.monotonic_ns()}"
        temporary.symlink_to(package)
        temporary.replace(link)
    return directory


def _shim_has_ended(path: Path) -> bool:
    """Return whether the shim that a launcher last made for a pod has ended; False before it has made one."""
    made = read_json(path / "shim.json")
    if made is None:
        return False
    pid = whole(made.get("pid"))
    if pid is None or not 1 < pid < MOST_PID:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # PermissionError: the process id was reused by another user
        return True
    return False


def _signal(claimed: object, number: signal.Signals) -> None:
    """Signal the process that a pod's claim names; a program may have damaged it, and 0 and -1 are many processes."""
    pid = whole(claimed)
    if pid is None or not 1 < pid < MOST_PID:
        log.warning("a claim names %r, which is no process", claimed)
        return
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        log.debug("process %d had ended", pid)
