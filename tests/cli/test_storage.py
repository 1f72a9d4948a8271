"""A state directory that is full, read-only, not ours or damaged: told at once, and over when it is mended."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.disk_errors import NEEDED_BYTES
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.room import hold_reserve, release_reserve, write_problem
from fairlead.cluster.local.store import PodObservation
from fairlead.cluster.local.tables import PodRow
from fairlead.control.loop import run_pass
from fairlead.errors import NoRoom
from fairlead.runtime.podfiles import held
from fairlead.specs.training import Training
from fairlead.state.plan import Change, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Progress
from tests.cli.conftest import Call, Past
from tests.disks import NEEDS_ROOT, WHY, fill, small_disk
from tests.home import end_everything
from tests.processes import Child
from tests.waiting import until

FULL = "The disk of the state directory"
LOOP = """
import time
import fairlead

class Counter:
    count = 0
    def state_dict(self): return {"count": self.count}
    def load_state_dict(self, saved): self.count = saved["count"]

with fairlead.run() as run:
    counter = Counter()
    for step in range(run.resume(counter=counter), 100_000):
        counter.count += 1
        time.sleep(0.02)
        run.progress(step + 1)
        run.checkpoint(step + 1)
"""


@pytest.fixture
def disk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small disk with the state directory on it."""
    place = desk / "disk"
    with small_disk(place, 4 << 20) as mounted:
        if not mounted:
            pytest.skip(WHY)
        monkeypatch.setenv("FAIRLEAD_HOME", str(place / "home"))
        yield place
        for filler in place.glob("filler*"):
            filler.unlink()
        end_everything(place / "home")


def run_in_background(desk: Path, name: str, call: Call) -> None:
    (desk / "loop.py").write_text(LOOP)
    assert call("run", "-d", "--name", name, "--", "python", "loop.py").code == 0
    cluster = LocalCluster.open()
    until(lambda: (run := cluster.find(name)).progress is not None and (run.progress.step or 0) > 3)
    until(cluster.home.reserve.exists)
    cluster.close()


@pytest.mark.skipif(NEEDS_ROOT, reason=WHY)
def test_a_full_disk_is_told_at_once_and_work_goes_on_when_there_is_room(desk: Path, disk: Path, call: Call) -> None:
    run_in_background(desk, "loop", call)
    filler = fill(disk)
    for command in (["status"], ["status", "loop"], ["events", "loop"], ["logs", "loop"]):
        began = time.monotonic()
        told = call(*command)
        assert told.code == 0, command
        assert f"{FULL} {disk / 'home'} is full: 0 B of 4 MiB are free, 256 KiB too little." in told.err, command
        assert time.monotonic() - began < 5, command
    for command in (["run", "--", "true"], ["resume", "loop"]):
        refused = call(*command)
        assert (refused.code, refused.err.count(FULL)) == (7, 1), command
    assert "!!  state          The disk" in call("doctor").out
    argv = [sys.executable, "-m", "fairlead.cli.main", "attach", "loop"]
    with Child(argv, stderr=subprocess.PIPE, text=True) as attached:
        assert attached.stderr is not None
        assert attached.stderr.readline().startswith(f"fairlead: {FULL}")
        filler.unlink()
        assert any("the problem is resolved" in line for line in attached.stderr)
        attached.terminate()
    cluster = LocalCluster.open()
    now = cluster.find("loop").progress
    until(lambda: cluster.find("loop").progress != now)
    until(cluster.home.reserve.exists)
    cluster.close()


@pytest.mark.skipif(NEEDS_ROOT, reason=WHY)
def test_runs_are_ended_and_deleted_on_a_full_disk(desk: Path, disk: Path, call: Call) -> None:
    run_in_background(desk, "one", call)
    run_in_background(desk, "two", call)
    fill(disk)
    suspended = call("suspend", "one")
    assert suspended.code == 0
    assert "one is Suspended: suspended on request" in suspended.err
    # In what is left of the reserve.
    deleted = call("delete", "--yes", "two", "one")
    assert (deleted.code, deleted.err.count("is deleted.")) == (0, 2)


