"""Tells what a partitioned GPU is now, and which layouts it could have, given who uses its instances."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from benchmarks.candidates.mig.legality import why_illegal
from fairlead.policy.gpu.mig import MEDIA, Layout, MigInstance, Partitionable, counts_of, layouts_with


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An instance in use.

    Attributes:
        pod: Who uses it.
        move_cost: What it costs to move the pod, in the unit of the weights of wishes; None when it may not move.
    """

    instance: MigInstance
    pod: str
    move_cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as it is partitioned now.

    Attributes:
        id: Of the GPU, once in a cluster.
        held: Instances in use.
        free: Instances that nobody uses; they may be taken away.
        as_a_whole: It is emptied before it is partitioned anew, as by the GPU Operator's MIG manager; otherwise
            instances come and go beside those in use.
    """

    id: str
    model: Partitionable
    held: tuple[Held, ...] = ()
    free: Layout = ()
    as_a_whole: bool = True

    def __post_init__(self) -> None:
        if (why := why_illegal(self.model, self.layout)) is not None:
            raise ValueError(f"{self.id} ({self.model.name}) {why}")

    @property
    def layout(self) -> Layout:
        """All its instances."""
        return tuple(sorted((*(each.instance for each in self.held), *self.free)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One layout that a device may have.

    Attributes:
        free: Instances for whoever wishes for them, by profile, the smallest first.
        slices: Memory and compute slices of those.
        moved: Who has to leave for it, at ``cost`` in all.
    """

    device: str
    layout: Layout
    free: tuple[tuple[str, int], ...]
    slices: tuple[int, int]
    moved: tuple[Held, ...] = ()
    cost: float = 0.0
    is_change: bool = True


def options_of(device: Device, wanted: frozenset[str]) -> list[Option]:
    """That which changes nothing, then every full layout, those with few and large instances first.

    Args:
        wanted: Profiles that anybody wants; layouts with media engines are tried for nobody else.
    """
    media = any(name.endswith(MEDIA) for name in wanted)
    still = _option(device, device.layout, staying=device.held, is_change=False)
    fixed = [each for each in device.held if each.move_cost is None]
    movable = [each for each in device.held if each.move_cost is not None]
    if device.as_a_whole and fixed:
        return [still]
    most_stay = 0 if device.as_a_whole else len(movable)
    best: dict[tuple[object, ...], Option] = {}
    for staying in chain.from_iterable(combinations(movable, num) for num in range(most_stay + 1)):
        kept = [*fixed, *staying]
        for layout in layouts_with(device.model, [each.instance for each in kept], media=media):
            option = _option(device, layout, staying=kept, is_change=True)
            key = (option.free, tuple(sorted(each.instance.profile for each in option.moved)))
            if key not in best or option.cost < best[key].cost:
                best[key] = option
    now = counts_of(still.layout)
    others = [option for option in best.values() if counts_of(option.layout) != now]
    if not device.as_a_whole:
        # Nobody moves from an instance that stays.
        others = [option for option in others if not any(each.instance in option.layout for each in option.moved)]
    return [still, *sorted(others, key=lambda option: (len(option.layout), option.free))]


def _option(device: Device, layout: Layout, *, staying: Sequence[Held], is_change: bool) -> Option:
    used = {each.instance for each in staying}
    free = [instance for instance in layout if instance not in used]
    moved = tuple(each for each in device.held if each not in staying)
    profiles = [device.model.profiles[instance.profile] for instance in free]
    counts = sorted(counts_of(free).items(), key=lambda item: device.model.profiles[item[0]].memory)
    return Option(
        device=device.id,
        layout=layout,
        free=tuple(counts),
        slices=(sum(each.memory for each in profiles), sum(each.compute for each in profiles)),
        moved=moved,
        cost=sum(each.move_cost or 0.0 for each in moved),
        is_change=is_change,
    )
