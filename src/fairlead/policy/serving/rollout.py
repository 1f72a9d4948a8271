"""Decides which replicas to add and remove while one revision serves or replaces another.

A replica to be removed is first taken out of the routes, so that the gateway stops using it before its stop notice.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.specs.training import Tier

# How long a replica without routes runs before its stop notice.
DRAIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One replica of an endpoint.

    Attributes:
        number: Increases with each replica.
        revision: The number of its revision.
        ready: Whether its probe succeeds.
        leaving: Whether it is being removed.
        waits: Whether it has no place yet.
        tier: Its part of the endpoint's replicas; None without such parts.
        on_spot: Whether it is on a spot node.
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
class RolloutStep:
    """The next changes.

    Attributes:
        come: The number of replicas of the target revision to submit.
        come_old: The number of replicas to submit of the revision that it is compared with.
        go: Names of the replicas to remove.
    """

    come: int = 0
    come_old: int = 0
    go: tuple[str, ...] = ()


def next_step(
    replicas: Sequence[ReplicaState], target: int, wanted: int, max_surge: int, failed: Collection[int] = ()
) -> RolloutStep:
    """Return which replicas to add and remove, so that ``wanted`` ones of the target revision serve in the end.

    While others exist, at most ``wanted + max_surge`` exist at once, including others that are leaving, and as many
    others stay as the ready ones of the target do not replace yet. If the cluster has no room for more, one of the
    others is removed first, the last of them once one of the target is ready. Those of failed revisions are removed at
    once.
    """
    spoilt = [replica.name for replica in replicas if replica.revision in failed and not replica.leaving]
    if spoilt:
        left = [
            replace(replica, ready=False, leaving=True) if replica.name in spoilt else replica for replica in replicas
        ]
        rest = next_step(left, target, wanted, max_surge)
        return replace(rest, go=(*spoilt, *rest.go))
    new = [replica for replica in replicas if replica.revision == target and not replica.leaving]
    old = [replica for replica in replicas if replica.revision != target and not replica.leaving]
    num_leaving = sum(replica.leaving and replica.revision != target for replica in replicas)
    go = [replica.name for replica in _first_to_go(new)[: max(0, len(new) - wanted)]]
    missing = max(0, wanted - len(new))
    if not old and not num_leaving:
        return RolloutStep(come=missing, go=tuple(go))
    room = wanted + max_surge - len(new) - len(old) - num_leaving
    come = min(missing, max(0, room))
    num_ready = sum(replica.ready for replica in new if replica.name not in go)
    stay = max(0, wanted - num_ready)
    if missing and come == 0 and num_leaving == 0 and num_ready == len(new):
        # No surge: one of the others makes room.
        stay = min(stay, len(old) - 1)
    elif old and (len(old) > 1 or num_ready) and num_leaving == 0 and any(replica.waits for replica in new):
        # There is no room for a surge; but the last of the others stays until one of the target is ready.
        stay = min(stay, len(old) - 1)
    go += [replica.name for replica in _first_to_go(old)[: max(0, len(old) - stay)]]
    return RolloutStep(come=come, go=tuple(go))


def canary_step(
    replicas: Sequence[ReplicaState],
    target: int,
    old: int,
    wanted: int,
    share: float,
    max_surge: int,
    *,
    is_shadow: bool = False,
) -> RolloutStep:
    """Return the replicas to add and remove while a revision is tried with a share of requests beside the old one.

    It has its share of the replicas, at least one; the old revision keeps the wanted number, as far as the surge
    allows, and at least one. So the canary can be removed at any time, although the others need not carry its requests
    meanwhile. A shadow takes no requests from the old revision, and none of its replicas. If none is wanted, the
    endpoint sleeps.
    """
    if not wanted:
        return RolloutStep(go=tuple(replica.name for replica in replicas if not replica.leaving))
    num_new = min(wanted, max(1, math.ceil(share * wanted - 1e-9)))
    if is_shadow:
        num_new = min(num_new, max(1, max_surge))
    num_old = max(1, min(wanted, wanted + max_surge - num_new))
    staying = [replica for replica in replicas if not replica.leaving]
    new = [replica for replica in staying if replica.revision == target]
    before = [replica for replica in staying if replica.revision == old]
    go = [replica.name for replica in _first_to_go(new)[: max(0, len(new) - num_new)]]
    # The old revision keeps its replicas until their room is needed.
    is_short = len(new) < num_new or any(replica.waits for replica in new)
    room = wanted + max_surge - sum(replica.revision in (target, old) for replica in replicas)
    if is_short and room <= 0:
        go += [replica.name for replica in _first_to_go(before)[: max(0, len(before) - num_old)]]
    go += [replica.name for replica in staying if replica.revision not in (target, old)]
    come = min(max(0, num_new - len(new)), max(0, room))
    return RolloutStep(come=come, come_old=min(max(0, num_old - len(before)), max(0, room - come)), go=tuple(go))


def _first_to_go(replicas: Sequence[ReplicaState]) -> list[ReplicaState]:
    """Sort replicas by order of removal: unready ones, those on on-demand nodes, then the newest; the base last."""
    return sorted(
        replicas, key=lambda replica: (replica.tier is Tier.BASE, replica.ready, replica.on_spot, -replica.number)
    )
