"""The launchers of runs that end and are resumed while the launcher is still on its way out."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.launchers import Launchers
from fairlead.state.snapshot import Intent, Workload
from tests.builders import status, training
from tests.waiting import until

RUN = Workload(uid="uid", spec=training(), intent=Intent.RUN, status=status(), version=1, created_at=1_000_000.0)


class Spawned(Launchers):
    """Launchers that are slow to end: they never look whether their input has ended."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self.made: list[subprocess.Popen[bytes]] = []

    def _spawn(self, uid: str, argv: tuple[str, ...], spec: dict[str, Any]) -> subprocess.Popen[bytes]:
        self.made.append(subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE))
        return self.made[-1]


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[Spawned]:
    made = Spawned(Home(tmp_path))
    yield made
    made.close()
    for process in made.made:
        process.kill()
        process.wait(60)


def _spec(directory: Path, command: str = "python3 train.py", **env: str) -> dict[str, Any]:
    """What the shim of a program that imports numpy is told."""
    (directory / "train.py").write_text("import numpy\n")
    env = {"PATH": "/usr/bin:/usr/local/bin:/bin", **env}
    return {"command": command, "workdir": str(directory), "env": env, "secrets": {}}


def _trial(number: int) -> Workload:
    return replace(RUN, uid=f"trial-{number}", parent="sweep")


def test_a_run_resumed_while_its_launcher_still_ends_gets_another(launchers: Spawned, tmp_path: Path) -> None:
    assert launchers.start(RUN, _spec(tmp_path), tmp_path / "first")
    launchers.reap(set())
    assert launchers.start(RUN, _spec(tmp_path), tmp_path / "second")
    assert len(launchers.made) == 2
    launchers.reap({"uid"})
    assert not launchers.has_ended("uid")


def test_trials_with_one_command_share_a_launcher_one_after_another(launchers: Spawned, tmp_path: Path) -> None:
    for number in range(3):
        spec = _spec(tmp_path, FAIRLEAD_PARAM_LR=str(number))
        assert launchers.start(_trial(number), spec, tmp_path / str(number))
        launchers.reap({"sweep"})
    (made,) = launchers.made
    assert made.stdin is not None
    assert not made.stdin.closed
    launchers.reap(set())
    assert made.stdin.closed


def test_of_launchers_without_a_trial_only_the_newest_waits_for_the_next(launchers: Spawned, tmp_path: Path) -> None:
    for number in range(3):
        spec = _spec(tmp_path, f"python3 train.py --lr {number}")
        assert launchers.start(_trial(number), spec, tmp_path / str(number))
    launchers.reap({"sweep", "trial-0"})
    assert [made.stdin is not None and made.stdin.closed for made in launchers.made] == [False, True, False]


def test_runs_without_a_parent_share_no_launcher(launchers: Spawned, tmp_path: Path) -> None:
    for uid in ("one", "two"):
        assert launchers.start(replace(RUN, uid=uid), _spec(tmp_path), tmp_path / uid)
    assert len(launchers.made) == 2


def test_what_has_nothing_to_preload_needs_no_launcher(launchers: Spawned, tmp_path: Path) -> None:
    spec = _spec(tmp_path)
    (tmp_path / "train.py").write_text("print()\n")
    # The pod's directory has no `pod.json`, so that its shim ends at once.
    assert launchers.start(RUN, spec, tmp_path)
    until((tmp_path / "shim.lock").exists, "shim")
    assert not launchers.has_ended("uid")
    assert launchers.made == []


def test_runs_of_a_parent_with_nothing_to_preload_share_a_launcher_from_the_second_on(
    launchers: Spawned, tmp_path: Path
) -> None:
    started: list[int] = []
    for number in range(4):
        spec = _spec(tmp_path, FAIRLEAD_PARAM_LR=str(number))
        (tmp_path / "train.py").write_text("print()\n")
        assert launchers.start(_trial(number), spec, tmp_path / str(number))
        started.append(len(launchers.made))
    assert started == [0, 1, 1, 1]


def test_runs_of_a_parent_whose_commands_differ_wait_for_no_bare_launcher(launchers: Spawned, tmp_path: Path) -> None:
    for number in range(3):
        spec = _spec(tmp_path, f"python3 train.py --lr {number}")
        (tmp_path / "train.py").write_text("print()\n")
        assert launchers.start(_trial(number), spec, tmp_path / str(number))
    assert launchers.made == []


def test_pods_of_one_command_that_import_other_modules_first_share_no_launcher(
    launchers: Spawned, tmp_path: Path
) -> None:
    spec = _spec(tmp_path)
    assert launchers.start(_trial(0), spec, tmp_path / "0")
    (tmp_path / "train.py").write_text("import numpy\nimport torch\n")
    assert launchers.start(_trial(1), spec, tmp_path / "1")
    assert launchers.start(_trial(2), spec, tmp_path / "2")
    assert len(launchers.made) == 2


def test_replicas_with_other_predictors_share_no_launcher(launchers: Spawned, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\n")
    (tmp_path / "tensors.py").write_text("import torch\n")
    for number, predictor in enumerate(("tensors:Model", "plain:Model", "tensors:Model")):
        spec = _spec(tmp_path, "python3 -m fairlead.runtime.serving", FAIRLEAD_PREDICTOR=predictor)
        assert launchers.start(_trial(number), spec, tmp_path / str(number))
    assert len(launchers.made) == 2


def test_a_launcher_that_died_over_a_request_is_let_go(tmp_path: Path) -> None:
    class Deaf(Spawned):
        """Launchers that end without a look at what they are asked, just after it was seen that they live."""

        def _spawn(self, uid: str, argv: tuple[str, ...], spec: dict[str, Any]) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(["true"], stdin=subprocess.PIPE)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            return process

    launchers = Deaf(Home(tmp_path))
    assert not launchers.start(RUN, _spec(tmp_path), tmp_path / "pod")
    launchers.reap(set())
    launchers.close()


@pytest.mark.parametrize(
    ("env", "num"),
    [
        ({"LC_ALL": "C"}, 1),
        ({"LANG": "de_DE.UTF-8", "PYTHONUTF8": "0"}, 1),
        ({"LC_ALL": "C", "PYTHONUTF8": "0"}, 0),
        ({"LC_CTYPE": "de_DE.ISO-8859-1"}, 0),
    ],
)
def test_a_program_that_may_decode_paths_otherwise_than_fairlead_is_not_forked(
    launchers: Spawned, tmp_path: Path, env: dict[str, str], num: int
) -> None:
    assert launchers.start(RUN, _spec(tmp_path, **env), tmp_path / "pod")
    assert len(launchers.made) == num
