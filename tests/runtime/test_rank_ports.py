"""The ports of a run: strangers that send anything, half of it or nothing hold up nobody, and every peer has a token.

One test goes over all ports that ranks and their helpers listen at; a port that is new belongs into ``PORTS``.
"""

import ast
import contextlib
import json
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fairlead.runtime
from fairlead.runtime import admission
from fairlead.runtime.admission import PeerAdmission, greet
from fairlead.runtime.channels import LARGEST_MESSAGE, open_stars, receive
from fairlead.runtime.checkpoint import transfer
from fairlead.runtime.data.peer_server import VARIABLE
from fairlead.runtime.data.peers import PeerNodes, Peers
from fairlead.runtime.elastic.boards import open_board
from fairlead.runtime.errors import AgreementFailed, ReformFailed
from fairlead.runtime.network import measuring
from fairlead.runtime.process_manager import ProcessManager, relay, serve
from tests.ports import free_port
from tests.runtime import test_member_server as members
from tests.runtime import test_ray_cluster as ray
from tests.runtime.gang import keyed
from tests.waiting import until

TOKEN = bytes(range(32))
WITHIN_S = 60.0
SCANNERS = (
    b"",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"[" * 100_000 + b"\n",
    b"\xff" * 4096,
    b"\x00\x00\x10\x00",
    struct.pack(">I", 2**32 - 1) + b"{}",
    b"cmd=barrier_in\n" * 100,
    b"cmd=get_maxes\n" * 20_000,
    b'{"run": "uid/0", "rank": Infinity, "token": "t"}\n',
    b"x\n",
    bytes(32) + b"\xff\xff" + b"[" * 65_535,
    bytes(31),
)
"""What strangers send: scanners, clients of other protocols, and those who know ours but not the token."""


class Strangers:
    """Connections that stay open, half with all that they send and half with the first byte of it."""

    def __init__(self, port: int) -> None:
        self._stack = ExitStack()
        for text in (*SCANNERS, *(text[:1] for text in SCANNERS)):
            peer = self._stack.enter_context(connected(port))
            peer.setblocking(False)
            with contextlib.suppress(OSError):  # refused meanwhile
                peer.send(text)

    def __enter__(self) -> "Strangers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.01)


def agreeing(path: Path) -> None:
    """Ranks meet at rank 0's port."""
    port = free_port()
    answers: list[Any] = [None, None]

    def rank(number: int) -> None:
        (star,) = open_stars(
            rank=number, world_size=2, host="127.0.0.1", port=port, token=TOKEN, names=("agree",), timeout_s=WITHIN_S
        )
        answers[number] = star.gather(number)
        star.close()

    first = threading.Thread(target=rank, args=(0,), daemon=True)
    first.start()
    with Strangers(port):
        rank(1)
        first.join(WITHIN_S)
    assert answers == [[0, 1], [0, 1]]


def sending_checkpoints(path: Path) -> None:
    """A rank's files are fetched from the memory of its node."""
    (path / "node" / "saved").mkdir(parents=True)
    (path / "node" / "saved" / "part").write_text("held")
    server = transfer.TransferServer(path / "node", host="127.0.0.1", token=TOKEN.hex())
    with Strangers(server.address.port):
        transfer.get(server.address, "saved", ["part"], path)
    server.close()
    assert (path / "part").read_text() == "held"


def finding_members(path: Path) -> None:
    """Ranks in pods take their places at the first pod's server."""
    ranks = members.Ranks(path, 2)
    with members.serving(ranks.port, ranks.key) as server:
        with Strangers(ranks.port):
            epochs = ranks.next_epoch(ranks.enter(0), ranks.enter(1))
            assert [epoch is not None and epoch.members for epoch in epochs] == [(0, 1), (0, 1)]
        assert server.poll() is None
        ranks.close()


