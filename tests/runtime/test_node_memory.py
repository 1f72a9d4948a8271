"""Checkpoints in the memory of nodes: what is lost with a node, what is not, and that nothing is ever mixed."""

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.runtime.admission import greet
from fairlead.runtime.channels import receive, send
from fairlead.runtime.checkpoint.directory import PARTIAL, Directory
from fairlead.runtime.checkpoint.manifest import Manifest
from fairlead.runtime.checkpoint.memory import make_place, open_memory
from fairlead.runtime.checkpoint.neighbours import neighbour
from fairlead.runtime.checkpoint.phases import Phase
from fairlead.runtime.checkpoint.restoring import Rejected, Restored, restore
from fairlead.runtime.checkpoint.saving import Saved, Saver
from fairlead.runtime.checkpoint.transfer import TransferServer
from tests.runtime.gang import Gang
from tests.runtime.test_gang import losses

PATIENCE_S = 60.0


class Table:
    """What ranks that are threads say to each other."""

    def __init__(self, world_size: int) -> None:
        self.said: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=PATIENCE_S)


class Threads:
    """A channel between threads."""

    def __init__(self, rank: int, table: Table) -> None:
        self.rank = rank
        self.world_size = len(table.said)
        self._table = table

    def gather(self, value: Any) -> list[Any]:
        self._table.said[self.rank] = value
        self._table.barrier.wait()
        said = list(self._table.said)
        self._table.barrier.wait()
        return said

    def maximum(self, vector: Sequence[int]) -> list[int]:
        return [max(column) for column in zip(*self.gather(list(vector)), strict=True)]

    def close(self) -> None:
        """Nothing is held."""


class Words:
    """A content of one file a rank, which every rank loads whole."""

    def __init__(self, rank: int, word: str) -> None:
        self.num_bytes = len(word)
        self._rank = rank
        self._word = word
        self.loaded: dict[str, str] = {}

    def describe(self) -> dict[str, Any]:
        return {"form": "words"}

    def snapshot(self, directory: Path, *, asynchronous: bool) -> Sequence[Phase]:
        return [lambda place: _write(place / f"rank-{self._rank}", self._word)]

    def loading(self, manifest: Manifest) -> Sequence[Phase]:
        return [lambda place: self.loaded.update({name: (place / name).read_text() for name in manifest.files})]


