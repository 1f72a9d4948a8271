"""The packing benchmark on a made-up cluster whose answers are worked out by hand."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks import packing
from benchmarks.baselines.best_fit import BestFit
from benchmarks.baselines.fgd import Fgd
from benchmarks.openb import Workload
from benchmarks.replaying import POLICIES, churn, fill, make_policy
from fairlead.policy.placement.fleet_arrays import FleetArrays
from tests.policy.fleets import node, shape

NODES = """sn,cpu_milli,memory_mib,gpu,model
one,32000,65536,2,T4
two,32000,65536,2,P100
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
share,4000,1024,1,600,
whole,4000,1024,1,1000,P100|V100
pair,4000,1024,2,1000,
cores,4000,1024,0,0,
"""


def write_lists(data: Path) -> None:
    """Lists laid out as the public ones are."""
    openb = data / "openb"
    for folder in ("pods", "arrival_orders", "published"):
        (openb / folder).mkdir(parents=True)
    (openb / "openb_node_list_gpu_node.csv").write_text(NODES)
    (openb / "pods" / "small.csv").write_text(PODS)
    (openb / "published" / "allo.csv").write_text("workload,sc_policy,seed,130\nsmall,06-FGD,7,80.0\n")
    with gzip.open(openb / "arrival_orders" / "small.csv.gz", "wt") as file:
        file.write("seed,rows\n7,0 1 1 3 2 0\n")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["packing", *arguments])
    return packing.main()


def test_every_policy_ends_in_one_of_the_two_ways_that_a_small_list_can_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lists(tmp_path)
    assert run(monkeypatch, "--data", str(tmp_path), "--workloads", "small", "--seeds", "7", "--json") == 0
    lines = {line["policy"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(lines) == list(POLICIES)
    # The first share goes to a T4 and leaves two P100s to whole pods, or takes a P100 and leaves two T4s to the pair.
    assert all(line["allocated_percent"] in (80.0, 90.0) for line in lines.values())
    # FGD knows that whole pods want P100s.
    assert lines["fgd"]["allocated_percent"] == 80.0


def test_the_table_says_how_far_fgd_is_from_its_published_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lists(tmp_path)
    assert run(monkeypatch, "--data", str(tmp_path), "--workloads", "small", "--seeds", "7", "--policies", "fgd") == 0
    assert capsys.readouterr().out.splitlines()[2].split() == [
        "small", "80.00", "(80.00-80.00)", "80.00", "+0.00", "-",
    ]  # fmt: skip


def test_absent_lists_are_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--data", str(tmp_path)) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"{tmp_path}/openb/openb_node_list_gpu_node.csv is not there")


def test_fgd_puts_a_share_where_it_spoils_nothing_for_typical_tasks() -> None:
    # 400 beside 600 leaves no device too small for either task; 400 on an idle device leaves 600, too small for 1000.
    tasks = [shape(gpus=1, milli=400), shape(gpus=1)]
    fleet = FleetArrays((node("a", gpus=2), node("b", gpus=2)))
    fleet.take(1, 1000, 0, (1,), 600)
    spot = Fgd(fleet, tasks, seed=0).choose(tasks[0])
    assert spot is not None
    assert (spot.node, spot.devices) == (1, (1,))


def test_best_fit_takes_the_node_and_the_device_with_the_least_left() -> None:
    fleet = FleetArrays((node("a", gpus=4), node("b", gpus=2)))
    fleet.take(1, 1000, 0, (1,), 300)
    spot = BestFit(fleet, seed=0).choose(shape(gpus=1, milli=500))
    assert spot is not None
    assert (spot.node, spot.devices) == (1, (1,))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_list_that_fills_the_fleet_exactly_is_allocated_whole(policy: str) -> None:
    shapes = (shape(gpus=2), shape(gpus=1, milli=500), shape(gpus=1, milli=500), shape(gpus=1))
    workload = Workload(name="exact", shapes=shapes, orders={})
    fleet = FleetArrays((node("a", gpus=2), node("b", gpus=2)))
    assert fill(shapes, fleet, make_policy(policy, fleet, workload, seed=0)) == 100.0


def test_with_departures_a_fleet_that_is_hardly_used_refuses_nothing_and_ends_as_loaded() -> None:
    workload = Workload(name="light", shapes=(shape(gpus=1),), orders={})
    fleet = FleetArrays(tuple(node(f"n{i}", gpus=8, cores=64) for i in range(8)))
    outcome = churn(workload, 0.3, 300, 0, fleet, make_policy("fairlead", fleet, workload, 0))
    assert outcome.refused == 0.0
    assert outcome.offered == pytest.approx(300, rel=0.2)
    assert 0.1 < 1 - fleet.free_gpu_milli / fleet.total_gpu_milli < 0.5


def test_with_departures_what_is_asked_for_beyond_the_fleet_is_refused() -> None:
    workload = Workload(name="heavy", shapes=(shape(gpus=1),), orders={})
    fleet = FleetArrays((node("a", gpus=4, cores=64), node("b", gpus=4, cores=64)))
    outcome = churn(workload, 4.0, 2000, 0, fleet, make_policy("best-fit", fleet, workload, 0))
    # Erlang's loss formula for 8 servers and 32 erlangs: 0.755.
    assert outcome.refused_percent == pytest.approx(75.5, abs=4)
