"""The process manager of MPI, by the lines of PMI 1.1 that MPICH sends."""

import socket
import threading
from collections.abc import Callable

import pytest

from fairlead.runtime.admission import greet
from fairlead.runtime.process_manager import ProcessManager, serve


class Rank:
    """A rank as the manager sees it: answers are kept in their order."""

    def __init__(self, manager: ProcessManager) -> None:
        self._manager = manager
        self.heard: list[str] = []

    def says(self, line: str) -> str | None:
        """Send one request; the answer, or None while it waits."""
        before = len(self.heard)
        self._manager.answer(line, self.heard.append)
        return self.heard[-1] if len(self.heard) > before else None


@pytest.fixture
def manager() -> ProcessManager:
    return ProcessManager(num_ranks=2, ranks_per_host=1, name="uid-0")


def test_a_rank_that_connects_hears_its_number(manager: ProcessManager) -> None:
    rank = Rank(manager)
    assert rank.says("cmd=initack pmiid=1") == "cmd=initack rc=0\ncmd=set size=2\ncmd=set rank=1\ncmd=set debug=0\n"
    assert rank.says("cmd=init pmi_version=1 pmi_subversion=1") == (
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
    )
    assert rank.says("cmd=get_my_kvsname") == "cmd=my_kvsname kvsname=uid-0\n"


def test_what_one_rank_puts_another_gets(manager: ProcessManager) -> None:
    card = "description#10.0.0.1 port=5 ifname=eth0 value=x"
    assert Rank(manager).says(f"cmd=put kvsname=uid-0 key=P0-card value={card}") == "cmd=put_result rc=0 msg=success\n"
    other = Rank(manager)
    assert other.says("cmd=get kvsname=uid-0 key=P0-card") == f"cmd=get_result rc=0 msg=success value={card}\n"
    assert other.says("cmd=get kvsname=uid-0 key=P1-card") == ("cmd=get_result rc=-1 msg=key_not_found value=unknown\n")


def test_a_barrier_opens_when_all_are_there_and_again(manager: ProcessManager) -> None:
    ranks = [Rank(manager), Rank(manager)]
    for _ in range(2):
        assert ranks[1].says("cmd=barrier_in") is None
        assert ranks[0].says("cmd=barrier_in") == "cmd=barrier_out rc=0\n"
    assert ranks[1].heard == ["cmd=barrier_out rc=0\n"] * 2


def test_the_end_comes_to_all_at_once_and_to_rank_0_last_as_the_manager_ends_with_it(manager: ProcessManager) -> None:
    heard: list[str] = []
    for name in "01":
        manager.answer(f"cmd=initack pmiid={name}", say := heard_by(name, heard))
        manager.answer("cmd=finalize", say)
        assert manager.is_over == (name == "1")
    assert heard[-2:] == ["1: cmd=finalize_ack rc=0\n", "0: cmd=finalize_ack rc=0\n"]


def heard_by(name: str, heard: list[str]) -> Callable[[str], None]:
    return lambda text: heard.append(f"{name}: {text}")


@pytest.mark.parametrize(("ranks", "on_each", "said"), [(4, 2, "(0,2,2)"), (2, 2, "(0,1,2)"), (3, 1, "(0,3,1)")])
def test_ranks_are_told_who_shares_a_host(ranks: int, on_each: int, said: str) -> None:
    rank = Rank(ProcessManager(num_ranks=ranks, ranks_per_host=on_each, name="uid-0"))
    answer = rank.says("cmd=get kvsname=uid-0 key=PMI_process_mapping")
    assert answer == f"cmd=get_result rc=0 msg=success value=(vector,{said})\n"


def test_another_protocol_is_refused(manager: ProcessManager) -> None:
    with pytest.raises(ValueError, match="is not a request of PMI"):
        Rank(manager).says("cmd=fullinit;pmijobid=1;")


def test_it_ends_when_all_ranks_are_done_and_bears_one_that_only_looks_whether_it_listens() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    token = bytes(32)
    serving = threading.Thread(target=serve, args=(listener, ProcessManager(2, 2, "uid-0"), token), daemon=True)
    serving.start()
    clients = [socket.create_connection(listener.getsockname(), timeout=10.0) for _ in range(3)]
    for client in clients:
        greet(client, token, b"0")
    clients.pop().close()
    for client in clients:
        client.sendall(b"cmd=barrier_in\ncmd=final")
    for client in clients:
        assert client.recv(100) == b"cmd=barrier_out rc=0\n"
        client.sendall(b"ize\n")
    for client in clients:
        assert client.recv(100) == b"cmd=finalize_ack rc=0\n"
        client.close()
    serving.join(timeout=10.0)
    assert not serving.is_alive()
    listener.close()
