"""The collectives in which ranks wait when their run hangs, by PyTorch's flight recorder, in the record of the pod."""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.pod_files import hang_of
from fairlead.policy.kinds.hangs import judge_hang
from fairlead.runtime import collectives
from fairlead.state.snapshot import RankExit
from tests.launch.pods import PodDir
from tests.launch.test_stacks import NO_TOOLS, torn_down
from tests.ports import free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows who catches a signal")

TRAINING = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, ones = dist.get_rank(), torch.ones(4)
mine = dist.new_group([0, 1], group_desc="mine")
for _ in range(3):
    dist.all_reduce(ones)
print("ready", flush=True)
{hang}
"""
FORGOTTEN = """
dist.all_reduce(ones, group=mine) if rank else dist.all_reduce(ones)
"""
UNEQUAL = """
dist.broadcast(ones, 0, group=mine) if rank else dist.all_reduce(ones, group=mine)
dist.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hang", "cause"),
    [
        (FORGOTTEN, "the ranks enter their groups in different orders"),
        (
            UNEQUAL,
            "the ranks differ in collective 1 of mine: rank 0 calls all_reduce of [4] Float, rank 1 calls broadcast",
        ),
    ],
)
def test_the_record_of_a_hang_names_the_collective_that_differs(pod: PodDir, hang: str, cause: str) -> None:
    (pod.path.parent / "train.py").write_text(TRAINING.format(hang=hang))
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    pod.write("python train.py", ranks=2, env={**NO_TOOLS, **meeting}, stall_timeout_s=600.0)
    where = torn_down(pod.start())
    exits = [RankExit(rank=rank, signal=9, at=1.0, hang=hang_of(place)) for rank, place in where.items()]
    verdict = judge_hang(exits, 2)
    assert verdict is not None
    assert cause in verdict.says
    assert verdict.is_program
    assert "fairlead: collectives of mine: waits in all_reduce of [4] Float, number 1" in pod.log()
    assert not list(pod.path.glob("*.stacks*"))


BEHIND = """
if rank == 1:
    import time
    time.sleep(600)
dist.all_reduce(ones)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hang", "cause", "is_program"),
    [
        (BEHIND, "rank 1 has not entered collective 4 of default_pg, all_reduce of [4] Float", False),
        (UNEQUAL, "the ranks differ in collective 1 of mine: rank 0 calls all_reduce", True),
    ],
)
def test_workers_behind_torchrun_answer_each_for_itself(pod: PodDir, hang: str, cause: str, is_program: bool) -> None:
    (pod.path.parent / "train.py").write_text(TRAINING.format(hang=hang))
    command = f"torchrun --nproc-per-node 2 --master-port {free_port()} train.py"
    pod.write(command, ranks=1, env=NO_TOOLS, stall_timeout_s=600.0)
    where = torn_down(pod.start())
    verdict = judge_hang([RankExit(rank=0, signal=9, at=1.0, hang=hang_of(where[0]))], 1)
    assert verdict is not None
    assert cause in verdict.says
    assert verdict.is_program is is_program


def answered(path: Path, pid: int, rows: Any) -> None:
    Path(f"{path}.{pid}.json").write_text(json.dumps(rows))


def test_nobody_is_asked_where_no_process_reads(tmp_path: Path) -> None:
    path = str(tmp_path / "rank-0.stacks")
    assert not collectives.ask(path)
    collectives.prepare(path)
    assert not collectives.ask(path)
    reader = threading.Thread(target=lambda: Path(f"{path}.ask").read_bytes())
    reader.start()
    while not collectives.ask(path):
        os.sched_yield()
    reader.join(10.0)
    assert not reader.is_alive()


def test_a_file_in_place_of_the_fifo_asks_nobody_and_stays_as_it_is(tmp_path: Path) -> None:
    path, secret = str(tmp_path / "rank-0.stacks"), tmp_path / "secret"
    secret.write_text("secret")
    os.symlink(secret, f"{path}.ask")
    assert not collectives.ask(path)
    os.unlink(f"{path}.ask")
    Path(f"{path}.ask").write_text("mine")
    assert not collectives.ask(path)
    assert secret.read_text() == "secret"


def test_the_process_furthest_behind_stands_for_a_rank_of_several(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.stacks"
    answered(path, 1, [["default_pg", 7, 7, "all_reduce", 0], ["tp", 3, None, None, 0]])
    answered(path, 2, [["default_pg", 6, None, None, 0]])
    none = (None, None)
    assert collectives.answers(str(path), {}) == [
        ("default_pg", 6, 7, "all_reduce", 0, *none),
        ("tp", 3, None, None, 0, *none),
    ]


def test_workers_behind_a_launcher_stand_for_themselves_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.stacks"
    answered(path, 1, [["default_pg", 7, 7, "all_reduce", 4]])
    answered(path, 2, [["tp", 1, None, None, 5], ["default_pg", 6, None, None, 5]])
    place = {2: {"place": "load (train.py:4)", "waits_in": None}}
    assert collectives.of_first_groups(collectives.answers(str(path), place), 1) == [
        ("default_pg", 7, 7, "all_reduce", 4, None, None),
        ("default_pg", 6, None, None, 5, "load (train.py:4)", None),
    ]


@pytest.mark.parametrize(
    "content", ["", "[", "[" * 100_000, '{"a": 1}', "[1, null]", '[["a"]]', '[["a", "b", 1, "c"]]', '["' + "x" * 20_000]
)
def test_an_answer_that_is_none_is_left_out(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rank-0.stacks"
    Path(f"{path}.1.json").write_text(content)
    answered(path, 2, [["default_pg", 6, None, None, 1], ["x" * 999, 6, 7, "y" * 999, 1]])
    rows = collectives.answers(str(path), {})
    assert [(len(row[0]), row[1]) for row in rows] == [(60, 6), (10, 6)]


def test_an_answer_that_is_a_fifo_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.stacks"
    os.mkfifo(f"{path}.1.json")
    assert collectives.answers(str(path), {}) == []
