"""How parts of a GPU are kept apart, and which a run gets."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policy.gpu.gpu_sharing import Need, choices, describe_shared, need_of
from fairlead.policy.placement import node_arrays as frame
from fairlead.policy.placement import placement
from fairlead.policy.placement.free_capacity import rooms
from fairlead.policy.placement.placement import place, why_never, why_waiting
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.sharing import Sharing
from fairlead.specs.training import Training
from fairlead.state.snapshot import Gpu, Node

GB = 10**9
MIG, MPS, SLICES = Sharing.MIG, Sharing.MPS, Sharing.TIME_SLICING


def a_run(milli: int = 200, memory_gb: int | None = None, *sharing: Sharing, **other: object) -> Training:
    memory = None if memory_gb is None else memory_gb * GB
    gpu = GpuRequest(milli=milli, min_memory_bytes=memory)
    resources = Resources(gpu=gpu, cpu_milli=1000, sharing=sharing)
    return Training(name="part", run="work", resources=resources, **other)  # type: ignore[arg-type]


def a_node(name: str, *gpus: Gpu) -> Node:
    return Node(name=name, cpu_milli=16_000, memory_bytes=2**36, gpus=gpus)


def part(uuid: str, sharing: Sharing, milli: int = 285, memory_gb: int = 10) -> Gpu:
    return Gpu(
        uuid=uuid, model="A100", memory_bytes=memory_gb * GB, milli=milli, divisible=False, shared_by=sharing
    )  # fmt: skip


EACH = (part("instance", MIG), part("share", MPS), part("slice", SLICES))


@pytest.mark.parametrize("num_nodes", [1, 3])
@pytest.mark.parametrize(
    ("other", "order"),
    [
        ({}, ["slice", "share", "instance"]),
        ({"priority": -1}, ["slice", "share", "instance"]),
        ({"stall_timeout_s": 600.0}, ["instance", "share", "slice"]),
        ({"max_duration_s": 3600.0}, ["instance", "share", "slice"]),
    ],
)
def test_who_is_hurt_by_neighbours_gets_the_most_apart_and_others_leave_it_to_them(
    num_nodes: int, other: dict[str, float], order: list[str]
) -> None:
    nodes = (a_node("a", *EACH), *(a_node(f"empty-{i}") for i in range(num_nodes - 1)))
    free = rooms(nodes, ())
    run = replace(a_run(), **other)  # type: ignore[arg-type]
    placed = [place(run, free) for _ in range(4)]
    assert [None if each is None else each[0].grant.gpu_uuids[0] for each in placed] == [*order, None]


def test_a_gang_is_of_one_kind_where_that_is_possible() -> None:
    nodes = (a_node("a", *EACH), a_node("b", part("instance-b", MIG), part("slice-b", SLICES)))
    placed = place(a_run(nodes=2), rooms(nodes, ()))
    assert placed is not None
    assert {each.grant.gpu_uuids[0] for each in placed} == {"instance", "instance-b"}


@pytest.mark.parametrize(
    ("run", "need"),
    [
        (a_run(), Need.SOFT),
        (a_run(priority=-1), Need.SOFT),
        (a_run(500, 24), Need.STEADY),
        (a_run(nodes=2), Need.STEADY),
        (a_run(max_duration_s=60.0), Need.STEADY),
    ],
)
def test_a_deadline_a_gang_and_a_need_of_memory_want_a_steady_neighbourhood(run: Training, need: Need) -> None:
    assert need_of(run) is need


def test_there_is_nothing_to_choose_where_one_way_is_offered() -> None:
    assert choices(a_run(), [SLICES]) == (None,)
    assert choices(a_run(200, None, MIG), [MIG, MPS]) == (frozenset({MIG}),)
    assert choices(a_run(), [MIG, SLICES]) == (frozenset({SLICES}), frozenset({SLICES, MIG}))


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_run_that_names_ways_gets_no_other(num_nodes: int) -> None:
    nodes = (a_node("a", *EACH), *(a_node(f"empty-{i}") for i in range(num_nodes - 1)))
    free = rooms(nodes, ())
    run = a_run(200, None, MPS)
    placed = [place(run, free) for _ in range(2)]
    assert [None if each is None else each[0].grant.gpu_uuids for each in placed] == [("share",), None]
    assert "0 of 1 MPS shares" in why_waiting(run, free).message


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_memory_asked_for_with_ways_means_a_part_that_has_it(num_nodes: int) -> None:
    gpus = (
        Gpu(uuid="whole", model="A100", memory_bytes=80 * GB),
        part("small", MIG, 142, 10),
        part("large", MIG, 428, 40),
    )
    free = rooms((a_node("a", *gpus), *(a_node(f"empty-{i}") for i in range(num_nodes - 1))), ())
    run = a_run(1000, 24, MIG, SLICES)
    placed = [place(run, free) for _ in range(2)]
    assert [None if each is None else each[0].grant.gpu_uuids for each in placed] == [("large",), None]
    assert place(a_run(1000, 24), free) is not None


def test_a_refusal_says_what_there_is_to_share_and_what_would_mend_it() -> None:
    whole = Gpu(uuid="whole", model="A100", memory_bytes=0, divisible=False)
    nodes = (a_node("a", part("one", SLICES), part("two", SLICES)), a_node("b", whole))
    refused = why_never(a_run(200, None, MIG), nodes)
    assert refused is not None
    assert "0.2 GPU by MIG requested on one node, the largest node has 0" in refused.message
    assert "what may be shared is 2 time slices of 0.285 GPU with 10 GB, 1 GPU that goes to one run only" in (
        refused.message
    )
    assert refused.remedy == (
        "Add time-slicing to `resources.sharing`, which this cluster offers, or have GPUs shared by MIG."
    )


def test_what_nodes_have_to_share_is_told_by_kind() -> None:
    nodes = (a_node("a", *EACH, Gpu(uuid="d", model="A100", memory_bytes=0)), a_node("b"))
    assert describe_shared(nodes) == (
        "1 GPU shared by time slices, 1 MIG instance of 0.285 GPU with 10 GB, 1 MPS share of 0.285 GPU with 10 GB, "
        "1 time slice of 0.285 GPU with 10 GB"
    )
    assert describe_shared((a_node("b"),)) == "no GPU"


PARTS = st.builds(
    lambda way, milli, memory_gb: (way, milli, memory_gb),
    st.sampled_from((MIG, MPS, SLICES, None)),
    st.sampled_from((142, 285, 428, 1000)),
    st.sampled_from((5, 10, 20, 40)),
)
RUNS = st.builds(
    lambda size, sharing, nodes, timed: a_run(*size, *sharing, nodes=nodes, max_duration_s=60.0 if timed else None),
    st.sampled_from(((100, None), (250, None), (400, 8), (1000, 20))),
    st.lists(st.sampled_from((MIG, MPS, SLICES)), min_size=1, max_size=3, unique=True),
    st.integers(1, 2),
    st.booleans(),
)


def gpus_of(number: int, parts: list[tuple[Sharing | None, int, int]]) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            uuid=f"{number}-{i}",
            model="A100",
            memory_bytes=memory_gb * GB,
            milli=milli,
            divisible=milli == 1000 and way is not None,
            shared_by=way,
        )
        for i, (way, milli, memory_gb) in enumerate(parts)
    )


def broken_by(inside: list[list[tuple[Sharing | None, int, int]]], runs: list[Training]) -> list[str]:
    """Parts that a run got and should not have: kept apart otherwise than it says, too small, or somebody's already."""
    nodes = tuple(a_node(f"n{number}", *gpus_of(number, parts)) for number, parts in enumerate(inside))
    gpus = {gpu.uuid: gpu for node in nodes for gpu in node.gpus}
    free, held, broken = rooms(nodes, ()), dict.fromkeys(gpus, 0), []
    for run in runs:
        asked = run.resources.gpu
        assert asked is not None
        for each in place(run, free) or ():
            gpu = gpus[each.grant.gpu_uuids[0]]
            least = 1 if asked.milli == 1000 else asked.milli
            if gpu.sharing not in run.resources.sharing:
                broken.append(f"{gpu.uuid} is shared by {gpu.sharing}, not {run.resources.sharing}")
            if gpu.milli < least or gpu.memory_bytes < (asked.min_memory_bytes or 0):
                broken.append(f"{gpu.uuid} is too small for {asked}")
            held[gpu.uuid] += least if gpu.divisible else gpu.milli
    return [*broken, *(f"{uuid} is held twice" for uuid, milli in held.items() if milli > gpus[uuid].milli)]


@settings(max_examples=100, deadline=None)
@given(inside=st.lists(st.lists(PARTS, max_size=4), min_size=1, max_size=3), runs=st.lists(RUNS, max_size=6))
def test_a_run_gets_parts_of_the_ways_that_it_names_and_nobody_elses(
    inside: list[list[tuple[Sharing | None, int, int]]], runs: list[Training]
) -> None:
    assert broken_by(inside, runs) == []


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_that_property_catches_who_takes_any_part(num_nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[list[tuple[Sharing | None, int, int]]] = [[(SLICES, 428, 20)], *([[]] * (num_nodes - 1))]
    story = (inside, [a_run(100, None, MIG)])
    assert broken_by(*story) == []

    def any_part(gpu: Gpu, shape: Shape) -> bool:
        return gpu.milli >= shape.gpu_milli

    monkeypatch.setattr(placement, "serves", any_part)
    monkeypatch.setattr(frame, "serves", any_part)
    assert broken_by(*story)
