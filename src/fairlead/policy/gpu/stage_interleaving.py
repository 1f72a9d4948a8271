"""Estimates the speed of jobs that share devices and interleave the stages of their iterations.

An iteration is three stages in a row: load (storage, then processor: two slots long), compute, communicate. Jobs whose
stages need different resources fill each other's gaps. Assumes that every member has a measured profile and runs on the
same number of devices, and that the memory of the devices suffices for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

MAX_MEMBERS = 4

# The factor of interference on the time of the ideal schedule with 2, 3 and 4 members: measured by Muri (SIGCOMM'22) on
# V100s, relative to the 1.5 % by which a job alone is slower than its profile.
INTERFERENCE = {2: 1.33 / 1.015, 3: 1.5 / 1.015, 4: 1.37 / 1.015}

# Seconds of loading, computing and communicating.
Stages = tuple[float, float, float]

_SLOTS = 4
_ROUNDS = 2
_SETTLED = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StageProfile:
    """Seconds of one iteration of a job: in total alone, and in each stage; stages may overlap or leave a rest."""

    iteration_s: float
    stages_s: Stages

    def __post_init__(self) -> None:
        assert self.iteration_s > 0.0, "an iteration takes time"
        assert min(self.stages_s) >= 0.0, "a stage takes no negative time"


def speeds(members: Sequence[StageProfile]) -> tuple[float, ...]:
    """Return the speed of each member, in order, as a share of its speed alone (1.0 for one member).

    Every member makes one iteration in each round of the group.
    """
    if len(members) == 1:
        return (1.0,)
    round_s = round_time_s(tuple(sorted(member.stages_s for member in members)))
    return tuple(member.iteration_s / round_s for member in members)


@lru_cache(maxsize=1 << 16)
def round_time_s(stages_s: tuple[Stages, ...]) -> float:
    """Return the seconds in which 2 to 4 members make one iteration each, in their best order.

    Muri (SIGCOMM'22), section 4.1: the interleaving efficiency of a group. At most 4! orders of 8 steps.
    """
    assert 2 <= len(stages_s) <= MAX_MEMBERS, f"a group of {len(stages_s)}"
    best_s = min(_interleaved_s(order) for order in permutations(stages_s))
    if len(stages_s) == 2:
        first, second = stages_s
        halves_s = max(first[0], second[1] + second[2]) + max(second[0], first[1] + first[2])
        best_s = min(best_s, halves_s)
    return best_s * INTERFERENCE[len(stages_s)]


def _interleaved_s(order: tuple[Stages, ...]) -> float:
    """Return the period of the cyclic schedule: slot i loads while slot i+1 computes and slot i+2 communicates."""
    finish = [0.0]
    for step in range(_SLOTS * _ROUNDS):
        ends = []
        for ahead, stage, start in ((1, 2, step), (2, 1, step), (3, 0, step - 1)):
            slot = (step + ahead) % _SLOTS
            if start >= 0 and slot < len(order):
                ends.append(finish[start] + order[slot][stage])
        finish.append(max(ends))
        if step >= _SLOTS:
            period_s = finish[step + 1] - finish[step - 3]
            before_s = finish[step] - finish[step - 4]
            if period_s > 0.0 and abs(period_s - before_s) <= _SETTLED * max(period_s, before_s):
                return period_s
    return finish[_SLOTS * _ROUNDS] - finish[_SLOTS * (_ROUNDS - 1)]
