"""Two real ranks with real gloo: what only several processes can get wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.runtime import run_key
from fairlead.runtime.checkpoint.directory import open_store
from tests.ports import free_port
from tests.runtime.gang import Gang, contract, read_events, read_report

COUNTER = Path(__file__).with_name("counter.py")
FILING = Path(__file__).with_name("filing.py")


def steps_in(to: Path) -> list[int]:
    return open_store(str(to), scratch=None).steps()


def losses(results: Path, rank: int) -> dict[int, list[object]]:
    """The last time each step was made."""
    return {
        step: [loss, samples]
        for step, loss, samples in map(json.loads, (results / f"losses-{rank}.jsonl").read_text().splitlines())
    }


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.mark.slow
@pytest.mark.torch
def test_stop_notice_to_one_rank_saves_the_same_step_on_all_and_resuming_is_bit_identical(
    tmp_path: Path, to: Path
) -> None:
    from tests.runtime import programs

    said = tmp_path / "losses-1.jsonl"  # what is reported may be seconds behind
    with Gang(programs.train, 30, tmp_path, 0.1, pod_dir=tmp_path / "a", to=to) as gang:
        gang.until(lambda: said.is_file() and len(said.read_text().splitlines()) >= 8, "step 8")
        gang.signal(1, signal.SIGTERM)
        assert gang.wait() == [143, 143], gang.logs()
        stopped = {gang.report(rank)["stopped_step"] for rank in (0, 1)}
        assert len(stopped) == 1
        assert steps_in(to) == list(stopped)
        assert [kind for kind, _ in gang.events(1)] == ["StopNotice"]
        assert [kind for kind, _ in gang.events(0)] == ["CheckpointSaved"]
    with Gang(programs.train, 30, tmp_path, pod_dir=tmp_path / "b", to=to, attempt=1) as gang:
        gang.finish()
        assert gang.report(0)["resumed_step"] == stopped.pop()
        assert gang.report(1)["checkpoint_step"] == 30
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    with Gang(programs.train, 30, undisturbed, pod_dir=tmp_path / "c", to=None) as gang:
        gang.finish()
    for rank in (0, 1):
        assert losses(tmp_path, rank) == losses(undisturbed, rank)


@pytest.mark.torch
def test_ranks_killed_in_the_middle_of_a_save_leave_the_one_before_good(tmp_path: Path, to: Path) -> None:
    from tests.runtime import programs

    with Gang(programs.train_and_hang_in_a_save, 50, tmp_path, 12, pod_dir=tmp_path / "a", to=to) as gang:
        gang.until((tmp_path / "in-the-middle").exists, "the save")
        gang.signal(0, signal.SIGKILL)
        gang.signal(1, signal.SIGKILL)
        assert gang.wait() == [-signal.SIGKILL, -signal.SIGKILL]
    newest = steps_in(to)[-1]
    assert 8 <= newest < 12
    assert len(losses(tmp_path, 0)) <= newest + 4
    assert len(list(to.glob(".partial-*"))) == 1
    with Gang(programs.train, 20, tmp_path, pod_dir=tmp_path / "b", to=to, attempt=1) as gang:
        gang.finish()
        assert gang.report()["resumed_step"] == newest
    assert steps_in(to)[-1] == 20
    assert list(to.glob(".partial-*")) == []


@pytest.mark.torch
def test_one_rank_that_cannot_write_fails_the_save_on_all_and_training_goes_on(tmp_path: Path, to: Path) -> None:
    from tests.runtime import programs

    with Gang(programs.train_with_a_failing_disk, 20, tmp_path, 20, pod_dir=tmp_path / "a", to=to) as gang:
        gang.finish()
        failed = {message for kind, message in gang.events() if kind == "CheckpointFailed"}
    assert "it is tried again in 0.1 s" in " ".join(failed)
    told = f"The checkpoint of step 20 could not be saved in {to}: No space left on device (rank 1); "
    assert all(message.startswith(told) for message in failed)
    assert 20 not in steps_in(to)
    assert steps_in(to)
    assert list(to.glob(".partial-*")) == []


@pytest.mark.slow
@pytest.mark.torch
def test_sharded_state_of_two_ranks_is_loaded_into_one_and_back(tmp_path: Path, to: Path) -> None:
    import torch

    from tests.runtime import programs

    with Gang(programs.train_sharded, 5, tmp_path, pod_dir=tmp_path / "a", to=to) as gang:
        gang.finish()
    with Gang(programs.train_sharded, 5, tmp_path, pod_dir=tmp_path / "b", to=to, world_size=1) as gang:
        gang.finish()
        assert ("Resumed", "Resumed after step 5 saved by 2 ranks.") in gang.events()
    two, one = torch.load(tmp_path / "whole-2.pt"), torch.load(tmp_path / "whole-1.pt")
    assert len(two) == 12
    assert all(torch.equal(left, right) for left, right in zip(two, one, strict=True))
    with Gang(programs.train_sharded, 6, tmp_path, pod_dir=tmp_path / "c", to=to, world_size=1) as gang:
        gang.finish()
    with Gang(programs.train_sharded, 6, tmp_path, pod_dir=tmp_path / "d", to=to) as gang:
        gang.finish()
        assert ("Resumed", "Resumed after step 6 saved by 1 ranks.") in gang.events()
    one, two = torch.load(tmp_path / "whole-1.pt"), torch.load(tmp_path / "whole-2.pt")
    assert all(torch.equal(left, right) for left, right in zip(one, two, strict=True))


@pytest.fixture
def start(tmp_path: Path, to: Path) -> Callable[..., list["subprocess.Popen[str]"]]:
    """Starts a script on all ranks of an attempt."""

    def popen(
        attempt: int, steps: int, world_size: int = 2, script: Path = COUNTER, **env: str
    ) -> list["subprocess.Popen[str]"]:
        pod_dir = tmp_path / str(attempt)
        pod_dir.mkdir()
        run_key.create(pod_dir / "key")
        given = {"world_size": world_size, "attempt": attempt, "port": 0, "agree_port": free_port()}
        return [
            subprocess.Popen(
                [sys.executable, str(script), str(steps), "0.005"],
                env={**os.environ, **contract(rank=rank, pod_dir=pod_dir, to=to, **given), **env},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_size)
        ]

    return popen


def test_ranks_without_torch_go_on_when_there_are_more_or_fewer_of_them(
    start: Callable[..., list["subprocess.Popen[str]"]],
) -> None:
    elastic = {"script": FILING, "FAIRLEAD_ELASTIC": "1"}
    assert [rank.communicate(timeout=20)[0] for rank in start(0, 5, 2, **elastic)] == [
        "start 0 with 0\nend 5\n",
        "start 0 with 0\nend 10\n",
    ]
    # The third is new and takes what rank 0 has.
    assert [rank.communicate(timeout=20)[0] for rank in start(1, 6, 3, **elastic)] == [
        "start 5 with 5\nend 6\n",
        "start 5 with 10\nend 12\n",
        "start 5 with 5\nend 8\n",
    ]
    assert [rank.communicate(timeout=20)[0] for rank in start(2, 7, 1, **elastic)] == ["start 6 with 6\nend 7\n"]


def test_files_of_ranks_fit_as_many_ranks_only_where_the_spec_does_not_say_that_it_may_be_others(
    start: Callable[..., list["subprocess.Popen[str]"]],
) -> None:
    for rank in start(0, 5, 2, FILING):
        rank.communicate(timeout=20)
    (alone,) = start(1, 6, 1, FILING)
    assert "it holds the files of 2 ranks and 1 run now" in alone.communicate(timeout=20)[1]
    assert alone.returncode == 1


def test_ranks_without_torch_stop_at_the_same_step_and_resume(
    tmp_path: Path, to: Path, start: Callable[..., list["subprocess.Popen[str]"]]
) -> None:
    ranks = start(0, 100_000)
    deadline = time.monotonic() + 20
    while read_report(tmp_path / "0", 0).get("step", 0) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ranks[0].terminate()
    for rank in ranks:
        rank.communicate(timeout=20)
    assert [rank.returncode for rank in ranks] == [143, 143]
    stopped = [read_report(tmp_path / "0", rank)["stopped_step"] for rank in (0, 1)]
    assert stopped[0] == stopped[1]
    assert steps_in(to) == stopped[:1]
    total = stopped[0] + 10
    outputs = [rank.communicate(timeout=20)[0] for rank in start(1, total)]
    assert outputs[0] == f"start {stopped[0]}\nend {total} torch False fsspec False\n"
    assert outputs[1] == f"start {stopped[0]}\nend {2 * total} torch False fsspec False\n"
    assert [kind for kind, _ in read_events(tmp_path / "1")] == ["Resumed", "CheckpointSaved"]
