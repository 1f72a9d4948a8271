"""Runs the pods of the database as processes, as a kubelet does on Kubernetes.

``observe`` reads the files of shims and ranks and records their content; ``act`` starts unclaimed pods and delivers
stop notices. Both rely on files, locks and rows alone, so that a new agent can take over from one that was killed.
"""

import logging
import os
import shutil
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.cluster import contract
from fairlead.cluster.local import limits
from fairlead.cluster.local.code.environments import Environments
from fairlead.cluster.local.code.keeping import CodeStore
from fairlead.cluster.local.code.trees import Settled
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.launchers import Launchers
from fairlead.cluster.local.pod_files import NewEvents, read_events, read_exits, read_progress, read_series, read_usage
from fairlead.cluster.local.pod_spec import PodEnvironment, render
from fairlead.cluster.local.ports import port_for
from fairlead.cluster.local.probes import Probes
from fairlead.cluster.local.store import Observation, Store
from fairlead.cluster.local.tables import PodRow
from fairlead.errors import NotFound
from fairlead.policy.kinds.failures import hung
from fairlead.runtime.leftovers import kill_leftovers
from fairlead.runtime.podfiles import held, is_locked, read_json, write_json
from fairlead.state.plan import Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Node, Pod, PodPhase, Progress, Workload, is_replica

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
    """Manages the pods of this machine."""

    def __init__(self, home: Home, store: Store, node: Node) -> None:
        self._home = home
        self._store = store
        self._node = node
        self._code = CodeStore(home)
        self._environments = Environments(home, self._code.objects, node)
        self._launchers = Launchers(home)
        self._probes = Probes(home)
        self._attempts: dict[str, _Attempt] = {}
        self._progress: dict[str, Progress] = {}
        self._limits = limits.enforcement()
        self._library = _library(home)

    def get_ready(self) -> None:
        """Start the process that makes shims ahead of the first pod, in parallel with other work."""
        self._launchers.get_ready()

    def observe(self, now: float) -> int:
        """Record the state of every live pod; return the number of live pods."""
        rows = self._store.live_pods()
        self._probes.keep({row.pod.uid for row in rows})
        for row in rows:
            seen = self._look(row)
            if seen is not None:
                self._store.observe(seen, now)
                if seen.progress is not None:
                    self._progress[seen.row.pod.uid] = seen.progress
                if seen.row.pod.phase.is_final:
                    self._tidy(seen.row.pod)
        return len(rows)

    def act(self, now: float) -> None:
        """Start the pods that are to start and stop those that have a stop notice."""
        for row in self._store.live_pods():
            try:
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

    def close(self) -> None:
        """Stop the warm launchers; pods live on under their shims."""
        self._environments.close()
        self._launchers.close()
        self._probes.close()

    def sweep(self) -> None:
        """Remove files of forgotten runs and settle trees whose end was missed; called when a supervisor starts."""
        runs, now = self._home.path / "runs", time.time()
        for directory in runs.iterdir() if runs.is_dir() else ():
            if (directory / "code").is_dir():
                for attempt in {pod.attempt for pod in self._store.pods(directory.name)}:
                    self._settle(directory.name, attempt, now)
            if now - directory.stat().st_mtime < SWEEP_AGE_S:
                continue
            try:
                self._store.get(directory.name)
            except NotFound:
                self._code.settle(directory.name)
                shutil.rmtree(directory, ignore_errors=True)
        self._code.prune()

    def _look(self, row: PodRow) -> Observation | None:
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
            return self._seen(row, _finished(pod, ended, read_json(path / "started.json")), path)
        if pod.phase is not PodPhase.RUNNING:
            started = read_json(path / "started.json")
            if started is not None:
                pod = replace(pod, phase=PodPhase.RUNNING, started_at=float(started["at"]))
            elif pod.phase is PodPhase.CREATED and (path / "claimed.json").exists():
                pod = replace(pod, phase=PodPhase.STARTING)
        return self._seen(row, self._probed(pod), path)

    def _probed(self, pod: Pod) -> Pod:
        """Return the pod with the last answer of its server to the probe, if it is a replica of an endpoint."""
        if pod.phase is not PodPhase.RUNNING:
            return pod
        if not self._probes.knows(pod.uid):
            spec = self._store.get(pod.workload_uid).spec
            port = port_for(self._home, pod.workload_uid, pod.attempt) if is_replica(spec) else 0
            self._probes.add(pod.uid, port, spec.probe if is_replica(spec) else None)
        answer = self._probes.answer(pod.uid)
        if answer is None:
            return pod
        return replace(pod, ready=answer.ready and pod.terminating_since is None, message=answer.problem)

    def _seen(self, row: PodRow, pod: Pod, path: Path) -> Observation | None:
        """Return the observation to record; None when nothing has changed."""
        progress, active_at = read_progress(path)
        if active_at is not None and active_at - (pod.active_at or 0.0) >= ACTIVE_STEP_S:
            pod = replace(pod, active_at=active_at)
        if pod.index != 0 or progress == self._progress.get(pod.uid):
            progress = None
        events: NewEvents = read_events(path, row.event_offsets)
        series = read_series(path, pod.attempt, events.offsets, is_over=pod.phase.is_final)
        if pod == row.pod and progress is None and not events.events and not series.points:
            return None
        seen = replace(row, pod=pod, event_offsets=series.offsets)
        return Observation(row=seen, progress=progress, events=events.events, points=series.points)

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
        environ = read_json(self._home.environment(workload.uid))
        if environ is None:
            gone = f"its kept environment is gone; submit {workload.spec.name} again from the shell it is to run in"
            self._cancel(row, path, now, gone)
            return
        spec = self._prepare(workload, pod, environ, now)
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

    def _prepare(self, workload: Workload, pod: Pod, environ: dict[str, Any], now: float) -> dict[str, Any]:
        workdir = workload.spec.workdir or ""
        place = self._code.place(workload, pod, lambda at: self._store.was_running(workdir, at))
        if place.said is not None:
            reason = Reason(code=Code.CODE_EDITED, message=place.said)
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
                _signal(int(claimed["pid"]), signal.SIGTERM)
            memory.notified = (since, deadline)
        elif now > deadline + KILL_SLACK_S:
            log.error("pod %s did not end; its shim and all processes are killed", pod.uid)
            _signal(int(claimed["pid"]), signal.SIGKILL)
            kill_leftovers(pod.uid)

    def _cancel(self, row: PodRow, path: Path, now: float, why: str) -> None:
        """End a pod that was never claimed, by claiming it: a late shim finds it taken."""
        path.mkdir(parents=True, exist_ok=True)
        with held(path / "shim.lock") as ours:
            if not ours or (path / "claimed.json").exists():
                return
            write_json(path / "claimed.json", {"pid": os.getpid(), "at": now})
        pod = replace(row.pod, phase=PodPhase.FAILED, message=why)
        self._store.observe(Observation(row=replace(row, pod=pod)), now)
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
        if (self._home.run(pod.workload_uid) / "code").is_dir():
            self._settle(pod.workload_uid, pod.attempt, time.time())

    def _settle(self, uid: str, attempt: int, now: float) -> None:
        """Move what an attempt wrote in its own tree to the working directory, once all of its pods are final."""
        if all(pod.phase.is_final for pod in self._store.pods(uid) if pod.attempt == attempt):
            for settled, tree in self._code.settle(uid, attempt):
                if settled.left:
                    reason = Reason(code=Code.CODE_EDITED, message=_say_left(settled, tree, attempt))
                    self._store.note(uid, Event(type="FilesLeft", reason=reason), now)


def _say_left(settled: Settled, tree: Path, attempt: int) -> str:
    which = ", ".join(settled.left[:3]) + (f" and {len(settled.left) - 3} more" * (len(settled.left) > 3))
    return (
        f"attempt {attempt} wrote {which}, which {settled.workdir} has another content of or no room for; "
        f"it stays in {tree} until the run is deleted"
    )


def _finished(pod: Pod, ended: dict[str, Any], started: dict[str, Any] | None) -> Pod:
    exits = read_exits(ended)
    well = not ended.get("setup_failed") and bool(exits) and all(exit_.ok for exit_ in exits)
    return replace(
        pod,
        phase=PodPhase.SUCCEEDED if well else PodPhase.FAILED,
        started_at=pod.started_at if started is None else float(started["at"]),
        exits=exits,
        message=ended.get("message"),
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
    try:
        os.kill(int(made["pid"]), 0)
    except (ProcessLookupError, PermissionError):  # PermissionError: the process id was reused by another user
        return True
    return False


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        log.debug("process %d had ended", pid)
