"""Chooses layouts of a cluster's partitionable GPUs, so that most of what is wished for finds an instance.

The problem is a generalised assignment of wishes to GPUs, each of which takes one of a few dozen layouts. GPUs are
looked at one after another and every layout is tried; of the partial answers those are kept that could still become
the best, by what they serve and by what the slices that are left could serve at most (a beam search; Lowerre, 1976,
with the bound of a fractional knapsack; Dantzig, Operations Research 1957). What is left to be wished for is all that
tells partial answers apart, so that equal GPUs are not tried in every order. With D GPUs, L layouts of each, P wishes
and W answers kept: O(D W L P) in time and O(D W) in memory. ``benchmarks.exact`` sets it beside the optimum.

An instance in use stays where it is, unless its pod may move. Then the pod's own profile is wished for like any other,
and no answer counts that leaves it without.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.candidates.mig.bipartite_matching import match
from benchmarks.candidates.mig.partitions import Device, Held, Option, options_of
from fairlead.policy.gpu.mig import Layout, Partitionable

MOST_KEPT = 256
WORK = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Instances that are wanted.

    Attributes:
        profiles: Names of those that would do, any of them.
        weight: What each is worth.
    """

    profiles: frozenset[str]
    count: int = 1
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Layouts for all devices.

    Attributes:
        layouts: By device; those that stay as they are too.
        served: How many of each wish find an instance.
        moved: Pods whose instance does not stay, each with another of its profile to go to.
        value: Weights of what is served less what moves cost.
    """

    layouts: Mapping[str, Layout]
    served: tuple[int, ...]
    moved: tuple[Held, ...]
    value: float


def choose(devices: Sequence[Device], wishes: Sequence[Wish], most_kept: int | None = None) -> Chosen:
    """The layouts of most value, of those with few changes.

    Args:
        most_kept: Partial answers that are kept; None for as many as take about a second at most.
    """
    problem = _Problem.of(devices, wishes)
    most = most_kept or max(4, min(MOST_KEPT, WORK // max(1, len(devices))))
    answers = {problem.wanted: _Answer()}
    for number, options in enumerate(problem.options):
        following: dict[tuple[int, ...], _Answer] = {}
        for left, answer in answers.items():
            for option in options:
                then = problem.serve(left, option)
                value = answer.value + problem.worth(left, then) - option.cost
                before = following.get(then)
                changes = answer.changes + option.is_change
                if before is None or (value, -changes) > (before.value, -before.changes):
                    following[then] = _Answer(value=value, changes=changes, option=option, before=answer)
        room = problem.room_after(number)
        ranked = sorted(
            following.items(), key=lambda item: (-item[1].value - problem.bound(item[0], room), item[1].changes)
        )
        answers = dict(ranked[:most])
    found = problem.told(next(iter(answers.values())).options())
    # A beam may lose the answer that moves nobody, which leaves nobody without.
    still = problem.told(options[0] for options in problem.options)
    return found if found.value > still.value else still


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """Options for the devices looked at so far, the latest first."""

    value: float = 0.0
    changes: int = 0
    option: Option | None = None
    before: "_Answer | None" = None

    def options(self) -> list[Option]:
        found: list[Option] = []
        answer: _Answer | None = self
        while answer is not None and answer.option is not None:
            found.append(answer.option)
            answer = answer.before
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """The things that are fixed during the search.

    A state is what is left of each wish, and for each profile that somebody may have to leave, how many who left are
    without one; below 0 for so many to spare.

    Attributes:
        options: For each device, that which changes nothing first; devices from which pods may move come first.
        by_worth: Wishes by weight, the greatest first.
        by_rarity: For each wish, profiles that would do, first those that the others want least.
        leavers: Names of profiles that may have to be left, with how many in all.
        sizes: Memory and compute slices that each wish takes at least; None where no device has what it wishes for.
        owed_sizes: The same of each of ``leavers``.
    """

    wishes: tuple[Wish, ...]
    options: tuple[tuple[Option, ...], ...]
    by_worth: tuple[int, ...]
    by_rarity: tuple[tuple[str, ...], ...]
    leavers: tuple[tuple[str, int], ...]
    sizes: tuple[tuple[int, int] | None, ...]
    owed_sizes: tuple[tuple[int, int], ...]
    rooms: tuple[tuple[int, int], ...]
    densest: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, devices: Sequence[Device], wishes: Sequence[Wish]) -> "_Problem":
        ordered = sorted(devices, key=lambda device: all(each.move_cost is None for each in device.held))
        leavers = Counter(
            each.instance.profile for device in devices for each in device.held if each.move_cost is not None
        )
        wanted = frozenset(leavers).union(*(wish.profiles for wish in wishes))
        options = tuple(tuple(options_of(device, wanted)) for device in ordered)
        models = {device.model.name: device.model for device in devices}.values()
        sizes = tuple(_least(models, wish.profiles) for wish in wishes)
        rooms = [(0, 0)]
        for choices in reversed(options):
            most = [max(option.slices[axis] for option in choices) for axis in (0, 1)]
            rooms.append((rooms[-1][0] + most[0], rooms[-1][1] + most[1]))
        by_density = [
            sorted((i for i, size in enumerate(sizes) if size), key=lambda i: -wishes[i].weight / _axis(sizes[i], axis))
            for axis in (0, 1)
        ]
        longing = Counter[str]()
        for wish in wishes:
            longing.update(dict.fromkeys(wish.profiles, wish.count))
        by_rarity = tuple(tuple(sorted(wish.profiles, key=lambda name: (longing[name], name))) for wish in wishes)
        return cls(
            wishes=tuple(wishes),
            options=options,
            by_worth=tuple(sorted(range(len(wishes)), key=lambda i: -wishes[i].weight)),
            by_rarity=by_rarity,
            leavers=tuple(sorted(leavers.items())),
            sizes=sizes,
            owed_sizes=tuple(_least(models, frozenset({name})) or (0, 0) for name in sorted(leavers)),
            rooms=tuple(reversed(rooms)),
            densest=(tuple(by_density[0]), tuple(by_density[1])),
        )

    @property
    def wanted(self) -> tuple[int, ...]:
        """The state before any device was looked at."""
        return (*(wish.count for wish in self.wishes), *(0 for _ in self.leavers))

    def serve(self, state: tuple[int, ...], option: Option) -> tuple[int, ...]:
        """The state after a device took this option: those who left come first, then the worthiest wishes."""
        num, then = len(self.wishes), list(state)
        if self.leavers and option.moved:
            gone = Counter(each.instance.profile for each in option.moved)
            for i, (name, _) in enumerate(self.leavers, start=num):
                then[i] += gone[name]
        supply = dict(option.free)
        for i, (name, _) in enumerate(self.leavers, start=num):
            taken = min(max(0, then[i]), supply.get(name, 0))
            if taken:
                then[i] -= taken
                supply[name] -= taken
        for i in self.by_worth:
            if not then[i]:
                continue
            for name in self.by_rarity[i]:
                taken = min(then[i], supply.get(name, 0))
                if taken:
                    then[i] -= taken
                    supply[name] -= taken
                    if not then[i]:
                        break
        for i, (name, most) in enumerate(self.leavers, start=num):
            then[i] = max(-most, then[i] - supply.get(name, 0))
        return tuple(then)

    def worth(self, state: tuple[int, ...], then: tuple[int, ...]) -> float:
        """Weights of what was served from one state to the next."""
        return sum(
            (before - after) * wish.weight for before, after, wish in zip(state, then, self.wishes, strict=False)
        )

    def room_after(self, number: int) -> tuple[int, int]:
        """Most memory and compute slices that devices after this one can have free."""
        return self.rooms[number + 1]

    def bound(self, state: tuple[int, ...], room: tuple[int, int]) -> float:
        """No less than what can still be served in this room; minus infinity where somebody stays without."""
        bounds = []
        for axis in (0, 1):
            left = float(room[axis])
            for count, size in zip(state[len(self.wishes) :], self.owed_sizes, strict=True):
                left -= max(0, count) * size[axis]
            if left < 0:
                return -float("inf")
            worth = 0.0
            for i in self.densest[axis]:
                takes = _axis(self.sizes[i], axis)
                served = min(float(state[i]), left / takes)
                worth += served * self.wishes[i].weight
                left -= served * takes
                if left <= 0:
                    break
            bounds.append(worth)
        return min(bounds)

    def told(self, options: Iterable[Option]) -> Chosen:
        """Return who is served of all wishes at once with these options; of value minus infinity, if someone stays
        without.
        """
        options = list(options)
        supply = Counter[str]()
        for option in options:
            supply.update(dict(option.free))
        moved = tuple(each for option in options for each in option.moved)
        owed = Counter(each.instance.profile for each in moved)
        wants = [(frozenset({name}), count) for name, count in sorted(owed.items())]
        wants += [(self.wishes[i].profiles, self.wishes[i].count) for i in self.by_worth]
        found = match(supply, wants)
        served = [0] * len(self.wishes)
        for i, num in zip(self.by_worth, found[len(owed) :], strict=True):
            served[i] = num
        value = sum(num * wish.weight for num, wish in zip(served, self.wishes, strict=True))
        value -= sum(option.cost for option in options)
        if sum(found[: len(owed)]) < len(moved):
            value = -float("inf")
        layouts = {option.device: option.layout for option in options}
        return Chosen(layouts=layouts, served=tuple(served), moved=moved, value=value)


def _least(models: Iterable[Partitionable], names: Iterable[str]) -> tuple[int, int] | None:
    """Fewest memory and fewest compute slices of a profile with one of these names."""
    names = frozenset(names)
    found = [profile for model in models for name, profile in model.profiles.items() if name in names]
    return (min(each.memory for each in found), min(each.compute for each in found)) if found else None


def _axis(size: tuple[int, int] | None, axis: int) -> int:
    assert size is not None
    return size[axis]
