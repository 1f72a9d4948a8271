"""Lists how each GPU can be partitioned: MIG profiles, their possible places, and the layouts that fill a GPU.

A GPU has memory slices in a row, and compute slices. An instance occupies consecutive memory slices, and hardware
allows each profile to begin at some of them only. Only profiles with one compute instance are listed, because device
plugins offer only these.

Source of sizes and counts: NVIDIA MIG User Guide, "Supported MIG Profiles". Of places: ``nvidia-smi mig -lgipp``, which
that guide prints for the A100 under "Creating GPU Instances" and which is the same on an H100; NVIDIA's go-nvml for the
A30. H200 and B200 have the same profiles in the same numbers, and are taken to have them in the same places.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from types import MappingProxyType

from fairlead.frozen import dataclass

GB = 10**9
MEDIA = "+me"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One size of instance.

    Attributes:
        name: As in ``nvidia-smi``, such as ``1g.5gb`` or ``1g.5gb+me``.
        compute: Compute slices.
        memory: Memory slices, all consecutive.
        memory_gb: The size in its name.
        starts: Memory slices at which it may begin.
        has_media: Whether it includes the GPU's only set of video and image engines.
    """

    name: str
    compute: int
    memory: int
    memory_gb: int
    starts: tuple[int, ...]
    has_media: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MigInstance:
    """A MIG instance of a GPU: its profile, and the first of its memory slices."""

    start: int
    profile: str


