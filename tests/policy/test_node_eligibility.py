"""Which nodes take a run, room or not."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.placement.free_capacity import rooms
from fairlead.policy.placement.node_eligibility import (
    PRICE_LABEL,
    SPOT_MARKS,
    Eligibility,
    price_label,
    tolerates,
    tolerations,
)
from fairlead.policy.placement.placement import place, why_never, why_waiting
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Capacity, Training
from fairlead.state.snapshot import Gpu, Node, Taint

GIB = 1024**3


def a_node(name: str, *taints: Taint, gpus: tuple[Gpu, ...] = (), **labels: str) -> Node:
    return Node(name=name, cpu_milli=8000, memory_bytes=8 * GIB, gpus=gpus, labels=labels, taints=taints)


def a_run(pod: dict[str, Any] | None = None, *, spot: bool = False, gpu_milli: int = 0, nodes: int = 1) -> Training:
    gpu = GpuRequest(milli=gpu_milli) if gpu_milli else None
    return Training(
        name="train",
        run="x",
        nodes=nodes,
        resources=Resources(cpu_milli=1000, memory_bytes=GIB, gpu=gpu),
        capacity=Capacity(spot=spot),
        kubernetes=overlay({"spec": pod or {}}),
    )


SPOT = Taint(key="cloud.google.com/gke-spot", value="true")
OURS = Taint(key="team", value="vision")


@pytest.mark.parametrize(
    ("taint", "toleration", "expected"),
    [
        (OURS, {"key": "team", "operator": "Exists"}, True),
        (OURS, {"operator": "Exists"}, True),
        (OURS, {"key": "team", "value": "vision"}, True),
        (OURS, {"key": "team", "operator": "Equal", "value": "vision", "effect": "NoSchedule"}, True),
        (OURS, {"key": "team", "value": "speech"}, False),
        (OURS, {"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        (OURS, {"key": "other", "operator": "Exists"}, False),
        (OURS, {"value": "vision"}, False),
        (Taint(key="team"), {"key": "team"}, True),
    ],
)
def test_a_toleration_is_for_a_taint_as_kubernetes_reads_it(
    taint: Taint, toleration: dict[str, str], expected: bool
) -> None:
    assert tolerates([toleration], taint) is expected
    pod = {"tolerations": [toleration]}
    assert ("n" not in Eligibility([a_node("n", taint)]).barred(a_run(pod))) is expected


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ["a", "b"], {"a", "b"}),
        ("NotIn", ["a"], {"b", "none"}),
        ("Exists", [], {"a", "b"}),
        ("DoesNotExist", [], {"none"}),
        ("Gt", ["1"], set()),
        ("Strange", ["a"], set()),
    ],
)
def test_an_affinity_to_nodes_is_read_as_kubernetes_reads_it(
    operator: str, values: list[str], expected: set[str]
) -> None:
    nodes = [a_node("a", zone="a"), a_node("b", zone="b"), a_node("none")]
    assert set(taking(nodes, {"key": "zone", "operator": operator, "values": values})) == expected


def test_numbers_in_labels_are_compared_as_numbers() -> None:
    nodes = [a_node("small", gib="80"), a_node("large", gib="141"), a_node("odd", gib="many")]
    assert taking(nodes, {"key": "gib", "operator": "Gt", "values": ["80"]}) == ["large"]
    assert taking(nodes, {"key": "gib", "operator": "Lt", "values": ["141"]}) == ["small"]


def taking(nodes: list[Node], *expressions: dict[str, Any]) -> list[str]:
    """The nodes that any of these alternatives allows."""
    terms = [{"matchExpressions": [each]} for each in expressions]
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    barred = Eligibility(nodes).barred(a_run({"affinity": required}))
    return [node.name for node in nodes if node.name not in barred]


def test_terms_of_an_affinity_are_alternatives() -> None:
    nodes = [a_node("a", zone="a"), a_node("b", zone="b"), a_node("c", zone="c")]
    alternatives = ({"key": "zone", "operator": "In", "values": [zone]} for zone in ("a", "c"))
    assert taking(nodes, *alternatives) == ["a", "c"]


def test_a_run_goes_only_where_its_node_selector_lets_it() -> None:
    nodes = (a_node("a", disk="slow"), a_node("b", disk="fast"), a_node("c"))
    free = rooms(nodes, ())
    wanted = a_run({"nodeSelector": {"disk": "fast"}}, nodes=9)
    assert place(wanted, free) is None
    placed = place(a_run({"nodeSelector": {"disk": "fast"}}, nodes=8), free)
    assert placed is not None
    assert {item.node for item in placed} == {"b"}
    never = why_never(wanted, nodes)
    assert never is not None
    assert "2 of 3 nodes are closed to it: a is not labelled disk=fast; c is not labelled disk=fast" in never.message
    alone = why_never(replace(wanted, nodes=1), nodes[:1])
    assert alone is not None
    assert "the only node is closed to it: a is not labelled disk=fast" in alone.message


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_spot_nodes_take_only_runs_that_allow_spot(num_nodes: int) -> None:
    nodes = tuple(a_node(f"n{index}", SPOT) for index in range(num_nodes))
    assert place(a_run(), rooms(nodes, ())) is None
    assert place(a_run(spot=True), rooms(nodes, ())) is not None
    never = why_never(a_run(), nodes)
    assert never is not None
    assert "n0 is a spot node, tainted with cloud.google.com/gke-spot=true:NoSchedule" in never.message
    assert never.remedy == "`capacity: {spot: true}` lets it use spot nodes."


@pytest.mark.parametrize(("key", "value"), SPOT_MARKS)
def test_a_node_that_its_cloud_labels_as_spot_counts_as_tainted_with_that(key: str, value: str) -> None:
    plain = a_node("plain")
    nodes = (
        replace(plain, name="spot", labels={key: value}), replace(plain, name="other", labels={key: "on-demand"}), plain
    )  # fmt: skip
    assert set(Eligibility(nodes).barred(a_run())) == {"spot"}
    refusal = Eligibility(nodes).barred_for_good(a_run())["spot"]
    assert refusal.why == f"a spot node, labelled {key}={value}"
    assert refusal.remedy == "`capacity: {spot: true}` lets it use spot nodes."
    assert not Eligibility(nodes).barred(a_run(spot=True))
    assert not Eligibility(nodes).barred(a_run({"tolerations": [{"key": key, "operator": "Exists"}]}))


def test_a_taint_that_may_go_is_waited_for_and_named() -> None:
    nodes = (a_node("a", OURS), a_node("b", OURS))
    assert why_never(a_run(), nodes) is None
    free = rooms(nodes, ())
    assert place(a_run(), free) is None
    assert "a is tainted with team=vision:NoSchedule" in why_waiting(a_run(), free).message


def test_taints_of_gpus_keep_nobody_away() -> None:
    nodes = (a_node("a", Taint(key="nvidia.com/gpu", value="present")), a_node("b"))
    assert not Eligibility(nodes).barred(a_run())
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in tolerations(a_run(gpu_milli=1000))


def slices(*sizes: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(uuid=f"gpu-{number}-{milli}", model="A100", memory_bytes=10**10, milli=milli, divisible=False)
        for number, milli in enumerate(sizes)
    )


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_share_takes_the_smallest_part_that_is_enough_and_nobody_else_does(num_nodes: int) -> None:
    others = tuple(a_node(f"empty-{index}") for index in range(num_nodes - 1))
    nodes = (a_node("n", gpus=slices(428, 142, 1000, 142)), *others)
    free = rooms(nodes, ())
    taken = [place(a_run(gpu_milli=100), free) for _ in range(4)]
    granted = [None if placed is None else placed[0].grant.gpu_uuids[0].rpartition("-")[2] for placed in taken]
    assert granted == ["142", "142", "428", None]
    assert "0 of 3 shares of GPUs" in why_waiting(a_run(gpu_milli=100), free).message
    whole = place(a_run(gpu_milli=1000), free)
    assert whole is not None
    assert whole[0].grant.gpu_uuids == ("gpu-2-1000",)


def test_what_is_larger_than_every_part_can_never_fit() -> None:
    nodes = (a_node("n", gpus=slices(142, 142)),)
    assert why_never(a_run(gpu_milli=100, nodes=2), nodes) is None
    assert why_never(a_run(gpu_milli=100, nodes=3), nodes) is not None
    never = why_never(a_run(gpu_milli=1000), nodes)
    assert never is not None
    assert "There is n with 2 shares of GPUs (A100)" in never.message


def spread(key: str, **labels: str) -> Training:
    """Two members that refuse to be with pods labelled app=x."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "x"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pod = {"metadata": {"labels": labels}, "spec": {"affinity": affinity}}
    return Training(name="train", run="x", nodes=2, resources=Resources(cpu_milli=1000), kubernetes=overlay(pod))