class World:
    """A run on nodes of two ranks each, in which ranks are threads, and memory and disk are directories."""

    def __init__(self, place: Path, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        place.mkdir(exist_ok=True)
        self.memory = place / "mine" / "run"
        self.disk = place / "disk"

    def save(self, step: int, *, on_disk: bool = False, room: Callable[[int], None] | None = None) -> list[Saved]:
        """Save a state that differs from that of every other step and rank."""
        reports: list[Saved] = []

        def of_rank(channel: Threads) -> None:
            memory, _ = self._open(channel)
            Saver(
                store=Directory(self.disk) if on_disk else memory,
                content=Words(channel.rank, word(channel.rank, step)),
                channel=channel,
                local_rank=channel.rank % 2,
                run="run",
                attempt=0,
                keep=1,
                report=reports.append,
                expect=room or memory.expect,
            ).save(step, background=False)
            memory.close()

        self._on_all_ranks(of_rank)
        return reports

    def restore(self) -> tuple[Restored, list[dict[str, str]], list[Rejected]]:
        """Load on all ranks what is newest; what each of them has then."""
        contents = [Words(rank, "") for rank in range(2 * self.num_nodes)]
        restored: dict[int, Restored] = {}
        rejected: list[Rejected] = []

        def of_rank(channel: Threads) -> None:
            memory, found = self._open(channel)
            restored[channel.rank] = restore(
                store=Directory(self.disk),
                content=contents[channel.rank],
                channel=channel,
                node=channel.rank // 2,
                local_rank=channel.rank % 2,
                reject=rejected.append if channel.rank == 0 else lambda _: None,
                memory=found,
            )
            memory.close()

        self._on_all_ranks(of_rank)
        assert len({(each.step, each.in_memory) for each in restored.values()}) == 1
        return restored[0], [content.loaded for content in contents], rejected

    def lose(self, nodes: Iterable[int]) -> None:
        """Have nodes lose what they have in memory."""
        for node in nodes:
            shutil.rmtree(self.node(node))

    def node(self, number: int) -> Path:
        return self.memory / f"node-{number:05d}"

    def state(self, step: int) -> dict[str, str]:
        """The whole state at a step."""
        return {f"rank-{rank}": word(rank, step) for rank in range(2 * self.num_nodes)}

    def _open(self, channel: Threads) -> Any:
        node, local_rank = divmod(channel.rank, 2)
        return open_memory(self.memory, channel=channel, node=node, local_rank=local_rank, host="127.0.0.1")

    def _on_all_ranks(self, of_rank: Callable[[Threads], None]) -> None:
        table = Table(2 * self.num_nodes)
        problems: list[BaseException] = []

        def work(rank: int) -> None:
            try:
                of_rank(Threads(rank, table))
            except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
                problems.append(error)
                table.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(2 * self.num_nodes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        for problem in problems:
            if not isinstance(problem, threading.BrokenBarrierError):
                raise problem
        assert not problems


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def has_held(gang: Gang, step: int) -> bool:
    """Return whether the memory has that step, or a newer one."""
    return bool(gang.report(0).get("memory_step", 0) >= step)


def word(rank: int, step: int) -> str:
    return f"rank {rank} at step {step}"


@given(st.integers(1, 40))
def test_each_node_has_a_neighbour_and_the_fewest_pairs_are_fatal(num_nodes: int) -> None:
    found = {node: neighbour(node, num_nodes) for node in range(num_nodes)}
    if num_nodes == 1:
        assert found == {0: None}
        return
    holders = {node: holder for node, holder in found.items() if holder is not None}
    assert holders.keys() == found.keys()
    assert all(holder in holders and holder != node for node, holder in holders.items())
    assert sorted(holders.values()) == sorted(holders)  # nobody holds more than one other's
    fatal = {frozenset((node, holder)) for node, holder in holders.items()}
    # Each node is in one pair at least, so that half as many pairs as nodes is the least there can be.
    assert len(fatal) == (num_nodes // 2 if num_nodes % 2 == 0 else (num_nodes - 3) // 2 + 3)


def test_any_node_may_be_lost_and_its_part_comes_from_the_neighbour(tmp_path: Path) -> None:
    for lost in range(3):
        world = World(tmp_path / str(lost), 3)
        world.save(5, on_disk=True)
        assert [each.problem for each in world.save(9)] == [None] * 6
        world.lose([lost])
        restored, loaded, rejected = world.restore()
        assert (restored.step, restored.in_memory, restored.saved_by) == (9, True, 6)
        assert loaded == [world.state(9)] * 6
        assert not rejected


def test_of_four_nodes_two_may_be_lost_unless_they_back_each_other_up(tmp_path: Path) -> None:
    for first, second in combinations(range(4), 2):
        world = World(tmp_path / f"{first}-{second}", 4)
        world.save(5, on_disk=True)
        world.save(9)
        world.lose([first, second])
        restored, loaded, rejected = world.restore()
        is_pair = neighbour(first, 4) == second
        assert (restored.step, restored.in_memory) == ((5, False) if is_pair else (9, True))
        assert loaded == [world.state(restored.step)] * 8
        assert [each.step for each in rejected] == ([9] if is_pair else [])
        assert all(each.in_memory and "is lost, and that of its neighbour too" in each.reason for each in rejected)


def test_disk_that_is_newer_is_taken_before_the_memory(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    world.save(9)
    world.save(12, on_disk=True)
    restored, loaded, _ = world.restore()
    assert (restored.step, restored.in_memory) == (12, False)
    assert loaded == [world.state(12)] * 4


def test_kill_between_two_commits_leaves_one_step_or_the_other(tmp_path: Path) -> None:
    # Of each set of nodes that had committed step 9 when all were killed, and the others were about to.
    for number, committed in enumerate(
        combination for size in range(4) for combination in combinations(range(3), size)
    ):
        world = World(tmp_path / str(number), 3)
        world.save(7)
        before = {node: shutil.copytree(world.node(node), tmp_path / f"{number}-{node}") for node in range(3)}
        world.save(9)
        for node in range(3):
            done, draft = world.node(node) / "step-000000000009", world.node(node) / f"{PARTIAL}step-000000000009-0-a-1"
            shutil.copytree(before[node] / "step-000000000007", world.node(node) / "step-000000000007")
            if node not in committed:
                done.rename(draft)
        restored, loaded, _ = world.restore()
        # What a node has not committed its neighbour may have; one of three is not enough, as each holds two parts.
        assert restored.step == (9 if len(committed) >= 2 else 7)
        assert loaded == [world.state(restored.step)] * 6
        assert not list(world.memory.glob(f"*/{PARTIAL}*"))


def test_step_that_two_starts_saved_differently_is_never_put_together_of_both(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    world.save(7)
    world.save(9)
    other = World(tmp_path / "other", 2)
    other.save(9)  # the same words, but another save: the manifests differ
    for node in (0, 1):
        (world.node(node) / "step-000000000009/rank-0").unlink()
    target = world.node(1) / "step-000000000009"
    shutil.rmtree(target)
    shutil.copytree(other.node(1) / "step-000000000009", target)
    (target / "rank-3").unlink()
    restored, _, rejected = world.restore()
    assert restored.step == 0
    assert [each.step for each in rejected] == [9]


def test_byte_that_changed_in_memory_is_found_and_the_disk_taken(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    world.save(5, on_disk=True)
    world.save(9)
    for path in world.memory.glob("*/step-000000000009/rank-2"):
        path.write_text(word(2, 8))
    restored, loaded, rejected = world.restore()
    assert (restored.step, restored.in_memory) == (5, False)
    assert loaded == [world.state(5)] * 4
    assert [each.reason for each in rejected] == ["rank-2 differs from what was written"]


def test_memory_holds_one_checkpoint_of_two_nodes_each_and_no_draft(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    world.save(7)
    (world.node(1) / f"{PARTIAL}step-000000000008-0-killed-1").mkdir()
    world.save(9)
    for node in range(2):
        assert os.listdir(world.node(node)) == ["step-000000000009"]
        assert len(list(world.node(node).glob("*/rank-*"))) == 4


def test_save_without_room_fails_with_the_reason_and_the_one_before_stays(tmp_path: Path) -> None:
    from fairlead.runtime.errors import StoreUnavailable

    def full(size: int) -> None:
        raise StoreUnavailable(f"{size} bytes are too many")

    world = World(tmp_path, 2)
    world.save(7)
    problems = {each.problem for each in world.save(9, room=full)}
    assert problems == {"16 bytes are too many (rank 0)"}
    assert world.restore()[0].step == 7


def test_room_is_counted_for_all_ranks_of_the_machine_and_their_copies(tmp_path: Path) -> None:
    from fairlead.runtime.errors import StoreUnavailable

    def of_rank(channel: Threads) -> None:
        memory, _ = open_memory(
            tmp_path / "mine" / "run", channel=channel, node=channel.rank, local_rank=0, host="127.0.0.1"
        )
        memory.expect(1000)
        with pytest.raises(StoreUnavailable, match="4000000000000 MB are needed"):
            memory.expect(10**18)
        memory.close()

    world = World(tmp_path, 1)
    world._on_all_ranks(of_rank)


def test_directory_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    make_place(tmp_path / "mine" / "run" / "node-00000")
    (tmp_path / "mine").chmod(0o755)
    with pytest.raises(PermissionError, match="not a directory of this user alone"):
        make_place(tmp_path / "mine" / "run" / "node-00000")
    (tmp_path / "theirs").symlink_to(tmp_path / "mine" / "run")
    with pytest.raises(PermissionError, match="not a directory of this user alone"):
        make_place(tmp_path / "theirs" / "run" / "node-00000")


def test_stranger_gets_nothing_and_nobody_gets_out_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "secret").write_text("secret")
    right = bytes(range(32))
    server = TransferServer(tmp_path / "node", host="127.0.0.1", token=right.hex())

    def ask(request: object, token: bytes = right) -> Any:
        with socket.create_connection((server.address.host, server.address.port), timeout=PATIENCE_S) as connection:
            greet(connection, token)
            send(connection, request)
            return receive(connection)

    with pytest.raises(OSError, match=r"reset|closed|pipe"):
        ask({"get": "..", "name": "secret"}, bytes(32))
    assert "leads out of its directory" in ask({"get": "..", "name": "secret"})["problem"]
    assert "leads out of its directory" in ask({"put": "..", "files": [["new", 0]]})["problem"]
    malformed: tuple[object, ...] = (
        7,
        [],
        {},
        {"get": 1, "name": 2},
        {"put": ".", "files": [["new", "x"]]},
        {"get": ".", "name": "n"},
    )
    for request in malformed:
        assert ask(request)["problem"]
    assert not (tmp_path / "new").exists()
    server.close()


@pytest.mark.torch
@pytest.mark.slow
def test_ranks_killed_at_any_instant_go_on_from_memory_as_if_undisturbed(tmp_path: Path) -> None:
    from tests.runtime import programs

    memory, to, steps = tmp_path / "memory" / "run", tmp_path / "checkpoints", 150
    env = {"FAIRLEAD_CHECKPOINT_MEMORY": str(memory), "FAIRLEAD_CHECKPOINT_MEMORY_EVERY_STEPS": "2"}
    newest = 0
    for attempt, (victim, extra_s) in enumerate([(0, 0.0), (1, 0.003), (0, 0.007), (1, 0.011)]):
        pod_dir = tmp_path / str(attempt)
        gang = Gang(
            programs.train, steps, tmp_path, 0.02, pod_dir=pod_dir, to=to, world_size=2, attempt=attempt, env=env,
            are_nodes=True,
        )  # fmt: skip
        with gang:
            gang.until(partial(has_held, gang, newest + 9), "a save")
            threading.Event().wait(extra_s)  # another instant within a save each time
            gang.signal(victim, signal.SIGKILL)
            gang.signal(1 - victim, signal.SIGKILL)
            assert gang.wait() == [-signal.SIGKILL] * 2
            known = gang.report(0)["memory_step"]
            if attempt:
                assert gang.report(0)["resumed_step"] >= newest
                assert "which was held in memory" in dict(gang.events(0))["Resumed"]
        newest = known
        # The node of the one that was killed first is lost with all that it held.
        shutil.rmtree(memory / f"node-{victim:05d}")
    last = Gang(
        programs.train, steps, tmp_path, pod_dir=tmp_path / "last", to=to, world_size=2, attempt=4, env=env,
        are_nodes=True,
    )  # fmt: skip
    with last:
        last.finish()
        assert last.report(0)["resumed_step"] >= newest
        assert last.report(0)["checkpoint_step"] == steps
    assert not list(memory.iterdir()), "what the disk has is given back"
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    with Gang(programs.train, steps, undisturbed, pod_dir=tmp_path / "u", to=None, world_size=2) as gang:
        gang.finish()
    for rank in range(2):
        assert losses(tmp_path, rank) == losses(undisturbed, rank)
