"""The slow NIC, uplink or pod of a network is named from a few rounds of pairwise measurements."""

import random

import pytest

from fairlead.runtime.network.slow_links import Pair, Topology, plan_rounds, slow_links

TOPOLOGY = {f"n{i}": (f"pod-{i // 32}", f"leaf-{i // 8}") for i in range(64)}


def measured(pair: Pair, *slow: str, factor: float = 1.3) -> float:
    """Return a second, or more if the pair uses the NIC of a slow node, or leaves a slow domain."""
    ends = [{name, *TOPOLOGY[name]} for name in pair]
    is_slow = any((name in ends[0]) != (name in ends[1]) for name in slow)
    return factor if is_slow else 1.0


def rounds(*slow: str, num_rounds: int = 6, topology: Topology = TOPOLOGY) -> list[dict[Pair, float]]:
    plans = plan_rounds(topology, num_rounds, random.Random(0))
    return [{pair: measured(pair, *slow) for pair in pairs} for pairs in plans]


def test_every_round_pairs_every_node_once_and_spans_its_level() -> None:
    plans = plan_rounds(TOPOLOGY, 6, random.Random(0))
    for number, pairs in enumerate(plans):
        assert sorted(name for pair in pairs for name in pair) == sorted(TOPOLOGY)
        level = 2 - number // 2
        for a, b in pairs:
            assert TOPOLOGY[a][:level] == TOPOLOGY[b][:level]
            assert TOPOLOGY[a][: level + 1] != TOPOLOGY[b][: level + 1] or level == 2


def test_a_network_that_is_even_has_no_slow_link() -> None:
    assert slow_links(TOPOLOGY, rounds()) == ()


def test_a_slow_nic_is_named_with_its_factor() -> None:
    (link,) = slow_links(TOPOLOGY, rounds("n17"))
    assert (link.node, link.domain, link.num_slow, link.num_pairs) == ("n17", (), 6, 6)
    assert link.factor == pytest.approx(1.3)


def test_slow_uplinks_of_a_leaf_are_named_by_their_path() -> None:
    assert [link.domain for link in slow_links(TOPOLOGY, rounds("leaf-3"))] == [("pod-0", "leaf-3")]


def test_a_slow_pod_is_named_though_half_of_the_pairs_between_pods_use_it() -> None:
    four = {f"n{i}": (f"pod-{i // 16}", f"leaf-{i // 4}") for i in range(64)}
    plans = plan_rounds(four, 6, random.Random(0))
    ends = [{pair: {four[name][0] for name in pair} for pair in pairs} for pairs in plans]
    results = [{pair: 1.3 if {"pod-2"} < at else 1.0 for pair, at in pairs.items()} for pairs in ends]
    assert [link.domain for link in slow_links(four, results)] == [("pod-2",)]


def test_two_faults_are_both_named() -> None:
    links = slow_links(TOPOLOGY, rounds("n40", "leaf-1", num_rounds=12))
    assert {(link.node, link.domain) for link in links} == {("n40", ()), (None, ("pod-0", "leaf-1"))}


def test_four_nodes_without_a_topology_have_a_slow_one() -> None:
    flat: Topology = {f"n{i}": () for i in range(4)}
    plans = plan_rounds(flat, 6, random.Random(1))
    (link,) = slow_links(flat, [{pair: 9.0 if "n2" in pair else 1.0 for pair in pairs} for pairs in plans])
    assert link.node == "n2"


def test_pairs_that_are_slow_by_chance_name_nobody() -> None:
    results = rounds()
    for number, times in enumerate(results):
        times[list(times)[number]] = 2.0
    assert slow_links(TOPOLOGY, results) == ()
