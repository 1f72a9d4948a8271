"""Plans pairwise measurements of a network in few rounds, and names the slow NIC, uplink or pod from their times.

In a round all nodes are paired, so that all links are measured at once. Two rounds belong to each level of the
topology, within the narrowest domains first, then between these, and so on: a pair that spans a level also uses its
links. A pair is slow if it takes ``SLOW_FACTOR`` times as long as the fastest third of its round. Slow pairs are then
explained greedily by the component for which the likelihood ratio against chance is largest: the NIC of a node makes
all of its pairs slow, one of several parallel uplinks of a domain a part of those that leave it.

``fairlead.runtime.network.measuring`` takes the times.
"""

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Pair = tuple[str, str]
Topology = Mapping[str, tuple[str, ...]]
"""The domains of each node, wide to narrow, such as pod and leaf; as many for each node, and empty without any."""

SLOW_FACTOR = 1.15
LEAST_OUTLIERS, MOST_OUTLIERS = 0.005, 0.2
"""Bounds of the share of pairs that are slow by chance, which is taken from the measurements."""
WHOLE_SHARE = 0.7
"""A slow NIC makes at least this share of its pairs slow."""
LEAST_SLOW = 3
"""Slow pairs that a component explains at least."""
TRIES = 64
"""Attempts to find another partner for a node that has one of its own part."""
ODDS = 1000.0
"""A component is named if chance explains its slow pairs this many times less often, for any of all components."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """A component of the network that is slow.

    Attributes:
        node: The node whose NIC is slow; None for an uplink.
        domain: The domain with a slow uplink, as a path from the widest; empty for a NIC.
        factor: The median time of the pairs that it explains, as a multiple of that of their rounds' fastest third.
        num_slow, num_pairs: How many of the pairs that use it are slow.
    """

    node: str | None = None
    domain: tuple[str, ...] = ()
    factor: float
    num_slow: int
    num_pairs: int


def plan_rounds(topology: Topology, num_rounds: int, rng: random.Random) -> tuple[tuple[Pair, ...], ...]:
    """Return the pairs of each round; a node without a partner in a round is left out of it."""
    depth = max((len(path) for path in topology.values()), default=0)
    return tuple(_pairs(topology, depth - (number // 2) % (depth + 1), rng) for number in range(num_rounds))


def slow_links(topology: Topology, rounds: Sequence[Mapping[Pair, float]]) -> tuple[SlowLink, ...]:
    """Return the slow components, the surest first.

    Args:
        rounds: The seconds of each pair of each round, positive.
    """
    flows = [(pair, ratio) for times in rounds for pair, ratio in _ratios(times)]
    slow = {number for number, (_, ratio) in enumerate(flows) if ratio >= SLOW_FACTOR}
    if not slow:
        return ()
    uses = [_components(topology, pair) for pair, _ in flows]
    through = defaultdict[tuple[str, ...], list[int]](list)
    for number, components in enumerate(uses):
        for component in components:
            through[component].append(number)
    limit = math.log(len(through) * ODDS)
    result, num_left = [], len(flows)
    while slow:
        chance = min(max(len(slow) / num_left, LEAST_OUTLIERS), MOST_OUTLIERS)
        suspects = {component for number in slow for component in uses[number]}
        scores = {component: _evidence(component, through[component], slow, chance) for component in suspects}
        worst = max(sorted(scores), key=lambda component: scores[component])
        if scores[worst] < limit:
            break
        explained = [number for number in through[worst] if number in slow]
        kind, *path = worst
        result.append(
            SlowLink(
                node=path[0] if kind == _NIC else None,
                domain=() if kind == _NIC else tuple(path),
                factor=median(flows[number][1] for number in explained),
                num_slow=len(explained),
                num_pairs=len(through[worst]),
            )
        )
        # They say nothing about other components any more, neither for nor against.
        slow.difference_update(explained)
        num_left -= len(explained)
        for number in explained:
            for component in uses[number]:
                through[component].remove(number)
    return tuple(result)


_NIC, _UPLINK = "nic", "uplink"


def _pairs(topology: Topology, level: int, rng: random.Random) -> tuple[Pair, ...]:
    """Return random pairs of nodes that share the first ``level`` domains and, where possible, not the next one."""
    groups = defaultdict[tuple[str, ...], list[str]](list)
    for name in sorted(topology):
        groups[topology[name][:level]].append(name)
    return tuple(pair for group in groups.values() for pair in _mixed(group, topology, level, rng))


def _mixed(group: list[str], topology: Topology, level: int, rng: random.Random) -> list[Pair]:
    """Return random pairs of a group, with partners of different parts: each part meets many others in a round."""
    rng.shuffle(group)
    half = len(group) // 2
    first, second = group[:half], group[half : 2 * half]
    parts = {name: topology[name][level : level + 1] for name in group}
    for at in range(half):
        for _ in range(TRIES if parts[first[at]] and parts[first[at]] == parts[second[at]] else 0):
            other = rng.randrange(half)
            is_better = parts[first[at]] != parts[second[other]] and parts[first[other]] != parts[second[at]]
            if is_better:
                second[at], second[other] = second[other], second[at]
                break
    return list(zip(first, second, strict=True))


def _ratios(times: Mapping[Pair, float]) -> list[tuple[Pair, float]]:
    """Return the times as multiples of one that a third of the pairs do not exceed: up to half of them may be slow."""
    if not times:
        return []
    typical = sorted(times.values())[len(times) // 3]
    return [(pair, seconds / typical) for pair, seconds in times.items()]


def _components(topology: Topology, pair: Pair) -> list[tuple[str, ...]]:
    """Return the NICs of a pair, and the domains whose uplinks it uses."""
    result: list[tuple[str, ...]] = [(_NIC, name) for name in pair]
    paths = [topology[name] for name in pair]
    for level in range(len(paths[0])):
        ends = [path[: level + 1] for path in paths]
        if ends[0] != ends[1]:
            result += [(_UPLINK, *end) for end in ends]
    return result


def _evidence(component: tuple[str, ...], through: Sequence[int], slow: set[int], chance: float) -> float:
    """Return the logarithm of the likelihood ratio of a slow component against chance."""
    num, num_slow = len(through), sum(number in slow for number in through)
    share = num_slow / num
    if num_slow < LEAST_SLOW or share <= chance or (component[0] == _NIC and share < WHOLE_SHARE):
        return 0.0
    rest = 0.0 if num == num_slow else (num - num_slow) * math.log((1 - share) / (1 - chance))
    return num_slow * math.log(share / chance) + rest