@pytest.mark.skipif(NEEDS_ROOT, reason=WHY)
def test_a_run_with_more_events_than_the_reserve_has_room_for_is_deleted_on_a_full_disk(
    disk: Path,
) -> None:
    cluster = LocalCluster.open()
    uids = [Past(cluster=cluster).submit(name, phase=Phase.FAILED).uid for name in ("one", "two")]
    told = Event(type="Restarting", reason=Reason(code=Code.PROGRAM_FAILED, message="x" * 1000))
    for _ in range(300):
        for uid in uids:
            cluster.store.note(uid, told, time.time())
        cluster.store.checkpoint_wal()
    hold_reserve(cluster.home)
    cluster.close()  # the write-ahead log goes with the last that had the database open
    fill(disk)
    cluster = LocalCluster.open()
    cluster.set_intent(uids[0], Intent.DELETE)
    with contextlib.suppress(NoRoom):
        run_pass(cluster, time.time())
    assert [run.spec.name for run in cluster.workloads()] == ["two"]
    assert len(cluster.events(uids[1])) > 300
    cluster.close()


@pytest.mark.skipif(NEEDS_ROOT, reason=WHY)
def test_a_supervisor_that_starts_on_a_full_disk_waits_for_room(desk: Path, disk: Path, call: Call) -> None:
    assert call("status").code == 0
    cluster = LocalCluster.open()
    hold_reserve(cluster.home)
    cluster.submit(Training(name="late", run="echo done", workdir=str(desk)))
    fill(disk)
    cluster.nudge()
    until(cluster.supervisor_alive)
    time.sleep(0.5)
    assert cluster.supervisor_alive()
    assert cluster.find("late").status.phase is not Phase.SUCCEEDED
    (disk / "filler").unlink()
    until(lambda: cluster.find("late").status.phase is Phase.SUCCEEDED)
    until(cluster.supervisor_pid, "number of the supervisor, which had no room for it at its start")
    cluster.close()


def test_a_limit_on_files_is_no_full_disk(process: Call, desk: Path) -> None:
    assert process("status").code == 0
    ended = process(shell="ulimit -f 0; {fairlead} status")
    assert ended.code == 7
    assert f"Nothing can be written to the state directory {desk / 'home'}: File too large." in ended.err


@pytest.mark.skipif(NEEDS_ROOT, reason="a mount that is read-only needs root; the mode of a directory covers the rest")
def test_a_state_directory_on_a_read_only_mount_is_told(desk: Path, call: Call) -> None:
    assert call("status").code == 0
    home = str(desk / "home")
    if subprocess.run(["mount", "--bind", home, home], check=False, timeout=60).returncode:
        pytest.skip("this machine refuses to mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", home], check=True, timeout=60)
        for command in (["status"], ["run", "--", "true"]):
            said = call(*command).err
            assert f"{home} is on a file system that is mounted read-only. Mount it for writing" in said
        assert call("run", "--", "true").code == 7
        assert "mounted read-only" in call("doctor").out
    finally:
        subprocess.run(["umount", "-l", home], check=True, timeout=60)


@pytest.mark.parametrize("damage", ["cut", "emptied", "overwritten", "removed"])
def test_a_damaged_database_is_told_with_how_to_go_on(call: Call, past: Past, desk: Path, damage: str) -> None:
    past.submit("old")
    home = Home.open()
    (home.run("abc") / "pods").mkdir(parents=True)
    path = home.database
    past.cluster.close()
    if damage == "cut":
        os.truncate(path, 9000)
    elif damage == "emptied":
        os.truncate(path, 0)
    elif damage == "overwritten":
        path.write_bytes(b"\xff" * 20_000)
    else:
        path.unlink()
    for rest in ("-wal", "-shm"):
        Path(f"{path}{rest}").unlink(missing_ok=True)
    for command in (["status"], ["run", "--", "true"], ["attach", "old"]):
        ended = call(*command)
        assert ended.code == 7, command
        assert f"The state database {path} is damaged: " in ended.err, command
        assert f"`mv {home.path} {home.path}.damaged`" in ended.err, command
    found = call("doctor")
    assert found.code == 1
    assert "is damaged" in found.out
    assert (home.run("abc") / "pods").is_dir(), "what it does not know of is not swept away"
    home.path.rename(f"{home.path}.damaged")
    assert call("status").out.startswith("No runs yet")


