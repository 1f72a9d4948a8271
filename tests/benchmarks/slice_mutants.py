"""Wrong versions of the decisions about slices, at least one for each property."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from benchmarks.candidates.mig import layouts as partitioning
from benchmarks.candidates.mig import partitions as partitions
from benchmarks.candidates.mig import repartitioning as repartitioning
from benchmarks.candidates.mig.layouts import Wish
from benchmarks.candidates.mig.partitions import Device, Held, Option
from benchmarks.candidates.mig.repartitioning import Drain, MigNode, Step
from fairlead.policy.gpu import mig
from fairlead.policy.gpu.mig import Layout, MigInstance, MigProfile, Partitionable
from tests.benchmarks import slice_properties
from tests.benchmarks.slice_properties import Property

A100 = mig.MODELS["A100-40GB"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceMutant:
    """One wrong idea: ``by`` in place of what a module calls ``what``, and a story in which it shows."""

    breaks: Property
    module: ModuleType
    what: str
    by: Any
    nodes: tuple[MigNode, ...]
    wishes: tuple[Wish, ...]

    def __str__(self) -> str:
        return f"{self.by.__name__} breaks {self.breaks.__name__}"


fits, options_of, step_of, leaving = mig._fits, partitions.options_of, repartitioning._step, repartitioning._leaving


def lie_on_one_another(profile: MigProfile, start: int, used: frozenset[int]) -> bool:
    return start not in used and start + profile.memory <= 8


def begin_anywhere(model: Partitionable, kept: Iterable[MigInstance], *, media: bool = False) -> tuple[Layout, ...]:
    return ((*sorted(kept), MigInstance(start=2, profile="3g.20gb")),)


def take_all_for_movable(device: Device, wanted: frozenset[str]) -> list[Option]:
    free = tuple(replace(each, move_cost=each.move_cost or 0.0) for each in device.held)
    return options_of(replace(device, held=free), wanted)


def empty_every_gpu(device: Device, wanted: Any) -> list[Held]:
    return list(device.held)


def empty_nothing_of_it(node: MigNode, *others: Any) -> Step:
    step = step_of(node, *others)
    return replace(step, actions=tuple(each for each in step.actions if not isinstance(each, Drain)))


def serve_as_if_nothing_were_in_use(device: Device, wanted: frozenset[str]) -> list[Option]:
    return [
        replace(each, free=tuple(sorted(mig.counts_of(each.layout).items()))) for each in options_of(device, wanted)
    ]


def node(*inside: Held | MigInstance, name: str = "node-0", as_a_whole: bool = True) -> MigNode:
    """A node with one GPU."""
    held = tuple(replace(each, pod=f"{name}-{each.pod}") for each in inside if isinstance(each, Held))
    free = tuple(each for each in inside if isinstance(each, MigInstance))
    gpu = Device(id=f"{name}-gpu", model=A100, held=held, free=free, as_a_whole=as_a_whole)
    return MigNode(name=name, devices=(gpu,))


def _held(start: int, profile: str, move_cost: float | None) -> Held:
    return Held(instance=MigInstance(start=start, profile=profile), pod=f"pod-{profile}-{start}", move_cost=move_cost)


def _wish(profile: str, count: int = 1, weight: float = 1.0) -> Wish:
    return Wish(profiles=frozenset({profile}), count=count, weight=weight)


EMPTY = (node(),)
IN_USE = (
    node(_held(2, "2g.10gb", None), as_a_whole=False),
    node(MigInstance(start=0, profile="2g.10gb"), _held(4, "3g.20gb", None), name="node-1"),
)
BESIDE = (node(_held(6, "1g.5gb", 1.0), as_a_whole=False),)
MOVABLE = (
    node(_held(0, "1g.5gb", 0.1)),
    node(_held(0, "1g.5gb", 0.5), MigInstance(start=1, profile="1g.5gb"), name="node-1"),
)
HALF = (_wish("4g.20gb", weight=5.0),)
WHOLE = (_wish("7g.40gb", weight=5.0),)

SLICE_MUTANTS: tuple[SliceMutant, ...] = tuple(
    SliceMutant(breaks=breaks, module=module, what=what, by=by, nodes=nodes, wishes=wishes)
    for breaks, module, what, by, nodes, wishes in (
        (slice_properties.layouts_are_legal, mig, "_fits", lie_on_one_another, IN_USE, HALF),
        (slice_properties.layouts_are_legal, partitions, "layouts_with", begin_anywhere, EMPTY, (_wish("3g.20gb"),)),
        (slice_properties.what_may_not_move_stays, partitioning, "options_of", take_all_for_movable, IN_USE, HALF),
        (slice_properties.those_leave_who_were_chosen_to, repartitioning, "_leaving", empty_every_gpu,
         BESIDE, (_wish("3g.20gb"),)),
        (slice_properties.all_who_are_served_or_move_have_an_instance, partitioning, "options_of",
         serve_as_if_nothing_were_in_use, IN_USE, (_wish("2g.10gb", 4),)),
        (slice_properties.a_node_is_closed_while_it_is_changed, repartitioning, "_step", empty_nothing_of_it,
         MOVABLE, WHOLE),
    )
)  # fmt: skip
