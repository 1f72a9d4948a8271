"""Decides which replicas come and which go, while one revision serves or takes over from another.

A replica that goes is first told to nobody any more: the gateway has a moment to forget it before it gets its notice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    name: str
    number: int
    revision: int
    ready: bool
    leaving: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next thing to do.

    Attributes:
        come: How many replicas of the target revision are to be submitted.
        go: Those that are to go, by name.
    """

    come: int = 0
    go: tuple[str, ...] = ()


def next_step(replicas: Sequence[ReplicaState], target: int, wanted: int, max_surge: int) -> Step:
    """Return which replicas come and go, so that ``wanted`` ones of the target revision serve in the end.

    While there are others, no more than ``wanted + max_surge`` are there at once, those of the others that go included,
    and so many of the others stay as the target's ready ones do not replace yet. Where the cluster has no room for
    more, one of several others goes first.
    """
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
    elif len(old) > 1 and num_leaving == 0 and any(each.waits for each in new):
        # There is no room for a surge; but the last of them goes for nothing that has not shown itself.
        stay = min(stay, len(old) - 1)
    go += [each.name for each in _first_to_go(old)[: max(0, len(old) - stay)]]
    return Step(come=come, go=tuple(go))


def _first_to_go(replicas: Sequence[ReplicaState]) -> list[ReplicaState]:
    """Those that do not serve first, then the newest."""
    return sorted(replicas, key=lambda each: (each.ready, -each.number))
