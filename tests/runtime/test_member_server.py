"""Ranks that share no directory learn of each other at a server: who is there, who is gone, and what was posted."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.runtime.admission import MOST_HELLO, greet
from fairlead.runtime.elastic import boards
from fairlead.runtime.elastic.beginnings import has_begun
from fairlead.runtime.elastic.boards import ServedBoard, open_board
from fairlead.runtime.elastic.member_server import MEMBERS
from fairlead.runtime.elastic.membership import Epoch, Membership
from fairlead.runtime.errors import ReformFailed
from fairlead.runtime.run_key import token_here
from tests.ports import free_port
from tests.runtime.gang import keyed
from tests.waiting import until

PORT = 4321
WITHIN_S = 60.0


@contextmanager
def serving(port: int, key: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = "import sys; from fairlead.runtime.inpod import main; main()"
    server = subprocess.Popen([sys.executable, "-c", program, "members", str(port)], env=keyed(key))
    try:
        yield server
    finally:
        server.kill()
        server.wait(WITHIN_S)


class Ranks:
    """Ranks of one run, each with a connection of its own; all are in this process."""

    def __init__(self, directory: Path, world_size: int) -> None:
        self.directory, self.world_size, self.port = directory, world_size, free_port()
        self.key = directory / "key"
        environ = keyed(self.key)
        self.secret = token_here(environ, MEMBERS)
        self._made: list[Membership] = []

    def enter(self, rank: int, token: str = "first", replacement: int = 0) -> Membership:
        """Start a rank, in a pod of its own, which is a replacement of so many."""
        token = f"{rank}-{token}"
        own = self.directory / (f"{rank}r{replacement}" if replacement else str(rank))
        board = open_board(own, ("127.0.0.1", self.port), rank, token, replacement, admission=lambda: self.secret)
        self._made.append(Membership(board, token, rank, self.world_size))
        return self._made[-1]

    def next_epoch(self, *members: Membership) -> list[Epoch | None]:
        """Have members wait for the next epoch, all at once, and return the answer to each."""
        found: dict[int, Epoch | None] = {}

        def wait(index: int) -> None:
            found[index] = members[index].next_epoch(lambda: PORT + index, within_s=WITHIN_S, check=lambda: None)

        threads = [threading.Thread(target=wait, args=(index,)) for index in range(len(members))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * WITHIN_S)
        return [found[index] for index in range(len(members))]

    def close(self) -> None:
        for each in self._made:
            each.close()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path, 3)
    with serving(made.port, made.key):
        yield made
        made.close()


def whole(ranks: Ranks) -> list[Membership]:
    members = [ranks.enter(rank) for rank in range(3)]
    assert not has_begun(str(ranks.directory / "2"))
    epochs = ranks.next_epoch(*members)
    assert [each is not None and each.number for each in epochs] == [1, 1, 1]
    assert {(each.host, each.port) for each in epochs if each is not None} == {("127.0.0.1", PORT)}
    return members


def test_a_rank_that_is_gone_is_missed_at_once_and_taken_in_again(ranks: Ranks) -> None:
    zero, one, two = whole(ranks)
    assert has_begun(str(ranks.directory / "2")), "its shim and its next process know that the ranks have met"
    assert not zero.lost_members()
    one.close()
    for each in (zero, two):
        until(lambda: each.lost_members() == [1], "the rank is gone")  # noqa: B023 (called at once)
    left, same = ranks.next_epoch(zero, two)
    assert left == same
    assert left is not None
    assert (left.number, left.members) == (2, (0, 2))

    back = ranks.enter(1, "second")
    waiting = threading.Thread(target=lambda: ranks.next_epoch(back))
    waiting.start()
    until(lambda: two.newcomers() == [1], "it waits")
    zero.plan_resize(7)
    until(lambda: two.resize_at() == 7, "the plan is known")
    again = ranks.next_epoch(zero, two)
    waiting.join(WITHIN_S)
    assert [each is not None and (each.number, each.members) for each in again] == [(3, (0, 1, 2))] * 2
    assert back.epoch == again[0]
    assert zero.is_whole
    assert zero.resize_at() is None


def test_without_the_first_rank_the_next_lowest_leads_and_a_late_rank_learns_of_the_end(ranks: Ranks) -> None:
    zero, one, two = whole(ranks)
    zero.close()
    until(lambda: one.lost_members() == [0] == two.lost_members(), "it is gone")
    epochs = ranks.next_epoch(one, two)
    assert [each is not None and (each.members, each.port) for each in epochs] == [((1, 2), PORT)] * 2
    one.finish()
    until(lambda: two.is_finished, "the end is known")
    assert ranks.next_epoch(ranks.enter(0, "second")) == [None]


def test_a_place_is_for_one_process_at_a_time(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks.enter(0)
    monkeypatch.setattr(boards, "ENTER_WITHIN_S", 0.1)
    with pytest.raises(ReformFailed, match="another process is rank 0"):
        ranks.enter(0, "second")


@pytest.mark.parametrize(
    "said",
    [
        b'{"rank": 0}',
        b'{"rank": Infinity, "token": "x"}',
        b'{"rank": [], "token": "x"}',
        b"[]",
        b"[" * MOST_HELLO,
    ],
)
def test_a_hello_that_is_none_disturbs_nobody(ranks: Ranks, said: bytes) -> None:
    zero = ranks.enter(0)
    with socket.create_connection(("127.0.0.1", ranks.port), timeout=WITHIN_S) as stranger:
        try:
            greet(stranger, ranks.secret, said)
            assert stranger.recv(1) == b""
        except ConnectionError:
            pass  # it was turned away before it had said everything
    zero.plan_resize(3)
    assert zero.resize_at() == 3


def test_many_posts_arrive_in_one_order(ranks: Ranks) -> None:
    made = [ranks.enter(rank) for rank in range(3)]
    threads = [threading.Thread(target=lambda m=m: [m.plan_resize(n) for n in range(200)]) for m in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    made[0].plan_resize(1000)
    until(lambda: {each.resize_at() for each in made} == {1000}, "all have the last one")


def test_a_rank_that_was_cut_off_from_the_others_begins_anew(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    zero = whole(ranks)[0]
    killed: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        killed.append((pid, number))
        raise SystemExit

    board = zero._board
    assert isinstance(board, ServedBoard)
    board._connection.shutdown(socket.SHUT_RDWR)
    until(lambda: zero.is_cut_off, "the connection is over")
    zero.plan_resize(3)  # told by nothing but its next wait
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", kill)
        with pytest.raises(SystemExit):
            zero.next_epoch(lambda: PORT, within_s=WITHIN_S, check=lambda: None)
    assert killed == [(os.getpid(), signal.SIGKILL)]


def test_a_rank_whose_server_is_gone_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, 1)
    with serving(ranks.port, ranks.key) as server:
        alone = ranks.enter(0)
        assert ranks.next_epoch(alone) == [alone.epoch]
        server.kill()
        until(lambda: alone.is_cut_off, "the server is gone")
        with pytest.raises(ReformFailed, match="the first pod, through which the ranks find each other, is gone"):
            alone.next_epoch(lambda: PORT, within_s=WITHIN_S, check=lambda: None)
        monkeypatch.setattr(boards, "FIND_WITHIN_S", 0.2)
        with pytest.raises(ReformFailed, match=f"the ranks' server at 127.0.0.1:{ranks.port} cannot be reached"):
            ranks.enter(0, "second")
    ranks.close()


FORKING = """
import os, sys, time
from pathlib import Path
from fairlead.runtime.elastic.boards import open_board
at, secret = ("127.0.0.1", int(sys.argv[2])), bytes.fromhex(sys.argv[3])
board = open_board(Path(sys.argv[1]), at, 1, "1-first", admission=lambda: secret)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


