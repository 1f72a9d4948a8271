"""Checkpoints in the memory of the nodes: each node holds the files of its ranks and a copy of a neighbour's.

A node's memory is a directory in a memory-backed file system that outlives the ranks (``/dev/shm``), so there is no
server process that could be killed. A checkpoint below it has the same layout as on disk, with the files that this node
holds and the same manifest on every node. A checkpoint can therefore be loaded as long as each of its files is on some
node together with the manifest that has its checksum; a kill between the commits of two nodes leaves nothing
inconsistent. See docs/decisions/0100.
"""

import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.runtime.channels import Channel
from fairlead.runtime.checkpoint.directory import PARTIAL, Directory
from fairlead.runtime.checkpoint.manifest import DamagedError, Manifest, files_below
from fairlead.runtime.checkpoint.memory_room import room_in_memory
from fairlead.runtime.checkpoint.neighbours import neighbour
from fairlead.runtime.checkpoint.problems import Failed, clause, failure, settle
from fairlead.runtime.checkpoint.store import Draft, step_name
from fairlead.runtime.checkpoint.transfer import Address, TransferServer, get, put
from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.paths import below
from fairlead.runtime.private_directory import make_private
from fairlead.runtime.run_key import TOKEN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A rank's node, its local rank and the address of its server."""

    node: int
    local_rank: int
    address: Address


class NodeMemory:
    """A Sink in the memory of this rank's node and of its neighbour. Opening it is collective; see ``open_memory``."""

    on_each_node = True

    def __init__(self, root: Path, server: TransferServer, neighbours: list[Address], *, num_sharing: int) -> None:
        """Take the neighbours' servers and the number of ranks that share this machine's memory."""
        self._root = root
        self._num_sharing = num_sharing
        self._directory = Directory(root)
        self._server = server
        self._neighbours = neighbours
        self.place = "memory"

    def workplace(self, draft: Draft, rank: int) -> Path:
        return self._directory.workplace(draft, rank)

    def begin(self, draft: Draft) -> None:
        """Do nothing: each draft has a unique name, so no earlier files are in the way."""

    def expect(self, size: int) -> None:
        """Refuse a save for which there is no room, so that files in memory never cause the ranks to be killed.

        Args:
            size: Bytes that this rank is about to save; the other ranks on this machine are assumed to save as many.

        Raises:
            StoreUnavailable: There is not enough memory, or not enough space in this file system.
        """
        needed = size * (1 + len(self._neighbours)) * self._num_sharing
        free = os.statvfs(self._root)
        room = min(free.f_bavail * free.f_frsize, room_in_memory())
        if needed > room:
            raise StoreUnavailable(
                f"{needed / 1e6:.0f} MB are needed and {max(room, 0) / 1e6:.0f} MB of memory can be given"
            )

    def put(self, draft: Draft, workplace: Path) -> None:
        names = list(files_below(workplace))
        self._directory.put(draft, workplace)
        own = self._root / draft_name(draft)
        for address in self._neighbours:
            put(address, own.name, {name: below(own, name) for name in names})

    def commit(self, draft: Draft, manifest: Manifest) -> None:
        self._directory.commit(draft, manifest)

    def discard(self, draft: Draft) -> None:
        self._directory.discard(draft)

    def release(self, directory: Path) -> None:
        """Do nothing: a workplace goes with its draft."""

    def steps(self) -> list[int]:
        """Steps of this node's memory, ascending."""
        return self._directory.steps()

    def tidy(self, outdated: Iterable[int]) -> None:
        self._directory.tidy(outdated)

    def clear(self) -> None:
        """Free this node's memory. Called by one rank of each node once a newer checkpoint is on disk."""
        shutil.rmtree(self._root, ignore_errors=True)

    def close(self) -> None:
        self._server.close()


