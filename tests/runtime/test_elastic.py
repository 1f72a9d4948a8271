"""Real ranks that go on in place: one is killed in the middle of a step, and taken in again when it is back."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.runtime.gang import Gang
from tests.runtime.test_member_server import serving

STEPS = 60
# A float sum over three parts is another than that over four.
TOLERANCE = 1e-4


def losses(results: Path) -> dict[int, list[Any]]:
    """Loss, ranks and learning rate of each step, as it was made last."""
    path = results / "losses.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {step: said for step, *said in map(json.loads, lines)}


def ranks_of_last_step(results: Path) -> int:
    said = losses(results)  # read once: ranks write on meanwhile
    return int(said[max(said)][1])


def elastic(
    tmp_path: Path,
    name: str,
    pace_s: float,
    *,
    steps: int = STEPS,
    port: int | None = None,
    are_nodes: bool = False,
) -> tuple[Gang, Path]:
    """A gang whose ranks find each other by files, or at the server on a port, as in pods."""
    from tests.runtime import elastic_program

    results = tmp_path / name
    results.mkdir()
    at = {} if port is None else {"FAIRLEAD_MEMBERS_HOST": "127.0.0.1", "FAIRLEAD_MEMBERS_PORT": str(port)}
    gang = Gang(
        elastic_program.train, steps, results, pace_s, 10,
        pod_dir=results / "pod", to=results / "checkpoints", world_size=4,
        env={"FAIRLEAD_MEMBERS_DIR": str(results / "members"), **at}, preload=["tests.runtime.elastic_program"],
        are_nodes=are_nodes,
    )  # fmt: skip
    return gang, results


def return_unnoticed(gang: Gang, rank: int, members: Path) -> None:
    """Kill a rank and start it again while the others stand still, and let them go on once it waits for them."""
    others = [number for number in range(len(gang.processes)) if number != rank]
    for other in others:
        gang.signal(other, signal.SIGSTOP)
    gang.signal(rank, signal.SIGKILL)
    gang.revive(rank)
    own = f'"token": "{gang.processes[rank].pid}-'
    gang.until(lambda: own in (members / f"ready-{rank}.json").read_text(), f"rank {rank}")
    for other in others:
        gang.signal(other, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.torch
def test_ranks_go_on_without_those_that_were_killed_and_train_the_same(tmp_path: Path) -> None:
    gang, calm = elastic(tmp_path, "calm", 0.0)
    with gang:
        gang.finish()
    gang, results = elastic(tmp_path, "disturbed", 0.05)
    with gang:
        for step, rank in ((5, 2), (14, 0)):  # the first one last, as it is whom the others follow
            gang.until(lambda: len(losses(results)) >= step, f"step {step}")  # noqa: B023 (called at once)
            others = [process.pid for number, process in enumerate(gang.processes) if number != rank]
            gang.signal(rank, signal.SIGKILL)
            # Back before the others have noticed, it would be in their next group, and no step be of three.
            gang.until(lambda: ranks_of_last_step(results) == 3, "a step of three ranks", without=rank)
            gang.revive(rank)
            gang.until(lambda: ranks_of_last_step(results) == 4, "a step of four ranks again")
            assert [process.pid for number, process in enumerate(gang.processes) if number != rank] == others
        gang.until(lambda: len(losses(results)) >= 23, "step 23")
        return_unnoticed(gang, 1, results / "members")
        gang.finish()
        events = [event for rank in range(4) for event in gang.events(rank)]
        told = [kind for kind, _ in events]
    expected, found = losses(calm), losses(results)
    assert sorted(found) == list(range(1, STEPS + 1))
    assert {step: rate for step, (_, _, rate, _) in found.items()} == {step: said[2] for step, said in expected.items()}
    worst = max(abs(found[step][0] / expected[step][0] - 1) for step in expected)
    assert worst < TOLERANCE
    assert (told.count("RankLost"), told.count("RankReturned")) == (3, 2)
    (message,) = (message for _, message in events if "back already" in message)
    assert message.startswith("rank 1 is gone and rank 1 is back already; 4 of 4 ranks go on in place after step ")
    assert (results / "checkpoints").exists()


@pytest.mark.torch
@pytest.mark.long
def test_ranks_that_share_no_directory_go_on_without_one_and_take_it_in_again(tmp_path: Path) -> None:
    gang, calm = elastic(tmp_path, "calm", 0.0, steps=24)
    with gang:
        gang.finish()
    port = free_port()
    gang, results = elastic(tmp_path, "disturbed", 0.05, steps=24, port=port)
    with serving(port, gang.pod_dir / "key"), gang:
        gang.until(lambda: len(losses(results)) >= 5, "step 5")
        gang.signal(0, signal.SIGKILL)
        gang.until(lambda: ranks_of_last_step(results) == 3, "a step of three ranks", without=0)
        gang.revive(0)
        gang.until(lambda: ranks_of_last_step(results) == 4, "a step of four ranks again")
        gang.finish()
        told = [kind for rank in range(4) for kind, _ in gang.events(rank)]
    expected, found = losses(calm), losses(results)
    assert sorted(found) == list(range(1, 25))
    assert max(abs(found[step][0] / expected[step][0] - 1) for step in expected) < TOLERANCE
    assert (told.count("RankLost"), told.count("RankReturned")) == (1, 1)


@pytest.mark.slow
@pytest.mark.torch
def test_a_pod_that_is_told_to_stop_leaves_alone_and_the_first_one_stops_all(tmp_path: Path) -> None:
    gang, results = elastic(tmp_path, "told", 0.05, steps=10_000, are_nodes=True)
    with gang:
        gang.until(lambda: len(losses(results)) >= 5, "step 5")
        began = max(losses(results))
        gang.signal(2, signal.SIGTERM)
        gang.until(lambda: ranks_of_last_step(results) == 3, "a step of three ranks", without=2)
        left = min(step for step, said in losses(results).items() if said[1] == 3)
        assert left > began + 1, "it trains on for a while, as the others may be told as well"
        gang.processes[2].join(10)
        assert gang.processes[2].exitcode == 143
        assert any("this pod leaves while the others continue" in message for _, message in gang.events(2))
        gang.revive(2)
        gang.until(lambda: ranks_of_last_step(results) == 4, "a step of four ranks again")
        for rank in range(4):
            gang.signal(rank, signal.SIGTERM)
        assert gang.wait() == [143, 143, 143, 143]
        report = gang.report()
    assert report["stopped_step"] == report["checkpoint_step"] == max(losses(results)), "all at one step, and saved"
    assert report["in_place_attempt"] == 0


@pytest.mark.torch
def test_a_rank_whose_collective_does_not_fail_after_another_was_killed_is_killed_too(tmp_path: Path) -> None:
    from tests.runtime import elastic_program

    with Gang(
        elastic_program.stand_still, tmp_path, pod_dir=tmp_path / "pod", to=None, world_size=2,
        env={"FAIRLEAD_MEMBERS_DIR": str(tmp_path / "members")}, preload=["tests.runtime.elastic_program"],
    ) as gang:  # fmt: skip
        gang.until(lambda: len(list(tmp_path.glob("in-step-*"))) == 2, "a step of both")
        gang.signal(1, signal.SIGKILL)
        assert gang.wait() == [-signal.SIGKILL, -signal.SIGKILL]
        assert "a collective did not fail when a rank was gone; this rank starts again" in gang.logs()


@pytest.mark.torch
def test_a_program_that_fails_by_itself_is_not_taken_for_a_lost_rank(tmp_path: Path) -> None:
    from tests.runtime import elastic_program

    with Gang(
        elastic_program.fail, pod_dir=tmp_path / "pod", to=None, world_size=2,
        env={"FAIRLEAD_MEMBERS_DIR": str(tmp_path / "members")}, preload=["tests.runtime.elastic_program"],
    ) as gang:  # fmt: skip
        assert gang.wait() == [1, 1]
        assert "RuntimeError: a mistake" in gang.logs()
