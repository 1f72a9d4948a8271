"""The nodes of a run measure the network between them, and the slow or cut off one is named."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime import run_key
from fairlead.runtime.environment import Environment
from fairlead.runtime.network import measuring
from fairlead.runtime.network.__main__ import as_data, sentences
from fairlead.runtime.network.measuring import NetworkReport, measure, topology_of
from fairlead.runtime.network.slow_links import SlowLink
from tests.network_namespaces import FIRST_ADDRESS, MBIT_S, SLOW_MBIT_S, lacking, namespaces
from tests.ports import free_port

PROGRAM = [sys.executable, "-m", "fairlead.runtime.network"]
NUM_NODES = 4
SLOW = 2


class InThreads:
    """The channel of ranks that are threads of this process."""

    def __init__(self, rank: int, barrier: threading.Barrier, values: list[Any]) -> None:
        self.rank, self.world_size = rank, len(values)
        self._barrier, self._values = barrier, values

    def gather(self, value: Any) -> list[Any]:
        self._values[self.rank] = json.loads(json.dumps(value))
        self._barrier.wait(60)
        values = list(self._values)
        self._barrier.wait(60)
        return values

    def maximum(self, vector: Any) -> list[int]:
        return [max(column) for column in zip(*self.gather(list(vector)), strict=True)]

    def close(self) -> None:
        """Has nothing open."""


def measured(path: Path, *, num_rounds: int = 6, ranks_per_node: int = 1, racks: tuple[str, ...] = ()) -> NetworkReport:
    """Return what nodes of this process measure, at addresses of their own."""
    key = path / "key"
    run_key.write(key, run_key.new_key())
    size = (len(racks) or NUM_NODES) * ranks_per_node
    barrier, values = threading.Barrier(size), [None] * size
    reports: list[NetworkReport | None] = [None] * size

    def rank(number: int) -> None:
        environment = Environment(
            rank=number, world_size=size, local_rank=number % ranks_per_node, local_size=ranks_per_node,
            node=number // ranks_per_node, run_uid="u", run_dir=path, key_file=str(key),
        )  # fmt: skip
        address = {"FAIRLEAD_POD_IP": f"127.0.0.{environment.node + 1}", "FAIRLEAD_NODE": "n"}
        if racks:
            address["FAIRLEAD_DOMAINS"] = json.dumps({"zone": "a", "rack": racks[environment.node]})
        channel = InThreads(number, barrier, values)
        reports[number] = measure(channel, environment, address, num_rounds=num_rounds, seconds=0.05)

    threads = [
        threading.Thread(target=rank, args=(number,), name=f"node-{number // ranks_per_node}", daemon=True)
        for number in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    first = reports[0]
    assert first is not None
    assert all(report == first for report in reports)
    return first


def test_nodes_of_one_speed_are_all_measured(tmp_path: Path) -> None:
    report = measured(tmp_path, num_rounds=2, ranks_per_node=2)
    assert report.num_nodes == NUM_NODES
    assert report.median_gb_s > 0.0
    assert report.unreachable == ()


def test_the_node_with_the_slow_network_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(peer: tuple[str, int], *_: object) -> float:
        is_slow = peer[0] == f"127.0.0.{SLOW + 1}" or threading.current_thread().name == f"node-{SLOW}"
        return 0.2 if is_slow else 1.0

    monkeypatch.setattr(measuring, "_sent_rate", rate)
    monkeypatch.setattr(measuring, "_received_rate", lambda *_: 1.0)
    report = measured(tmp_path)
    (link,) = report.slow
    assert (link.node, round(link.factor, 6)) == (f"n (pod {SLOW})", 5.0)
    assert sentences(report)[-1] == (
        f"n (pod {SLOW}): its network is 5 times as slow as that of the others, in 6 of 6 pairs"
    )


def test_the_rack_with_the_slow_uplink_is_named_and_none_of_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    racks = tuple(f"r{number // 2}" for number in range(10))

    def rate(peer: tuple[str, int], *_: object) -> float:
        ends = int(peer[0].rpartition(".")[2]) - 1, int(threading.current_thread().name.partition("-")[2])
        of_both = {racks[end] for end in ends}
        return 0.5 if len(of_both) == 2 and "r3" in of_both else 1.0

    monkeypatch.setattr(measuring, "_sent_rate", rate)
    monkeypatch.setattr(measuring, "_received_rate", lambda *_: 1.0)
    report = measured(tmp_path, num_rounds=12, racks=racks)
    (link,) = report.slow
    assert (link.node, link.domain) == (None, ("rack r3",))
    assert sentences(report)[-1].startswith("rack r3: its uplink is 2 times as slow as that of the others, in ")
    slow = as_data(report)["slow"]
    assert isinstance(slow, list)
    assert slow[0]["domain"] == ["rack r3"]


def test_of_two_racks_the_network_between_them_is_named() -> None:
    link = SlowLink(domain=("rack a",), factor=2.0, num_slow=8, num_pairs=8)
    report = NetworkReport(
        num_nodes=8, num_rounds=6, median_gb_s=1.0, slow=(link,), unreachable=(), domains=(("rack a",), ("rack b",))
    )
    assert sentences(report)[-1].startswith("rack a and rack b: the network between them is 2 times as slow")


def test_levels_count_that_all_nodes_have_and_that_divide_them() -> None:
    nodes = {f"n{number}": {"zone": "a", "rack": f"r{number // 2}", "island": f"i{number}"} for number in range(4)}
    assert topology_of(nodes)["n2"] == ("rack r1",)
    assert topology_of({**nodes, "n4": {"zone": "a"}})["n2"] == ()
    assert topology_of({}) == {}


def test_nodes_that_cannot_reach_each_other_are_told_and_the_others_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = socket.create_connection

    def refused(address: tuple[str, int], **options: Any) -> socket.socket:
        if address[0] == f"127.0.0.{SLOW + 1}":
            raise ConnectionRefusedError
        return connect(address, **options)

    monkeypatch.setattr(socket, "create_connection", refused)
    report = measured(tmp_path)
    assert report.unreachable
    assert {second for _, second in report.unreachable} == {f"n (pod {SLOW})"}
    assert not report.is_fine
    assert report.median_gb_s > 0.0
    assert as_data(report)["unreachable"] == [list(pair) for pair in report.unreachable]


def test_of_fewer_than_four_nodes_none_can_be_named() -> None:
    report = NetworkReport(num_nodes=3, num_rounds=1, median_gb_s=1.0, slow=(), unreachable=())
    assert sentences(report)[-1] == "Of 3 nodes nobody can say which is slow; measure 4 or more."


@pytest.mark.parametrize("rate", [0, "1.0", -1.0, 0.0, float("inf"), float("nan"), None, [1.0], 1e9])
def test_what_a_peer_sends_as_its_rate_is_one_or_refused(rate: Any) -> None:
    with pytest.raises(ValueError, match="no rate"):
        measuring._valid_rate(rate)


def test_a_stranger_is_not_served(tmp_path: Path) -> None:
    server = measuring._Server("127.0.0.1", bytes(32), 0.1)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as stranger:
            stranger.sendall(b"x" * 32 + b"\x00\x06" + b'"send"')
            stranger.settimeout(30)
            try:
                assert stranger.recv(1) == b""
            except ConnectionResetError:
                return
    finally:
        server.close()


def test_a_run_of_one_node_is_refused_with_the_key_to_write() -> None:
    ended = subprocess.run(PROGRAM, capture_output=True, text=True, check=False, env=_plain(), timeout=120)
    assert ended.returncode == 2
    assert "give the spec `nodes: 2` or more" in ended.stderr


@pytest.mark.parametrize(
    ("option", "problem"), [("--rounds=0", "--rounds 0: give 1 to"), ("--seconds=nan", "--seconds nan: give more")]
)
def test_options_out_of_range_are_refused(option: str, problem: str) -> None:
    command = [*PROGRAM, option]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=_plain(), timeout=120)
    assert ended.returncode == 2
    assert problem in ended.stderr


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLEAD_", "RANK", "WORLD_"))}


@pytest.mark.slow
@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
def test_a_slowed_link_between_real_networks_is_named(tmp_path: Path) -> None:
    key = tmp_path / "key"
    run_key.write(key, run_key.new_key())
    port = free_port()
    with namespaces(NUM_NODES, SLOW) as names:
        ranks = [
            subprocess.Popen(
                ["ip", "netns", "exec", name, *PROGRAM, "--seconds=0.4", "--json"],
                stdout=subprocess.PIPE,
                text=True,
                env=_plain()
                | {
                    "RANK": str(number), "WORLD_SIZE": str(NUM_NODES), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                    "GROUP_RANK": str(number), "MASTER_ADDR": FIRST_ADDRESS, "FAIRLEAD_AGREE_PORT": str(port),
                    "FAIRLEAD_KEY_FILE": str(key), "FAIRLEAD_RUN_UID": "u", "FAIRLEAD_NODE": f"node-{number}",
                },
            )
            for number, name in enumerate(names)
        ]  # fmt: skip
        output = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 0, 0, 0]
    report = json.loads(output[0])
    assert [link["node"] for link in report["slow"]] == [f"node-{SLOW} (pod {SLOW})"]
    assert report["slow"][0]["factor"] == pytest.approx(MBIT_S / SLOW_MBIT_S, rel=0.4)
