"""Ranks have the limits of the shell that submitted them, not of the one whose command started the supervisor."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.pod_spec import PodEnvironment, render
from fairlead.runtime import shell_limits
from fairlead.state.snapshot import Grant, Intent, Pod, PodPhase, Workload
from tests.builders import status, training
from tests.launch.pods import PodDir

SHOWN = "echo $(ulimit -n) $(umask) $(nice) $(taskset -p $$ | grep -o '[0-9a-f]*$')"


def limits(**changed: Any) -> str:
    kept = json.loads(shell_limits.current())
    hard = kept["limits"]["RLIMIT_NOFILE"][1]
    kept["limits"]["RLIMIT_NOFILE"] = changed.pop("nofile", [256, hard])
    return json.dumps({**kept, **changed})


@pytest.mark.parametrize("launch", ["auto", "exec"])
def test_a_rank_has_the_limits_of_its_submitter(tmp_path: Path, launch: str) -> None:
    core = max(os.sched_getaffinity(0))
    given = limits(umask=0o007, nice=os.getpriority(os.PRIO_PROCESS, 0) + 3, cores=[core])
    pod = PodDir(tmp_path / "pod").write(SHOWN, ranks=2, launch=launch, shell_limits=given)
    assert [rank["exit_code"] for rank in pod.run()["ranks"]] == [0, 0]
    nice = os.getpriority(os.PRIO_PROCESS, 0) + 3
    assert {text for _, _, text in pod.lines()} == {f"256 0007 {nice} {1 << core:x}"}


def test_a_rank_says_which_limit_it_may_not_have() -> None:
    """A process with a lower hard limit stands for a supervisor that such a shell has started."""
    given = limits(nofile=[1024, 2048], cores=[9_999])
    program = (
        "import resource, sys\nfrom fairlead.runtime import shell_limits\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 256))\n"
        "shell_limits.raise_own()\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "print(*shell_limits.apply(sys.argv[1]), sep='\\n')\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, given], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == [
        "(256, 256)",
        "its limit `RLIMIT_NOFILE` is 256, not 1024 as in the shell that submitted it, since the supervisor was "
        "started by a shell with a lower hard limit; it ends when nothing runs for a while",
        "it may not use the cores of the shell that submitted it",
        "(256, 256)",
    ]


def test_a_submission_keeps_its_limits_and_no_program_sees_them_as_a_variable(tmp_path: Path) -> None:
    cluster = LocalCluster(Home.open(tmp_path / "home"))
    kept: dict[str, str] = json.loads(cluster.home.environment(cluster.submit(training()).uid).read_text())
    cluster.close()
    assert kept[shell_limits.VARIABLE] == shell_limits.current()
    assert {**kept, **os.environ} == {**os.environ, shell_limits.VARIABLE: shell_limits.current()}
    pod = Pod(
        uid="uid-0-0", workload_uid="uid", attempt=0, index=0, node="n", grant=Grant(cpu_milli=1000),
        phase=PodPhase.CREATED, created_at=0.0,
    )  # fmt: skip
    run = Workload(uid="uid", spec=training(), intent=Intent.RUN, status=status(), version=1, created_at=1_000_000.0)
    around = PodEnvironment(
        environ=kept, own_environ={}, master_port=29400, library=tmp_path, cgroup=None, has_gpus=False
    )
    content = render(Home(tmp_path), run, pod, around)
    assert content["shell_limits"] == kept[shell_limits.VARIABLE]
    assert shell_limits.VARIABLE not in content["env"]


def test_a_program_that_used_up_its_processor_time_failed_by_itself(tmp_path: Path) -> None:
    kept = json.loads(limits())
    kept["limits"]["RLIMIT_CPU"] = [1, 1]
    pod = PodDir(tmp_path / "pod").write("exec python3 -c 'while True: pass'", shell_limits=json.dumps(kept))
    (rank,) = pod.run()["ranks"]
    assert rank["signal"] == signal.SIGXCPU
