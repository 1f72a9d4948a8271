"""The stacks of ranks that hang: in the log before they end, and where each rank was in the record of the pod."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime import stacks
from tests.launch.pods import Launcher, PodDir
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows who catches a signal")

PYTHON = Path(sys.executable).parent
HANG = """
import os, sys, threading, time
{imports}
def wait_for_all():
    threading.Event().wait()
def load_batch():
    {work}
threading.Thread(target=time.sleep, args=(600,), daemon=True, name="loader").start()
print("ready", flush=True)
load_batch() if os.environ["RANK"] == "1" else wait_for_all()
"""
SPIN = "while True: pass"
SLEEP = "time.sleep(600)"
PAUSE = "import ctypes; ctypes.CDLL(None).pause()"
NO_TOOLS = {"PATH": str(PYTHON)}  # neither py-spy nor gdb, which take their time


def hang(pod: PodDir, command: str, work: str, *, imports: str = "", ranks: int = 2, **changes: Any) -> PodDir:
    (pod.path.parent / "train.py").write_text(HANG.format(work=work, imports=imports))
    return pod.write(command, ranks=ranks, **{"env": NO_TOOLS, "stall_timeout_s": 600.0, **changes})


def torn_down(pod: PodDir, *, ranks: int = 2, grace_s: float = 10.0) -> dict[int, dict[str, Any]]:
    """Where each rank was, once the pod was told that it hangs and is over."""
    until(lambda: pod.log().count("ready") == ranks, "both ranks")
    notice = {"at": time.time(), "grace_s": grace_s, "hangs": True}
    (pod.path / "stop.json").write_text(json.dumps(notice))
    os.kill(int(pod.wait("claimed.json")["pid"]), signal.SIGTERM)
    return {each["rank"]: each["hang"] for each in pod.end()["ranks"]}


def stacks_of(pod: PodDir, rank: int) -> str:
    return "\n".join(text for of, _, text in pod.lines() if of == str(rank))


@pytest.mark.parametrize("work", [SPIN, SLEEP, PAUSE])
def test_an_executed_rank_that_hangs_shows_where(pod: PodDir, work: str) -> None:
    where = torn_down(hang(pod, "python train.py", work, launch="exec").start())
    assert pod.read("started.json")["launch"] == "exec"
    assert where[1] == {"place": "load_batch (train.py:7)", "waits_in": None, "step": None}
    assert where[0]["place"] == "wait_for_all (train.py:5)"
    for rank, name in enumerate(("wait_for_all", "load_batch")):
        assert f"in {name}" in stacks_of(pod, rank)
        assert "Thread 0x" in stacks_of(pod, rank)  # all threads, not only the first
        assert stacks_of(pod, rank).count("most recent call first") == 2
    assert not list(pod.path.glob("*.stacks"))


def test_a_forked_rank_that_hangs_shows_where(pod: PodDir) -> None:
    hang(pod, "python train.py", SPIN, imports="import numpy")
    with Launcher(pod) as launcher:
        launcher.start(pod)
        where = torn_down(pod)
    assert pod.read("started.json")["launch"] == "fork"
    assert where[1]["place"] == "load_batch (train.py:7)"
    assert "in wait_for_all" in stacks_of(pod, 0)


def test_a_program_behind_a_shell_and_its_children_are_asked_too(pod: PodDir) -> None:
    sleeper = "import time; print('child', flush=True); time.sleep(600)"
    hang(pod, "echo first; python train.py", f'import subprocess; subprocess.run([sys.executable, "-c", "{sleeper}"])')
    pod.start().wait_for_output("child")
    where = torn_down(pod)
    assert where[1]["place"] == "load_batch (train.py:7)"
    assert 'File "<string>", line 1 in <module>' in stacks_of(pod, 1)


def test_a_program_that_catches_no_signal_of_ours_is_not_sent_any(pod: PodDir) -> None:
    pod.write("trap 'echo got a signal' 45; echo ready; while :; do read -t 600 < <(:); done", stall_timeout_s=600.0)
    torn_down(pod.start(), ranks=1)
    assert ("0", "o", "got a signal") not in pod.lines()


def test_who_can_tell_nothing_is_said_to(pod: PodDir) -> None:
    hang(pod, "PYTHONPATH=/nowhere python train.py", SLEEP)
    assert torn_down(pod.start())[1]["place"] is None
    assert "no stacks of process" in stacks_of(pod, 1)
    assert "neither py-spy nor gdb is on its PATH" in stacks_of(pod, 1)


def test_the_last_step_is_kept_beside(pod: PodDir) -> None:
    hang(pod, "python train.py", SLEEP).start()
    (pod.path / "rank-1.json").write_text(json.dumps({"step": 17}))
    assert [each["step"] for each in torn_down(pod).values()] == [None, 17]


def test_a_stop_for_another_reason_takes_no_stacks(pod: PodDir) -> None:
    hang(pod, "python train.py", SLEEP).start()
    until(lambda: pod.log().count("ready") == 2, "both ranks")
    pod.signal(signal.SIGTERM, grace_s=5.0)
    assert all("hang" not in each for each in pod.end()["ranks"])
    assert "stacks" not in pod.log()


@pytest.mark.parametrize("is_silent", [True, False])
def test_where_a_stop_gives_no_reason_the_silence_of_the_ranks_does(pod: PodDir, is_silent: bool) -> None:
    hang(pod, "python train.py", SLEEP, stall_timeout_s=0.5 if is_silent else 600.0).start()
    until(lambda: pod.log().count("ready") == 2, "both ranks")
    time.sleep(0.6)
    pod.signal(signal.SIGTERM)
    assert ["hang" in each for each in pod.end()["ranks"]] == [is_silent, is_silent]


def test_a_run_without_a_stall_timeout_has_nothing_of_it(pod: PodDir) -> None:
    pod.write("env; python -c 'import faulthandler; print(faulthandler.unregister(45))'").run()
    assert "FAIRLEAD_STACKS" not in pod.log()
    assert "hook" not in pod.log()
    assert ("0", "o", "False") in pod.lines()


def test_a_site_of_the_users_own_still_runs(pod: PodDir, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    program = "import sys, os; print('fairlead_stackdump' in sys.modules, any('hook' in each for each in sys.path))"
    (tmp_path / "train.py").write_text(program)
    pod.write("python train.py", stall_timeout_s=60.0, env={"PYTHONPATH": str(tmp_path)}).run()
    assert pod.lines() == [("0", "o", "customized"), ("0", "o", "False False")]


def test_a_notice_that_leaves_less_time_is_kept(pod: PodDir) -> None:
    hang(pod, "python train.py", "signal.signal(45, signal.SIG_IGN); time.sleep(600)", imports="import signal").start()
    began = time.monotonic()
    torn_down(pod, grace_s=0.3)
    assert time.monotonic() - began < 10.0


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_native_calls_are_shown_by_gdb(pod: PodDir) -> None:
    sleeper = shutil.which("sleep")
    pod.write(f"echo ready; exec {sleeper} 600", stall_timeout_s=600.0, env={"PATH": os.environ["PATH"]}).start()
    where = torn_down(pod, ranks=1, grace_s=60.0)
    assert "nanosleep" in str(where[0]["place"])
    assert "by gdb:" in pod.log()
    assert "#0 " in pod.log()


def spy(tmp_path: Path, said: str) -> Path:
    """A py-spy that says this of any process."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "py-spy").write_text(f"#!/bin/sh\ncat <<'EOF'\n{said}\nEOF\n")
    (tools / "py-spy").chmod(0o755)
    return tools


