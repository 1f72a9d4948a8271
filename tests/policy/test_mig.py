"""What GPUs can be partitioned into, against what NVIDIA's guide says and against trying every set of places."""

from itertools import combinations

import pytest

from benchmarks.candidates.mig.legality import why_illegal
from fairlead.policy.gpu.mig import (
    GB,
    MODELS,
    Layout,
    MigInstance,
    Partitionable,
    counts_of,
    layouts_with,
    partitionable,
)

A30, A100 = MODELS["A30-24GB"], MODELS["A100-40GB"]


def layout(*places: tuple[int, str]) -> Layout:
    return tuple(MigInstance(start=start, profile=profile) for start, profile in places)


def every_legal(model: Partitionable, names: list[str]) -> set[Layout]:
    """Of instances with these profiles, by trying all sets of them."""
    places = sorted(MigInstance(start=start, profile=name) for name in names for start in model.profiles[name].starts)
    found: set[Layout] = {()}
    for num in range(1, model.compute + 1):
        found |= {each for each in combinations(places, num) if why_illegal(model, each) is None}
    return found


@pytest.mark.parametrize(
    ("model", "profile", "most"),
    [
        ("A30-24GB", "1g.6gb", 4),
        ("A30-24GB", "2g.12gb", 2),
        ("A30-24GB", "4g.24gb", 1),
        ("A100-40GB", "1g.5gb", 7),
        ("A100-40GB", "1g.10gb", 4),
        ("A100-40GB", "3g.20gb", 2),
        ("A100-80GB", "1g.10gb", 7),
        ("H100-80GB", "2g.20gb", 3),
        ("H200-141GB", "1g.35gb", 4),
        ("H200-141GB", "4g.71gb", 1),
        ("B200-180GB", "1g.23gb", 7),
        ("B200-180GB", "7g.180gb", 1),
    ],
)
def test_as_many_instances_of_a_profile_fit_as_the_guide_says(model: str, profile: str, most: int) -> None:
    assert max(counts_of(each).get(profile, 0) for each in layouts_with(MODELS[model], ())) == most


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: str(model.name))
def test_no_legal_layout_takes_more_compute_or_memory_than_there_is(model: Partitionable) -> None:
    for each in layouts_with(model, ()):
        assert sum(model.profiles[one.profile].compute for one in each) <= model.compute
        assert sum(model.profiles[one.profile].memory for one in each) <= model.memory


def test_an_a100_has_nineteen_full_layouts_without_the_profile_of_double_memory() -> None:
    """As the guide's table of possible combinations has them, by place."""
    names = ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]
    legal = every_legal(A100, names)
    full = [each for each in legal if not any(set(each) < set(other) for other in legal)]
    assert len(full) == 19


@pytest.mark.parametrize("kept", [(), layout((2, "1g.6gb")), layout((1, "1g.6gb+me")), layout((2, "2g.12gb"))])
def test_full_layouts_are_those_that_trying_every_set_finds(kept: Layout) -> None:
    legal = [each for each in every_legal(A30, list(A30.profiles)) if set(kept) <= set(each)]
    full = [each for each in legal if not any(set(each) < set(other) for other in legal)]
    media = {tuple(sorted(counts_of(each).items())) for each in full}
    found = layouts_with(A30, kept, media=True)
    assert {tuple(sorted(counts_of(each).items())) for each in found} >= media
    assert all(why_illegal(A30, each) is None and set(kept) <= set(each) for each in found)


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ([(0, "1g.10gb"), (4, "3g.20gb")], None),
        ([(0, "5g.25gb")], "has no profile 5g.25gb; it has 1g.5gb, "),
        ([(2, "3g.20gb")], "has no 3g.20gb that begins at slice 2; one may begin at 0, 4"),
        ([(0, "4g.20gb"), (2, "2g.10gb")], "has one slice 2, on which both 4g.20gb and 2g.10gb would lie"),
        ([(0, "1g.5gb"), (0, "1g.5gb")], "has one slice 0, on which both 1g.5gb and 1g.5gb would lie"),
        ([(0, "1g.5gb+me"), (1, "1g.5gb+me")], "has one set of media engines, which both 1g.5gb+me and 1g.5gb+me"),
    ],
)
def test_an_illegal_layout_is_told_why(places: list[tuple[int, str]], why: str | None) -> None:
    said = why_illegal(A100, layout(*places))
    assert said == why if why is None else said is not None and said.startswith(why)


@pytest.mark.parametrize(
    ("product", "memory_bytes", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", 40960 * 2**20, "A100-40GB"),
        ("NVIDIA-A100-SXM4-80GB", 0, "A100-80GB"),
        ("A100", 80 * GB, "A100-80GB"),
        ("NVIDIA-H100-80GB-HBM3", 81559 * 2**20, "H100-80GB"),
        ("NVIDIA H200", 143771 * 2**20, "H200-141GB"),
        ("NVIDIA B200", 183359 * 2**20, "B200-180GB"),
        ("NVIDIA A30", 24 * GB, "A30-24GB"),
        ("NVIDIA H100 NVL", 95830 * 2**20, None),
        ("NVIDIA GB200", 183359 * 2**20, None),
        ("NVIDIA A10", 24 * GB, None),
        ("A100", 0, None),
        ("Tesla T4", 16 * GB, None),
    ],
)
def test_a_gpu_is_known_by_its_product_name_and_memory(product: str, memory_bytes: int, name: str | None) -> None:
    found = partitionable(product, memory_bytes)
    assert (found.name if found is not None else None) == name