def test_a_process_that_a_killed_rank_forked_does_not_keep_its_place(ranks: Ranks) -> None:
    zero = ranks.enter(0)
    argv = [sys.executable, "-c", FORKING, str(ranks.directory / "1"), str(ranks.port), ranks.secret.hex()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        worker = int(rank.stdout.readline())
        try:
            until(lambda: zero._board.is_alive(1, "1-first"), "it is there")
            rank.kill()
            until(lambda: not zero._board.is_alive(1, "1-first"), "its place is free")
            os.kill(worker, 0)
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_pod_that_was_replaced_loses_its_ranks_place_and_gets_it_no_more(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero, one, two = whole(ranks)
    # The cluster says that the pod of rank 2 is lost, and its rank still trains: its node is out of reach.
    back = ranks.enter(2, "replaced", replacement=1)
    until(lambda: zero.lost_members() == one.lost_members() == [2], "the newer pod takes the place")
    until(lambda: two.is_cut_off, "the older rank learns nothing more")
    killed: list[int] = []

    def kill(pid: int, number: int) -> None:
        killed.append(number)
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", kill)
        with pytest.raises(SystemExit):
            two.next_epoch(lambda: PORT, within_s=WITHIN_S, check=lambda: None)
    assert killed == [signal.SIGKILL], "it ends before it trains on"
    with pytest.raises(ReformFailed, match="the pod of rank 2 was taken for lost, and is replaced"):
        ranks.enter(2, "again")
    waiting = threading.Thread(target=lambda: ranks.next_epoch(back))
    waiting.start()
    waits = {"token": "2-replaced", "epoch": 0}
    until(lambda: all(each._board.read("ready-2.json") == waits for each in (zero, one)), "it waits")
    found = ranks.next_epoch(zero, one)
    waiting.join(WITHIN_S)
    assert [each is not None and (each.number, each.tokens[2]) for each in found] == [(2, "2-replaced")] * 2
    monkeypatch.setattr(boards, "ENTER_WITHIN_S", 0.2)
    with pytest.raises(ReformFailed, match="another process is rank 2"):
        ranks.enter(2, "twice", replacement=1)
