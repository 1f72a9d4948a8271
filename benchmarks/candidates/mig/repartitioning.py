"""Brings nodes from the layouts that their GPUs have to those they should have, with little disturbance.

A node is partitioned anew as NVIDIA's GPU Operator does it: a label names the wanted configuration, its MIG manager
empties each GPU whose instances differ in number, makes the new ones, and says in another label how that went. So a
node takes no new pods meanwhile, and whoever uses an instance of such a GPU leaves first. Sources: the GPU Operator's
documentation, "GPU Operator with MIG", and NVIDIA's mig-parted, whose file format a configuration has.

Few nodes at a time: first those that nobody leaves, for they have room afterwards, then those whose pods find an
instance of their profile by then, each time the cheapest. With N nodes O(N^2) in time.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from benchmarks.candidates.mig.legality import why_illegal
from benchmarks.candidates.mig.partitions import Device, Held
from fairlead.policy.gpu.mig import MEDIA, Layout, Partitionable, counts_of
from fairlead.text.quantities import plural

PATIENCE_S = 600.0  # the manager may have to restart the GPU Operator's pods on the node, or the node itself


@dataclass(frozen=True, slots=True, kw_only=True)
class MigNode:
    """A node and its GPUs that can be partitioned, by their index there."""

    name: str
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigConfig:
    """The partitions of the GPUs of a node, under the name that a label has.

    Attributes:
        name: ``all-PROFILE`` is known to every MIG manager; any other has to be in its file first.
        counts: For GPUs of the same counts, their indices, and how many instances of each profile.
    """

    name: str
    counts: tuple[tuple[tuple[int, ...], tuple[tuple[str, int], ...]], ...]

    @property
    def is_built_in(self) -> bool:
        """Return whether the MIG manager knows it without being told."""
        return self.name.startswith("all-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """Let no new pods come to the node."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Have these pods save their work and leave; any other pod of the node stays."""

    node: str
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relabel:
    """Ask for a configuration; where it is not built in, put it into the MIG manager's file before."""

    node: str
    config: MigConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """Wait until the node says that it has the configuration; the plan ends here if it says it failed, or is late."""

    node: str
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncordon:
    """Let pods come to the node again."""

    node: str


