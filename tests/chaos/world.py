"""One round of chaos: a run of ``program.py``, faults at random instants, and what must hold."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.runtime.podfiles import read_json
from fairlead.specs.training import Checkpoint, Retry, Training
from fairlead.state.snapshot import Phase, Workload
from tests.chaos.program import SIZE, descend, loss_of
from tests.processes import Child

PROGRAM = Path(__file__).with_name("program.py")
STEPS, STEP_S, INTERVAL = 60, 0.01, 6
LIMIT_S = 300.0  # a busy machine takes ten times as long as a quiet one
# A user would look after a while when nothing moves; so does the round, and so starts a supervisor if all were killed.
LOOK_AGAIN_S = 2.0


def trial_program(steps: int, step_s: float) -> str:
    """Write the program of a sweep's trials, which adds each of its attempts to a file and prints its loss."""
    return f"""
import os, sys, time
with open(sys.argv[1], "a") as ledger:
    print(os.environ["FAIRLEAD_RUN"], os.environ["FAIRLEAD_ATTEMPT"], file=ledger)
for step in range(1, {steps + 1}):
    print(f"step={{step}} loss={{(float(sys.argv[2]) - 0.3) ** 2 + 1 / step}}", flush=True)
    time.sleep({step_s})
"""


@dataclass(slots=True)
class Round:
    """A round in progress."""

    seed: int
    cluster: LocalCluster
    run: Workload
    rng: random.Random
    faults: list[str] = field(default_factory=list)

    def kill_rank(self) -> None:
        """kill -9 of any rank."""
        started = [read_json(path / "started.json") or {} for path in self._pods()]
        self._kill("rank", [pid for ranks in started for pid in ranks.get("pids", {}).values()])

    def kill_shim(self) -> None:
        """kill -9 of any shim."""
        claims = [claim for path in self._pods() if (claim := read_json(path / "claimed.json")) is not None]
        self._kill("shim", [claim["pid"] for claim in claims])

    def kill_supervisor(self) -> None:
        """kill -9 of the supervisor."""
        pid = self.cluster.supervisor_pid()
        self._kill("supervisor", [] if pid is None else [pid])

    def kill_cli(self) -> None:
        """Start a command that follows the run, and kill -9 it a little later."""
        argv = [sys.executable, "-m", "fairlead.cli.main", "attach", self.run.spec.name]
        environ = {**os.environ, "FAIRLEAD_HOME": str(self.cluster.home.path)}
        quiet = subprocess.DEVNULL
        with Child(argv, env=environ, stdin=quiet, stdout=quiet, stderr=quiet) as cli:
            time.sleep(self.rng.uniform(0.05, 0.5))
            cli.kill()
        self.faults.append("cli")

    def corrupt_newest_checkpoint(self) -> None:
        """Flip a byte of the newest complete checkpoint, then kill a rank so that it is needed."""
        complete = sorted(self._files("checkpoints/step-*/MANIFEST.json"))
        for path in [data for manifest in complete[-1:] for data in sorted(manifest.parent.rglob("weights.json"))][:1]:
            damaged = bytearray(path.read_bytes())
            damaged[len(damaged) // 2] ^= 0xFF
            path.write_bytes(bytes(damaged))
            self.faults.append("corrupt")
        self.kill_rank()

    def fill_disk(self) -> None:
        """No room for a while: for the database, the logs, the records of exits and the checkpoints."""
        self.faults.append("disk-full")
        ballast = self.cluster.home.path / "ballast"
        try:
            with ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(b"\0" * 4096)
        except OSError:
            time.sleep(self.rng.uniform(0.2, 0.8))
            if self.rng.random() < 0.5:
                self.kill_rank()
                time.sleep(0.3)
        ballast.unlink()

    def finished(self) -> Workload:
        """Wait for the end of the run, as a user who looks now and then."""
        deadline = time.monotonic() + LIMIT_S
        look_at = time.monotonic() + LOOK_AGAIN_S
        while time.monotonic() < deadline:
            now = self.cluster.store.get(self.run.uid)
            if now.status.phase.is_final:
                return now
            if time.monotonic() > look_at:
                self.cluster.nudge()
                look_at = time.monotonic() + LOOK_AGAIN_S
            time.sleep(0.05)
        raise AssertionError(f"round {self.seed} ({self.faults}) did not end: {self.story()}")

    def check(self, ended: Workload) -> None:
        """Everything that must hold of a finished round."""
        told = f"round {self.seed} ({self.faults}): {self.story()}"
        assert ended.status.phase is Phase.SUCCEEDED, told
        files = self.cluster.home.run(self.run.uid) / "files"
        assert not list(files.glob("TWICE-*")), told
        for rank in range(ended.spec.world_size):
            final = json.loads((files / f"final-{rank}.json").read_text())
            assert final["loss"] == undisturbed_loss(self.seed, rank), told
            self._check_steps(files / f"steps-{rank}", told)
        # The last act of a shim, and the end of a warm launcher, come just after the run's.
        deadline = time.monotonic() + 30.0
        while (left := processes_of(self.run.uid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, f"{told}; left behind: {left}"

    def story(self) -> str:
        """The run's events, for the message of a failure."""
        return " | ".join(f"{event.type}: {event.reason.message}" for event in self.cluster.events(self.run.uid))

    def _check_steps(self, record: Path, told: str) -> None:
        done = 0
        # Each damaged checkpoint costs one interval more; while the disk is full none can be kept, nor this record.
        allowed = INTERVAL * (1 + self.faults.count("corrupt"))
        if "disk-full" in self.faults:
            return
        for line in record.read_text().splitlines():
            kind, _attempt, number = line.split()
            if kind == "start":
                assert done - int(number) <= allowed, f"{done - int(number)} steps redone; {told}"
            else:
                assert int(number) == done + 1, f"step {number} after {done}; {told}"
            done = int(number)
        assert done == STEPS, told

    def _kill(self, what: str, pids: list[int]) -> None:
        if pids:
            try:
                os.kill(int(self.rng.choice(pids)), signal.SIGKILL)
            except ProcessLookupError:
                return
            self.faults.append(what)

    def _pods(self) -> list[Path]:
        """Directories of pods that are not over."""
        pods = self._files("pods/*")
        return [path for path in pods if (path / "claimed.json").exists() and not (path / "exit.json").exists()]

    def _files(self, pattern: str) -> list[Path]:
        return sorted(self.cluster.home.run(self.run.uid).glob(pattern))


def begin(seed: int, home: Path) -> Round:
    """Submit the round's run; one pod of two ranks, or two pods of one."""
    rng = random.Random(f"chaos-{seed}")
    nodes = rng.choice((1, 2))
    spec = Training(
        name=f"chaos-{seed}",
        run=f"{sys.executable} {PROGRAM} {STEPS} {STEP_S} {seed}",
        workdir=str(PROGRAM.parent),
        nodes=nodes,
        ranks_per_node=2 // nodes,
        checkpoint=Checkpoint(every_steps=INTERVAL),
        retry=Retry(infrastructure=100, program=3, backoff_s=0.05, max_backoff_s=0.2),
        grace_s=2.0,
    )
    cluster = LocalCluster.open(home)
    run = cluster.submit(spec)
    cluster.nudge()
    return Round(seed=seed, cluster=cluster, run=run, rng=rng)


def end(world: Round) -> None:
    """Leave no process behind."""
    world.kill_supervisor()
    for pid in processes_of(world.run.uid):
        os.kill(pid, signal.SIGKILL)
    world.cluster.close()


def undisturbed_loss(seed: int, rank: int) -> float:
    """What ``program.py`` computes when nothing happens to it."""
    weights = [1.0] * SIZE
    for step in range(STEPS):
        descend(weights, seed, step, rank)
    return loss_of(weights)


def processes_of(run_uid: str) -> list[int]:
    """Processes of the program, its shims and its launcher: their environment names the run."""
    mark = f"FAIRLEAD_RUN_UID={run_uid}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            command = (path.parent / "cmdline").read_bytes()
            if mark in path.read_bytes() and b"program.py" in command:
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended, or is another user's
            continue
    return found
