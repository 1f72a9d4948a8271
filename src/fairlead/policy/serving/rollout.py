"""Decides which replicas come and which go, while one revision serves or takes over from another.

A replica that goes is first told to nobody any more: the gateway has a moment to forget it before it gets its notice.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.specs.training import Tier

# How long a replica that is told to nobody runs on before its stop notice.
DRAIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One replica of an endpoint.

    Attributes:
        number: Later ones have higher numbers.
        revision: The number of its revision.
        ready: It answers its probe.
        leaving: It is to go.
        waits: It has no place yet.
        tier: The part of the endpoint's replicas that it is of; None where they do not differ.
        on_spot: It is on a spot node.
    """

    name: str
    number: int
    revision: int
    ready: bool
    leaving: bool = False
    waits: bool = False
    tier: Tier | None = None
    on_spot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next thing to do.

    Attributes:
        come: How many replicas of the target revision are to be submitted.
        come_old: How many of the one that it is tried beside.
        go: Those that are to go, by name.
    """

    come: int = 0
    come_old: int = 0
    go: tuple[str, ...] = ()


def next_step(
    replicas: Sequence[ReplicaState], target: int, wanted: int, max_surge: int, failed: Collection[int] = ()
) -> Step:
    """Return which replicas come and go, so that ``wanted`` ones of the target revision serve in the end.

    While there are others, no more than ``wanted + max_surge`` are there at once, those of the others that go included,
    and so many of the others stay as the target's ready ones do not replace yet. Where the cluster has no room for
    more, one of the others goes first, the last of them once one of the target is ready. Those of revisions that have
    failed go at once.
    """
    spoilt = [each.name for each in replicas if each.revision in failed and not each.leaving]
    if spoilt:
        left = [replace(each, ready=False, leaving=True) if each.name in spoilt else each for each in replicas]
        rest = next_step(left, target, wanted, max_surge)
        return replace(rest, go=(*spoilt, *rest.go))
    new = [each for each in replicas if each.revision == target and not each.leaving]
    old = [each for each in replicas if each.revision != target and not each.leaving]
    num_leaving = sum(each.leaving and each.revision != target for each in replicas)
    go = [each.name for each in _first_to_go(new)[: max(0, len(new) - wanted)]]
    missing = max(0, wanted - len(new))
    if not old and not num_leaving:
        return Step(come=missing, go=tuple(go))
    room = wanted + max_surge - len(new) - len(old) - num_leaving
    come = min(missing, max(0, room))
    num_ready = sum(each.ready for each in new if each.name not in go)
    stay = max(0, wanted - num_ready)
    if missing and come == 0 and num_leaving == 0 and num_ready == len(new):
        # No surge: one of the others makes room.
        stay = min(stay, len(old) - 1)
    elif old and (len(old) > 1 or num_ready) and num_leaving == 0 and any(each.waits for each in new):
        # There is no room for a surge; but the last of them goes for nothing that has not shown itself.
        stay = min(stay, len(old) - 1)
    go += [each.name for each in _first_to_go(old)[: max(0, len(old) - stay)]]
    return Step(come=come, go=tuple(go))


def canary_step(
    replicas: Sequence[ReplicaState],
    target: int,
    old: int,
    wanted: int,
    share: float,
    max_surge: int,
    *,
    is_shadow: bool = False,
) -> Step:
    """Return which replicas come and go while a revision is tried with a share of the requests beside the old one.

    It has its share of the replicas, one at least; the old one keeps all that are wanted, as far as the surge allows,
    and one at least. So what a canary takes of the requests, the others need not carry, and it can go at any time. A
    shadow takes none of them, and no replica of the old one either.
    """
    num_new = min(wanted, max(1, math.ceil(share * wanted - 1e-9)))
    if is_shadow:
        num_new = min(num_new, max(1, max_surge))
    num_old = max(1, min(wanted, wanted + max_surge - num_new))
    there = [each for each in replicas if not each.leaving]
    new = [each for each in there if each.revision == target]
    before = [each for each in there if each.revision == old]
    go = [each.name for each in _first_to_go(new)[: max(0, len(new) - num_new)]]
    # The old one keeps what it has until there is need of the room.
    is_short = len(new) < num_new or any(each.waits for each in new)
    room = wanted + max_surge - sum(each.revision in (target, old) for each in replicas)
    if is_short and room <= 0:
        go += [each.name for each in _first_to_go(before)[: max(0, len(before) - num_old)]]
    go += [each.name for each in there if each.revision not in (target, old)]
    come = min(max(0, num_new - len(new)), max(0, room))
    return Step(come=come, come_old=min(max(0, num_old - len(before)), max(0, room - come)), go=tuple(go))


def _first_to_go(replicas: Sequence[ReplicaState]) -> list[ReplicaState]:
    """Those that do not serve first, then the newest; of the base the last, and before others those that are above it
    and hold on-demand nodes, for want of spot."""
    return sorted(replicas, key=lambda each: (each.tier is Tier.BASE, each.ready, each.on_spot, -each.number))