Action = Cordon | Drain | Relabel | Await | Uncordon


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that is done to one node.

    Attributes:
        actions: In their order.
        leaving: Pods that have to leave.
        without: Those of them for whom no instance is free by then: they wait until the end of this step, or longer.
        move_cost: What all of them lose, in the unit of the weights of wishes.
        num_gpus: GPUs that nobody can use meanwhile.
    """

    node: str
    actions: tuple[Action, ...]
    leaving: tuple[str, ...]
    without: tuple[str, ...]
    move_cost: float
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """Steps in their order.

    Attributes:
        steps: Each may begin when those before it are done.
        refused: Nodes that stay as they are although something else was wanted, with why, as a sentence.
    """

    steps: tuple[Step, ...]
    refused: Mapping[str, str]

    @property
    def move_cost(self) -> float:
        """Return what all who leave lose."""
        return sum(step.move_cost for step in self.steps)

    @property
    def actions(self) -> tuple[Action, ...]:
        """All that is to be done, in its order."""
        return tuple(action for step in self.steps for action in step.actions)


def repartition(
    nodes: Sequence[MigNode], wanted: Mapping[str, Layout], *, patience_s: float = PATIENCE_S
) -> Repartition:
    """The steps to the wanted layouts, by device; a device that is not named there stays as it is."""
    refused, todo = {}, {}
    for node in nodes:
        why = _why_not(node, wanted)
        if why is not None:
            refused[node.name] = why
        elif changed := [device for device in node.devices if _changes(device, wanted)]:
            todo[node.name] = (node, changed)
    spare = Counter[str]()
    for node in nodes:
        spare.update(_free(node.devices) if node.name not in todo else {})
    steps: list[Step] = []
    while todo:
        steps.append(
            min(
                (_step(node, changed, wanted, spare, patience_s) for node, changed in todo.values()),
                key=lambda step: (len(step.without), step.move_cost, step.num_gpus, step.node),
            )
        )
        node, _ = todo.pop(steps[-1].node)
        spare = _after(node, wanted, spare)
    return Repartition(steps=tuple(steps), refused=refused)


def say(step: Step) -> str:
    """Return what a step does and costs, as a sentence."""
    config = next(action.config for action in step.actions if isinstance(action, Relabel))
    parts = [f"{step.node} is partitioned as {config.name}: {plural(step.num_gpus, 'GPU')} out of use meanwhile"]
    if step.leaving:
        verb = "moves" if len(step.leaving) == 1 else "move"
        parts.append(f"{', '.join(step.leaving)} {verb}, at a cost of {step.move_cost:g}")
    if step.without:
        verb = "waits" if len(step.without) == 1 else "wait"
        parts.append(f"{', '.join(step.without)} {verb} for an instance until then, or longer")
    return "; ".join(parts)


def mig_config(devices: Sequence[Device], layouts: Sequence[Layout]) -> MigConfig:
    """The configuration of a node, by a name that follows from what it says."""
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for index, layout in enumerate(layouts):
        groups.setdefault(tuple(sorted(counts_of(layout).items())), []).append(index)
    counts = tuple((tuple(indices), each) for each, indices in groups.items())
    if len(counts) == 1 and len(counts[0][1]) == 1:
        ((profile, num),) = counts[0][1]
        if all(num == _most(device.model, profile) for device in devices):
            return MigConfig(name=f"all-{profile.replace('+', '.')}", counts=counts)
    digest = hashlib.sha256(repr(counts).encode()).hexdigest()[:10]
    return MigConfig(name=f"fairlead-{digest}", counts=counts)


def _why_not(node: MigNode, wanted: Mapping[str, Layout]) -> str | None:
    for device in node.devices:
        layout = wanted.get(device.id, device.layout)
        illegal = why_illegal(device.model, layout)
        if illegal is not None:
            return f"{device.id} ({device.model.name}) {illegal}"
        bound = [each for each in _leaving(device, wanted) if each.move_cost is None]
        if bound:
            held = bound[0]
            return f"{device.id} has a {held.instance.profile} in use by {held.pod}, which may not be moved"
    return None


def _changes(device: Device, wanted: Mapping[str, Layout]) -> bool:
    layout = wanted.get(device.id, device.layout)
    return counts_of(layout) != counts_of(device.layout) if device.as_a_whole else layout != device.layout


def _leaving(device: Device, wanted: Mapping[str, Layout]) -> list[Held]:
    """Return who has to leave: all when the device is emptied, else those whose instance goes."""
    if not _changes(device, wanted):
        return []
    if device.as_a_whole:
        return list(device.held)
    return [each for each in device.held if each.instance not in wanted[device.id]]


def _step(
    node: MigNode, changed: Sequence[Device], wanted: Mapping[str, Layout], spare: Counter[str], patience_s: float
) -> Step:
    leaving = [each for device in changed for each in _leaving(device, wanted)]
    left, without = Counter(spare), []
    for each in leaving:
        if left[each.instance.profile] > 0:
            left[each.instance.profile] -= 1
        else:
            without.append(each.pod)
    pods = tuple(each.pod for each in leaving)
    config = mig_config(node.devices, [wanted.get(device.id, device.layout) for device in node.devices])
    name = node.name
    drain = (Drain(node=name, pods=pods),) if pods else ()
    return Step(
        node=name,
        actions=(
            Cordon(node=name),
            *drain,
            Relabel(node=name, config=config),
            Await(node=name, patience_s=patience_s),
            Uncordon(node=name),
        ),
        leaving=pods,
        without=tuple(without),
        move_cost=sum(each.move_cost or 0.0 for each in leaving),
        num_gpus=len(changed),
    )


def _after(node: MigNode, wanted: Mapping[str, Layout], spare: Counter[str]) -> Counter[str]:
    """Instances to spare once the node is done; below 0 where pods that left wait for one."""
    then = Counter(spare)
    for device in node.devices:
        gone = _leaving(device, wanted)
        then.update(counts_of(wanted.get(device.id, device.layout)))
        then.subtract(each.instance.profile for each in device.held if each not in gone)
        then.subtract(each.instance.profile for each in gone)
    return then


def _free(devices: Iterable[Device]) -> Counter[str]:
    return reduce(lambda total, device: total + Counter(counts_of(device.free)), devices, Counter[str]())


def _most(model: Partitionable, profile: str) -> int:
    """Return how many instances of one profile a GPU has at most."""
    sized = model.profiles[profile]
    return 1 if profile.endswith(MEDIA) else len(sized.starts)
