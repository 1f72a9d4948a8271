"""A launcher starts the pods of a run, forks where that is safe, and says why where it is not."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.leftovers import kill_leftovers
from tests.launch.pods import RUNTIME, Launcher, PodDir, is_alive
from tests.waiting import until

OTHER_PYTHONS = [Path.home() / ".pyenv/versions" / v / "bin/python" for v in ("3.9.18", "3.10.13", "3.12.1", "3.13.0")]
OLD_PYTHONS = [Path.home() / ".pyenv/versions" / v / "bin/python" for v in ("2.7.18", "3.6.15")]

SCRIPT = "import numpy\nimport os\nprint(numpy.ORIGIN == os.getpid(), numpy.ORIGIN, os.environ['RANK'])\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory with a script, and a numpy that says in which process it was imported."""
    numpy = tmp_path / "site" / "numpy"
    numpy.mkdir(parents=True)
    (numpy / "__init__.py").write_text("import os\nORIGIN = os.getpid()\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def pod_of(run: Path, name: str = "pod", command: str = "python train.py", **changes: Any) -> PodDir:
    env = {"PYTHONPATH": str(run / "site"), **changes.pop("env", {})}
    return PodDir(run / name).write(command, env=env, **changes)


def launched(*pods: PodDir, python: str = sys.executable) -> list[tuple[str, str | None]]:
    """Runs the pods one after another through one launcher: how each started, and why."""
    with Launcher(pods[0], python) as launcher:
        for pod in pods:
            launcher.start(pod)
            pod.end()
    return [(pod.read("started.json")["launch"], pod.read("started.json")["why"]) for pod in pods]


def test_all_ranks_of_all_pods_share_one_import(run: Path) -> None:
    pods = [pod_of(run, name, ranks=2) for name in ("first", "second")]
    assert launched(*pods) == [("fork", None), ("fork", None)]
    origins = {tuple(text.split()[:2]) for pod in pods for _, _, text in pod.lines()}
    assert len(origins) == 1
    assert next(iter(origins))[0] == "False"


def test_each_pod_has_its_own_environment(run: Path) -> None:
    (run / "train.py").write_text(
        "import numpy\nimport os\nprint(os.getenv('MASTER_PORT'), os.getenv('FAIRLEAD_POD_UID'))\n"
    )
    pods = [pod_of(run, n, env={"MASTER_PORT": p} if p else {}) for n, p in (("a", "1"), ("b", "2"), ("c", ""))]
    assert {how for how, _ in launched(*pods)} == {"fork"}
    assert [pod.lines()[0][2] for pod in pods] == [f"1 {pods[0].uid}", f"2 {pods[1].uid}", f"None {pods[2].uid}"]


def test_a_pod_outlives_its_launcher(run: Path) -> None:
    (run / "train.py").write_text(
        "import numpy\nimport time\nprint('up', flush=True)\ntime.sleep(0.5)\nprint('done')\n"
    )
    pod = pod_of(run)
    with Launcher(pod) as launcher:
        launcher.start(pod)
        pod.wait_for_output("up")
        launcher.process.kill()
    assert pod.end()["ranks"][0]["exit_code"] == 0
    assert "done" in pod.log()


def test_a_launcher_ends_with_its_input_and_not_by_an_interrupt(run: Path) -> None:
    pod = pod_of(run)
    with Launcher(pod) as launcher:
        launcher.start(pod)
        pod.end()
        launcher.process.send_signal(signal.SIGINT)
        again = pod_of(run, "again")
        launcher.start(again)
        again.end()
    assert launcher.process.returncode == 0


@pytest.mark.parametrize("launch", ["auto", "exec"])
def test_ranks_have_the_signals_of_a_fresh_process_whatever_started_the_launcher(run: Path, launch: str) -> None:
    names = ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM", "SIGPIPE")
    (run / "train.py").write_text(
        f"import numpy\nimport signal\nprint([signal.getsignal(getattr(signal, n)) for n in {names}])\n"
    )
    pod = pod_of(run, launch=launch)
    # A Python of its own ignores SIGPIPE, whatever it was started with.
    fresh = [signal.default_int_handler, *[signal.SIG_DFL] * 3, signal.SIG_IGN]
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGQUIT, signal.SIGHUP)}
    try:
        launched(pod)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert pod.lines()[0][2] == str(fresh)


def test_forked_processes_are_found_by_the_uid_of_their_pod(run: Path) -> None:
    (run / "train.py").write_text("import numpy\nimport os, time\nos.fork()\nprint('up', flush=True)\ntime.sleep(60)\n")
    pod = pod_of(run)
    with Launcher(pod) as launcher:
        launcher.start(pod)
        until(lambda: pod.log().count("up") == 2, "two processes")
        pids = [int(pid) for pid in pod.read("started.json")["pids"].values()]
        assert kill_leftovers(pod.uid) == 2
        assert launcher.process.poll() is None
        pod.end()
    assert not any(is_alive(pid) for pid in pids)


def test_a_setup_is_run_before_anything_is_preloaded(run: Path) -> None:
    stamp = str(run / "stamp")
    pods = [pod_of(run, name, setup="echo set up", setup_stamp=stamp) for name in ("first", "second")]
    assert launched(*pods) == [
        ("exec", "the setup may change what a launcher would have in memory"),
        ("fork", None),
    ]


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        ("raise ImportError('half there')", "preloading failed: ImportError: half there"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
            "a preloaded module started 1 threads",
        ),
        ("FILE = open('/dev/null')", "a preloaded module opened a file"),
    ],
)
def test_modules_that_cannot_be_forked_are_imported_by_each_rank(run: Path, prepare: str, why: str) -> None:
    with (run / "site" / "numpy" / "__init__.py").open("a") as file:
        file.write(prepare)
    pod = pod_of(run)
    assert launched(pod) == [("exec", why)]


