"""A stop notice reaches the program wherever it stands in its command, and nothing is killed within the grace."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.launch.pods import PodDir
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions are read from /proc")

PROGRAM = """
import signal, sys, time
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
print("ready", flush=True)
while not stopped:
    time.sleep(0.01)
for number in range(8):
    print("saving", number, flush=True)
    time.sleep(0.1)
print("saved after", len(stopped), "notices", flush=True)
sys.exit(143)
"""
WITH_WORKERS = """
import multiprocessing, signal, sys, time
def work(queue):
    while True:
        queue.put("batch")
        time.sleep(0.01)
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue(maxsize=1)
    worker = context.Process(target=work, args=(queue,), daemon=True)
    worker.start()
    queue.get(timeout=60)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    print("ready", flush=True)
    while not stopped:
        time.sleep(0.01)
    for _ in range(30):
        queue.get(timeout=10)
    print("saved, and the worker is", "alive" if worker.is_alive() else "gone", flush=True)
    sys.exit(143)
"""
WAYS = {
    "alone": "python program.py",
    "then another": "python program.py; echo another",
    "pipe": "python program.py 2>&1 | tee train.log",
    "two filters": "python program.py 2>&1 | cat | tee train.log",
    "script": "bash run.sh",
    "script in a script": "bash -c 'bash run.sh; true'; true",
    "launcher": "python launch.py",
    "another group": "timeout 1000 python program.py; true",
    "job control": "set -m; python program.py & wait $!; wait",
    "trap": "trap 'echo trapped' TERM; python program.py; true",
    "changed environment": "env A=1 nice -n 1 nohup python program.py; true",
}
FILES = {
    "program.py": PROGRAM,
    "workers.py": WITH_WORKERS,
    "run.sh": "export A=1\npython program.py\necho another\n",
    "launch.py": "import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'program.py']))",
}


@pytest.fixture
def stopping(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("way", WAYS)
def test_the_program_gets_the_notice_and_all_of_its_grace(pod: PodDir, stopping: Path, way: str) -> None:
    pod.write(WAYS[way], grace_s=60.0, workdir=str(stopping)).start().wait_for_output("ready")
    pod.signal(signal.SIGTERM, grace_s=60.0)
    (rank,) = pod.end()["ranks"]
    log = pod.log()
    assert "saving 7" in log
    assert "saved after" in log
    assert "another" not in log, "no further command is run"
    assert rank["signal"] in (None, signal.SIGTERM)
    assert rank["exit_code"] in (None, 143, 0)
    if "tee" in WAYS[way]:
        assert "saved after" in (stopping / "train.log").read_text()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_program_that_stops_in_order_serve_it_until_then(pod: PodDir, stopping: Path, method: str) -> None:
    pod.write(f"python workers.py {method}", grace_s=60.0, workdir=str(stopping)).start().wait_for_output("ready")
    pod.signal(signal.SIGTERM, grace_s=60.0)
    (rank,) = pod.end()["ranks"]
    assert "saved, and the worker is alive" in pod.log()
    assert rank["exit_code"] == 143


def test_workers_whose_program_was_killed_do_not_wait_for_the_grace_to_end(pod: PodDir, stopping: Path) -> None:
    (stopping / "dies.py").write_text(
        WITH_WORKERS.replace("for _ in range(30):", "import os; os._exit(143)\n    for _ in ():")
    )
    pod.write("python dies.py fork", grace_s=60.0, workdir=str(stopping)).start().wait_for_output("ready")
    began = time.monotonic()
    pod.signal(signal.SIGTERM, grace_s=60.0)
    pod.end()
    assert time.monotonic() - began < 30.0


def test_a_program_that_ignores_the_notice_is_killed_with_its_wrapper_when_the_grace_is_over(pod: PodDir) -> None:
    program = (
        "python -c 'import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)'"
    )
    pod.write(f"{program}; true", grace_s=1.0).start().wait_for_output("1")
    began = time.monotonic()
    pod.signal(signal.SIGTERM, grace_s=1.0)
    record = pod.end()
    assert 0.9 < time.monotonic() - began < 20.0
    assert [rank["signal"] for rank in record["ranks"]] == [signal.SIGTERM]


def test_a_wrapper_that_ends_first_does_not_shorten_the_grace_of_other_ranks(pod: PodDir, stopping: Path) -> None:
    pod.write("python launch.py", ranks=2, grace_s=60.0, workdir=str(stopping)).start()
    until(lambda: pod.log().count("ready") == 2, "two ready ranks")
    pod.signal(signal.SIGTERM, grace_s=60.0)
    pod.end()
    assert pod.log().count("saved after") == 2


def test_what_a_command_leaves_running_is_killed_and_told(pod: PodDir) -> None:
    record = pod.write("sleep 613 & sleep 0.5; echo done").run()
    assert [rank["exit_code"] for rank in record["ranks"]] == [0]
    assert "fairlead: it ended and left 'sleep 613' running, killed now" in pod.log()


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_command_leaves_in_a_session_of_its_own_is_told_once(pod: PodDir, ranks: int) -> None:
    program = "[ $LOCAL_RANK = 0 ] && (setsid sleep 617 &); sleep 0.5; echo done"
    record = pod.write(program, ranks=ranks).run()
    assert [rank["exit_code"] for rank in record["ranks"]] == [0] * ranks
    assert pod.log().count("left 'sleep 617' running, killed now") == 1


def test_a_program_that_goes_on_in_a_fork_is_told_that_the_fork_is_killed(pod: PodDir) -> None:
    program = "import os, time; os.fork() or time.sleep(613); time.sleep(0.5)"
    record = pod.write(f"{sys.executable} -c '{program}'").run()
    assert [rank["exit_code"] for rank in record["ranks"]] == [0]
    assert "running, killed now" in pod.log()


def test_a_program_with_workers_that_ends_in_order_is_told_nothing(pod: PodDir, stopping: Path) -> None:
    text = WITH_WORKERS.replace("while not stopped:", "while False:").replace("sys.exit(143)", "")
    (stopping / "ends.py").write_text(text)
    record = pod.write("python ends.py fork; python ends.py spawn", workdir=str(stopping)).run()
    assert [rank["exit_code"] for rank in record["ranks"]] == [0]
    assert "fairlead:" not in pod.log()


def test_a_signal_of_its_own_group_is_told_apart_from_one_of_others(pod: PodDir) -> None:
    record = pod.write("trap 'kill 0' EXIT; (while true; do sleep 1; done) & sleep 0.3; echo done").run()
    (rank,) = record["ranks"]
    assert rank["signal"] == signal.SIGTERM
    assert any("a process of its own group sent SIGTERM to all of it" in line for line in rank["tail"])


def test_a_signal_to_the_first_process_alone_is_one_of_others(pod: PodDir) -> None:
    pod.write("sleep 613 & echo ready; wait").start().wait_for_output("ready")
    os.kill(pod.wait("started.json")["pids"]["0"], signal.SIGTERM)
    (rank,) = pod.end()["ranks"]
    assert rank["signal"] == signal.SIGTERM
    assert not any("its own group" in line for line in rank["tail"])
