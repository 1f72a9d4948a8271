"""The rules of a pod's shim, on real processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.runtime import podfiles, shim
from fairlead.runtime.leftovers import kill_leftovers
from tests.launch.pods import RUNTIME, PodDir, is_alive
from tests.waiting import until

LOOP = "echo ready; while :; do sleep 0.05; done"
IGNORE_TERM = f"trap '' TERM; {LOOP}"


def test_a_pod_that_does_its_work_is_recorded(pod: PodDir) -> None:
    record = pod.write("echo out $RANK; echo err $RANK >&2", ranks=2).run()
    assert [(r["rank"], r["exit_code"], r["signal"], r["tail"]) for r in record["ranks"]] == [
        (0, 0, None, ["err 0"]),
        (1, 0, None, ["err 1"]),
    ]
    assert not record["setup_failed"]
    assert sorted(pod.lines()) == [("0", "e", "err 0"), ("0", "o", "out 0"), ("1", "e", "err 1"), ("1", "o", "out 1")]
    assert pod.read("started.json")["why"] == "the command needs a shell"
    assert set(pod.read("started.json")["pids"]) == {"0", "1"}


def test_a_pod_starts_at_most_once(pod: PodDir) -> None:
    pod.write("echo once >> ran; sleep 0.3")
    for _ in range(4):
        pod.start()
    pod.end()
    pod.run()
    assert (pod.path.parent / "ran").read_text() == "once\n"


@pytest.mark.parametrize("setup", [None, "grep SigIgn /proc/self/status"])
def test_ranks_have_the_signals_of_a_fresh_process_whatever_started_the_shim(pod: PodDir, setup: str | None) -> None:
    pod.write("grep SigIgn /proc/self/status", setup=setup)
    script = f"trap '' INT QUIT HUP PIPE TERM USR1; exec {sys.executable} {RUNTIME / 'shim.py'} {pod.path}"
    subprocess.run(["sh", "-c", script], timeout=20, check=True)
    assert {line[2].split()[1] for line in pod.lines()} == {"0" * 16}


def test_a_second_shim_leaves_at_once(pod: PodDir) -> None:
    pod.write("sleep 60").start().wait("started.json")
    second = subprocess.run([sys.executable, str(RUNTIME / "shim.py"), str(pod.path)], timeout=5, check=False)
    assert second.returncode == 0
    assert not (pod.path / "exit.json").exists()


def test_a_claimed_pod_without_its_shim_is_never_run(pod: PodDir) -> None:
    pod.write("touch ran")
    (pod.path / "claimed.json").write_text("{}")
    pod.start().processes[0].wait(10)
    assert not (pod.path / "exit.json").exists()
    assert not (pod.path.parent / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="a full disk needs a mount, and that needs root")
def test_a_full_disk_delays_the_claim_and_loses_no_pod(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False, timeout=60).returncode != 0:
        pytest.skip("a full disk needs a mount, and this machine refuses one")
    pod = PodDir(disk / "pod").write("echo done")
    try:
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        pod.start()
        until(lambda: podfiles.is_locked(str(pod.path / "shim.lock")), "the shim")
        time.sleep(0.3)
        assert pod.processes[0].poll() is None
        ballast.unlink()
        assert pod.end()["ranks"][0]["exit_code"] == 0
    finally:
        pod.clean_up()
        subprocess.run(["umount", "-l", str(disk)], check=True, timeout=60)


def test_a_program_that_does_not_exist_ends_as_in_a_shell(pod: PodDir) -> None:
    record = pod.write("no-such-program --now").run()
    assert record["ranks"][0]["exit_code"] == 127
    assert record["ranks"][0]["tail"] == ["fairlead: no-such-program: command not found on PATH"]


def test_a_killed_rank_ends_the_gang_and_is_recorded(pod: PodDir) -> None:
    pod.write("sleep 60", ranks=3).start()
    began = time.monotonic()
    os.kill(pod.wait("started.json")["pids"]["1"], signal.SIGKILL)
    record = pod.end()
    assert [(r["exit_code"], r["signal"], r["out_of_memory"]) for r in record["ranks"]] == [
        (None, signal.SIGTERM, False),
        (None, signal.SIGKILL, False),
        (None, signal.SIGTERM, False),
    ]
    assert time.monotonic() - began < 2.0


def test_a_killed_rank_comes_back_alone_where_the_others_can_take_it_in(pod: PodDir) -> None:
    members = pod.path.parent / "members"
    env = {"FAIRLEAD_MEMBERS_DIR": str(members)}
    pod.write("sh -c 'echo ready $RANK; while [ ! -e over ]; do sleep 0.05; done'", ranks=2, env=env).start()
    until(lambda: pod.log().count("ready") == 2, "two ready ranks")
    members.mkdir()
    (members / "epoch.json").write_text("{}")
    before = pod.wait("started.json")["pids"]
    os.kill(before["1"], signal.SIGKILL)
    until(lambda: pod.log().count("ready 1") == 2, "the rank again")
    until(lambda: pod.read("started.json")["pids"]["1"] != before["1"], "its new process is told")
    assert pod.read("started.json")["pids"]["0"] == before["0"]
    (pod.path.parent / "over").touch()
    assert [(r["exit_code"], r["signal"]) for r in pod.end()["ranks"]] == [(0, None), (0, None)]


def test_a_rank_that_is_killed_again_and_again_without_a_step_ends_the_pod(pod: PodDir) -> None:
    members = pod.path.parent / "members"
    members.mkdir(parents=True)
    (members / "epoch.json").write_text("{}")
    env = {"FAIRLEAD_MEMBERS_DIR": str(members)}
    record = pod.write("sh -c '[ $RANK = 0 ] && exec sleep 60; echo again; kill -9 $$'", ranks=2, env=env).run()
    assert {r["rank"]: r["signal"] for r in record["ranks"]} == {0: signal.SIGTERM, 1: signal.SIGKILL}
    assert pod.log().count("again") == 1 + shim.MOST_RETURNS


def test_a_failed_rank_gives_stubborn_ones_half_a_second(pod: PodDir) -> None:
    pod.write(f"if [ $RANK = 0 ]; then sleep 0.3; exit 3; fi; {IGNORE_TERM}", ranks=2, grace_s=60.0)
    ended = {r["rank"]: r for r in pod.run()["ranks"]}
    assert ended[0]["exit_code"] == 3
    assert ended[1]["signal"] == signal.SIGKILL
    assert 0.4 < ended[1]["at"] - ended[0]["at"] < 1.5


def test_a_stop_notice_is_passed_on_and_honoured(pod: PodDir) -> None:
    pod.write(f"trap 'echo saving; sleep 0.2; echo saved; exit 143' TERM; {LOOP}", ranks=2)
    pod.start()
    until(lambda: pod.log().count("ready") == 2, "two ready ranks")
    pod.signal(signal.SIGTERM, grace_s=20.0)
    record = pod.end()
    assert [r["exit_code"] for r in record["ranks"]] == [143, 143]
    assert pod.log().count("saved") == 2


def test_one_rank_that_is_done_stopping_leaves_the_others_their_grace(pod: PodDir) -> None:
    pod.write(f"trap 'sleep $((RANK * 3)); exit 143' TERM; {LOOP}", ranks=2)
    pod.start()
    until(lambda: pod.log().count("ready") == 2, "two ready ranks")
    pod.signal(signal.SIGTERM, grace_s=20.0)
    assert [r["exit_code"] for r in pod.end()["ranks"]] == [143, 143]


def test_after_the_grace_a_rank_is_killed(pod: PodDir) -> None:
    pod.write(IGNORE_TERM, grace_s=0.4).start().wait_for_output("ready")
    began = time.time()
    pod.signal(signal.SIGINT)
    (rank,) = pod.end()["ranks"]
    assert rank["signal"] == signal.SIGKILL
    assert 0.35 < rank["at"] - began < 2.0


def test_a_later_notice_only_shortens_the_grace(pod: PodDir) -> None:
    pod.write(IGNORE_TERM).start().wait_for_output("ready")
    began = time.time()
    pod.signal(signal.SIGTERM, grace_s=0.8)
    time.sleep(0.1)
    pod.signal(signal.SIGTERM, grace_s=30.0)
    (rank,) = pod.end()["ranks"]
    assert rank["signal"] == signal.SIGKILL
    assert 0.7 < rank["at"] - began < 3.0


def test_no_grace_is_a_kill_at_once(pod: PodDir) -> None:
    pod.write(IGNORE_TERM).start().wait_for_output("ready")
    began = time.time()
    pod.signal(signal.SIGTERM, grace_s=0.0)
    (rank,) = pod.end()["ranks"]
    assert rank["signal"] == signal.SIGKILL
    assert rank["at"] - began < 1.0


ESCAPES = (
    'python -c "import os,time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n'
    "  open('escaped','w').write(str(os.getpid()))\n  time.sleep(60)\n os._exit(0)\n"
    "while not os.path.exists('escaped') or not open('escaped').read(): time.sleep(0.01)\""
)


def test_no_descendant_outlives_its_pod(pod: PodDir) -> None:
    pod.write(ESCAPES).run()
    assert not is_alive(int((pod.path.parent / "escaped").read_text()))


def test_ranks_die_with_their_shim_and_a_sweep_ends_the_rest(pod: PodDir) -> None:
    pod.write(f"{ESCAPES}; sleep 60", ranks=2).start()
    escaped = pod.path.parent / "escaped"
    # Read once: the other rank writes its own over it.
    one = int(until(lambda: escaped.exists() and escaped.read_text(), "an escaped process"))
    pids = pod.wait("started.json")["pids"].values()
    pod.processes[0].kill()
    pod.processes[0].wait(60)
    until(lambda: not any(is_alive(pid) for pid in pids), "end of the ranks")
    assert is_alive(one)
    assert kill_leftovers(pod.uid) >= 1
    assert not is_alive(one)
    assert kill_leftovers(pod.uid) == 0


@pytest.fixture
def cgroup() -> Iterator[Path]:
    parent = Path("/sys/fs/cgroup/memory")
    path = parent / f"fairlead-test-{os.getpid()}"
    if not os.access(parent / "cgroup.procs", os.W_OK):
        pytest.skip("the v1 memory controller is not ours to write")
    path.mkdir()
    yield path
    path.rmdir()


def test_a_rank_that_the_kernel_killed_for_memory_is_told_apart(pod: PodDir, cgroup: Path) -> None:
    (cgroup / "memory.limit_in_bytes").write_text(str(48 << 20))
    record = pod.write("python -c 'x = bytearray(200 << 20)'", cgroup=str(cgroup)).run()
    (rank,) = record["ranks"]
    assert (rank["signal"], rank["out_of_memory"]) == (signal.SIGKILL, True)


def test_the_setup_runs_once_for_each_stamp(pod: PodDir, tmp_path: Path) -> None:
    stamp = tmp_path / "stamp"
    setup = "echo setting up; echo again >> times"
    pod.write("cat times", setup=setup, setup_stamp=str(stamp)).run()
    assert pod.lines() == [("-", "o", "setting up"), ("0", "o", "again")]
    assert stamp.exists()
    second = PodDir(tmp_path / "second").write("cat times", setup=setup, setup_stamp=str(stamp))
    second.run()
    assert second.lines() == [("0", "o", "again")]


def test_pods_of_one_node_run_the_setup_one_at_a_time_and_once(pod: PodDir, tmp_path: Path) -> None:
    setup = "echo begun >> times; sleep 0.5; echo done >> times"
    pods = [pod, PodDir(tmp_path / "second")]
    for each in pods:
        each.write("cat times", setup=setup, setup_stamp=str(tmp_path / "stamp")).start()
    for each in pods:
        record = each.end()
        assert [rank["exit_code"] for rank in record["ranks"]] == [0]
        assert [line[2] for line in each.lines()] == ["begun", "done"]


def test_a_pod_that_waits_for_anothers_setup_heeds_the_stop_notice(pod: PodDir, tmp_path: Path) -> None:
    stamp = str(tmp_path / "stamp")
    pod.write("true", setup="echo begun; sleep 60", setup_stamp=stamp).start().wait_for_output("begun")
    second = PodDir(tmp_path / "second").write("touch ran", setup="touch ran", setup_stamp=stamp).start()
    second.signal(signal.SIGTERM)
    record = second.end()
    assert (record["setup_failed"], record["ranks"]) == (False, [])
    assert not (tmp_path / "ran").exists()


def test_a_setup_whose_pod_died_is_run_by_the_next(pod: PodDir, tmp_path: Path) -> None:
    stamp = str(tmp_path / "stamp")
    setup = "echo begun; test -e second-try || sleep 60"
    pod.write("true", setup=setup, setup_stamp=stamp).start().wait_for_output("begun")
    second = PodDir(tmp_path / "second").write("echo ran", setup=setup, setup_stamp=stamp).start()
    second.wait("claimed.json")
    (tmp_path / "second-try").touch()
    pod.processes[0].kill()
    second.end()
    assert [line[2] for line in second.lines()] == ["begun", "ran"]


def test_a_setup_that_fails_ends_the_pod_with_its_last_words(pod: PodDir, tmp_path: Path) -> None:
    pod.write("touch ran", setup="echo no such wheel >&2\nfalse\ntouch went-on", setup_stamp=str(tmp_path / "stamp"))
    record = pod.run()
    assert record["setup_failed"]
    assert record["message"] == "the `setup` step failed with exit code 1: no such wheel"
    assert record["tail"] == ["no such wheel"]
    assert {path.name for path in tmp_path.iterdir()} == {"pod", "stamp.lock"}


def test_a_stop_notice_during_the_setup_keeps_the_ranks_from_starting(pod: PodDir, tmp_path: Path) -> None:
    pod.write("touch ran", setup="echo begun; sleep 60").start().wait_for_output("begun")
    pod.signal(signal.SIGTERM)
    record = pod.end()
    assert (record["setup_failed"], record["ranks"]) == (False, [])
    assert not (tmp_path / "ran").exists()


def test_a_pod_without_a_supervisor_starts_one_that_outlives_it(pod: PodDir, tmp_path: Path) -> None:
    lock, started = tmp_path / "supervisor.lock", tmp_path / "started"
    program = (
        f"import fcntl,os,time; f=open({str(lock)!r},'w'); fcntl.flock(f, fcntl.LOCK_EX)\n"
        f"with open({str(started)!r},'a') as out: out.write(f'{{os.getpid()}}\\n')\n"
        "time.sleep(30)"
    )
    supervisor = [sys.executable, "-c", program]
    pod.write("sleep 0.7", supervisor=supervisor, supervisor_lock=str(lock)).run()
    until(lambda: started.exists() and started.read_text().endswith("\n"), "supervisor")
    (pid,) = (int(line) for line in started.read_text().split())
    assert is_alive(pid)
    assert os.getsid(pid) != os.getsid(0)
    os.kill(pid, signal.SIGKILL)


def test_a_living_supervisor_is_left_alone(pod: PodDir, tmp_path: Path) -> None:
    lock = tmp_path / "supervisor.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pod.write("true", supervisor=["touch", str(tmp_path / "started")], supervisor_lock=str(lock)).run()
    assert not (tmp_path / "started").exists()


def test_the_supervisor_is_woken_at_start_and_end(pod: PodDir, tmp_path: Path) -> None:
    path = str(tmp_path / "wake")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake:
        wake.bind(path)
        wake.settimeout(10)
        pod.write("true", poke=path).start()
        assert [wake.recv(1), wake.recv(1)] == [b"", b""]
    pod.end()


def test_a_shim_is_small(pod: PodDir) -> None:
    pod.write("sleep 60").start().wait("started.json")
    status = Path(f"/proc/{pod.processes[0].pid}/status").read_text()
    (own,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    assert own < 12 * 1024


def test_a_directory_that_vanished_is_named_and_not_the_program(pod: PodDir) -> None:
    record = pod.write("python train.py", workdir="/nowhere/at/all").run()
    assert record["ranks"][0]["exit_code"] == 126
    assert record["ranks"][0]["tail"] == [
        "fairlead: the working directory /nowhere/at/all cannot be entered: No such file or directory"
    ]
