"""The process that manages one pod: `python shim.py POD`, or forked from a warm launcher.

It claims the pod under a lock, starts its ranks, stores their output, forwards stop notices, and records how every rank
ended once no process of the pod is alive. It outlives the supervisor, and its death kills the ranks. One thread,
standard library only, Python 3.9 or newer. It never decides whether a pod should run; the supervisor does.

See decisions 2, 4, 80 and 147.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import sys
import time
import types
from collections.abc import Mapping, Sequence

if __name__ == "__main__":
    # Started by path: Fairlead's modules are found without changing sys.path or running fairlead/__init__.py.
    _here = os.path.dirname(os.path.abspath(__file__))
    for _name, _path in (("fairlead", os.path.dirname(_here)), ("fairlead.runtime", _here)):
        sys.modules[_name] = types.ModuleType(_name)
        sys.modules[_name].__path__ = [_path]
from fairlead.runtime import (
    gpu_peak,
    meeting,
    podfiles,
    podlog,
    processes,
    ranks,
    secret_entries,
    shell_limits,
    stacks,
    stop_delivery,
    trial,
    usage,
    utf8_mode,
)
from fairlead.runtime.elastic.beginnings import has_begun
from fairlead.runtime.experiment_tracking import choice
from fairlead.runtime.experiment_tracking.child import ExporterChild
from fairlead.runtime.launching import Exec, interpreter_for, plan_launch

# Exit codes of `fairlead.runtime.preflight`; `policy/kinds/preflights.py` reads the prefixes.
PREFLIGHT = {"exit code 3": "preflight, slow: ", "exit code 4": "preflight, faulty: "}

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from typing import Any

    from fairlead.runtime.experiment_tracking.child import ExporterChild
    from fairlead.runtime.forking import Warm
    from fairlead.runtime.metric_lines import MetricLines

# Time for the last output of the other ranks when one has failed. A normal exit of an interpreter with torch takes half
# a second of CPU time for each rank, for which the gang would wait without benefit.
TEARDOWN_S = 0.5
# The pods of a gang learn one after another that it hangs; a rank that ends would change the stacks of ranks that wait
# for it.
HOLD_S = 1.5
STACKS_S = 8.0
SILENT_PART = 0.9  # tolerance for differing clocks
TICK_S = 2.0
SUPERVISOR_PERIOD_S = 10.0
ROOM_BYTES = 16 * 1024
PLACE_ANSWER_S = 60.0
# Time after the end of the ranks for exporting the last metrics; shorter if the grace period ends before.
EXPORT_S = 11.0
LEAST_EXPORT_S = 0.5
_RETRY_S = 0.2
_KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SETUP = -1
# Number of times that a killed rank is restarted alone without progress in between, if the others can take it in.
MOST_RETURNS = 3
LEFT_CHARACTERS = 120
OWN_SIGNAL_S = 0.05
# `policy/kinds/failures.py` reads it in the last lines of the rank.
OWN_SIGNAL = "a process of its own group sent SIGTERM to all of it, as `kill 0` does"


def main() -> None:
    run(sys.argv[1], None, sys.argv[2] if len(sys.argv) > 2 else None)


def run(pod_dir: str, warm: Warm | None = None, why: str | None = None) -> bool:
    """Run the pod to its end, or return at once if another shim has or had it.

    Args:
        warm: The process to fork ranks from; None to execute them.
        why: The reason for executing ranks that could have been forked.

    Returns:
        True only in a forked rank, whose program runs when this process leaves Fairlead's code.
    """
    lock = podfiles.take_lock(os.path.join(pod_dir, "shim.lock"))
    if lock is None or os.path.exists(os.path.join(pod_dir, "claimed.json")):
        return False
    return Shim(pod_dir).run(warm, why)


class Shim:
    """Manages one pod from claim to record. Descriptors are plain numbers, as a forked rank closes them all."""

    def __init__(self, pod_dir: str) -> None:
        pod: dict[str, Any] = secret_entries.read_pod(pod_dir) or {}
        self._dir = pod_dir
        self._pod = pod
        self._cgroup: str | None = pod.get("cgroup")
        self._grace_s = float(pod["grace_s"])
        self._log = podlog.Log(
            os.path.join(pod_dir, "output.log"),
            max_bytes=int(pod["log_max_bytes"]),
            num_files=int(pod["log_files"]),
            echo=bool(pod.get("echo")),
            also=pod.get("echo_also"),
        )
        self._poll = select.poll()
        self._pipes: dict[int, podlog.RankOutput] = {}
        self._streams: dict[int, tuple[podlog.RankOutput, podlog.RankOutput]] = {}
        self._alive: dict[int, int] = {}  # pid -> rank
        # Ranks whose first process has ended on a stop notice before others of their session: how it has ended.
        self._leaving: dict[int, tuple[int, int | None, int | None, bool]] = {}
        self._spared: set[int] = set()  # workers of programs, which got no notice
        self._exits: dict[int, dict[str, Any]] = {}
        self._has_notice = False
        self._is_stopping = False
        self._is_terminated = False
        self._is_taking_stacks = False
        self._is_childless = False
        self._stacks: dict[int, stacks.Taken] | None = None
        self._kill_at: float | None = None
        self._exporter: ExporterChild | None = None
        self._ended: dict[str, Any] = {}
        self._tick_at = 0.0
        self._supervisor_at = 0.0
        # A container sees the counts of its cgroup, but starts no process in another.
        self._memory_cgroup: str | None = self._cgroup or pod.get("memory_cgroup")
        self._num_oom_kills = processes.num_oom_kills(self._memory_cgroup)
        self._usage = usage.PeakRecorder()
        self._meeting = meeting.Meeting(pod["env"])
        self._started: dict[str, Any] = {}
        self._argv: Sequence[str] = ()
        self._warm: Warm | None = None
        self._past: list[podlog.RankOutput] = []
        self._returns: dict[int, list[int]] = {}  # rank -> its steps when it was killed

    def run(self, warm: Warm | None, why: str | None) -> bool:
        if not self._claim():
            return False
        self._take_signals()
        processes.adopt_orphans()
        processes.name_process("fairlead-shim")
        message: str | None = self._pod.get("problem")
        tail: list[str] = []
        if message is None:
            self._start_data_server()  # which the copy of data before the ranks start needs already
            message, tail = self._set_up()
        if message is None and not self._is_stopping:
            message = self._try_place()
        if message is None and not self._is_stopping:
            message, tail = self._give_step()
        if message is None and not self._is_stopping:
            message, tail = self._test_nodes()
        if message is None and self._is_stopping:
            self._record("stopped before its ranks started", setup_failed=False)
        elif message is not None:
            self._record(message, setup_failed=True, tail=tail)
        else:
            self._write_parameters()
            if self._start(warm, why):
                return True
            with contextlib.suppress(OSError):  # the directory was removed, or the disk is full
                podfiles.make_durable(os.path.join(self._dir, "claimed.json"))
            self._exporter = self._start_exporter()
            try:
                self._watch()
            except _Became:
                return True
            self._return_step()
            self._finish_export()
            self._record(None, setup_failed=False)
            self._forget_stacks()
        self._log.close()
        self._poke()
        self._settle_record()
        self._look_for_supervisor(time.monotonic())
        return False

    def _claim(self) -> bool:
        """Claim the pod, waiting while the disk is full; giving up would leave the pod unstarted for a while."""
        while True:
            try:
                # From here on a kill does not undo the claim. A power failure might, but ranks that start at once do
                # not wait for durability.
                claim, waits = {"pid": os.getpid(), "at": time.time()}, bool(self._pod.get("setup"))
                podfiles.write_json(os.path.join(self._dir, "claimed.json"), claim, durably=waits)
            except OSError:
                if not os.path.exists(os.path.join(self._dir, "pod.json")):
                    return False  # the pod is over, or was deleted
                time.sleep(_RETRY_S)
            else:
                self._hold_room()
                return True

    def _hold_room(self) -> None:
        """Reserve disk space for the final record, so that the pod can end on a disk that is full by then."""
        with contextlib.suppress(OSError), open(os.path.join(self._dir, "room"), "wb") as file:
            file.write(b"\0" * ROOM_BYTES)

    def _release_room(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._dir, "room"))

    def _set_up(self) -> tuple[str | None, list[str]]:
        """Run the setup once for each stamp, one pod at a time; return an error and its last lines on failure."""
        stamp: str | None = self._pod.get("setup_stamp")
        self._follow_stop()
        if not self._pod.get("setup"):
            return None, []
        if stamp is None:
            return self._run_setup()
        while (turn := _lock_when_there_is_room(f"{stamp}.lock")) is None:
            if self._is_stopping:
                return None, []
            self._wait(_RETRY_S)
        try:
            if self._is_stopping or os.path.exists(stamp):
                return None, []
            message, tail = self._run_setup()
            if message is None and not self._is_stopping:
                with contextlib.suppress(OSError):  # the next pod repeats the setup, which must be possible anyway
                    podfiles.write_json(stamp, {"at": time.time()})
            return message, tail
        finally:
            os.close(turn)

    def _run_setup(self) -> tuple[str | None, list[str]]:
        shell = plan_launch(":", "exec", self._pod["env"]).argv[0]
        how, last, tail = self._run_beside((shell, "-e", "-c", self._pod["setup"]))
        if how is None or self._is_stopping:
            return None, []
        return f"the `setup` step failed with {how}" + (f": {last}" if last else ""), tail

    def _run_beside(self, argv: Sequence[str]) -> tuple[str | None, str, list[str]]:
        """Run a program that is not a rank; return why it failed or None, its last line and its last lines."""
        self._start_rank(_SETUP, argv, self._pod["env"])
        self._watch()
        ended = self._exits.pop(_SETUP)
        out, err = self._streams.pop(_SETUP)
        tail = err.tail() or out.tail()
        last = next((line.strip() for line in reversed(tail) if line.strip()), "")
        if ended["exit_code"] == 0:
            return None, last, tail
        how = f"exit code {ended['exit_code']}" if ended["signal"] is None else f"signal {ended['signal']}"
        return how, last, tail

    def _give_step(self) -> tuple[str | None, list[str]]:
        """Fetch a pipeline step's inputs from an object store; return an error and its last lines on failure."""
        place = self._pod["env"].get("FAIRLEAD_STEP_GIVEN")
        if not place or not self._pod.get("step"):
            return None, []
        how, last, tail = self._run_beside(self._step_command("give", place))
        if how is None or self._is_stopping:
            return None, []
        return last.removeprefix("fairlead: ") or f"what this step is given cannot be fetched: {how}", tail

    def _test_nodes(self) -> tuple[str | None, list[str]]:
        """Test this pod's node and GPUs together with the other pods; return what is wrong, and the last lines."""
        if not self._pod["env"].get("FAIRLEAD_PREFLIGHT"):
            return None, []
        env = self._pod["env"]
        own = interpreter_for(self._pod["command"], env) or (shutil.which("python3", path=env.get("PATH")),)
        argv = (*(argument or sys.executable for argument in own), "-m", "fairlead.runtime.preflight")
        how, last, tail = self._run_beside(argv)
        if how is None or self._is_stopping:
            return None, []
        verdict = PREFLIGHT.get(how)
        return f"the test before the start failed with {how}: {last}" if verdict is None else f"{verdict}{last}", tail

    def _return_step(self) -> None:
        """Upload a pipeline step's outputs to an object store, once all its ranks have succeeded.

        If that fails, the first rank counts as failed, because otherwise the failure would not be reported.
        """
        place, codes = (
            self._pod["env"].get("FAIRLEAD_STEP_RETURNS"),
            [end["exit_code"] for end in self._exits.values()],
        )
        if not place or not self._pod.get("step") or not codes or any(codes) or self._is_stopping:
            return
        from fairlead.runtime import step_files

        first = min(self._exits)
        number = step_files.number_of(int(self._pod["env"].get("FAIRLEAD_ATTEMPT") or 0), first)
        how, last, _ = self._run_beside((*self._step_command("return", place), number))
        if how is None:
            return
        problem = last.removeprefix("fairlead: ") or f"what it returns cannot be kept: {how}"
        self._streams[first][1].feed(f"fairlead: {problem}\n".encode(), time.time())
        self._streams[first][1].finish(time.time())
        self._exits[first]["exit_code"] = 1

    def _step_command(self, verb: str, place: str) -> tuple[str, ...]:
        """Return the command that fetches or uploads a step's files, with a Python that has the stores' packages."""
        env = self._pod["env"]
        own = interpreter_for(self._pod["command"], env) or (shutil.which("python3", path=env.get("PATH")),)
        python = [argument or sys.executable for argument in own]
        return (*python, *self._pod["step"], verb, place, env["FAIRLEAD_STEP_DIR"])

    def _try_place(self) -> str | None:
        """Test the checkpoint storage; return an error if it cannot be used, None if it can or may be later."""
        env = self._pod["env"]
        place = env.get("FAIRLEAD_CHECKPOINT_TO")
        if not place or not self._pod.get("trial"):
            return None
        if not trial.is_store(place):
            problem = trial.directory_problem(place)
            # A disk that is full now may have space when the first save is due.
            if problem is None or problem.errno in (errno.ENOSPC, errno.EDQUOT):
                return None
            return f"checkpoints cannot be kept in {place}: {problem.filename}: {problem.strerror}"
        if env.get("FAIRLEAD_ATTEMPT") != "0":
            return None  # the first attempt tested it; later failures are reported by the saves
        own = interpreter_for(self._pod["command"], env)
        python = own or (sys.executable,)
        tried_by = [*python, *self._pod["trial"]]
        error = trial.store_problem(place, tried_by, env, is_its_own=own is not None, within_s=PLACE_ANSWER_S)
        return None if error is None else f"checkpoints cannot be kept there: {error}"

    def _start(self, warm: Warm | None, why: str | None) -> bool:
        """Start all ranks; return True in a forked rank."""
        plan = plan_launch(self._pod["command"], self._pod["launch"], self._pod["env"])
        python = None if isinstance(plan, Exec) else plan.interpreter
        self._usage.begin()
        if isinstance(plan, Exec):
            why = plan.why
        elif warm is None and why is None:
            why = "no launcher was at hand"
        self._argv = plan.argv
        self._warm = warm if why is None else None
        self._start_member_server()
        self._started = {
            "at": time.time(),
            "launch": "exec" if self._warm is None else "fork",
            "why": why if self._pod["launch"] == "auto" else None,
            "python": python,
        }
        for rank in self._pod["ranks"]:
            if self._start_program(rank):
                return True
        self._tell_started()
        self._poke()
        return False

    def _start_member_server(self) -> None:
        """Start the server at which the ranks of an in-place run in pods find each other, beside the first of them.

        It ends with this process. If it is killed, ranks train on, and the next one that is lost restarts the run.
        """
        port = self._pod["env"].get("FAIRLEAD_MEMBERS_PORT")
        if port and self._pod["ranks"][0]["rank"] == 0:
            self._start_server(self._pod.get("members"), port)

    def _start_data_server(self) -> None:
        """Start the server from which the other pods of the run or endpoint read what this one has.

        It ends with this process. If it is killed, they read from others or from the store.
        """
        place = self._pod["env"].get("FAIRLEAD_DATA_PEERS")
        if place:
            self._start_server(self._pod.get("data"), place.rpartition(":")[2])

    def _start_server(self, argv: Sequence[str] | None, port: str) -> None:
        if not argv:
            return
        env = self._pod["env"]
        null, shim = os.open(os.devnull, os.O_RDWR), os.getpid()
        if ranks.fork_with_signals_held() == 0:
            try:
                ranks.enter(shim, self._cgroup, null, null)
            except OSError as error:
                ranks.give_up(error)
            ranks.become((sys.executable, "-I", *argv, port), env, self._pod["workdir"])
        ranks.release_signals()
        os.close(null)

    def _start_program(self, rank: Mapping[str, Any]) -> bool:
        """Start one rank; return True in the rank if it was forked."""
        env = self._env_of(rank)
        if self._pod.get("stall_timeout_s") is not None:
            env = stacks.prepare(env, self._dir, rank["rank"])
        argv = (*self._begin_by(rank["rank"], env), *self._argv)
        return self._start_rank(rank["rank"], argv, env, self._warm)

    def _tell_started(self) -> None:
        pids = {str(rank): pid for pid, rank in self._alive.items()}
        self._keep("started.json", {**self._started, "pids": pids}, durably=False)

    def _may_return(self, rank: int, number: int | None, *, is_oom: bool) -> bool:
        """Return whether an ended rank is restarted alone: it was killed, and the others can take it in.

        A rank that failed by itself, or needs more memory than its limit, would fail again.
        """
        place = self._pod["env"].get("FAIRLEAD_MEMBERS_DIR")
        if place is None or rank == _SETUP or number not in _KILLS or is_oom or self._kill_at is not None:
            return False
        if self._is_stopping or self._is_taking_stacks or not has_begun(place):
            return False
        step = (podfiles.read_json(os.path.join(self._dir, f"rank-{rank}.json")) or {}).get("step")
        past = self._returns.setdefault(rank, [])
        past.append(step if isinstance(step, int) else 0)
        return len(past) <= MOST_RETURNS or past[-1] > past[-1 - MOST_RETURNS]

    def _return(self, rank: int) -> None:
        """Restart a rank.

        Raises:
            _Became: In the restarted rank, if it was forked.
        """
        self._past += self._streams[rank]
        if self._start_program(next(entry for entry in self._pod["ranks"] if entry["rank"] == rank)):
            raise _Became
        self._tell_started()

    def _begin_by(self, rank: int, env: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command prefix that starts helper processes of a rank's framework; usually empty."""
        framework = env.get("FAIRLEAD_FRAMEWORK", "")
        if framework not in self._pod.get("begin_by", {}) or (framework == "xgboost" and rank != 0):
            return ()
        own = interpreter_for(self._pod["command"], env) or (shutil.which("python3", path=env.get("PATH")),)
        return (*(argument or sys.executable for argument in own), *self._pod["begin_by"][framework])

    def _start_rank(self, rank: int, argv: Sequence[str], env: Mapping[str, str], warm: Warm | None = None) -> bool:
        """Start one process; return True in it if it was forked to become the user's program."""
        (out, out_child), (err, err_child) = os.pipe(), os.pipe()
        shim = os.getpid()
        pid = ranks.fork_with_signals_held()
        if pid == 0:
            try:
                ranks.enter(shim, self._cgroup, out_child, err_child)
            except OSError as error:
                ranks.give_up(error)
            for problem in shell_limits.apply(self._pod.get("shell_limits")):
                os.write(2, f"fairlead: {problem}.\n".encode())
            if warm is not None:
                warm.become(env)
                return True
            ranks.become(argv, env, self._pod["workdir"])
        ranks.release_signals()
        os.close(out_child)
        os.close(err_child)
        self._alive[pid] = rank
        self._is_childless = False
        name = "-" if rank == _SETUP else str(rank)
        metrics = self._metric_lines(rank)
        self._streams[rank] = (
            podlog.RankOutput(self._log, name, "o", metrics),
            podlog.RankOutput(self._log, name, "e", metrics),
        )
        for fd, stream in zip((out, err), self._streams[rank]):  # noqa: B905 (strict= needs Python 3.10)
            os.set_blocking(fd, False)
            self._pipes[fd] = stream
            self._poll.register(fd, select.POLLIN)
        return False

    def _write_parameters(self) -> None:
        """Write the parameters of a sweep's trial to the file in which programs look for them."""
        env = self._pod["env"]
        if env.get("FAIRLEAD_PARAMS") and env.get("FAIRLEAD_RUN_DIR"):
            with contextlib.suppress(OSError, ValueError):  # the variable has them too
                values = json.loads(env["FAIRLEAD_PARAMS"])
                podfiles.write_json(os.path.join(env["FAIRLEAD_RUN_DIR"], "params.json"), values, durably=False)

    def _metric_lines(self, rank: int) -> MetricLines | None:
        """Return the reader of metrics in a rank's output; None if the spec does not request it."""
        wanted = self._pod.get("metrics")
        if wanted is None or rank == _SETUP:
            return None
        from fairlead.runtime.metric_lines import MetricLines

        return MetricLines(wanted["pattern"], self._dir, rank, time.time())

    def _start_exporter(self) -> ExporterChild | None:
        """Start the exporter of metrics; return None if no tracker is set up, or another pod has rank 0."""
        first = next((entry for entry in self._pod["ranks"] if entry["rank"] == 0), None)
        if first is None or not self._pod.get("export"):
            return None
        env = self._env_of(first)
        names = choice.chosen(env)
        if not names:
            return None
        python: tuple[str, ...] = (sys.executable,)
        if choice.WANDB in names:  # its package is one of the program's
            fallback = shutil.which("python3", path=env.get("PATH")) or sys.executable
            python = interpreter_for(self._pod["command"], env) or (fallback,)
        exporter = ExporterChild((*python, *self._pod["export"]), env, self._pod["workdir"])
        exporter.tick(self._cgroup)
        return exporter

    def _finish_export(self) -> None:
        """Let the last metrics be sent, for at most ``EXPORT_S`` seconds."""
        if self._exporter is None:
            return
        self._exporter.tick(self._cgroup)
        bad = [end for end in self._exits.values() if end["exit_code"] != 0]
        self._exporter.end("FINISHED" if not bad else "KILLED" if self._is_stopping else "FAILED")
        now = time.monotonic()
        deadline = now + EXPORT_S
        while self._exporter.pid is not None and now < deadline:
            if self._is_stopping and self._kill_at is not None:
                deadline = min(deadline, max(self._kill_at, now + LEAST_EXPORT_S))
            self._wait(min(0.2, max(0.0, deadline - now)))
            now = time.monotonic()
        self._exporter.kill()
        while self._exporter.pid is not None or self._end_others():
            self._wait(0.01)

    def _watch(self) -> None:
        """Wait until every rank has ended, no process of the pod is left and all output is in the log."""
        self._follow_stop()
        while self._alive or self._leaving:
            self._wait()
        self._let_others_end()
        while self._end_others():
            self._wait(0.01)
        while self._pipes:
            for fd in list(self._pipes):
                self._read(fd, is_last=True)
        now = time.time()
        for stream in [*self._past, *(stream for both in self._streams.values() for stream in both)]:
            stream.finish(now)

    def _wait(self, timeout_s: float = TICK_S) -> None:
        """Wait for output, a signal or the next deadline, and handle it."""
        now = time.monotonic()
        if any(stream.is_waiting for stream in self._pipes.values()):
            timeout_s = min(timeout_s, podlog.PROGRESS_PERIOD_S)
        if self._kill_at is not None:
            timeout_s = min(timeout_s, max(0.0, self._kill_at - now))
        for fd, _ in self._poll.poll(timeout_s * 1000):
            if fd != self._wake_read:
                self._read(fd)
                continue
            with contextlib.suppress(BlockingIOError):
                os.read(fd, 4096)
            self._follow_stop()
        self._reap()
        now = time.monotonic()
        if self._leaving:
            self._settle_leaving()
        if self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)
            self._kill_at = now + _RETRY_S
        if now >= self._tick_at:
            self._tick_at = now + TICK_S
            self._meeting.look()
            self._follow_stop()
            self._look_for_supervisor(now)
            self._log.tick(time.time())
            if self._exporter is not None and self._alive:
                self._exporter.tick(self._cgroup)
        self._usage.look(now)
        for stream in self._pipes.values():
            stream.tick(time.time())

    def _read(self, fd: int, *, is_last: bool = False) -> None:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            if not is_last:
                return
            data = b""  # held open by a process that this user may not kill
        if data:
            self._pipes[fd].feed(data, time.time())
        else:
            self._poll.unregister(fd)
            del self._pipes[fd]
            os.close(fd)

    def _reap(self) -> None:
        # Processes reaped together ended by now, in unknown order: a pause between them must not create an order.
        now, is_ending = time.time(), False
        reaped = self._ended_children()
        if reaped:
            self._meeting.look()
        by_sigterm = _ended_by(reaped, signal.SIGTERM)
        if not self._is_terminated and not self._has_notice and by_sigterm & self._alive.keys():
            # One that the rank's own script sent to its group has ended others too, which takes a moment.
            time.sleep(OWN_SIGNAL_S)
            reaped += self._ended_children()
            by_sigterm = _ended_by(reaped, signal.SIGTERM)
        is_own_signal = bool(by_sigterm - self._alive.keys()) and not self._is_terminated and not self._has_notice
        for pid, status, used in reaped:
            rank = self._alive.pop(pid, None)
            if rank is None:
                if self._exporter is not None:
                    self._exporter.reaped(pid)
                continue  # or an orphan of a rank
            self._usage.ended(rank, used.ru_maxrss)
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            code = None if number is not None else os.WEXITSTATUS(status)
            limits = self._pod.get("shell_limits")
            if number == signal.SIGKILL and shell_limits.has_used_up(limits, used.ru_utime + used.ru_stime):
                number = signal.SIGXCPU  # its soft limit is the hard one, at which no other signal comes
            is_oom = number == signal.SIGKILL and processes.num_oom_kills(self._memory_cgroup) > self._num_oom_kills
            if self._is_terminated and self._kill_at is not None and self._remains_of(pid):
                # A shell or launcher has ended on the notice, and its program uses the rest of the grace period.
                self._leaving[pid] = (rank, code, number, is_oom)
                continue
            if number == signal.SIGTERM and is_own_signal:
                self._streams[rank][1].feed(f"fairlead: {OWN_SIGNAL}\n".encode(), time.time())
            ends_others = self._has_ended(pid, rank, code, number, is_oom=is_oom, now=now, is_ending=is_ending)
            is_ending = is_ending or ends_others

    def _ended_children(self) -> list[tuple[int, int, resource.struct_rusage]]:
        """Return the children that have ended, with their status and usage."""
        reaped: list[tuple[int, int, resource.struct_rusage]] = []
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                # Orphaned descendants become children of this process, so without children it has no descendants.
                self._is_childless = True
                return reaped
            self._is_childless = False
            if pid == 0:
                return reaped
            reaped.append((pid, status, used))

    def _has_ended(
        self, pid: int, rank: int, code: int | None, number: int | None, *, is_oom: bool, now: float, is_ending: bool
    ) -> bool:
        """Record the end of a rank, or start it again; return whether the others are to end because of it."""
        # A rank that ends because another has failed is recorded after it, even if both are reaped together.
        at = max(time.time(), now + 0.001) if is_ending and _has_heeded(code, number) else now
        if code == 0 and not self._is_terminated:
            self._tell_left(pid, rank)
        self._signal_group(pid, signal.SIGKILL)  # processes left in its group hold its pipes open
        if self._may_return(rank, number, is_oom=is_oom):
            self._return(rank)
            return False
        self._exits[rank] = {"rank": rank, "exit_code": code, "signal": number, "at": at, "out_of_memory": is_oom}
        # A rank that ends on a stop notice does not shorten the others' grace period.
        is_heeding = self._is_stopping and _has_heeded(code, number)
        if code != 0 and not is_heeding and not self._is_taking_stacks:
            self._end_within(min(TEARDOWN_S, self._grace_s))
            return True
        return False

    def _remains_of(self, pid: int) -> list[int]:
        """Return the living processes of the session of a rank."""
        if self._is_childless:
            return []
        return [process.pid for process in processes.sessions_below(os.getpid()).get(pid, ())]

    def _tell_left(self, pid: int, rank: int) -> None:
        """Write into the log what a rank has left running, since it is killed and may not have been done."""
        own = set(processes.commands([os.getpid()]))
        if self._argv and os.path.basename(self._argv[0]) in _SHELLS:
            own.add(" ".join(self._argv))  # subshells, which are about to end
        remaining = self._remains_of(pid)
        if not self._alive and not self._leaving:
            # After `setsid` or a double fork they may be of any rank: the last one names them.
            remaining += sorted(self._others() - set(remaining))
        left = [command for command in processes.commands(remaining) if command not in own and not _is_helper(command)]
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            text = f"fairlead: it ended and left {left[0][:LEFT_CHARACTERS]!r}{more} running, killed now; "
            text += "`wait` and `setsid --wait` let a shell wait for what it has started"
            name = "-" if rank == _SETUP else str(rank)
            self._log.write(time.time(), name, "e", [text.encode("utf-8", "replace")])

    def _settle_leaving(self) -> None:
        """Record the end of ranks that nothing is left of, and of all when the grace period is over."""
        sessions = processes.sessions_below(os.getpid())
        is_over = self._kill_at is not None and time.monotonic() >= self._kill_at
        for pid, (rank, code, number, is_oom) in list(self._leaving.items()):
            left = sessions.get(pid, ())
            if left and not is_over:
                # Workers were spared for the sake of their program, which is gone.
                orphans = [
                    process.pid for process in left if process.parent == os.getpid() and process.pid in self._spared
                ]
                self._spared.difference_update(orphans)
                processes.kill(orphans, signal.SIGTERM)
            else:
                del self._leaving[pid]
                processes.kill([process.pid for process in left])
                self._has_ended(pid, rank, code, number, is_oom=is_oom, now=time.time(), is_ending=False)

    def _let_others_end(self) -> None:
        """Give processes in sessions of their own the rest of the grace period, after a stop notice to the ranks."""
        if not self._is_stopping or not self._is_terminated:
            return
        others = self._others()
        processes.kill(others, signal.SIGTERM)
        while others and self._kill_at is not None and time.monotonic() < self._kill_at:
            self._wait(_RETRY_S)
            others = self._others()

    def _follow_stop(self) -> None:
        stop: dict[str, Any] | None = podfiles.read_json(os.path.join(self._dir, "stop.json"))
        if stop is not None:
            grace_s = float(stop["grace_s"])
            grace_s = min(grace_s, float(stop["at"]) + grace_s - time.time())
            hangs = bool(stop.get("hangs"))
        elif self._has_notice and not self._is_stopping:
            grace_s = self._grace_s
            hangs = self._is_silent()
        else:
            return
        if self._is_taking_stacks:
            self._kill_within(grace_s)
            return
        self._is_stopping = True
        if hangs and self._stacks is None and self._alive and _SETUP not in self._alive.values() and grace_s > 0:
            grace_s = self._take_stacks(grace_s)
        self._end_within(grace_s)

    def _is_silent(self) -> bool:
        """Return whether a stop notice without a reason may be due to a hang of the run, as on Kubernetes.

        On Kubernetes a pod is told only to stop, so the silence of its own ranks has to show the reason.
        """
        limit_s: float | None = self._pod.get("stall_timeout_s")
        if limit_s is None or not self._alive:
            return False
        from fairlead.runtime import reporting

        at = reporting.active_at(self._dir)
        started = podfiles.read_json(os.path.join(self._dir, "started.json")) or {}
        latest = max(at or 0.0, float(started.get("at") or time.time()))
        return time.time() - latest >= SILENT_PART * limit_s

    def _take_stacks(self, grace_s: float) -> float:
        """Write the ranks' stacks to the log before any rank is stopped; return the seconds left to stop them."""
        self._is_taking_stacks = True
        begun = time.monotonic()
        self._kill_within(grace_s)
        try:
            taken = stacks.take(
                dict(self._alive),
                env=lambda rank: next(
                    (self._env_of(entry) for entry in self._pod["ranks"] if entry["rank"] == rank), {}
                ),
                files=lambda rank: stacks.file_of(self._dir, rank),
                keep=lambda rank, lines: self._log.write(
                    time.time(), str(rank), "e", [line.encode("utf-8", "replace") for line in lines]
                ),
                wait=self._wait,
                until=begun + min(STACKS_S, grace_s),
            )
            self._stacks = {stack.rank: stack for stack in taken}
            if len(self._pod["ranks"]) < int(self._pod["env"].get("WORLD_SIZE") or 0):
                while self._alive and time.monotonic() < begun + min(HOLD_S, grace_s):
                    self._wait(0.05)
        finally:
            self._is_taking_stacks = False
        left_s = grace_s - (time.monotonic() - begun)
        return max(0.0, min(TEARDOWN_S, left_s))

    def _env_of(self, rank: Mapping[str, Any]) -> dict[str, str]:
        return {**self._pod["env"], **rank["env"]}

    def _end_within(self, grace_s: float) -> None:
        """Send the ranks SIGTERM once, and kill the rest after ``grace_s`` seconds or at an earlier deadline."""
        if grace_s <= 0:
            self._signal(signal.SIGKILL)
        elif not self._is_terminated and self._alive:
            self._terminate()
        self._is_terminated = self._is_terminated or bool(self._alive)
        self._kill_within(grace_s)

    def _kill_within(self, grace_s: float) -> None:
        at = time.monotonic() + max(0.0, grace_s)
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def _end_others(self) -> bool:
        """Kill processes that the ranks left behind; return whether there were any."""
        others = self._others()
        processes.kill(others)
        self._reap()
        return any(_is_ours(pid) for pid in others)

    def _others(self) -> set[int]:
        """Return the processes of the pod other than this one and the exporter."""
        if self._is_childless and self._cgroup is None:
            return set()  # avoids reading all processes of the machine
        others = {*processes.descendants(os.getpid()), *processes.members(self._cgroup)}
        return others - self._of_exporter()

    def _of_exporter(self) -> set[int]:
        """Return the processes of the exporter, which end shortly after the ranks."""
        pid = None if self._exporter is None else self._exporter.pid
        return set() if pid is None else {pid, *processes.descendants(pid)}

    def _terminate(self) -> None:
        """Send SIGTERM once to the processes of the ranks; see `stop_delivery.py`."""
        sessions = processes.sessions_below(os.getpid())
        for pid in self._alive:
            members = sessions.get(pid, [])
            wanted, workers = stop_delivery.divide(members)
            self._spared |= workers
            if pid in wanted:
                processes.kill(wanted, signal.SIGTERM)
            else:  # another system, or it has just been forked
                self._signal_group(pid, signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for pid in self._alive:
            self._signal_group(pid, number)

    def _signal_group(self, pid: int, number: int) -> None:
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            # It has just been forked and is not yet the leader of its group, or it is gone.
            if pid in self._alive:
                processes.kill([pid], number)
        except PermissionError:
            processes.kill([pid], number)

    def _record(self, message: str | None, *, setup_failed: bool, tail: Sequence[str] = ()) -> None:
        exits: list[dict[str, Any]] = [
            {**self._exits[rank], "tail": self._streams[rank][1].tail()} for rank in sorted(self._exits)
        ]
        for end in exits if self._stacks is not None else ():
            end["hang"] = self._whereabouts(end["rank"])
        record: dict[str, Any] = {"setup_failed": setup_failed, "message": message, "ranks": exits, "tail": list(tail)}
        if message is None and self._meeting.failed and not any(end["exit_code"] != 0 for end in exits):
            record["message"] = meeting.NEVER_MET
        if message is None:
            record["usage"] = {**self._usage.record(), "gpu_memory_bytes": gpu_peak.of_pod(self._dir)}
        if not self._pod.get("echo") and self._log.lost is not None:
            record["lost_output"] = self._log.lost
        self._release_room()
        self._ended = {"at": time.time(), **record}
        self._keep("exit.json", self._ended, durably=False)

    def _settle_record(self) -> None:
        """Make the final record survive a power failure; the supervisor, already notified, need not wait for it."""
        try:
            podfiles.make_durable(os.path.join(self._dir, "exit.json"))
        except OSError:  # a file system that reports only now that there is no space
            self._keep("exit.json", self._ended)

    def _whereabouts(self, rank: int) -> dict[str, Any] | None:
        """Return a rank's position when the run hung, and its last step; None for a rank that had ended."""
        taken = (self._stacks or {}).get(rank)
        if taken is None:
            return None
        report = podfiles.read_json(os.path.join(self._dir, f"rank-{rank}.json")) or {}
        step = report.get("step")
        return {
            **stacks.whereabouts(taken.frames),
            "step": step if isinstance(step, int) else None,
            **({"collectives": taken.collectives} if taken.collectives else {}),
        }

    def _keep(self, name: str, value: object, *, durably: bool = True) -> None:
        """Replace a file of the pod, waiting while the disk is full: the pod's outcome must not be lost."""
        while True:
            try:
                podfiles.write_json(os.path.join(self._dir, name), value, durably=durably)
            except OSError:
                if not os.path.isdir(self._dir):
                    return  # the run was deleted
                self._wait(_RETRY_S)
            else:
                return

    def _forget_stacks(self) -> None:
        for entry in self._pod["ranks"]:
            stacks.forget(self._dir, entry["rank"])

    def _take_signals(self) -> None:
        self._wake_read, wake_write = os.pipe()
        for fd in (self._wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._poll.register(self._wake_read, select.POLLIN)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._take_notice)
        signal.signal(signal.SIGCHLD, _wake)

    def _take_notice(self, _number: int, _frame: object) -> None:
        self._has_notice = True

    def _poke(self) -> None:
        if not self._pod.get("poke"):
            return
        import _socket  # not `socket`, which takes 1 MB, and milliseconds during which the supervisor would wait

        wake = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        try:
            wake.setblocking(False)
            with contextlib.suppress(OSError):
                wake.sendto(b"", self._pod["poke"])
        finally:
            wake.close()

    def _look_for_supervisor(self, now: float) -> None:
        argv = self._pod.get("supervisor")
        if argv and now >= self._supervisor_at and not podfiles.is_locked(self._pod["supervisor_lock"]):
            self._supervisor_at = now + SUPERVISOR_PERIOD_S
            env = self._pod.get("supervisor_env") or {k: v for k, v in os.environ.items() if not _is_of_run(k)}
            ranks.start_detached(argv, env)


class _Became(Exception):
    """Raised in a rank that was forked by a running shim, to leave the shim's code."""


def _lock_when_there_is_room(path: str) -> int | None:
    try:
        return podfiles.take_lock(path)
    except OSError:
        return None


def _wake(_number: int, _frame: object) -> None:
    """Do nothing: the byte in the wake-up pipe is enough."""


def _ended_by(reaped: Sequence[tuple[int, int, resource.struct_rusage]], number: int) -> set[int]:
    """Return the processes that a signal has ended."""
    return {pid for pid, status, _ in reaped if os.WIFSIGNALED(status) and os.WTERMSIG(status) == number}


def _has_heeded(code: int | None, number: int | None) -> bool:
    """Return whether a rank ended as if stopped by SIGTERM."""
    return number == signal.SIGTERM or code == 128 + signal.SIGTERM


_SHELLS = frozenset({"bash", "dash", "sh"})


def _is_helper(command: str) -> bool:
    """Return whether a process is one that Python or Fairlead starts beside a program, and that ends after it."""
    own = ("multiprocessing.", "process_manager.py", "ray_cluster.py", "tracker.py", "runtime.pyz", "stackdump")
    return any(name in command for name in own)


def _is_ours(pid: int) -> bool:
    """Return whether the process exists and this user may kill it; waiting for any other would never end."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _is_of_run(variable: str) -> bool:
    """Return whether a variable belongs to the run rather than the machine.

    A supervisor must not look like a process of a pod.
    """
    prefixes = ("FAIRLEAD_", "TORCHELASTIC_", "MASTER_", "GROUP_", "ROLE_", "LOCAL_")
    return variable != "FAIRLEAD_HOME" and variable.startswith(prefixes)


if __name__ == "__main__":
    utf8_mode.enter()
    main()
