"""The cluster in a terminal: whose GPUs are whose, what runs cost and why they wait, and the keys that move in it."""

import io
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fairlead.cli.live_top import Chosen, gpus_of, rows_of, view
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Snapshot, Workload
from tests.builders import node, status, training
from tests.home import end_everything

NOW = 1_000_000_000.0
WAITS = Reason(code=Code.WAITING_FOR_RESOURCES, message="needs 4 GPUs, 1 is idle", remedy="It starts when one ends.")


def run(name: str, phase: Phase = Phase.RUNNING, *, since: float = NOW - 60.0) -> Workload:
    spec = training(name, resources=Resources(gpu=GpuRequest(milli=1000)))
    found = status(phase, since=since)
    if phase is Phase.PENDING:
        found = replace(found, reason=WAITS)
    return Workload(uid=name, spec=spec, intent=Intent.RUN, status=found, version=1, created_at=since)


def pod(name: str, *gpus: int, milli: int = 1000) -> Pod:
    grant = Grant(gpu_uuids=tuple(f"node-0-gpu-{index}" for index in gpus), gpu_milli=milli)
    return Pod(
        uid=f"{name}-0-0", workload_uid=name, attempt=0, index=0, node="node-0", grant=grant, phase=PodPhase.RUNNING,
        created_at=NOW,
    )  # fmt: skip


SEEN = Snapshot(
    nodes=(node(gpus=4, price_per_hour=8.0),),
    workloads=(run("waits", Phase.PENDING), run("second", since=NOW - 30.0), run("first"), run("third")),
    pods=(pod("first", 0, 1), pod("second", 2, milli=500), pod("third", 2, milli=250)),
)


def drawn(seen: Snapshot, chosen: Chosen | None = None, *, height: int = 30) -> str:
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    console.print(view(seen, chosen or Chosen(), NOW, height=height))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO
    return str(text)


def test_every_gpu_has_the_letter_of_the_run_that_holds_it() -> None:
    rows = rows_of(SEEN)
    assert [(row.letter, row.run.spec.name) for row in rows] == [
        ("A", "first"), ("B", "third"), ("C", "second"), (" ", "waits")
    ]  # fmt: skip
    assert gpus_of(SEEN.nodes[0], rows) == "AA+."


def test_the_view_says_what_is_held_what_it_costs_and_why_a_run_waits() -> None:
    text = drawn(SEEN)
    assert "1 node, 3 runs at work, 1 waiting, 2.75 of 4 GPUs held, $5.50 an hour" in text
    assert "needs 4 GPUs, 1 is idle" in text
    assert "It starts when one ends." not in text
    assert "It starts when one ends." in drawn(SEEN, Chosen(row=3, is_open=True))
    assert "No runs." in drawn(Snapshot(nodes=(), workloads=(), pods=()))


def test_the_chosen_run_stays_in_sight_among_many() -> None:
    runs = tuple(run(f"run-{number:03d}", since=NOW - 1000.0 + number) for number in range(200))
    many = replace(SEEN, workloads=runs, pods=())
    text = drawn(many, Chosen(row=150), height=20)
    assert "run-150" in text
    assert "run-000" not in text
    assert len(text.splitlines()) <= 20


def test_keys_move_within_the_list_and_open_a_run() -> None:
    chosen = Chosen()
    for key, row in (("k", 0), ("j", 1), ("\x1b[B", 2), ("\x1b[B", 2), ("\x1b[A", 1), ("x", 1)):
        chosen = chosen.after(key, 3)
        assert chosen.row == row
    assert chosen.after("\r", 3).is_open
    assert not chosen.after("\r", 3).after("\r", 3).is_open
    assert chosen.after("j", 0).row == 0


@pytest.fixture
def own_home(tmp_path: Path) -> Iterator[Path]:
    """A state directory in which everything is ended that was started there."""
    yield tmp_path / "home"
    end_everything(tmp_path / "home")


@pytest.mark.slow
def test_a_real_terminal_shows_it_until_q(own_home: Path) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "FAIRLEAD_HOME": str(own_home), "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    command = [str(Path(sys.executable).with_name("fairlead")), "top", "--watch"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    said, deadline = b"", time.monotonic() + 60.0
    try:
        while b"q ends" not in said and time.monotonic() < deadline:
            if select.select([ours], [], [], 1.0)[0]:
                said += os.read(ours, 65_536)
        assert b"No runs." in said
        os.write(ours, b"q")
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    os.read(ours, 65_536)
                except OSError:  # it has ended
                    break
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)
        os.close(ours)
