"""Nodes of a run read bundles from each other: once from the store, right bytes only, whatever a peer does."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import RuntimeFault
from fairlead.runtime.admission import greet
from fairlead.runtime.data import layout
from fairlead.runtime.data import peers as peering
from fairlead.runtime.data.cache import BundleCache
from fairlead.runtime.data.manifest import Entry
from fairlead.runtime.data.peer_server import DATA, MOST_LINE, VARIABLE
from fairlead.runtime.data.peers import PeerNodes, Peers, homes_of
from fairlead.runtime.data.reader import Data, DataSet
from fairlead.runtime.data.sources import data_of
from fairlead.runtime.data.stores import FolderStore
from fairlead.runtime.errors import Misuse
from fairlead.runtime.run_key import token_here
from tests.ports import free_port
from tests.runtime.gang import keyed
from tests.waiting import until

HOSTS = "127.0.8.{}"
NUM_FILES = 60
WITHIN_S = 30.0
VERSION, NAME, OTHER = "0" * 16, "1" * 32, "2" * 32
DIGEST = "a" * 64


def content(number: int) -> bytes:
    return bytes([number]) * (100_000 + number)


class Nodes:
    """Nodes of one run, each with a server process and a directory of its own; readers are in this process."""

    def __init__(self, root: Path, count: int) -> None:
        self.root, self.count, self.port = root, count, free_port()
        self.files = root / "files"
        self.files.mkdir()
        for number in range(NUM_FILES):
            (self.files / f"{number:03}.bin").write_bytes(content(number))
        self.total = sum(len(content(number)) for number in range(NUM_FILES))
        self.environ = keyed(root / "key") | {VARIABLE: f"{HOSTS}:{self.port}", "GROUP_WORLD_SIZE": str(count)}
        self.servers = [self._served(node) for node in range(count)]
        self._opened: list[Data] = []
        for node in range(count):
            until(lambda node=node: self._listens(node), "a server")  # type: ignore[misc]

    def _served(self, node: int) -> "subprocess.Popen[bytes]":
        program = "from fairlead.runtime.inpod import main; main()"
        env = self.environ | {"GROUP_RANK": str(node), "FAIRLEAD_DATA_DIR": str(self.root / str(node))}
        return subprocess.Popen([sys.executable, "-c", program, "data", str(self.port)], env=env)

    def _listens(self, node: int) -> bool:
        try:
            socket.create_connection((HOSTS.format(node), self.port), 1.0).close()
        except OSError:
            return False
        return True

    def settings(self, node: int) -> PeerNodes:
        nodes = PeerNodes.of(self.environ | {"GROUP_RANK": str(node)})
        assert nodes is not None
        return nodes

    def reader(self, node: int, limit: int | None = None) -> Data:
        """The data as the rank of a node reads it, which takes every sample."""
        source = DataSet(
            url=str(self.files), mode="cache", directory=self.root / str(node), limit=limit, nodes=self.settings(node)
        )
        self._opened.append(Data(source))
        return self._opened[-1]

    def peer(self, node: int, of: int) -> "Peer":
        """A connection to the server of a node, as another one opens it."""
        return Peer(self, node, of)

    def close(self) -> None:
        for data in self._opened:
            data.close()
        for server in self.servers:
            server.kill()
            server.wait(WITHIN_S)


class Peer:
    """A node that speaks the protocol by hand."""

    def __init__(self, nodes: Nodes, node: int, of: int) -> None:
        self._socket = socket.create_connection((HOSTS.format(of), nodes.port), WITHIN_S)
        greet(self._socket, nodes.settings(node).token, json.dumps({"node": node}).encode())
        self._lines = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, verb: str, name: str = NAME, **fields: Any) -> None:
        self.send(json.dumps({"verb": verb, "version": VERSION, "name": name, **fields}).encode() + b"\n")

    def answer(self) -> dict[str, Any] | None:
        """The next answer that is not a request for patience; None if the connection ended."""
        while True:
            try:
                line = self._lines.readline()
            except ConnectionResetError:
                return None
            if not line:
                return None
            answer: dict[str, Any] = json.loads(line)
            if answer:
                return answer

    def waits(self) -> None:
        """Return once the server has asked for patience."""
        assert self._lines.readline() == b"{}\n"

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path, 3)
    yield made
    made.close()


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what left the store."""
    sizes: list[int] = []
    get = FolderStore.get

    def counted(self: FolderStore, entry: Entry, start: int, stop: int) -> bytes:
        sizes.append(stop - start)
        return get(self, entry, start, stop)

    monkeypatch.setattr(FolderStore, "get", counted)
    return sizes


def read(data: Data, *, epochs: int = 1) -> int:
    """Read all samples and compare them; return their number."""
    number = 0
    for batch in data.batches(7, epochs=epochs):
        for sample in batch:
            assert sample["bin"] == content(int(sample["__key__"]))
            number += 1
    return number


