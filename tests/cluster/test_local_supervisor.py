"""The local cluster as a whole: a real supervisor, real shims, real programs, and what survives which death."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.cluster.local import limits
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.store import LocalStore
from fairlead.cluster.local.supervision import start_supervisor
from fairlead.cluster.output import LogQuery
from fairlead.control import supervisor
from fairlead.errors import ClusterError, NameTaken, NotFound
from fairlead.runtime.podfiles import read_json
from fairlead.specs.resources import Resources
from fairlead.specs.training import Launch, Retry, Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.waiting import until

PYTHON = sys.executable


class Desk:
    """A user at this machine: submits, waits, looks, and kills what they can find."""

    def __init__(self, home: Path, workdir: Path) -> None:
        self.cluster = LocalCluster.open(home)
        self.workdir = workdir

    def submit(self, run: str, **changes: Any) -> Workload:
        values = {"name": "train", "ranks_per_node": 1, "workdir": str(self.workdir), "grace_s": 5.0, **changes}
        workload = self.cluster.submit(Training(run=run, **values))
        self.cluster.nudge()
        return workload

    def want(self, workload: Workload, intent: Intent) -> None:
        self.cluster.set_intent(workload.uid, intent)
        self.cluster.nudge()

    def until(self, workload: Workload, what: Callable[[Workload], bool], limit_s: float = 20.0) -> Workload:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            now = self.cluster.store.get(workload.uid)
            if what(now):
                return now
            time.sleep(0.02)
        raise AssertionError(f"still {now.status}; {[e.reason.message for e in self.cluster.events(workload.uid)]}")

    def running(self, workload: Workload) -> Workload:
        return self.until(workload, lambda w: w.status.phase is Phase.RUNNING)

    def ended(self, workload: Workload) -> Workload:
        return self.until(workload, lambda w: w.status.phase.is_final)

    def output(self, workload: Workload) -> list[str]:
        return [line.text for line in self.cluster.logs(workload.uid)]

    def pid(self, workload: Workload, what: str) -> int:
        """Process id of the first rank or of the shim of the newest pod."""
        pod = self.cluster.pods(workload.uid)[-1]
        path = self.cluster.home.pod(workload.uid, pod.uid)
        if what == "shim":
            return int((read_json(path / "claimed.json") or {})["pid"])
        return int(next(iter((read_json(path / "started.json") or {})["pids"].values())))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "home", tmp_path)
    yield desk
    for workload in desk.cluster.workloads():
        if not workload.status.phase.is_final:
            desk.want(workload, Intent.STOP)
            desk.ended(workload)
    pid = desk.cluster.supervisor_pid()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
    desk.cluster.close()


def script(desk: Desk, text: str) -> str:
    (desk.workdir / "script.py").write_text(text)
    return f"{PYTHON} script.py"


def test_runs_of_a_loop_that_edits_and_submits_each_print_their_own_version(tmp_path: Path) -> None:
    """Also those that wait, and all add to one file that the first of them makes."""
    (tmp_path / "project").mkdir()
    desk = Desk(tmp_path / "home", tmp_path / "project")
    command = script(desk, "import config\nprint(config.N)\nopen('all.csv', 'a').write(f'{config.N}\\n')")
    runs = []
    for number in range(12):
        (desk.workdir / "config.py").write_text(f"N = {number}")
        runs.append(desk.submit(command, name=f"r{number}"))
    (desk.workdir / "config.py").write_text("N = 999")
    for run in runs:
        desk.until(run, lambda now: now.status.phase.is_final, 60.0)
    assert [desk.output(run) for run in runs] == [[str(number)] for number in range(12)]
    assert sorted(map(int, (desk.workdir / "all.csv").read_text().split())) == list(range(12))
    assert (desk.workdir / "config.py").read_text() == "N = 999"
    until(lambda: not list((desk.cluster.home.path / "trees").glob("*.json")))
    assert sorted(os.listdir(desk.workdir)) == ["all.csv", "config.py", "script.py"]
    pid = desk.cluster.supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    desk.cluster.close()


def test_commands_that_come_together_start_one_supervisor(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Counted(subprocess.Popen[bytes]):
        def __init__(self, argv: list[str], **changes: Any) -> None:
            started.append(argv)
            super().__init__(argv, **changes)

    monkeypatch.setattr(subprocess, "Popen", Counted)
    run = desk.submit("true")
    for _ in range(5):
        assert desk.cluster.supervisor_alive()
        other = desk.cluster.another()
        other.nudge()
        other.close()
    desk.ended(run)
    assert [argv[2] for argv in started] == ["fairlead.control.supervisor"]
    pid = desk.cluster.supervisor_pid()
    assert pid is not None
    assert str(desk.cluster.home.path) in Path(f"/proc/{pid}/cmdline").read_text()


def test_a_supervisor_whose_state_directory_was_moved_away_leaves(tmp_path: Path) -> None:
    cluster = LocalCluster.open(tmp_path / "home")
    never = Resources(cpu_milli=10**8)
    cluster.submit(Training(name="never", run="true", workdir=str(tmp_path), ranks_per_node=1, resources=never))
    cluster.nudge()
    until(lambda: cluster.home.log.exists() and "started, process" in cluster.home.log.read_text())
    pid = cluster.supervisor_pid()
    assert pid is not None
    cluster.close()
    (tmp_path / "home").rename(tmp_path / "away")
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    assert "was moved or removed, leaving" in (tmp_path / "away" / cluster.home.log.name).read_text()
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_a_supervisor_that_was_started_ahead_does_what_comes_and_leaves_when_nothing_does(desk: Desk) -> None:
    home = desk.cluster.home
    start_supervisor(home, is_ahead=True)
    pid = desk.cluster.supervisor_pid()
    assert pid is not None
    assert desk.cluster.supervisor_answers(20.0)
    run = desk.submit("true")
    assert desk.ended(run).status.phase is Phase.SUCCEEDED
    assert desk.cluster.supervisor_pid() == pid
    os.kill(pid, signal.SIGTERM)
    until(lambda: not desk.cluster.supervisor_alive(), "end of it")
    start_supervisor(home, is_ahead=True)
    assert desk.cluster.supervisor_alive()
    until(lambda: not desk.cluster.supervisor_alive(), "end of it")


def test_a_supervisor_leaves_with_the_command_that_brought_no_work(desk: Desk) -> None:
    (desk.workdir / "bad.yaml").write_text("run: true\nnodess: 2\n")
    home = desk.cluster.home
    ended = subprocess.run(
        [PYTHON, "-m", "fairlead.cli.start", "run", "bad.yaml"], cwd=desk.workdir, capture_output=True, text=True,
        env={**os.environ, "FAIRLEAD_HOME": str(home.path)}, check=False, timeout=60.0,
    )  # fmt: skip
    assert "nodess" in ended.stderr
    until(lambda: not desk.cluster.supervisor_alive(), "end of it")
    assert "the command that might have brought work is over, leaving" in home.log.read_text()


def test_a_supervisor_that_cannot_begin_leaves_the_lock_to_the_next(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    run = desk.submit("true")
    until(lambda: not desk.cluster.supervisor_alive())
    monkeypatch.undo()
    desk.cluster.nudge()
    assert desk.ended(run).status.phase is Phase.SUCCEEDED


# The first start lasts; the next ends well at once.
ONCE = "test $FAIRLEAD_ATTEMPT -gt 0 || sleep 30"


def test_ranks_find_torchruns_environment_and_their_output_is_kept(desk: Desk) -> None:
    run = desk.submit("echo $RANK of $WORLD_SIZE, local $LOCAL_RANK on node $NODE_RANK", nodes=2, ranks_per_node=2)
    assert desk.ended(run).status.phase is Phase.SUCCEEDED
    assert sorted(desk.output(run)) == [
        "0 of 4, local 0 on node 0",
        "1 of 4, local 1 on node 0",
        "2 of 4, local 0 on node 1",
        "3 of 4, local 1 on node 1",
    ]


# As many training programs find out whether there are others.
DECIDES = "import os; print('distributed' if int(os.environ.get('RANK', -1)) != -1 else 'by itself')"


@pytest.mark.parametrize(
    ("changes", "found"),
    [({}, ["by itself"]), ({"launch": Launch.TORCHRUN}, ["distributed"]), ({"ranks_per_node": 2}, ["distributed"] * 2)],
)
def test_a_program_that_runs_by_itself_runs_the_same_here(
    desk: Desk, changes: dict[str, Any], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "5")
    run = desk.submit(script(desk, DECIDES), **changes)
    assert desk.ended(run).status.phase is Phase.SUCCEEDED
    assert desk.output(run) == found


# A training loop that knows nothing of Fairlead: alone or DDP by RANK, with a checkpoint of its own.
OWN_LOOP = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    dist.init_process_group("gloo")
master = not ddp or dist.get_rank() == 0
model, start = torch.nn.Linear(2, 1), 0
if os.path.exists("ckpt.pt"):
    saved = torch.load("ckpt.pt")
    model.load_state_dict(saved["model"])
    start = saved["step"]
print("from", start, "ranks", dist.get_world_size() if ddp else 1, flush=True)
raw = model
model = DDP(model) if ddp else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(start, int(sys.argv[1])):
    model(torch.ones(4, 2)).mean().backward()
    optimizer.step()
    if master and (step + 1) % 5 == 0:
        torch.save({"model": raw.state_dict(), "step": step + 1}, "ckpt.tmp")
        os.replace("ckpt.tmp", "ckpt.pt")
    while not os.path.exists("go") and step >= 9:
        time.sleep(0.05)
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_loop_that_knows_nothing_of_us_loses_a_rank_and_goes_on_from_its_own_checkpoint(desk: Desk) -> None:
    run = desk.submit(script(desk, OWN_LOOP) + " 20", ranks_per_node=2, env={"OMP_NUM_THREADS": "1"})
    desk.until(run, lambda w: (desk.workdir / "ckpt.pt").exists() and desk.output(run) != [], 300.0)
    pod = desk.cluster.pods(run.uid)[-1]
    pids = (read_json(desk.cluster.home.pod(run.uid, pod.uid) / "started.json") or {})["pids"]
    os.kill(pids["1"], signal.SIGKILL)
    desk.until(run, lambda w: w.status.attempt == 1 and w.status.phase is Phase.RUNNING, 300.0)
    (desk.workdir / "go").touch()
    ended = desk.until(run, lambda w: w.status.phase.is_final, 300.0)
    assert ended.status.phase is Phase.SUCCEEDED
    assert ended.status.failures.last is not None
    assert ended.status.failures.last.code is Code.KILLED
    # A rank that is amid an exchange with the one that was killed may tell why it cannot go on before it is ended.
    said = [line for line in desk.output(run) if line.startswith("from ")]
    assert said[:2] == ["from 0 ranks 2"] * 2
    assert len(said) == 4
    assert said[2] == said[3] != said[0]


def test_of_ranks_that_are_found_ended_together_the_killed_one_is_the_cause(desk: Desk) -> None:
    waits = "while [ $RANK = 1 ] || [ ! -e fail ]; do sleep 0.02; done; exit 3"
    run = desk.running(desk.submit(waits, ranks_per_node=2, retry=Retry(infrastructure=0, program=0)))
    pod = desk.cluster.pods(run.uid)[-1]
    place = desk.cluster.home.pod(run.uid, pod.uid)
    pids, shim = (read_json(place / "started.json") or {})["pids"], desk.pid(run, "shim")
    os.kill(shim, signal.SIGSTOP)  # as on a machine that is too busy to run it
    try:
        os.kill(pids["1"], signal.SIGKILL)
        (desk.workdir / "fail").touch()
        until(lambda: psutil.Process(pids["0"]).status() == psutil.STATUS_ZOMBIE, "end of rank 0")
    finally:
        os.kill(shim, signal.SIGCONT)
    failure = desk.ended(run).status.failures.last
    assert failure is not None
    assert failure.code is Code.KILLED
    assert len({each["at"] for each in (read_json(place / "exit.json") or {})["ranks"]}) == 1


def test_an_elastic_gang_goes_on_with_what_another_leaves_it_and_its_ranks_are_told(desk: Desk) -> None:
    share = desk.cluster.nodes()[0].cpu_milli * 2 // 7
    told = "echo attempt $FAIRLEAD_ATTEMPT: rank $RANK of $WORLD_SIZE; test $WORLD_SIZE = 1 || exec sleep 30"
    run = desk.submit(told, name="elastic", nodes=1, most_nodes=8, resources=Resources(cpu_milli=share), priority=1)
    assert desk.running(run).gang.world_size == 3
    said = desk.cluster.store.get(run.uid).status.reason.message
    assert said == "3 ranks in 3 pods on 1 node started; runs on 3 of 1..8 nodes; would grow when 5 more are free"
    other = desk.submit("sleep 0.5", name="urgent", nodes=2, resources=Resources(cpu_milli=share), priority=2)
    assert desk.ended(run).status.phase is Phase.SUCCEEDED
    desk.ended(other)
    events = [event.reason.message for event in desk.cluster.events(run.uid)]
    assert any(line.startswith("makes room for urgent: of its 3 nodes it keeps at") for line in events)
    assert sorted(desk.output(run)) == [*(f"attempt 0: rank {n} of 3" for n in range(3)), "attempt 1: rank 0 of 1"]


HANG = """
import os, threading, time
def wait_for_all():
    threading.Event().wait()