def test_a_package_replaced_since_is_imported_anew(run: Path) -> None:
    first, second = pod_of(run, "first"), pod_of(run, "second")
    with Launcher(first) as launcher:
        launcher.start(first)
        first.end()
        shutil.copy(run / "site/numpy/__init__.py", run / "new.py")
        (run / "new.py").rename(run / "site/numpy/__init__.py")
        launcher.start(second)
        second.end()
    assert second.read("started.json")["why"] == "numpy has been replaced since the launcher imported it"
    assert second.lines()[0][2].startswith("True ")


def test_a_namesake_that_appears_beside_the_script_is_honoured(run: Path) -> None:
    first, second = pod_of(run, "first"), pod_of(run, "second")
    with Launcher(first) as launcher:
        launcher.start(first)
        first.end()
        (run / "numpy.py").write_text("ORIGIN = 'mine'\n")
        launcher.start(second)
        second.end()
    assert second.lines()[0][2] == "False mine 0"


def test_an_environment_that_the_interpreter_may_have_read_is_not_swapped(run: Path) -> None:
    pods = [pod_of(run, "first"), pod_of(run, "second", env={"MKL_DEBUG": "1"})]
    assert launched(*pods) == [("fork", None), ("exec", "MKL_DEBUG is not what it was when the launcher started")]


def test_what_preloading_prints_is_printed_by_each_rank(run: Path) -> None:
    with (run / "site" / "numpy" / "__init__.py").open("a") as file:
        file.write("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")
    pod = pod_of(run, ranks=2)
    assert launched(pod) == [("fork", None)]
    assert sorted((r, s) for r, s, text in pod.lines() if text in ("out", "err")) == [
        ("0", "e"),
        ("0", "o"),
        ("1", "e"),
        ("1", "o"),
    ]


def test_a_sitecustomize_of_the_user_s_keeps_its_place(run: Path) -> None:
    (run / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.CUSTOM = 1\n")
    (run / "train.py").write_text("import numpy\nprint(CUSTOM)\n")
    pod = pod_of(run)
    ((how, why),) = launched(pod)
    assert (how, why) == ("exec", f"{run / 'site' / 'sitecustomize.py'} runs before the program does")
    assert pod.lines() == [("0", "o", "1")]


def test_a_script_that_preloads_nothing_is_forked_from_a_bare_interpreter(run: Path) -> None:
    (run / "train.py").write_text(
        "import sys\nprint('numpy' in sys.modules)\nimport numpy, os\nprint(numpy.ORIGIN == os.getpid())\n"
    )
    pods = [pod_of(run, name) for name in ("first", "second")]
    assert launched(*pods) == [("fork", None), ("fork", None)]
    assert [[text for _, _, text in pod.lines()] for pod in pods] == [["False", "True"], ["False", "True"]]


def test_a_namesake_of_what_the_launcher_itself_has_keeps_a_bare_interpreter_from_forking(run: Path) -> None:
    (run / "train.py").write_text("print('first')\nimport json\nprint(json.MINE)\n")
    (run / "json.py").write_text("MINE = 'mine'\n")
    pod = pod_of(run)
    ((how, why),) = launched(pod)
    assert (how, why) == ("exec", f"{run / 'json.py'} may stand in for the module of its name")
    assert [text for _, _, text in pod.lines()] == ["first", "mine"]


@pytest.mark.parametrize("python", OTHER_PYTHONS, ids=lambda path: path.parts[-3])
def test_other_interpreters_are_forked_as_well(run: Path, python: Path) -> None:
    if not python.exists():
        pytest.skip(f"no {python}")
    pod = pod_of(run, command=f"{python} train.py")
    assert launched(pod, python=str(python)) == [("fork", None)]
    assert pod.lines()[0][2].startswith("False ")
    cold = pod_of(run, "cold", command=f"{python} train.py")
    subprocess.run([str(python), str(RUNTIME / "shim.py"), str(cold.path)], check=True, timeout=30)
    assert cold.read("exit.json")["ranks"][0]["exit_code"] == 0


@pytest.mark.parametrize("python", OLD_PYTHONS, ids=lambda path: path.parts[-3])
def test_interpreters_too_old_for_us_run_the_program_all_the_same(run: Path, python: Path) -> None:
    if not python.exists():
        pytest.skip(f"no {python}")
    (run / "train.py").write_text("import numpy\nimport os\nopen(str(os.getpid()), 'w').close()\nprint('ran')\n")
    pod = pod_of(run, command=f"{python} train.py")
    ((how, why),) = launched(pod)
    assert (how, "3.9" in str(why)) == ("exec", True)
    assert pod.lines() == [("0", "o", "ran")]
    pids = pod.read("started.json")["pids"]
    assert [path.name for path in run.iterdir() if path.name.isdigit()] == [str(pids["0"])]


def test_a_directory_that_was_made_anew_is_entered_anew(run: Path) -> None:
    place = run / "project"
    place.mkdir()
    (place / "train.py").write_text("import numpy\nprint('old')\n")
    first, second, third = (pod_of(run, name, workdir=str(place)) for name in ("a", "b", "c"))
    with Launcher(first) as launcher:
        launcher.start(first)
        first.end()
        place.rename(run / "moved")
        place.mkdir()
        (place / "train.py").write_text("import numpy\nprint('new')\n")
        launcher.start(second)
        second.end()
        place.rename(run / "gone")
        launcher.start(third)
        third.end()
    assert [line[2] for line in second.lines()] == ["new"]
    assert "cannot be entered" in third.read("exit.json")["ranks"][0]["tail"][0]
