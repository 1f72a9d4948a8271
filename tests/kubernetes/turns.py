"""The turn in which an operator's controllers act, with defaults for what a test does not look at."""

from typing import Any

from fairlead.cluster.kubernetes.operator.controller import Turn
from fairlead.state.snapshot import Snapshot

NOTHING = Snapshot(nodes=(), workloads=(), pods=())


def a_turn(agent: Any = None, now: float = 0.0, snapshot: Snapshot = NOTHING) -> Turn:
    return Turn(agent=agent, now=now, snapshot=snapshot)