def exchanging_addresses_of_mpi(path: Path) -> None:
    """Ranks of MPI pass a barrier at the process manager."""
    with managing(2) as port, Strangers(port), relayed(port, 0) as first, relayed(port, 1) as second:
        ranks = (first, second)
        for rank in ranks:
            rank.sendall(b"cmd=barrier_in\n")
        for rank in ranks:
            assert rank.recv(100) == b"cmd=barrier_out rc=0\n"
            rank.sendall(b"cmd=finalize\n")
        for rank in ranks:
            assert rank.recv(100) == b"cmd=finalize_ack rc=0\n"


def joining_ray(path: Path) -> None:
    """Pods join one Ray cluster."""
    gang = ray.Gang(path, 2, starts_at_once=False)
    try:
        gang.start(0)
        with Strangers(gang.port + 1):
            gang.start(1)
            assert ray.first_line(gang.pods[0]) == f"127.0.0.1:{gang.port} 1\n"
        gang.pods[0].stdin.close()  # type: ignore[union-attr]
        assert [pod.wait(ray.TIMEOUT_S) for pod in gang.pods] == [0, 0]
    finally:
        gang.end()


def measuring_the_network(path: Path) -> None:
    """Nodes send to each other, and are measured."""
    server = measuring._Server("127.0.0.1", TOKEN, 0.1)
    with Strangers(server.port):
        assert measuring._sent_rate(("127.0.0.1", server.port), TOKEN, 0.1) > 0.0
    server.close()


def serving_data(path: Path) -> None:
    """A node learns that nobody holds a bundle, and may read it from the store."""
    port = free_port()
    environ = keyed(path / "key") | {
        VARIABLE: f"127.0.0.{{}}:{port}", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "FAIRLEAD_DATA_DIR": str(path),
    }  # fmt: skip
    program = "from fairlead.runtime.inpod import main; main()"
    server = subprocess.Popen([sys.executable, "-c", program, "data", str(port)], env=environ)
    try:
        with Strangers(port):
            nodes = PeerNodes.of(environ)
            assert nodes is not None
            peers = Peers(nodes)
            result = peers.obtain("0" * 16, "1" * 32, memoryview(bytearray(1)))
            assert result.data is None
            assert result.record is not None
            result.record.release()
            peers.close()
        assert server.poll() is None
    finally:
        server.kill()
        server.wait(WITHIN_S)


PORTS: dict[str, Callable[[Path], None]] = {
    "channels.py": agreeing,
    "checkpoint/transfer.py": sending_checkpoints,
    "data/peer_server.py": serving_data,
    "elastic/member_server.py": finding_members,
    "network/measuring.py": measuring_the_network,
    "process_manager.py": exchanging_addresses_of_mpi,
    "ray_cluster.py": joining_ray,
}
OF_OTHERS = {
    "serving/server.py",  # HTTP for everybody, with its own tests
}


@pytest.mark.parametrize("module", PORTS)
def test_strangers_at_a_port_hold_up_no_gang(module: str, tmp_path: Path) -> None:
    if module == "ray_cluster.py" and sys.platform != "linux":
        pytest.skip("children that are adopted are Linux's")
    began = time.monotonic()
    PORTS[module](tmp_path)
    assert time.monotonic() - began < WITHIN_S


def test_every_port_that_the_runtime_listens_at_is_tried() -> None:
    root = Path(fairlead.runtime.__file__).parent
    listening = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("listen", "create_server", "start_server")
    }
    assert listening == set(PORTS) | OF_OTHERS