class FoundInMemory:
    """A Source of the checkpoints that the nodes hold together, as exchanged between them; the same on all ranks."""

    shared = False
    place = "memory"

    def __init__(
        self, root: Path, node: int, holdings: Mapping[int, "Holding"], servers: Mapping[int, Address]
    ) -> None:
        self._root = root
        self._node = node
        self._holdings = holdings
        self._servers = servers

    def steps(self) -> list[int]:
        """Return the steps for which some node has a manifest, ascending."""
        return sorted({step for holding in self._holdings.values() for step in holding})

    def manifest(self, step: int) -> Manifest:
        """Return the newest manifest of this step whose files are all held.

        Raises:
            DamagedError: The nodes that held some of the files have lost them.
        """
        lost: list[str] = []
        manifests = {text for holding in self._holdings.values() for text, _ in holding.get(step, ())}
        for manifest in sorted(map(_read, manifests), key=lambda manifest: manifest.created_at, reverse=True):
            holders = self._holders(manifest)
            lost = [name for name in manifest.files if not holders.get(name)]
            if not lost:
                return manifest
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise DamagedError(f"the memory that held {lost[0]}{more} is lost, and that of its neighbour too")

    def fetch(self, step: int, names: Iterable[str]) -> Path:
        """Return a directory with the files: links to those of this node, and copies of those of other nodes.

        Raises:
            DamagedError: Files of another node cannot be fetched, or there is no room; the caller falls back to the
            disk.
        """
        all_holders = self._holders(self.manifest(step))
        own, goal = self._root / step_name(step), self._root / f"{PARTIAL}load-{step}-{secrets.token_hex(4)}"
        goal.mkdir(parents=True)
        absent: dict[int, list[str]] = {}
        try:
            for name in names:
                holders = all_holders[name]
                if self._node in holders:
                    path = below(goal, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    os.link(below(own, name), path)
                else:
                    absent.setdefault(holders[0], []).append(name)
            for node, missing in absent.items():
                get(self._servers[node], own.name, missing, goal)
        except (OSError, StoreUnavailable) as error:
            self.release(goal)
            raise DamagedError(clause(error)) from error
        return goal

    def release(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)

    def _holders(self, manifest: Manifest) -> dict[str, list[int]]:
        """Return the nodes that hold each file of exactly this save, by file name."""
        text = manifest.to_json().decode()
        holders: dict[str, list[int]] = {}
        for node, holding in self._holdings.items():
            for own, names in holding.get(manifest.step, ()):
                for name in names if own == text else ():
                    holders.setdefault(name, []).append(node)
        return holders


Holding = dict[int, list[tuple[str, frozenset[str]]]]
"""The content of a node: by step, each manifest as JSON with the names of the files that are there."""


def open_memory(
    place: Path, *, channel: Channel, node: int, local_rank: int, host: str
) -> tuple[NodeMemory, FoundInMemory]:
    """Open the memory of all nodes and find the checkpoints that an earlier attempt left in it. Collective.

    Args:
        place: Directory of the run in a memory-backed file system; each node has its own directory below it.
        host: Address at which the other nodes reach this one.

    Raises:
        StoreUnavailable: The directory cannot be used on some node.
    """
    root = place / f"node-{node:05d}"
    holding: Holding = {}
    server: TransferServer | None = None
    token = channel.gather(secrets.token_hex(TOKEN_BYTES))[0]

    def prepare() -> None:
        nonlocal server
        make_place(root)
        if local_rank == 0:
            # Drafts of killed ranks would otherwise fill the memory.
            Directory(root).tidy(())
            holding.update(_held(Directory(root), root))
        server = TransferServer(root, host=host, token=token)

    problem = failure(prepare)
    port = None if server is None else server.address.port
    held = [[step, text, sorted(names)] for step, entries in holding.items() for text, names in entries]
    try:
        answers = settle(channel, problem, [node, local_rank, host, port, held])
    except Failed as error:
        if server is not None:
            server.close()
        raise StoreUnavailable(f"checkpoints cannot be kept in memory: {error}") from error
    assert server is not None
    peers = [
        Peer(node=answer[0], local_rank=answer[1], address=Address(host=answer[2], port=answer[3], token=token))
        for answer in answers
    ]
    holdings: dict[int, Holding] = {answer[0]: {} for answer in answers}
    for number, _, _, _, entries in answers:
        for step, text, names in entries:
            holdings[number].setdefault(step, []).append((text, frozenset(names)))
    servers = {peer.node: peer.address for peer in reversed(peers)}
    in_memory = FoundInMemory(root, node, holdings, servers)
    sharing = sum(peer.address.host == host for peer in peers)
    return NodeMemory(root, server, _backing(peers, node, local_rank), num_sharing=sharing), in_memory


def make_place(root: Path) -> None:
    """Create a directory and Fairlead's directories above it, accessible to this user alone.

    Any user may write to the file system itself, so the directory must hold only files that this user wrote.

    Raises:
        OSError: One of the directories belongs to another user or is open to others.
    """
    for path in (root.parent.parent, root.parent, root):
        make_private(path)


def draft_name(draft: Draft) -> str:
    """Return the directory name of a draft, which is the same on each node."""
    return f"{PARTIAL}{step_name(draft.step)}-{draft.tag}"


def _backing(peers: list[Peer], node: int, local_rank: int) -> list[Address]:
    """Return the servers that receive a copy of this rank's files: the rank of the same number on the neighbour."""
    nodes = sorted({peer.node for peer in peers})
    place = neighbour(nodes.index(node), len(nodes))
    if place is None:
        return []
    beside = [peer for peer in peers if peer.node == nodes[place]]
    return [beside[local_rank % len(beside)].address]


def _held(directory: Directory, root: Path) -> Holding:
    held: Holding = {}
    for step in directory.steps():
        try:
            manifest = directory.manifest(step)
        except DamagedError:
            continue  # the file was overwritten; other nodes have the same manifest
        sizes = {name: path.stat().st_size for name, path in files_below(root / step_name(step)).items()}
        names = frozenset(name for name, facts in manifest.files.items() if sizes.get(name) == facts.size)
        held[step] = [(manifest.to_json().decode(), names)]
    return held


def _read(text: str) -> Manifest:
    return Manifest.from_json(text.encode())
