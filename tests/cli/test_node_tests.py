"""Nodes are tested by hand, by a run in the queue whose result is a table."""

from pathlib import Path

import pytest

from fairlead.cli.node_tests import result_of, run_for, table_of
from fairlead.control.opening import open_local
from fairlead.errors import Conflict
from fairlead.specs.preflight import Preflight
from tests.builders import node
from tests.cli.conftest import Call

BOTH = Preflight(network_s=60.0, gpu_s=30.0)
LINKS = Preflight(network_s=1.0)


def test_a_test_of_gpus_asks_for_all_of_a_node() -> None:
    spec = run_for([node("a", gpus=8), node("b", gpus=8)], BOTH, 2, name="node-test")
    assert spec.run == "python -m fairlead.runtime.preflight --network 60 --gpu 30"
    assert spec.resources.gpu is not None
    assert (spec.nodes, spec.world_size, spec.resources.gpu.num_devices) == (2, 2, 8)


def test_without_gpus_a_pod_asks_for_more_than_half_of_the_cores_of_a_node() -> None:
    spec = run_for([node("a"), node("b"), node("c", cpu_milli=500, closed="cordoned")], LINKS, 2, name="node-test")
    assert spec.resources.gpu is None
    assert spec.resources.cpu_milli == 2400


def test_a_cluster_without_gpus_or_open_nodes_is_refused() -> None:
    with pytest.raises(Conflict, match="no node of the cluster has a GPU to test"):
        run_for([node("a")], BOTH, 2, name="node-test")
    with pytest.raises(Conflict, match="no node of the cluster takes pods now"):
        run_for([node("a", closed="cordoned")], LINKS, 2, name="node-test")


def test_a_table_has_a_row_for_each_node_and_its_verdict() -> None:
    gpu = {"device": 0, "model": "H100", "tflops": 700.0, "num_products": 9, "num_wrong": 0}
    result = {
        "nodes": [
            {"node": "a", "verdict": None, "says": None},
            {"node": "b", "verdict": "slow", "says": "its network is 3 times as slow as that of the others"},
        ],
        "network": {"nodes": 2, "rounds": 6, "median_gb_s": 2.5, "slow": [], "unreachable": []},
        "gpus": [{"node": "a", **gpu}],
    }
    lines = table_of(result).splitlines()
    assert lines[1].split() == ["a", "1", "700", "to", "700", "fine"]
    assert lines[2].startswith("b")
    assert "slow" in lines[2]
    assert lines[3] == "network: 2 nodes, 6 rounds: a median of 2.5 GB/s between two"
    assert lines[4].startswith("Of 2 nodes nobody can say which is slow")


def test_a_run_in_the_queue_tests_and_its_result_is_read(tmp_path: Path, desk: Path) -> None:
    """On this machine all pods are on one node, so that there is no link to measure."""
    cluster = open_local()
    try:
        cluster.nudge()
        cores = [node("here", cpu_milli=500)]
        result = result_of(cluster, run_for(cores, LINKS, 2, name="node-test"), tmp_path, print)
    finally:
        cluster.close()
    assert [row["verdict"] for row in result["nodes"]] == [None, None]
    assert (result["network"], result["gpus"]) == (None, [])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--network",), "this machine is one; name a cluster"),
        (("--nodes", "4"), "--nodes is for --network or --gpu of a cluster"),
    ],
)
def test_tests_of_nodes_need_a_cluster(call: Call, options: tuple[str, ...], problem: str) -> None:
    ended = call("doctor", *options)
    assert ended.code == 2
    assert problem in ended.err