def test_a_python_that_did_not_register_is_shown_by_py_spy(pod: PodDir, tmp_path: Path) -> None:
    said = (
        'Thread 7 (idle): "MainThread"\n    pause (libc.so.6)\n    PyCFuncPtr_call (_ctypes.c:4201)\n    load (a.py:3)'
    )
    env = {"PATH": f"{spy(tmp_path, said)}:{PYTHON}:/usr/bin:/bin"}
    hang(pod, "PYTHONPATH=/nowhere python train.py", SLEEP, env=env)
    assert torn_down(pod.start())[1]["place"] == "load (a.py:3)"
    assert "by py-spy:" in stacks_of(pod, 1)


def test_a_tool_that_takes_too_long_is_ended(pod: PodDir, tmp_path: Path) -> None:
    tools = spy(tmp_path, "")
    (tools / "py-spy").write_text("#!/bin/sh\nexec sleep 600\n")
    hang(pod, "python train.py", SLEEP, env={"PATH": f"{tools}:{PYTHON}:/usr/bin:/bin"}).start()
    began = time.monotonic()
    assert torn_down(pod, grace_s=3.0)[1]["place"] == "load_batch (train.py:7)"
    assert time.monotonic() - began < 30.0
    assert "py-spy could not show the stacks of process" in stacks_of(pod, 1)


LIB = "/v/lib/python3.11/site-packages/torch"


@pytest.mark.parametrize(
    ("frames", "where"),
    [
        ([], (None, None)),
        ([("load", "/w/train.py", 4), ("<module>", "/w/train.py", 9)], ("load (train.py:4)", None)),
        (
            [
                ("all_reduce", f"{LIB}/distributed/distributed_c10d.py", 4181),
                ("wrapper", f"{LIB}/distributed/c10d_logger.py", 83),
                ("step", "/w/train.py", 10),
            ],
            ("step (train.py:10)", "all_reduce"),
        ),
        (
            [
                ("_engine_run_backward", f"{LIB}/autograd/graph.py", 824),
                ("backward", f"{LIB}/autograd/__init__.py", 347),
                ("backward", f"{LIB}/_tensor.py", 581),
                ("step", "/w/train.py", 11),
            ],
            ("step (train.py:11)", "backward"),
        ),
        (
            [
                ("wait", "/usr/lib/python3.12/threading.py", 327),
                ("gather", "/v/fairlead/runtime/channels.py", 80),
                ("agree", "/v/fairlead/runtime/agreement.py", 60),
                ("checkpoint", "/v/fairlead/runtime/session.py", 270),
                ("main", "/w/train.py", 12),
            ],
            ("main (train.py:12)", "run.checkpoint"),
        ),
        (
            [
                ("wait", "/usr/lib/python3.12/threading.py", 327),
                ("_try_get_data", f"{LIB}/utils/data/dataloader.py", 1131),
                ("main", "/w/train.py", 13),
            ],
            ("main (train.py:13)", None),
        ),
        ([("pause", "/lib/libc.so.6", 0), ("main", "prog.c", 5)], ("main (prog.c:5)", None)),
        ([("pause", "/lib/libc.so.6", 0)], ("pause (libc.so.6)", None)),
    ],
)
def test_where_a_rank_is_follows_from_its_frames(
    frames: list[stacks.Frame], where: tuple[str | None, str | None]
) -> None:
    assert tuple(stacks.whereabouts(frames).values()) == where


def test_the_main_thread_is_the_last_that_python_shows(tmp_path: Path) -> None:
    program = (
        "import faulthandler, sys, threading, time\n"
        "def other(): time.sleep(60)\n"
        "def main(): faulthandler.dump_traceback(sys.stdout, all_threads=True)\n"
        "for _ in range(3): threading.Thread(target=other, daemon=True).start()\n"
        "time.sleep(0.2); main()\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert shown.count("in other") == 3
    assert [name for name, _, _ in stacks.main_frames(shown)] == ["main", "<module>"]
