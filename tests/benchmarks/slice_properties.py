"""What holds of layouts and of the way to them, whatever the GPUs hold: each from a record to what breaks it.

Legality is judged here anew from the table of profiles, so that the policy's own judgement is not taken on trust.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.candidates.mig import layouts as partitioning
from benchmarks.candidates.mig import repartitioning as repartitioning
from benchmarks.candidates.mig.layouts import Chosen, Wish
from benchmarks.candidates.mig.partitions import Device
from benchmarks.candidates.mig.repartitioning import Await, Cordon, Drain, MigNode, Relabel, Repartition, Uncordon
from fairlead.policy.gpu.mig import Layout, MigInstance, Partitionable


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioned:
    """GPUs of nodes, what was chosen for them, and the way there."""

    nodes: tuple[MigNode, ...]
    wishes: tuple[Wish, ...]
    chosen: Chosen
    plan: Repartition

    @property
    def devices(self) -> list[Device]:
        return [device for node in self.nodes for device in node.devices]


Property = Callable[[Partitioned], Iterator[str]]


def partition(nodes: tuple[MigNode, ...], wishes: tuple[Wish, ...]) -> Partitioned:
    """Choose, and plan."""
    chosen = partitioning.choose([device for node in nodes for device in node.devices], wishes)
    plan = repartitioning.repartition(nodes, chosen.layouts)
    return Partitioned(nodes=nodes, wishes=wishes, chosen=chosen, plan=plan)


def layouts_are_legal(record: Partitioned) -> Iterator[str]:
    """No two instances on a slice, each where hardware lets it begin, media engines once; every GPU has a layout."""
    for device in record.devices:
        layout = record.chosen.layouts.get(device.id)
        if layout is None:
            yield f"{device.id} has no layout"
            continue
        for instance in layout:
            if instance.start not in _starts(device.model, instance):
                yield f"{device.id} has {instance} where none may begin"
        slices = Counter(at for instance in layout for at in _slices(device.model, instance))
        yield from (f"{device.id} has {num} instances on slice {at}" for at, num in slices.items() if num > 1)
        if sum(instance.profile.endswith("+me") for instance in layout) > 1:
            yield f"{device.id} has media engines twice"


def what_may_not_move_stays(record: Partitioned) -> Iterator[str]:
    """An instance in use stays in its place unless its pod may move, and nobody else is ever told to leave."""
    told = {pod for action in record.plan.actions if isinstance(action, Drain) for pod in action.pods}
    for device in record.devices:
        layout = record.chosen.layouts[device.id]
        for held in device.held:
            if held.move_cost is not None:
                continue
            if held.instance not in layout:
                yield f"{held.pod} lost its {held.instance}"
            if device.as_a_whole and layout != device.layout:
                yield f"{device.id} is emptied under {held.pod}"
            if held.pod in told:
                yield f"{held.pod} was told to leave"


def those_leave_who_were_chosen_to(record: Partitioned) -> Iterator[str]:
    """Who is told to leave is who was chosen to move, and nobody else."""
    told = Counter(pod for action in record.plan.actions if isinstance(action, Drain) for pod in action.pods)
    moved = Counter(held.pod for held in record.chosen.moved)
    yield from (f"{pod} leaves for nothing" for pod in told - moved)
    yield from (f"{pod} was not told to leave" for pod in moved - told)
    yield from (f"{node} was refused: {why}" for node, why in record.plan.refused.items())


def all_who_are_served_or_move_have_an_instance(record: Partitioned) -> Iterator[str]:
    """Instances not in use are as many as those that are served and those that move take, of the right profiles."""
    moved = Counter(held.instance.profile for held in record.chosen.moved)
    supply = Counter[str]()
    for device in record.devices:
        supply.update(_profiles(record.chosen.layouts[device.id]))
        supply.subtract(held.instance.profile for held in device.held if held not in record.chosen.moved)
    wants = [(frozenset({name}), num) for name, num in moved.items()]
    wants += [(wish.profiles, num) for wish, num in zip(record.wishes, record.chosen.served, strict=True)]
    names = sorted({name for profiles, _ in wants for name in profiles} | set(supply))
    for mask in range(2 ** len(names)):
        group = {name for i, name in enumerate(names) if mask >> i & 1}
        wanted = sum(num for profiles, num in wants if profiles <= group)
        if wanted > sum(supply[name] for name in group):
            yield f"{wanted} are to have one of {sorted(group)}"
            return


def a_node_is_closed_while_it_is_changed(record: Partitioned) -> Iterator[str]:
    """Each node once: cordoned, left by who has to, relabelled, awaited, and opened again."""
    seen = Counter(step.node for step in record.plan.steps)
    yield from (f"{node} is changed {num} times" for node, num in seen.items() if num > 1)
    for step in record.plan.steps:
        kinds = [type(action) for action in step.actions if not isinstance(action, Drain)]
        if kinds != [Cordon, Relabel, Await, Uncordon]:
            yield f"{step.node} is changed by {kinds}"
        if step.leaving and not isinstance(step.actions[1], Drain):
            yield f"{step.node} is relabelled under {step.leaving}"


SLICE_PROPERTIES: tuple[Property, ...] = (
    layouts_are_legal,
    what_may_not_move_stays,
    those_leave_who_were_chosen_to,
    all_who_are_served_or_move_have_an_instance,
    a_node_is_closed_while_it_is_changed,
)


def _starts(model: Partitionable, instance: MigInstance) -> tuple[int, ...]:
    profile = model.profiles.get(instance.profile)
    return () if profile is None else profile.starts


def _slices(model: Partitionable, instance: MigInstance) -> range:
    return range(instance.start, instance.start + model.profiles[instance.profile].memory)


def _profiles(layout: Layout) -> Counter[str]:
    return Counter(instance.profile for instance in layout)