def test_damage_is_reported_with_the_processes_that_still_run(call: Call, past: Past) -> None:
    home = Home.open()
    for uid, pid in (("abc", 41), ("def", 42)):
        pod = home.run(uid) / "pods" / f"{uid}-0-0"
        pod.mkdir(parents=True)
        (pod / "claimed.json").write_text(json.dumps({"pid": pid}))
        (pod / "shim.lock").touch()
    past.cluster.close()
    os.truncate(home.database, 0)
    for rest in ("-wal", "-shm"):
        Path(f"{home.database}{rest}").unlink(missing_ok=True)
    with held(home.run("abc") / "pods" / "abc-0-0" / "shim.lock"):
        assert f"To begin anew, end its runs with `kill 41`, then `mv {home.path} " in call("status").err
    assert f"To begin anew, `mv {home.path} " in call("status").err
    home.path.rename(f"{home.path}.damaged")


def test_doctor_finds_damage_that_no_command_has_met(call: Call, past: Past, desk: Path) -> None:
    for number in range(60):
        past.submit(f"run-{number}")
    home = Home.open()
    past.cluster.close()
    size = home.database.stat().st_size
    with home.database.open("r+b") as file:
        file.seek(size - 3 * 4096)
        file.write(b"\xff" * 4096)
    found = call("doctor")
    assert found.code == 1
    assert "is damaged" in found.out
    home.path.rename(desk / "damaged")


def test_a_transaction_without_room_is_tried_once_more_in_the_room_there_is(desk: Path) -> None:
    cluster = LocalCluster.open()
    run = cluster.submit(Training(name="a", run="true"))
    pages = cluster.store._db.execute("PRAGMA page_count").fetchone()[0]
    cluster.store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(NoRoom, match="was full a moment ago"):
        cluster.submit(Training(name="b", run=f"echo {'x' * 30_000}"))
    relieved = []

    def checkpoint_wal() -> None:
        relieved.append(cluster.store._db.execute("PRAGMA max_page_count = 10000"))

    cluster.store.checkpoint_wal = checkpoint_wal  # type: ignore[method-assign] # makes room
    cluster.submit(Training(name="b", run=f"echo {'x' * 30_000}"))
    assert len(relieved) == 1
    cluster.set_intent(run.uid, Intent.STOP)
    cluster.close()


def test_the_reserve_is_held_while_there_is_room_and_given_up_once(desk: Path) -> None:
    home = Home.open()
    assert write_problem(home) is None
    hold_reserve(home)
    assert home.reserve.stat().st_size == NEEDED_BYTES
    assert release_reserve(home)
    assert not release_reserve(home)


def test_status_and_its_json_tell_of_saves_that_fail(call: Call, past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    # A supervisor would find that none of its pods is there.
    monkeypatch.setattr(LocalCluster, "nudge", lambda _: None)
    run = past.submit("net", phase=Phase.STARTING)
    now = time.time()
    running = replace(run.status, phase=Phase.RUNNING, since=now - 700)
    assert past.cluster.store.apply(Change(workload_uid=run.uid, version=run.version, status=running), now)
    said = Progress(step=900, saves_failed=8, save_failed_step=880, save_problem="disk full", updated_at=now)
    pod = Pod(
        uid="p", workload_uid=run.uid, attempt=0, index=0, node="here", grant=Grant(), phase=PodPhase.RUNNING,
        created_at=now,
    )  # fmt: skip
    past.cluster.store.observe(PodObservation(row=PodRow(pod=pod), progress=said), now)
    listed = call("status").out
    assert "no checkpoint for 11m 4" in listed
    assert "8 saves failed: disk full" in listed
    told = call("status", "net").out
    assert "  warning      no checkpoint for 11m 4" in told
    assert "Until one is complete, a restart continues from the beginning." in told
    found = json.loads(call("status", "net", "--json").out)
    assert found["warning"]["code"] == "CheckpointFailing"
    assert found["progress"]["saves_failed"] == 8
