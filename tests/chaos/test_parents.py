"""A parent of three runs, one after another, while everything of it is killed: no run twice, none too early, none left.

Its kind is that of ``tests.relay``, so that this holds of any parent that is added.
"""

import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.specs.resources import Resources
from fairlead.specs.training import Retry, Training
from fairlead.state.snapshot import AnyWorkload, Intent, Phase
from tests.home import end_everything
from tests.relay import LEGS, Ran, Relay, map_runs
from tests.relays import relays
from tests.rounds import rounds
from tests.waiting import until

__all__ = ["relays"]

# A shim that is killed before it claims its pod is started again after a minute.
LIMIT_S = 180.0
# It imports something that is worth a launcher, which its runs share and which may be killed too.
PROGRAM = """
import os, sys, time
import numpy
def note(what):
    with open(sys.argv[1], "a") as ledger:
        print(os.environ["LEG"], os.environ["FAIRLEAD_ATTEMPT"], what, file=ledger)
note("begins")
time.sleep(0.4)
note("ends")
"""

pytestmark = pytest.mark.slow


@dataclass(slots=True)
class Round:
    """A round in progress."""

    seed: int
    cluster: LocalCluster
    parent: AnyWorkload
    rng: random.Random
    told: list[str] = field(default_factory=list)

    def disturb(self) -> None:
        """Kill something, or everything at once; now and then suspend the parent for a while."""
        what = self.rng.choice(("supervisor", "one", "one", "all", "suspend"))
        self.told.append(what)
        if what == "supervisor":
            kill(self.cluster.supervisor_pid())
        elif what == "suspend":
            self.cluster.set_intent(self.parent.uid, Intent.SUSPEND)
            if self.rng.random() < 0.5:
                self.await_phase(Phase.SUSPENDED, Phase.SUCCEEDED)
            self.cluster.set_intent(self.parent.uid, Intent.RUN)
        else:
            alive = processes_of(self.cluster.home.path)
            for pid in alive if what == "all" else self.rng.sample(alive, min(1, len(alive))):
                kill(pid)
        self.cluster.nudge()

    def await_program(self) -> None:
        """Wait until one of its runs is at work, or it is over."""

        def is_there() -> bool:
            self.cluster.nudge()
            is_over = self.cluster.get(self.parent.uid).status.phase.is_final
            return is_over or bool(programs_of(self.cluster.home.path))

        until(is_there, self.story)

    def await_phase(self, *phases: Phase) -> None:
        """Wait as a user who looks now and then, so that a killed supervisor comes back."""

        def is_there() -> bool:
            self.cluster.nudge()
            return self.cluster.get(self.parent.uid).status.phase in phases

        until(is_there, self.story, timeout_s=LIMIT_S, every_s=0.1)

    def delete(self) -> None:
        """Delete it, and wait until nothing of it is left: no workload, no file, no process."""
        uids = [self.parent.uid, *(child.uid for child in self.cluster.children(self.parent.uid))]
        self.cluster.set_intent(self.parent.uid, Intent.DELETE)
        if self.rng.random() < 0.5:
            kill(self.cluster.supervisor_pid())

        def is_gone() -> bool:
            self.cluster.nudge()
            return not self.cluster.workloads() and not any(self.cluster.home.run(uid).exists() for uid in uids)

        until(is_gone, self.story, every_s=0.1)
        until(lambda: not programs_of(self.cluster.home.path), self.story)

    def story(self) -> str:
        """What was done and what became of it, for the message of a failure."""
        runs = [self.parent.uid, *(child.uid for child in self.cluster.children(self.parent.uid))]
        events = [event for uid in runs for event in self.cluster.events(uid)]
        said = " | ".join(f"{event.type}: {event.reason.message}" for event in sorted(events, key=lambda e: e.at))
        left = [command_of(pid) for pid in processes_of(self.cluster.home.path)]
        return f"round {self.seed} ({self.told}): {said}; {self.cluster.workloads()}; {left}"


@pytest.mark.parametrize("seed", rounds(few=1, many=10))
def test_a_parent_survives_kills_of_everything_and_goes_without_a_trace(seed: int, tmp_path: Path) -> None:
    home, ledger, rng = tmp_path / "home", tmp_path / "ledger", random.Random(f"relay-{seed}")
    (tmp_path / "leg.py").write_text(PROGRAM)
    leg = Training(
        name="leg",
        run=f"{sys.executable} leg.py {ledger}",
        resources=Resources(cpu_milli=100),
        retry=Retry(infrastructure=100, program=100, backoff_s=0.05, max_backoff_s=0.2),
        grace_s=1.0,
    )
    cluster = LocalCluster.open(home)
    try:
        own = cluster.prepare(leg, tmp_path).spec
        world = Round(seed, cluster, cluster.launch(map_runs(Relay(name="relay", leg=leg), lambda _: own)), rng)
        for _ in range(rng.randint(2, 5)):
            if rng.random() < 0.6:
                world.await_program()
            time.sleep(rng.uniform(0.0, 0.5))
            world.disturb()
        if rng.random() < 0.75:
            world.await_phase(Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED)
            check(world, ledger)
        world.delete()
    finally:
        cluster.close()
        end_everything(home)


def check(world: Round, ledger: Path) -> None:
    """It succeeded with each of its runs, in their order, and no start of any began twice."""
    parent = world.cluster.get(world.parent.uid)
    assert (parent.status.phase, parent.status.detail) == (Phase.SUCCEEDED, Ran(legs=LEGS)), world.story()
    children = world.cluster.children(parent.uid)
    assert [child.spec.name for child in children] == [f"relay-{leg}" for leg in LEGS], world.story()
    assert {child.status.phase for child in children} == {Phase.SUCCEEDED}, world.story()
    lines = ledger.read_text().splitlines()
    assert max(Counter(lines).values()) == 1, f"a start began twice: {lines}; {world.story()}"
    legs = [line.split()[0] for line in lines]
    assert legs == sorted(legs, key=LEGS.index), f"a run began before the one before it was over: {lines}"
    assert {line.split()[0] for line in lines if line.endswith("ends")} == set(LEGS), f"{lines}; {world.story()}"


def kill(pid: int | None) -> None:
    with suppress(ProcessLookupError):
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


def processes_of(home: Path) -> list[int]:
    """Whatever works for a state directory: supervisor, launchers, shims, ranks; ours does not speak of it."""
    mark, found = os.fsencode(home), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it ended, or is another user's
            if mark in (process / "environ").read_bytes() or mark in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return sorted(set(found) - {os.getpid()})


def programs_of(home: Path) -> list[int]:
    return [pid for pid in processes_of(home) if "leg.py" in command_of(pid)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""