@pytest.mark.parametrize(
    ("run", "apart"),
    [
        (spread("kubernetes.io/hostname", app="x"), True),
        (spread("kubernetes.io/hostname", app="y"), False),
        (spread("topology.kubernetes.io/zone", app="x"), False),
    ],
)
def test_pods_that_refuse_each_other_get_a_node_each(run: Training, apart: bool) -> None:
    placed = place(run, rooms((a_node("a"), a_node("b")), ()))
    assert placed is not None
    assert len({each.node for each in placed}) == (2 if apart else 1)
    alone = place(run, rooms((a_node("a"),), ())), why_never(run, (a_node("a"),))
    assert [each is None for each in alone] == [apart, not apart]


def a_bounded_run(max_price: float) -> Training:
    return replace(a_run(), capacity=Capacity(max_price=max_price))


def test_a_node_that_is_dearer_than_max_price_takes_no_run_and_the_reason_says_both_prices() -> None:
    cheap, dear = replace(a_node("cheap"), price_per_hour=2.5), replace(a_node("dear"), price_per_hour=3.2)
    assert set(Eligibility([cheap, dear]).barred(a_bounded_run(2.5))) == {"dear"}
    assert not Eligibility([cheap, dear]).barred(a_run())
    placed = place(a_bounded_run(2.5), rooms((dear, cheap), ()))
    assert placed is not None
    assert [item.node for item in placed] == ["cheap"]
    never = why_never(a_bounded_run(2.5), (dear,))
    assert never is not None
    assert "dear is dearer than its `max_price`: $3.20 an hour, $2.50 at most" in never.message
    assert never.remedy == "Raise `capacity.max_price` to 3.20, or leave it out."


def test_a_node_of_unknown_price_takes_no_run_with_a_max_price_and_says_how_to_tell_it() -> None:
    never = why_never(a_bounded_run(2.5), (a_node("a"),))
    assert never is not None
    assert "a is of unknown price, and its `max_price` is $2.50 an hour" in never.message
    assert never.remedy is not None
    assert f"label them {PRICE_LABEL}=DOLLARS" in never.remedy


@pytest.mark.parametrize(
    ("value", "price"), [("3.06", 3.06), ("0", 0.0), ("cheap", None), ("-1", None), ("inf", None), ("nan", None)]
)
def test_the_price_of_a_node_is_read_from_its_label(value: str, price: float | None) -> None:
    assert price_label({PRICE_LABEL: value}) == price
    assert price_label({}) is None