def load_batch():
    while True: pass
print("ready", flush=True)
if os.environ["FAIRLEAD_ATTEMPT"] == "0" or not os.path.exists("second"):
    load_batch() if os.environ["RANK"] == "1" else wait_for_all()
"""


def test_a_plain_script_that_hangs_is_named_with_its_rank_and_line_and_its_stacks_are_in_the_log(desk: Desk) -> None:
    (desk.workdir / "second").touch()
    env = {"PATH": str(Path(PYTHON).parent)}  # neither py-spy nor gdb, which take their time
    run = desk.submit(script(desk, HANG), nodes=3, stall_timeout_s=1.5, env=env)
    ended = desk.ended(run)
    assert ended.status.phase is Phase.SUCCEEDED
    hangs = "rank 1 hangs in load_batch (script.py:6); the others are in wait_for_all (script.py:4)"
    assert ended.status.failures.last is not None
    assert ended.status.failures.last.code is Code.STALLED
    assert ended.status.failures.last.message.startswith(f"{hangs}; no progress for ")
    assert hangs in [event.reason.message for event in desk.cluster.events(run.uid)]
    first = [line.text for line in desk.cluster.logs(run.uid, LogQuery(attempt=0))]
    (line,) = (text for text in first if "in load_batch" in text)
    assert re.fullmatch(rf'  File "{desk.cluster.home.path}/trees/.*/script.py", line 6 in load_batch', line)
    assert sum("in wait_for_all" in text for text in first) == 2


def test_a_run_that_hangs_for_good_fails_with_the_rank_that_hangs(desk: Desk) -> None:
    env = {"PATH": str(Path(PYTHON).parent)}
    retry = Retry(program=0, infrastructure=0)
    run = desk.submit(script(desk, HANG), ranks_per_node=3, stall_timeout_s=1.5, env=env, retry=retry)
    reason = desk.ended(run).status.reason
    assert reason.message.startswith("rank 1 hangs in load_batch (script.py:6); the others are in wait_for_all")
    assert "`fairlead logs train --attempt 0` ends with the stacks of its ranks" in str(reason.remedy)


def test_state_is_private_and_the_environment_goes_when_the_run_is_over(desk: Desk) -> None:
    run = desk.submit("sleep 0.5")
    home = desk.cluster.home
    desk.running(run)
    pod = home.pod(run.uid, f"{run.uid}-0-0")
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(home.environment(run.uid).stat().st_mode) == 0o600
    assert stat.S_IMODE((pod / "pod.json").stat().st_mode) == 0o600
    desk.ended(run)
    time.sleep(0.1)
    assert not home.environment(run.uid).exists()
    assert not (pod / "pod.json").exists()


def test_another_process_sees_the_same_state(desk: Desk) -> None:
    run = desk.submit("sleep 0.2")
    code = (
        "from pathlib import Path; from fairlead.cluster.local.cluster import LocalCluster; import sys;"
        "print(LocalCluster.open(Path(sys.argv[1])).find('train').uid)"
    )
    argv = [PYTHON, "-c", code, str(desk.cluster.home.path)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip() == run.uid


def test_a_name_is_taken_until_its_run_is_over(desk: Desk) -> None:
    run = desk.submit("sleep 0.3")
    with pytest.raises(NameTaken, match="fairlead attach train"):
        desk.submit("true")
    desk.ended(run)
    assert desk.ended(desk.submit("true")).status.phase is Phase.SUCCEEDED


def test_near_names_are_told_when_one_is_not_found(desk: Desk) -> None:
    desk.ended(desk.submit("true", name="language-model"))
    with pytest.raises(NotFound, match="Did you mean language-model"):
        desk.cluster.find("langauge-model")


@pytest.mark.parametrize("victim", ["rank", "shim"])
def test_a_killed_process_restarts_the_gang_whole(desk: Desk, victim: str) -> None:
    run = desk.submit(ONCE, nodes=2)
    desk.running(run)
    os.kill(desk.pid(run, victim), signal.SIGKILL)
    ended = desk.ended(run)
    assert (ended.status.phase, ended.status.attempt) == (Phase.SUCCEEDED, 1)
    assert ended.status.failures.last is not None
    assert ended.status.failures.last.code is (Code.KILLED if victim == "rank" else Code.POD_LOST)


def test_a_killed_supervisor_is_replaced_and_nothing_starts_again(desk: Desk) -> None:
    run = desk.submit("echo once; sleep 1")
    desk.running(run)
    pid = desk.cluster.supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    ended = desk.ended(run)
    assert (ended.status.phase, ended.status.attempt) == (Phase.SUCCEEDED, 0)
    assert desk.output(run) == ["once"]


def test_everything_killed_at_once_goes_on_with_the_next_command(desk: Desk) -> None:
    run = desk.submit(ONCE)
    desk.running(run)
    supervisor, shim = desk.cluster.supervisor_pid(), desk.pid(run, "shim")
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    os.kill(shim, signal.SIGKILL)
    time.sleep(0.1)
    desk.cluster.nudge()
    assert desk.ended(run).status.phase is Phase.SUCCEEDED


def test_a_failing_program_is_shown_with_the_end_of_its_traceback(desk: Desk) -> None:
    run = desk.submit(script(desk, "def f():\n    raise ValueError('bad batch')\nf()\n"))
    reason = desk.ended(run).status.reason
    assert reason.code is Code.PROGRAM_FAILED
    assert reason.message == "rank 0 of 1 failed with exit code 1: ValueError: bad batch; `retry` allows no restart"
    assert reason.detail[0] == "Traceback (most recent call last):"
    assert reason.detail[-1] == "ValueError: bad batch"


def test_a_program_is_retried_as_often_as_it_may_be(desk: Desk) -> None:
    retry = Retry(program=2, backoff_s=0.05, max_backoff_s=1)
    run = desk.submit("echo attempt $FAIRLEAD_ATTEMPT; exit 3", retry=retry)
    assert desk.ended(run).status.phase is Phase.FAILED
    assert desk.output(run) == ["attempt 0", "attempt 1", "attempt 2"]


def test_a_program_that_ignores_the_notice_is_killed_after_its_grace(desk: Desk) -> None:
    run = desk.submit("trap '' TERM; echo deaf; while true; do sleep 0.1; done", grace_s=0.5)
    desk.until(run, lambda _: desk.output(run) == ["deaf"])
    asked = time.monotonic()
    desk.want(run, Intent.STOP)
    assert desk.ended(run).status.phase is Phase.STOPPED
    assert 0.4 < time.monotonic() - asked < 5


def test_a_suspended_run_holds_nothing_and_resumes(desk: Desk) -> None:
    run = desk.submit(ONCE)
    desk.running(run)
    desk.want(run, Intent.SUSPEND)
    held = desk.until(run, lambda w: w.status.phase is Phase.SUSPENDED)
    assert held.status.reason.code is Code.SUSPENDED
    assert all(pod.phase.is_final for pod in desk.cluster.pods(run.uid))
    desk.want(run, Intent.RUN)
    assert desk.ended(run).status.phase is Phase.SUCCEEDED


def test_a_stopped_run_resumes_with_the_environment_of_whoever_resumes_it(desk: Desk) -> None:
    run = desk.submit(f"echo color $COLOR; {ONCE}")
    desk.running(run)
    desk.want(run, Intent.STOP)
    desk.ended(run)
    desk.cluster.set_intent(run.uid, Intent.RUN, environ={**os.environ, "COLOR": "green"})
    desk.cluster.nudge()
    desk.until(run, lambda w: w.status.phase is Phase.SUCCEEDED)
    assert desk.output(run)[-1] == "color green"


def test_time_is_up_at_max_duration(desk: Desk) -> None:
    ended = desk.ended(desk.submit("sleep 30", max_duration_s=0.5))
    assert (ended.status.phase, ended.status.reason.code) == (Phase.FAILED, Code.DEADLINE_EXCEEDED)


def test_silence_for_the_stall_timeout_is_a_hang(desk: Desk) -> None:
    run = desk.submit("echo started; sleep 30", stall_timeout_s=1.0, retry=Retry(infrastructure=0))
    ended = desk.ended(run)
    assert (ended.status.phase, ended.status.reason.code) == (Phase.FAILED, Code.STALLED)


def test_the_second_run_waits_and_says_for_what(desk: Desk) -> None:
    whole = Resources(cpu_milli=desk.cluster.node().cpu_milli)
    first = desk.submit("sleep 30", name="first", resources=whole)
    desk.running(first)
    second = desk.submit("true", name="second", resources=whole)
    waiting = desk.until(second, lambda w: w.status.reason.code is Code.WAITING_FOR_RESOURCES)
    assert "held by first" in waiting.status.reason.message
    desk.want(first, Intent.STOP)
    assert desk.ended(second).status.phase is Phase.SUCCEEDED


def test_a_failing_set_up_is_told_as_such(desk: Desk) -> None:
    run = desk.submit("echo never", setup="echo preparing; cat /does/not/exist")
    reason = desk.ended(run).status.reason
    assert reason.code is Code.START_FAILED
    assert "never" not in desk.output(run)


def test_pods_of_one_machine_share_one_set_up(desk: Desk) -> None:
    run = desk.submit("cat prepared", nodes=2, setup="sleep 0.2; echo once >> prepared")
    assert desk.ended(run).status.phase is Phase.SUCCEEDED
    assert desk.output(run) == ["once", "once"]


@pytest.mark.skipif(limits.enforcement().parent is None, reason="memory limits are not enforced for this user")
def test_a_program_over_its_memory_limit_is_named_out_of_memory(desk: Desk) -> None:
    memory = Resources(memory_bytes=64 * 1024**2)
    run = desk.submit(script(desk, "data = []\nwhile True: data.append(bytearray(1 << 20))\n"), resources=memory)
    ended = desk.ended(run)
    assert (ended.status.phase, ended.status.reason.code) == (Phase.FAILED, Code.OUT_OF_MEMORY)
    assert "64 MiB" in ended.status.reason.message
    assert "twice without progress" in ended.status.reason.message


def test_deleting_stops_first_and_leaves_nothing(desk: Desk) -> None:
    run = desk.submit("sleep 30")
    desk.running(run)
    desk.want(run, Intent.DELETE)
    deadline = time.monotonic() + 10
    while desk.cluster.home.run(run.uid).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not desk.cluster.home.run(run.uid).exists()
    with pytest.raises(NotFound):
        desk.cluster.store.get(run.uid)


def test_a_log_that_cannot_be_written_back_just_now_does_not_end_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def checkpoint_wal(_: LocalStore) -> None:
        asked.append("checkpoint_wal")
        raise ClusterError("The state database cannot be used: disk I/O error.")

    monkeypatch.setattr(LocalStore, "checkpoint_wal", checkpoint_wal)
    monkeypatch.setattr(supervisor, "IDLE_EXIT_S", 0.0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    cluster = LocalCluster.open(tmp_path)
    try:
        supervisor._serve(cluster.home, cluster)  # returns, as there is nothing to do
    finally:
        cluster.close()
    assert asked


def test_what_a_run_used_is_what_the_next_asks_for_and_a_kill_at_that_raises_it(desk: Desk) -> None:
    amounts = Resources(cpu_milli=500, memory_auto=True)
    needs = "import time; x = bytearray({} << 20); time.sleep(0.3)"
    first = desk.ended(desk.submit(script(desk, needs.format(100)), resources=amounts))
    used = first.status.measured.usage
    assert used is not None
    assert 100 * 2**20 < used.memory_bytes < 200 * 2**20
    second = desk.ended(desk.submit(script(desk, needs.format(250)), resources=amounts))
    assert second.status.phase is Phase.SUCCEEDED
    sized = [event for event in desk.cluster.events(second.uid) if event.type == "Sized"]
    assert [event.reason.message.partition(": ")[2] for event in sized] == ["1.2 times what train used in its last run"]
    if limits.enforcement().parent is not None:
        asked = second.spec.resources.memory_bytes
        assert asked is not None
        assert asked > 250 * 2**20
        assert second.status.attempt >= 1


@pytest.mark.slow
def test_a_supervisor_that_a_run_starts_has_the_environment_of_the_one_before(desk: Desk) -> None:
    """As the driver of a pipeline does, and a program that submits a run, when a kill has just ended the supervisor."""
    (desk.workdir / "start.py").write_text(
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from fairlead.cluster.local.cluster import LocalCluster\n"
        "cluster = LocalCluster.open(Path(sys.argv[1]))\n"
        "before = cluster.supervisor_pid()\n"
        "os.kill(before, signal.SIGKILL)\n"
        "while cluster.supervisor_alive():\n"
        "    time.sleep(0.001)\n"
        "cluster.nudge()\n"
        "time.sleep(60)\n"
    )
    before = desk.cluster
    run = desk.submit(f"{PYTHON} start.py {before.home.path}", env={"CUDA_VISIBLE_DEVICES": "7"})
    desk.running(run)
    first = before.supervisor_pid()
    until(lambda: before.supervisor_alive() and before.supervisor_pid() not in (None, first))
    pid = before.supervisor_pid()
    assert pid is not None
    environ = until(lambda: psutil.Process(pid).environ())
    assert not {"FAIRLEAD_RUN_UID", "CUDA_VISIBLE_DEVICES"} & environ.keys()
    desk.want(run, Intent.STOP)
    desk.until(run, lambda w: w.status.phase.is_final)


@pytest.mark.parametrize("poison", ["exit", "report", "directory", "fifo"])
def test_what_a_program_puts_into_its_pod_s_files_delays_nobody_else(desk: Desk, poison: str) -> None:
    """Each of these ended the supervisor, or kept it waiting for ever."""
    work = {
        "exit": 'echo \'{"ranks": [1], "usage": 3}\' > $FAIRLEAD_POD_DIR/exit.json',
        "report": f'printf \'{{"loss": {10**400}, "metrics": [1]}}\' > $FAIRLEAD_POD_DIR/rank-0.json',
        "directory": "rm $FAIRLEAD_POD_DIR/output.log; mkdir -p $FAIRLEAD_POD_DIR/rank-0.events.jsonl/x",
        "fifo": "rm -f $FAIRLEAD_POD_DIR/rank-0.json; mkfifo $FAIRLEAD_POD_DIR/rank-0.json $FAIRLEAD_POD_DIR/exit.json",
    }[poison]
    poisoned = desk.submit(f"{work}; touch $FAIRLEAD_POD_DIR/planted; sleep 30", name="poisoned")
    until(lambda: any(desk.cluster.home.run(poisoned.uid).rglob("planted")))
    other = desk.submit("true", name="other")
    desk.until(other, lambda w: w.status.phase is Phase.SUCCEEDED)
    desk.want(poisoned, Intent.STOP)
    desk.until(poisoned, lambda w: w.status.phase.is_final)