Layout = tuple[MigInstance, ...]
"""The instances of one GPU, in order of place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitionable:
    """A GPU model that can be partitioned.

    Attributes:
        family: The part of its product name, such as ``A100``.
        memory_gb: The nominal size.
        compute: The total of compute slices.
        memory: The total of memory slices.
        profiles: By name, smallest first.
    """

    family: str
    memory_gb: int
    compute: int
    memory: int
    profiles: Mapping[str, MigProfile] = field(hash=False)

    @property
    def name(self) -> str:
        """Return the name, such as ``A100-40GB``."""
        return f"{self.family}-{self.memory_gb}GB"

    def slices(self, instance: MigInstance) -> range:
        """Return the memory slices that an instance occupies."""
        return range(instance.start, instance.start + self.profiles[instance.profile].memory)


def layouts_with(model: Partitionable, fixed: Iterable[MigInstance], *, media: bool = False) -> tuple[Layout, ...]:
    """Return every way to fill a GPU around some instances until no further one fits.

    Of ways that differ only in places, one is included.

    Args:
        media: Whether to include variants with media engines, which replace one plain instance.
    """
    return _filled(model, tuple(sorted(fixed)), media)


def holds(model: Partitionable, counts: Mapping[str, int]) -> bool:
    """Return whether a GPU can have so many instances of each profile at once."""
    return any(
        all(layout_counts.get(profile, 0) >= number for profile, number in counts.items())
        for layout_counts in map(counts_of, layouts_with(model, (), media=True))
    )


def counts_of(layout: Iterable[MigInstance]) -> Mapping[str, int]:
    """Return how many instances of each profile a layout has."""
    return Counter(instance.profile for instance in layout)


def partitionable(model: str, memory_bytes: int) -> Partitionable | None:
    """Return how a GPU with this product name can be partitioned; None if it cannot, or if that is unknown.

    Args:
        memory_bytes: The memory of the whole GPU, as reported by a driver or a user; 0 if unknown, when the name may
            tell.
    """
    models = [known for known in MODELS.values() if _is_of(known.family, model)]
    if memory_bytes:
        models = [known for known in models if _is_about(memory_bytes, known.memory_gb)]
    elif len(models) > 1:
        models = [known for known in models if f"{known.memory_gb}GB" in model.upper().replace(" ", "")]
    return models[0] if len(models) == 1 else None


def _is_of(family: str, model: str) -> bool:
    """Return whether a model is of a family: ``A30`` is in ``NVIDIA-A30``, but not in ``A300`` or ``GA30X``."""
    before, matched, after = model.upper().partition(family)
    return bool(matched) and not before[-1:].isalnum() and not after[:1].isalnum()


def _is_about(memory_bytes: int, memory_gb: int) -> bool:
    """Compare memory sizes: drivers count in binary units and keep up to 3 %, so an H100 of 80 GB has 81,559 MiB."""
    return 0.97 * memory_gb * GB <= memory_bytes <= 1.03 * memory_gb * 2**30


@lru_cache(maxsize=4096)
def _filled(model: Partitionable, fixed: Layout, media: bool) -> tuple[Layout, ...]:
    plain = [profile for profile in model.profiles.values() if not profile.has_media]
    has_media = any(model.profiles[instance.profile].has_media for instance in fixed)
    layouts: dict[tuple[tuple[str, int], ...], Layout] = {}
    for layout in _completions(model, plain, fixed):
        for variant in (layout, *(_with_media(model, layout, fixed) if media and not has_media else ())):
            layouts.setdefault(tuple(sorted(counts_of(variant).items())), variant)
    return tuple(layouts[key] for key in sorted(layouts))


def _with_media(model: Partitionable, layout: Layout, fixed: Layout) -> Iterator[Layout]:
    for i, instance in enumerate(layout):
        if instance not in fixed and instance.profile + MEDIA in model.profiles:
            better = MigInstance(start=instance.start, profile=instance.profile + MEDIA)
            yield (*layout[:i], better, *layout[i + 1 :])


def _completions(model: Partitionable, plain: list[MigProfile], fixed: Layout) -> Iterator[Layout]:
    """Yield every full layout around ``fixed``, slice by slice from the left."""
    taken = {at for instance in fixed for at in model.slices(instance)}

    def go_on(at: int, added: Layout, used: frozenset[int]) -> Iterator[Layout]:
        if at == model.memory:
            if not any(_fits(profile, start, used) for profile in plain for start in profile.starts):
                yield tuple(sorted((*fixed, *added)))
            return
        yield from go_on(at + 1, added, used)
        for profile in plain:
            if at in profile.starts and _fits(profile, at, used):
                instance = MigInstance(start=at, profile=profile.name)
                yield from go_on(at + 1, (*added, instance), used.union(range(at, at + profile.memory)))

    return go_on(0, (), frozenset(taken))


def _fits(profile: MigProfile, start: int, used: frozenset[int]) -> bool:
    return used.isdisjoint(range(start, start + profile.memory))


# Compute slices, memory slices, and possible starts, of GPUs with seven compute slices and eight memory slices.
_SEVENTHS = (
    (1, 1, tuple(range(7))),
    (1, 2, (0, 2, 4, 6)),
    (2, 2, (0, 2, 4)),
    (3, 4, (0, 4)),
    (4, 4, (0,)),
    (7, 8, (0,)),
)
_FOURTHS = ((1, 1, (0, 1, 2, 3)), (2, 2, (0, 2)), (4, 4, (0,)))
_WITH_MEDIA = ((1, 1), (2, 2))


def _model(family: str, memory_gb: int, *sizes_gb: int) -> Partitionable:
    """Build a model; ``sizes_gb`` is the memory of each profile in the order of the tables above."""
    shapes = _SEVENTHS if len(sizes_gb) == len(_SEVENTHS) else _FOURTHS
    profiles: dict[str, MigProfile] = {}
    for (compute, memory, starts), size_gb in zip(shapes, sizes_gb, strict=True):
        name = f"{compute}g.{size_gb}gb"
        profile = MigProfile(name=name, compute=compute, memory=memory, memory_gb=size_gb, starts=starts)
        profiles[name] = profile
        # Only the A30 has a second size with media engines; the guide lists none for the others.
        if (compute, memory) in _WITH_MEDIA[: 1 if shapes is _SEVENTHS else 2]:
            profiles[name + MEDIA] = MigProfile(
                name=name + MEDIA, compute=compute, memory=memory, memory_gb=size_gb, starts=starts, has_media=True
            )  # fmt: skip
    compute, memory, _ = shapes[-1]
    return Partitionable(
        family=family, memory_gb=memory_gb, compute=compute, memory=memory, profiles=MappingProxyType(profiles)
    )  # fmt: skip


MODELS: Mapping[str, Partitionable] = MappingProxyType(
    {
        model.name: model
        for model in (
            _model("A30", 24, 6, 12, 24),
            _model("A100", 40, 5, 10, 10, 20, 20, 40),
            _model("A100", 80, 10, 20, 20, 40, 40, 80),
            _model("H100", 80, 10, 20, 20, 40, 40, 80),
            _model("H200", 141, 18, 35, 35, 71, 71, 141),
            _model("B200", 180, 23, 45, 45, 90, 90, 180),
        )
    }
)
