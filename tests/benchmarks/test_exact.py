"""Policies beside the optimum of small instances."""

import json
import subprocess
import sys

import pytest

from benchmarks import exact_packing
from benchmarks.candidates.mig.layouts import Wish
from benchmarks.candidates.mig.partitions import Device, Held
from benchmarks.exact import PROBLEMS, compare
from benchmarks.exact_mig import optimum
from fairlead.policy.gpu.mig import MODELS, MigInstance
from tests.policy.fleets import node, shape

TOLERANCE = 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_policy_finds_more_than_there_is(problem: str) -> None:
    for seed in range(1000, 1010):
        each = compare(problem, seed)
        assert each.ours <= each.optimum + TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "num_instances", "least"),
    # The first ten of packing are worse than most.
    [
        ("mig", 20, 0.98),
        pytest.param("mig", 200, 0.98, marks=pytest.mark.long),
        ("packing", 10, 0.97),
        pytest.param("packing", 200, 0.98, marks=pytest.mark.long),
    ],
)
def test_policies_are_within_two_percent_of_the_optimum_on_average(
    problem: str, num_instances: int, least: float
) -> None:
    found = [compare(problem, seed) for seed in range(num_instances)]
    assert all(each.ours <= each.optimum + TOLERANCE for each in found)
    assert sum(each.ratio for each in found) / len(found) >= least


def test_the_exact_solver_knows_what_a_person_can_see() -> None:
    use = Held(instance=MigInstance(start=0, profile="1g.5gb"), pod="pod", move_cost=0.5)
    gpu = Device(id="gpu", model=MODELS["A100-40GB"], held=(use,), as_a_whole=False)
    three, four = (Wish(profiles=frozenset({name})) for name in ("3g.20gb", "4g.20gb"))
    assert optimum([gpu], [three]) == 1.0
    assert optimum([gpu], [three, four]) == 1.0
    assert optimum([gpu], [four]) == 0.5


def test_the_command_prints_one_object_an_instance() -> None:
    argv = [sys.executable, "-m", "benchmarks.exact", "--problems", "mig", "--instances", "2", "--json"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [each["seed"] for each in found] == [0, 1]
    assert set(found[0]) == {"problem", "seed", "ours", "optimum", "ours_s", "exact_s"}


def test_the_exact_solver_packs_as_a_person_would() -> None:
    machine, share = node("n", gpus=2), exact_packing.Gang(shape=shape(gpus=1, milli=600), count=1)
    whole, pair = (exact_packing.Gang(shape=shape(gpus=1), count=count) for count in (1, 2))
    alone = {gang: exact_packing.optimum([machine], [gang]) for gang in (share, whole, pair)}
    assert exact_packing.optimum([machine], [share, whole]) == pytest.approx(alone[share] + alone[whole])
    assert exact_packing.optimum([machine], [share, share, whole]) == pytest.approx(alone[share] + alone[whole])
    assert exact_packing.optimum([machine], [share, pair]) == pytest.approx(alone[pair])
    thirds = [exact_packing.Gang(shape=shape(gpus=1, milli=300), count=1)] * 6
    assert exact_packing.optimum([machine], [*thirds, whole]) == pytest.approx(
        6 * exact_packing.optimum([machine], thirds[:1])
    )
