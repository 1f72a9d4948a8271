"""Divides a limit of one process among teams, so that none takes the places of the others. Pure.

Max-min fairness: who wants less than an equal part gets all of it, and what is left is divided among the others
(Bertsekas and Gallager, Data Networks, section 6.5.2).

See decision 199.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

Item = TypeVar("Item")


def by_turns(items: Iterable[Item], team_of: Callable[[Item], str], most: int) -> list[Item]:
    """Return at most so many items, one of each team in turn; those of a team in their order."""
    queues: dict[str, deque[Item]] = {}
    for item in items:
        queues.setdefault(team_of(item), deque()).append(item)
    turns, chosen = deque(queues.values()), list[Item]()
    while turns and len(chosen) < most:
        queue = turns.popleft()
        chosen.append(queue.popleft())
        if queue:
            turns.append(queue)
    return chosen


def fair_parts(wanted: Mapping[str, float], whole: float) -> dict[str, float]:
    """Return each team's part of a whole, at most what it wants."""
    parts, left = dict[str, float](), whole
    for number, team in enumerate(sorted(wanted, key=lambda name: wanted[name])):
        parts[team] = min(wanted[team], left / (len(wanted) - number))
        left -= parts[team]
    return parts
