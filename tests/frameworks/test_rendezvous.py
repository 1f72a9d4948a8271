"""The ranks of each framework meet, agree, and meet again after one was killed, with the real libraries.

`pytest -m frameworks` runs these; the first time makes an environment for each library.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.contract import environment
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.runtime import processes, run_key
from fairlead.runtime.podfiles import read_json
from fairlead.runtime.ranks import rank_environment
from fairlead.specs.resources import Resources
from fairlead.specs.training import Framework, Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase, Workload
from tests.builders import training
from tests.cluster.test_rank_environment import run_of
from tests.docs.examples import ROOT, examples_of
from tests.frameworks.environments import interpreter_with
from tests.home import end_everything
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.frameworks]
TIMEOUT_S = 300.0  # an import takes up to 25 s of a cold disk
OF_TORCH = {Framework.TORCH, Framework.LIGHTNING}  # under torchrun's variables: tests/cluster, and the callbacks' tests
HOLD = """\
import os, time

def hold():
    if os.environ["FAIRLEAD_ATTEMPT"] == "0":
        print("held", flush=True)
        time.sleep(600)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster.open(tmp_path / "home")
    yield cluster
    cluster.close()
    end_everything(tmp_path / "home")


def program(framework: Framework) -> str:
    """The guide's program, that stays in its last line the first time."""
    file = f"with_{framework}.py"
    (body,) = (each.body for each in examples_of(ROOT / "docs" / "distributed.md") if each.file == file)
    at = body.index("print(")
    at = body.rindex("\n", 0, at) + 1
    indent = re.match(" *", body[at:])
    assert indent is not None
    print_, rest = body[at:].split("\n", 1)
    return f"{body[:at]}{print_}\n{indent[0]}__import__('holding').hold()\n{rest}"


def output(cluster: LocalCluster, run: Workload) -> list[str]:
    return [line.text for line in cluster.logs(run.uid)]


def results(cluster: LocalCluster, run: Workload) -> list[tuple[str, str, str]]:
    found = (re.fullmatch(r"rank (\d+) of (\d+) has (\S+)", line) for line in output(cluster, run))
    return [(each[1], each[2], each[3]) for each in found if each is not None]


def kill_rank(cluster: LocalCluster, run: Workload, rank: int) -> None:
    path = cluster.home.pod(run.uid, cluster.pods(run.uid)[-1].uid)
    os.kill((read_json(path / "started.json") or {})["pids"][str(rank)], signal.SIGKILL)


def await_(cluster: LocalCluster, run: Workload, phase: Phase) -> Workload:
    def is_there() -> bool:
        status = cluster.store.get(run.uid).status
        assert status.phase is phase or not status.phase.is_final, (status, output(cluster, run)[-40:])
        return status.phase is phase

    until(is_there, lambda: "\n".join(output(cluster, run)[-40:]), timeout_s=TIMEOUT_S, every_s=0.1)
    return cluster.store.get(run.uid)