@contextmanager
def managing(num_ranks: int) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    manager = ProcessManager(num_ranks, num_ranks, "uid-0")
    thread = threading.Thread(target=serve, args=(listener, manager, TOKEN), daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    thread.join(WITHIN_S)
    assert not thread.is_alive(), "the manager ends with its ranks"
    listener.close()


@contextmanager
def relayed(port: int, rank: int) -> Iterator[socket.socket]:
    """A connection of a rank's MPI, through its relay."""
    listener = socket.create_server(("127.0.0.1", 0))

    def connect() -> socket.socket:
        manager = connected(port)
        greet(manager, TOKEN, str(rank).encode())
        return manager

    thread = threading.Thread(target=relay, args=(listener, connect), daemon=True)
    thread.start()
    with connected(listener.getsockname()[1]) as rank_of_mpi:
        yield rank_of_mpi
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(WITHIN_S)


class Port:
    """A port with an admission on a thread; what it admits is kept."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.number: int = self.listener.getsockname()[1]
        self.admitted: list[bytes] = []
        self._peers: list[socket.socket] = []
        self._is_over = False
        self._selector = selectors.DefaultSelector()
        self._admission = PeerAdmission(self.listener, TOKEN, self._selector)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select(0.05):
                if peer := self._admission.handle(key):
                    self._peers.append(peer[0])
                    self.admitted.append(peer[1])
            self._admission.expire()

    def close(self) -> None:
        self._is_over = True
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()
        self._admission.close()
        for peer in (self.listener, *self._peers):
            peer.close()
        self._selector.close()


@pytest.fixture(scope="module")
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.close()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=200),
        st.builds(lambda cut, tail: TOKEN[:cut] + tail, st.integers(0, 31), st.binary(max_size=80)),
        st.builds(lambda size: TOKEN + struct.pack(">H", size), st.integers(admission.MOST_HELLO + 1, 65_535)),
    )
)
def test_whatever_a_stranger_sends_nobody_is_admitted_and_the_next_rank_is(port: Port, data: bytes) -> None:
    before = len(port.admitted)
    with connected(port.number) as stranger, connected(port.number) as rank:
        stranger.sendall(data)
        greet(rank, TOKEN, b"rank")
        until(lambda: len(port.admitted) > before, "the rank is admitted")
    assert port.admitted[before:] == [b"rank"]


def test_a_hello_is_taken_whole_whatever_its_pieces(port: Port) -> None:
    before = len(port.admitted)
    with connected(port.number) as rank:
        for byte in TOKEN + struct.pack(">H", 2) + b"hi":
            rank.sendall(bytes([byte]))
            time.sleep(0)
        until(lambda: len(port.admitted) > before, "it is admitted")
    assert port.admitted[-1] == b"hi"


def test_a_peer_has_its_time_for_the_whole_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "HELLO_WITHIN_S", 0.3)
    port = Port()
    with connected(port.number) as slow:
        slow.settimeout(0.05)
        began, is_open = time.monotonic(), True
        while is_open:
            try:
                slow.sendall(TOKEN[:1])
                is_open = slow.recv(1) != b""
            except TimeoutError:
                assert time.monotonic() - began < WITHIN_S, "each byte prolonged its time"
            except OSError:
                is_open = False
    port.close()


def test_many_silent_peers_make_room_for_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_WAITING", 4)
    port = Port()
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connected(port.number))
        rank = stack.enter_context(connected(port.number))
        greet(rank, TOKEN, b"rank")
        until(lambda: port.admitted == [b"rank"], "it is admitted")
    port.close()


@settings(max_examples=100, deadline=None)
@given(data=st.one_of(st.binary(max_size=100), st.recursive(st.none(), st.lists).map(lambda v: json.dumps(v).encode())))
def test_a_message_is_a_value_or_an_error_of_two_kinds(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack(">I", len(data)) + data)
        theirs.close()
        try:
            receive(ours, max_bytes=64)
        except (OSError, ValueError):
            pass
        else:
            json.loads(data)


@pytest.mark.parametrize("data", [struct.pack(">I", LARGEST_MESSAGE + 1), struct.pack(">I", 9000) + b"[" * 9000])
def test_a_message_too_long_or_too_deep_is_refused(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        with pytest.raises(ValueError, match=r"at most|nested"):
            receive(ours)


def test_a_rank_that_sends_nonsense_ends_its_own_connection_only() -> None:
    port = free_port()
    stars: list[Any] = []
    first = threading.Thread(
        target=lambda: stars.extend(
            open_stars(rank=0, world_size=2, host="127.0.0.1", port=port, token=TOKEN, names=("agree",))
        ),
        daemon=True,
    )
    first.start()
    for hello in (b"", b"[]", b'["agree", 7]', b'["agree", 1e999]', b'[["agree"], 1]', b"[" * 1024, b'{"a": 1}'):
        with connected(port) as peer:
            greet(peer, TOKEN, hello)
            assert peer.recv(1) == b""
    (star,) = open_stars(rank=1, world_size=2, host="127.0.0.1", port=port, token=TOKEN, names=("agree",))
    first.join(WITHIN_S)
    answers: list[Any] = []
    other = threading.Thread(target=lambda: answers.append(stars[0].gather(0)))
    other.start()
    assert star.gather(1) == [0, 1]
    other.join(WITHIN_S)
    assert answers == [[0, 1]]
    for each in (star, *stars):
        each.close()


@settings(max_examples=20, deadline=None)
@given(line=st.one_of(st.binary(min_size=1, max_size=60), st.sampled_from([b"cmd=initack pmiid=x", b"cmd=put key"])))
def test_a_rank_of_mpi_that_sends_nonsense_ends_its_own_connection_only(line: bytes) -> None:
    with managing(1) as port:
        with relayed(port, 0) as broken:
            broken.sendall(line.replace(b"\n", b"") + b"\n" + b"x" * 70_000)
            with contextlib.suppress(ConnectionError):
                while broken.recv(1 << 16):
                    pass
        with relayed(port, 0) as rank:
            rank.sendall(b"cmd=get_appnum\n")
            assert rank.recv(100) == b"cmd=appnum appnum=0\n"
            rank.sendall(b"cmd=finalize\n")
            assert rank.recv(100) == b"cmd=finalize_ack rc=0\n"


def test_a_rank_of_mpi_that_reads_no_answers_keeps_nobody_waiting() -> None:
    with managing(1) as port, relayed(port, 0) as rank, connected(port) as deaf:
        greet(deaf, TOKEN, b"0")
        deaf.settimeout(WITHIN_S)
        with contextlib.suppress(OSError):  # closed, as it leaves too much unread
            for _ in range(200):
                deaf.sendall(b"cmd=get_maxes\n" * 5_000)
        rank.sendall(b"cmd=finalize\n")
        assert rank.recv(100) == b"cmd=finalize_ack rc=0\n"


def test_a_relay_takes_no_connection_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.runtime.process_manager.is_known_user", lambda *_: False)
    with relayed(free_port(), 0) as stranger:
        assert stranger.recv(1) == b""


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 5_000,
        b'{"name": "epoch"}',
        b'{"name": ["epoch"], "value": 1, "number": "x"}',
        b'{"name": "epoch", "value": {}, "number": 1e999}',
        b"null",
        b"\xff",
    ],
)
def test_a_member_that_sends_nonsense_leaves_alone(line: bytes, tmp_path: Path) -> None:
    ranks = members.Ranks(tmp_path, 2)
    with members.serving(ranks.port, ranks.key):
        whole = ranks.enter(0)
        with connected(ranks.port) as broken:
            greet(broken, ranks.secret, b'{"rank": 1, "token": "broken"}')
            until(lambda: whole._board.is_alive(1, "broken"), "it is there")
            broken.sendall(line + b"\n")
            until(lambda: not whole._board.is_alive(1, "broken"), "it was closed")
        whole.plan_resize(3)
        assert whole.resize_at() == 3
        ranks.close()


def test_without_the_token_no_rank_enters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    options: dict[str, Any] = {"world_size": 2, "host": "127.0.0.1", "port": port, "names": ("agree",)}

    def stranger() -> None:
        with pytest.raises(AgreementFailed, match="did not reach"):
            open_stars(rank=1, token=bytes(32), timeout_s=1.0, **options)

    other = threading.Thread(target=stranger)
    other.start()
    with pytest.raises(AgreementFailed, match="did not reach"):
        open_stars(rank=0, token=TOKEN, timeout_s=1.0, **options)
    other.join(WITHIN_S)
    monkeypatch.setattr("fairlead.runtime.elastic.boards.FIND_WITHIN_S", 0.2)
    ranks = members.Ranks(tmp_path, 2)
    with members.serving(ranks.port, ranks.key), pytest.raises(ReformFailed, match="cannot be reached"):
        open_board(tmp_path / "0", ("127.0.0.1", ranks.port), 0, "t", admission=lambda: bytes(32))
