"""The contract on this machine: the agent in this process, with real shims, programs, locks and SQLite below it."""

import contextlib
import math
import os
import shlex
import signal as signals
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.cluster.local import agent
from fairlead.cluster.local.agent import Agent
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.launchers import Launchers
from fairlead.cluster.local.tables import UNCLAIMED
from fairlead.cluster.port import LogLine
from fairlead.policy.kinds.parents import submit
from fairlead.runtime import shell_limits
from fairlead.runtime.podfiles import is_locked, read_json, take_lock, write_json
from fairlead.specs.formats.reading import parse
from fairlead.specs.sweep import Sweep
from fairlead.specs.training import Launch, Training
from fairlead.state.plan import Change
from fairlead.state.snapshot import PodPhase, Silence, Workload
from tests.builders import change, members, notices, plan, training
from tests.cluster.contract import ClusterContract
from tests.cluster.family_contract import FamilyContract
from tests.waiting import until

PASS_S = 0.01
PATIENCE_S = 30.0


class LocalHarness:
    """Holds the supervisor's lock, so that no shim starts a supervisor, and plays its part without deciding."""

    moment_s = 0.4

    def __init__(self, path: Path) -> None:
        self.path = path
        self.starts = path / "starts"
        self.starts.mkdir()
        self.cluster = LocalCluster.open(path / "home")
        self._lock = take_lock(self.cluster.home.lock)
        self._agents = [Agent(self.cluster.home, self.cluster.store, self.cluster.node())]
        self._others = set(psutil.Process().children())
        self._last_name = 0

    def program(
        self,
        duration_s: float = math.inf,
        *,
        exit_code: int = 0,
        signal: int | None = None,
        ignores_term: bool = False,
        steps: int = 0,
        output: tuple[str, ...] = (),
    ) -> Training:
        self._last_name += 1
        lines = ["trap '' TERM"] if ignores_term else []
        lines += [f"echo started >> {shlex.quote(str(self.starts))}/$FAIRLEAD_POD_UID.${{LOCAL_RANK:-0}}"]
        lines += [f"printf '%s\\n' {shlex.quote(line)}" for line in output]
        if steps:
            report = '\'{"step": %d, "updated_at": %s}\' $step $(date +%s.%N)'
            lines += [
                f"for step in $(seq {steps}); do",
                f"sleep {duration_s / steps:g}",
                f"printf {report} > $FAIRLEAD_POD_DIR/.report",
                "mv $FAIRLEAD_POD_DIR/.report $FAIRLEAD_POD_DIR/rank-${RANK:-0}.json",
                "done",
            ]
        else:
            lines += [f"sleep {duration_s if math.isfinite(duration_s) else 'infinity'}"]
        lines += [f"exit {exit_code}" if signal is None else f"kill -{int(signal)} $$"]
        name = f"run-{self._last_name}"
        return training(name, run="\n".join(lines), workdir=str(self.path), launch=Launch.EXEC)

    def now(self) -> float:
        return time.time()

    def advance(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            self._agents[-1].observe(time.time())
            self._agents[-1].act(time.time())
            if time.monotonic() >= end:
                return
            time.sleep(PASS_S)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.cluster.snapshot()
            self.advance(PASS_S)

    def crash(self) -> None:
        """All that a supervisor remembers is gone, and its launchers with it; files, rows and shims stay."""
        self._agents[-1].close()
        self.cluster.close()
        self.cluster = LocalCluster(self.cluster.home)
        self._agents.append(Agent(self.cluster.home, self.cluster.store, self.cluster.node()))

    def lose(self, pod_uid: str) -> None:
        claimed = read_json(self._directory(pod_uid) / "claimed.json")
        assert claimed is not None
        os.kill(claimed["pid"], signals.SIGKILL)

    def num_starts(self, pod_uid: str) -> int:
        path = self.starts / f"{pod_uid}.0"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def logs(self, uid: str) -> list[LogLine]:
        return list(self.cluster.logs(uid))

    def break_down(self) -> None:
        """The tables are gone from the database, and where the runs' files were is no directory any more."""
        with contextlib.closing(sqlite3.connect(self.cluster.home.database)) as other:
            for table in ("workloads", "pods", "events"):
                other.execute(f"DROP TABLE {table}")
        runs = self.cluster.home.path / "runs"
        runs.rename(runs.with_name("runs-were-here"))
        runs.touch()

    def close(self) -> None:
        """End every pod, and see every shim out before the lock goes."""
        if (self.cluster.home.path / "runs").is_dir():
            self._end_all()
            # Those that were forked are no children of this process.
            locks = list((self.cluster.home.path / "runs").glob("*/pods/*/shim.lock"))
            until(lambda: not any(map(is_locked, locks)), "end of all shims", timeout_s=PATIENCE_S)
        # Before the wait: what forks shims ends with its agent only.
        for each in self._agents:
            each.close()
        psutil.wait_procs(set(psutil.Process().children()) - self._others, timeout=PATIENCE_S)
        self.cluster.close()
        if self._lock is not None:
            os.close(self._lock)

    def _end_all(self) -> None:
        for workload in self.cluster.workloads():
            live = [p.uid for p in self.cluster.pods(workload.uid) if not p.phase.is_final]
            self.cluster.apply(plan(change(workload, terminate=notices(*live, grace_s=0.0))))
        self.until(lambda: not self.cluster.store.live_pods())

    def _directory(self, pod_uid: str) -> Path:
        return self.cluster.home.pod(pod_uid.partition("-")[0], pod_uid)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


class TestLocalCluster(ClusterContract, FamilyContract):
    """Every promise of the port, kept by files, locks and processes."""


@pytest.mark.parametrize("moment", [1, 2])
def test_a_pod_whose_shim_starts_while_it_is_looked_at_is_not_lost(
    moment: int, harness: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness.cluster.submit(harness.program())
    node = harness.cluster.node().name
    harness.cluster.apply(plan(change(run, create=members(run.spec, node))))
    (row,) = harness.cluster.store.live_pods()
    directory = harness.cluster.home.pod(run.uid, row.pod.uid)
    directory.mkdir(parents=True)
    shim: list[int | None] = []
    num_looks = 0

    def then_the_shim_starts(look: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def looked(path: Path) -> Any:
            nonlocal num_looks
            found = look(path)
            num_looks += 1
            if num_looks == moment:
                shim.append(take_lock(directory / "shim.lock"))
                write_json(directory / "claimed.json", {"pid": os.getpid(), "at": time.time()})
            return found

        return looked

    for name in ("read_json", "is_locked"):
        monkeypatch.setattr(agent, name, then_the_shim_starts(getattr(agent, name)))
    for _ in range(3):
        Agent(harness.cluster.home, harness.cluster.store, harness.cluster.node()).observe(time.time())
    assert shim
    assert harness.cluster.store.live_pods()[0].pod.phase is PodPhase.STARTING
    for descriptor in shim:
        assert descriptor is not None
        os.close(descriptor)


def test_a_pod_is_silent_until_a_process_has_taken_it_up(harness: LocalHarness) -> None:
    run = harness.cluster.submit(harness.program())
    harness.cluster.apply(plan(change(run, create=members(run.spec, harness.cluster.node().name))))
    (pod,) = harness.cluster.snapshot().pods
    assert pod.silence == Silence(since=pod.created_at, what=UNCLAIMED)
    harness.until(lambda: harness.cluster.snapshot().pods[0].phase is PodPhase.RUNNING)
    assert harness.cluster.snapshot().pods[0].silence is None


def test_a_pod_whose_shim_ended_before_it_claimed_the_pod_is_started_again_at_once(
    harness: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness.cluster.submit(harness.program(0.0))
    harness.cluster.apply(plan(change(run, create=members(run.spec, harness.cluster.node().name))))
    (row,) = harness.cluster.store.live_pods()
    start = Launchers.start

    def start_in_vain(launchers: Launchers, workload: Workload, spec: dict[str, Any], pod_dir: Path) -> bool:
        """Hold the pod's lock until its shim has ended without a claim, as one does that is killed."""
        lock = take_lock(pod_dir / "shim.lock")
        assert lock is not None
        assert start(launchers, workload, spec, pod_dir)
        made = until(lambda: read_json(pod_dir / "shim.json"), "its shim")
        until(lambda: not psutil.pid_exists(made["pid"]), "end of its shim")
        os.close(lock)
        return True

    monkeypatch.setattr(Launchers, "start", start_in_vain)
    monkeypatch.setattr(agent, "START_TIMEOUT_S", math.inf)
    harness.until(lambda: not harness.cluster.store.live_pods())
    assert harness.num_starts(row.pod.uid) == 1


def test_a_child_gets_no_environment_but_that_of_its_parent(harness: LocalHarness) -> None:
    (spec,) = parse("kind: Sweep\nname: rates\nparameters: {lr: 0.1 | 0.2}\ntrial: {run: train}\n")
    assert isinstance(spec, Sweep)
    sweep, home = harness.cluster.submit(spec), harness.cluster.home
    order = submit(sweep, "0", harness.program())
    assert harness.cluster.apply(plan(Change(workload_uid=sweep.uid, version=sweep.version, submit=(order,))))[0]
    (child,) = harness.cluster.children(sweep.uid)
    environment = read_json(home.environment(child.uid)) or {}
    environment.pop(shell_limits.VARIABLE, None)  # where they differ from those of a new session
    assert environment == dict(os.environ)
    home.environment(sweep.uid).unlink()
    order = submit(sweep, "1", harness.program())
    assert harness.cluster.apply(plan(Change(workload_uid=sweep.uid, version=sweep.version + 1, submit=(order,))))[0]
    other = next(each for each in harness.cluster.children(sweep.uid) if each.uid != child.uid)
    assert not home.environment(other.uid).exists()