@pytest.mark.parametrize("framework", [each for each in Framework if each not in {*OF_TORCH, Framework.RAY}])
def test_two_ranks_agree_and_do_so_again_after_one_was_killed(
    framework: Framework, cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(program(framework))
    (tmp_path / "holding.py").write_text(HOLD)
    run = cluster.submit(
        Training(
            name="train",
            run=f"{interpreter_with(framework)} -u train.py",
            workdir=str(tmp_path),
            framework=framework,
            ranks_per_node=2,
            env={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"},
        )
    )
    cluster.nudge()

    def both_are_held() -> bool:
        status = cluster.store.get(run.uid).status
        assert status.attempt == 0, (status, output(cluster, run)[-40:])
        return output(cluster, run).count("held") == 2

    until(both_are_held, lambda: "\n".join(output(cluster, run)[-40:]), timeout_s=TIMEOUT_S, every_s=0.1)
    kill_rank(cluster, run, 1)
    ended = await_(cluster, run, Phase.SUCCEEDED)
    assert ended.status.failures.last is not None
    assert ended.status.failures.last.code is Code.KILLED
    assert ended.status.attempt == 1
    met = results(cluster, run)
    assert sorted(met) == sorted([("0", "2", met[0][2]), ("1", "2", met[0][2])] * 2)
    print(f"{framework}: first collective after {first_result_s(cluster, run)}")


def test_two_pods_are_one_ray_cluster_and_so_again_after_a_node_was_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(program(Framework.RAY))
    (tmp_path / "holding.py").write_text(HOLD)
    run = cluster.submit(
        Training(
            name="train",
            run=f"{interpreter_with('ray')} -u train.py",
            workdir=str(tmp_path),
            framework=Framework.RAY,
            nodes=2,
            resources=Resources(memory_bytes=2**30),
            env={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
    )
    cluster.nudge()
    until(
        lambda: "held" in output(cluster, run),
        lambda: "\n".join(output(cluster, run)[-40:]),
        timeout_s=TIMEOUT_S,
        every_s=0.1,
    )
    of_run = processes.processes_with("FAIRLEAD_RUN_UID", run.uid)
    # Of the program's actors torch's store listens everywhere, as it does under torchrun.
    of_ray = [pid for pid in of_run if not Path(f"/proc/{pid}/comm").read_text().startswith("ray::Rank")]
    assert listening_addresses(of_ray) == {"127.0.0.1"}
    kill_rank(cluster, run, 1)
    ended = await_(cluster, run, Phase.SUCCEEDED)
    assert ended.status.failures.last is not None
    assert (ended.status.failures.last.code, ended.status.attempt) == (Code.KILLED, 1)
    # The command runs in the first pod alone, and is held after its first line there at first.
    assert results(cluster, run) == [("0", "2", "3.0"), ("0", "2", "3.0"), ("1", "2", "3.0")]
    until(lambda: not processes.processes_with("FAIRLEAD_RUN_UID", run.uid), "end of all of Ray")


def listening_addresses(pids: list[int]) -> set[str]:
    """The addresses of TCP on which processes listen."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for each in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(str(each.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                # An address of version 4 in one of version 6 is its last word; words are in the machine's order.
                last = bytes.fromhex(fields[1].partition(":")[0][-8:])
                found.add(socket.inet_ntoa(last[::-1] if sys.byteorder == "little" else last))
    return found


def first_result_s(cluster: LocalCluster, run: Workload) -> list[float]:
    """Seconds from the start of each attempt's ranks to their last line of a result."""
    found = []
    for pod in cluster.pods(run.uid):
        started = read_json(cluster.home.pod(run.uid, pod.uid) / "started.json") or {}
        at = [line.at for line in cluster.logs(run.uid) if line.text.startswith("rank ") and line.at >= started["at"]]
        found.append(round(at[1] - started["at"], 2))
    return found


@pytest.mark.parametrize("framework", [Framework.JAX, Framework.XGBOOST])
def test_a_lone_rank_runs_the_same_program(framework: Framework, cluster: LocalCluster, tmp_path: Path) -> None:
    (body,) = (e.body for e in examples_of(ROOT / "docs" / "distributed.md") if e.file == f"with_{framework}.py")
    (tmp_path / "train.py").write_text(body)
    run = cluster.submit(
        Training(
            name="alone",
            run=f"{interpreter_with(framework)} -u train.py",
            workdir=str(tmp_path),
            framework=framework,
            env={"OMP_NUM_THREADS": "1"},
        )
    )
    cluster.nudge()
    await_(cluster, run, Phase.SUCCEEDED)
    ((rank, size, _),) = results(cluster, run)
    assert (rank, size) == ("0", "1")


@pytest.mark.parametrize(("framework", "verb"), [(Framework.MPI, "mpi"), (Framework.XGBOOST, "tracker")])
def test_ranks_meet_by_the_runtime_that_goes_into_pods_and_by_a_name(
    framework: Framework, verb: str, tmp_path: Path
) -> None:
    (body,) = (e.body for e in examples_of(ROOT / "docs" / "distributed.md") if e.file == f"with_{framework}.py")
    (tmp_path / "train.py").write_text(body)
    (tmp_path / "runtime.pyz").write_bytes(bundle())
    run_key.create(tmp_path / "key")
    python, port = str(interpreter_with(framework)), free_port()
    ranks = []
    for rank in range(2):
        given = {"PYTHONPATH": str(tmp_path / "runtime.pyz"), "OMP_NUM_THREADS": "1", "FAIRLEAD_POD_IP": "127.0.0.1"}
        common = environment(
            run_of(training(framework=framework, nodes=2)), attempt=0, index=rank, pod_uid=f"uid-0-{rank}",
            pod_dir="", run_dir="", checkpoint_to=None, master=("localhost", port), hosts="localhost",
            data_dir="/data", secrets_dir="/secrets", key_file=str(tmp_path / "key"),
        )  # fmt: skip
        begin = [python, "runtime.pyz", verb] if verb == "mpi" or rank == 0 else []
        ranks.append(
            subprocess.Popen(
                [*begin, python, "-u", "train.py"], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
                env={**os.environ, **given, **common, **rank_environment(rank, 0, common)},
            )
        )  # fmt: skip
    said = []
    try:
        said = [each.communicate(timeout=TIMEOUT_S)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    found = [re.search(r"rank (\d) of 2 has (\S+)", text) for text in said]
    assert [match[1] for match in found if match] == ["0", "1"], said
    assert len({match[2] for match in found if match}) == 1
