"""Replicas of an endpoint copy weights from each other: the processes of ten pods, which start one after another."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.runtime.data.peer_server import OWN_ADDRESS, VARIABLE
from fairlead.runtime.data.reader import Data, DataSet
from tests.ports import free_port
from tests.runtime.gang import keyed
from tests.serving.test_shared_weights import CONTENT, CountingStore, counting_store
from tests.waiting import until

NUM_REPLICAS = 10
WITHIN_S = 300.0
SIZE = len(CONTENT) * 2
# A pod's entry, where the cluster's DNS has the addresses that a file lists.
POD = """
import pathlib, socket, sys
listed, sys.argv = sys.argv[1], sys.argv[1:]
resolve = socket.getaddrinfo
def resolved(host, port, *args, **kwargs):
    if host != "weights":
        return resolve(host, port, *args, **kwargs)
    addresses = pathlib.Path(listed).read_text().split()
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]
socket.getaddrinfo = resolved
from fairlead.runtime.data import trees
trees.PART_BYTES = 1 << 16
if sys.argv[1] == "copy":
    from fairlead.runtime.data.copying import main
    sys.exit(main())
from fairlead.runtime.inpod import main
main()
"""


class Replicas:
    """Pods of one endpoint, each with a server, and a directory and a loopback address of its own."""

    def __init__(self, root: Path, url: str, version: str | None) -> None:
        self._root = root
        self._port = free_port()
        self._listed = root / "listed"
        self._listed.touch()
        fields = {"from": url, "mode": "copy", **({} if version is None else {"version": version})}
        self._env = keyed(root / "key") | {
            VARIABLE: f"weights:{self._port}", "FAIRLEAD_DATA": json.dumps({"weights": fields}),
        }  # fmt: skip
        self.processes: list[subprocess.Popen[str]] = []

    def list(self, *numbers: int) -> None:
        """Let DNS have the addresses of these replicas."""
        partial = self._listed.with_suffix(".new")
        partial.write_text("\n".join(map(_address, numbers)))
        partial.replace(self._listed)

    def start(self, number: int) -> "subprocess.Popen[str]":
        """Start the server of a replica, and the copying before its program."""
        self._run(number, "data", str(self._port))
        return self._run(number, "copy")

    def path(self, number: int) -> Path:
        """Where the program of a replica finds its weights."""
        return self._root / str(number) / "copies" / "weights"

    def ended(self, copying: "subprocess.Popen[str]") -> None:
        output, _ = copying.communicate(timeout=WITHIN_S)
        assert copying.returncode == 0, output

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate(timeout=WITHIN_S)

    def _run(self, number: int, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", POD, str(self._listed), *arguments]
        process = subprocess.Popen(
            command, env=self._env | self._own(number), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.processes.append(process)
        return process

    def _own(self, number: int) -> dict[str, str]:
        directory = str(self._root / str(number))
        return {
            OWN_ADDRESS: _address(number), "FAIRLEAD_DATA_DIR": directory,
            "FAIRLEAD_DATA_WEIGHTS": str(self.path(number)),
        }  # fmt: skip


def _address(number: int) -> str:
    return f"127.0.9.{number + 1}"


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    with counting_store() as url:
        listing = Data(DataSet(url=url, mode="copy", directory=tmp_path / "admission"))
        version = listing.version
        listing.close()
        made = Replicas(tmp_path, url, version)
        yield made
        made.close()


@pytest.mark.slow
def test_ten_replicas_that_start_together_take_weights_from_the_store_once(replicas: Replicas) -> None:
    copying = []
    for number in range(NUM_REPLICAS):
        replicas.list(*range(number + 1))
        copying.append(replicas.start(number))
    for process in copying:
        replicas.ended(process)
    for number in range(NUM_REPLICAS):
        assert (replicas.path(number) / "weights.bin").read_bytes() == CONTENT
    assert CountingStore.num_bytes <= 1.02 * SIZE


@pytest.mark.slow
def test_replicas_that_come_later_read_nothing_from_the_store_even_if_others_are_not_listed(
    replicas: Replicas,
) -> None:
    replicas.list(0)
    replicas.ended(replicas.start(0))
    assert CountingStore.num_bytes == SIZE
    # Each is listed only after the next has started, so that these hear of each other by the first alone.
    later = []
    for number in (1, 2):
        replicas.list(0, number)
        later.append(replicas.start(number))
        until(lambda number=number: (replicas.path(number).parents[1]).exists(), "a copy")  # type: ignore[misc]
    for process in later:
        replicas.ended(process)
    assert CountingStore.num_bytes == SIZE


@pytest.mark.slow
def test_a_replica_whose_peers_are_gone_reads_the_store_itself(replicas: Replicas) -> None:
    replicas.list(0, 1, 2)
    replicas.ended(replicas.start(0))
    for process in replicas.processes:
        process.kill()
    began = time.monotonic()
    replicas.ended(replicas.start(1))
    assert CountingStore.num_bytes == 2 * SIZE
    assert time.monotonic() - began < WITHIN_S / 2
    assert os.path.realpath(replicas.path(1)).startswith(str(replicas.path(1).parents[1] / "trees"))