def test_nodes_that_read_at_once_take_each_byte_from_the_store_once(
    nodes: Nodes, read_bytes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BUNDLE_BYTES", 200_000)
    counts: list[int] = []
    readers = [threading.Thread(target=lambda node=node: counts.append(read(nodes.reader(node)))) for node in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(WITHIN_S)
    assert counts == [NUM_FILES] * 3
    assert sum(read_bytes) == nodes.total


def test_a_node_that_comes_later_reads_nothing_from_the_store(nodes: Nodes, read_bytes: list[int]) -> None:
    assert read(nodes.reader(0)) == NUM_FILES
    read_bytes.clear()
    assert read(nodes.reader(1)) == NUM_FILES
    assert read_bytes == []


def test_a_manifest_that_one_node_listed_is_not_listed_by_the_others(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = nodes.reader(0).version
    environ = {"FAIRLEAD_DATA": json.dumps({"train": {"from": str(nodes.files), "mode": "cache", "version": version}})}
    listed: list[str] = []
    entries = FolderStore.entries

    def counted(self: FolderStore) -> list[Entry]:
        listed.append(self.url)
        return entries(self)

    monkeypatch.setattr(FolderStore, "entries", counted)
    for node in (1, 2):
        own = environ | nodes.environ | {"GROUP_RANK": str(node), "FAIRLEAD_DATA_DIR": str(nodes.root / str(node))}
        data = data_of(own, "train")
        assert len(data.files()) == NUM_FILES
        data.close()
    assert len(listed) <= 1  # none if the home of the manifest is the node that has it


def test_a_killed_node_is_passed_over(nodes: Nodes, read_bytes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peering, "START_S", 1.0)
    read(nodes.reader(0))
    nodes.servers[0].kill()
    nodes.servers[0].wait(WITHIN_S)
    read_bytes.clear()
    assert read(nodes.reader(1)) == NUM_FILES
    assert sum(read_bytes) == nodes.total
    read_bytes.clear()
    assert read(nodes.reader(2)) == NUM_FILES
    assert read_bytes == []


def test_a_stopped_node_holds_the_others_up_only_for_a_while(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peering, "ANSWER_S", 0.5)
    nodes.servers[0].send_signal(19)  # SIGSTOP
    began = time.monotonic()
    assert read(nodes.reader(1)) == NUM_FILES
    assert time.monotonic() - began < 20 * peering.ANSWER_S


def test_other_bytes_of_a_node_are_never_served(nodes: Nodes, read_bytes: list[int]) -> None:
    data = nodes.reader(0)
    read(data)
    cache = BundleCache(nodes.root / "0" / "bundles", data.version)
    bundles = nodes.root / "0" / "bundles" / data.version
    until(lambda: not list(bundles.glob("*.part")), "the end of storing")
    for path in list(bundles.iterdir()):
        size = cache_size(cache, path.name)
        path.unlink()
        claim = cache.claim(path.name)
        assert claim is not None
        assert claim.write(b"x" * size) is not None
    read_bytes.clear()
    assert read(nodes.reader(1)) == NUM_FILES
    assert sum(read_bytes) == nodes.total


def cache_size(cache: BundleCache, name: str) -> int:
    bundle = cache.open(name)
    assert bundle is not None
    return bundle.size


def test_a_damaged_bundle_of_a_node_is_read_from_the_store(nodes: Nodes) -> None:
    data = nodes.reader(0)
    read(data)
    bundles = nodes.root / "0" / "bundles" / data.version
    until(lambda: not list(bundles.glob("*.part")), "the end of storing")
    for path in bundles.iterdir():
        with path.open("r+b") as file:
            file.seek(1000)
            file.write(b"damage")
    assert read(nodes.reader(1)) == NUM_FILES


def test_caches_too_small_for_all_hold_different_parts(
    tmp_path: Path, read_bytes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BUNDLE_BYTES", 200_000)
    nodes = Nodes(tmp_path, 2)
    try:
        limit = int(nodes.total * 0.8)
        readers = [nodes.reader(node, limit) for node in range(2)]
        counts: list[int] = []
        threads = [threading.Thread(target=lambda data=data: counts.append(read(data, epochs=3))) for data in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WITHIN_S)
        assert counts == [3 * NUM_FILES] * 2
        assert sum(read_bytes) == nodes.total
        for node in range(2):
            stored = sum(path.stat().st_size for path in (tmp_path / str(node) / "bundles").glob("*/*"))
            assert stored <= limit
    finally:
        nodes.close()


def test_a_stranger_is_refused_before_anything_is_read(nodes: Nodes) -> None:
    with socket.create_connection((HOSTS.format(0), nodes.port), WITHIN_S) as stranger:
        stranger.sendall(b"0" * 32 + b"\xff\xff" + b"{" * 1000)
        stranger.settimeout(WITHIN_S)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = stranger.recv(1)
        assert answer == b""


@pytest.mark.parametrize(
    "data",
    [
        b"{\n",
        b"[]\n",
        b'{"verb": "other", "version": "0000000000000000", "name": "0000000000000000"}\n',
        b'{"verb": "read", "version": "../../../../../", "name": "0000000000000000"}\n',
        b'{"verb": "read", "version": "0000000000000000", "name": "../../../../../../../../../../../"}\n',
        b'{"verb": "fetched", "version": "0000000000000000", "name": "0000000000000000", "size": -1, "digest": ""}\n',
        b"[" * 2 * MOST_LINE,
        b'{"verb": "locate"}\n{"verb": "locate"}\n',
    ],
)
def test_a_malformed_request_ends_its_own_connection_alone(nodes: Nodes, data: bytes) -> None:
    other, bad = nodes.peer(1, of=0), nodes.peer(2, of=0)
    bad.send(data)
    assert bad.answer() is None
    other.ask("read")
    assert other.answer() == {"size": None}
    other.close()
    bad.close()


def test_the_right_to_read_from_the_store_goes_on_when_its_node_dies(nodes: Nodes) -> None:
    first, second = nodes.peer(0, of=0), nodes.peer(1, of=0)
    first.ask("locate")
    assert first.answer() == {"fetch": True}
    second.ask("locate")
    second.waits()
    first.close()
    assert second.answer() == {"fetch": True}
    second.close()


def test_those_who_wait_learn_which_node_holds_a_bundle(nodes: Nodes) -> None:
    first, second = nodes.peer(0, of=0), nodes.peer(1, of=0)
    first.ask("locate")
    assert first.answer() == {"fetch": True}
    second.ask("locate")
    second.waits()
    first.ask("fetched", digest=DIGEST, size=5)
    assert second.answer() == {"nodes": [0], "digest": DIGEST, "size": 5}
    second.ask("locate", without=[0])
    assert second.answer() == {"fetch": True}
    first.close()
    second.close()


def test_nobody_waits_for_a_node_that_has_no_room(nodes: Nodes) -> None:
    first, second = nodes.peer(0, of=0), nodes.peer(1, of=0)
    first.ask("locate")
    assert first.answer() == {"fetch": True}
    second.ask("locate")
    second.waits()
    first.ask("release", kept=False)
    assert second.answer() == {"fetch": False}
    first.close()
    second.close()


def test_a_node_is_read_by_few_at_a_time(nodes: Nodes) -> None:
    holder = nodes.peer(0, of=0)
    holder.ask("fetched", digest=DIGEST, size=5)
    readers = [nodes.peer(1, of=0) for _ in range(4)]
    for reader in readers:
        reader.ask("locate")
    for reader in readers[:3]:
        assert reader.answer() == {"nodes": [0], "digest": DIGEST, "size": 5}
    readers[0].ask("fetched", digest=DIGEST, size=5)
    answer = readers[3].answer()
    assert answer is not None
    assert answer["nodes"] == [1]
    for peer in (holder, *readers):
        peer.close()


def test_homes_are_divided_evenly_and_move_only_from_a_node_that_left() -> None:
    names = [f"{number:032x}" for number in range(6_000)]
    homes = [homes_of(name, range(12)) for name in names]
    counts = [sum(home[0] == node for home in homes) for node in range(12)]
    assert max(counts) < 1.2 * 500
    assert min(counts) > 0.8 * 500
    assert all(
        [node for node in home if node != 11] == homes_of(name, range(11))
        for name, home in zip(names, homes, strict=True)
    )


def test_nobody_is_asked_where_the_run_has_one_node_or_no_servers(tmp_path: Path) -> None:
    assert PeerNodes.of({}) is None
    environ = keyed(tmp_path / "key") | {VARIABLE: "host-{}:29499", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    assert PeerNodes.of(environ) is None
    with pytest.raises(Misuse, match="it is set by Fairlead alone"):
        PeerNodes.of(environ | {"GROUP_RANK": "5", "GROUP_WORLD_SIZE": "2"})
    with pytest.raises(RuntimeFault, match="by which the ranks of a run know each other"):
        PeerNodes.of({**environ, "GROUP_WORLD_SIZE": "2", "FAIRLEAD_KEY_FILE": ""})
    nodes = PeerNodes.of(environ | {"GROUP_WORLD_SIZE": "2"})
    assert nodes is not None
    assert nodes.address(1) == ("host-1", 29499)
    assert nodes.token == token_here(environ, DATA)


def test_a_worker_that_was_forked_holds_no_right(nodes: Nodes) -> None:
    peers = Peers(nodes.settings(1))
    result = peers.obtain(VERSION, NAME, memoryview(bytearray(5)))
    assert result.record is not None
    child = os.fork()
    if child == 0:
        time.sleep(WITHIN_S)
        os._exit(0)
    try:
        result.record.close()
        again = Peers(nodes.settings(2)).obtain(VERSION, NAME, memoryview(bytearray(5)))
        assert again.data is None
        assert again.record is not None
        again.record.close()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        peers.close()
