"""Finds the rank that blocks the others of a hung gang, by the location of each rank's main thread.

Ranks in a call that waits for other ranks are waiting; a rank elsewhere hangs. If all wait, PyTorch's flight recorder
decides where it can: each process group counts its collectives, so those that a rank has not entered are known. If it
does not, a rank that is steps behind is named, or a single one elsewhere; otherwise the cause is reported as unknown.
Ranks that call different collectives, or the same ones in different orders, are a fault of the program.

See decision 281.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Self

from fairlead.frozen import dataclass
from fairlead.state.snapshot import GroupProgress, RankExit, Whereabouts
from fairlead.text.quantities import plural

MOST_NAMED = 3
SAME_SIZED = frozenset({"all_reduce", "broadcast", "reduce"})
"""Collectives to which all ranks of a group must bring tensors of one size; to others they need not."""
REMEDY = (
    "All ranks have to call the same collectives in the same order, also behind an `if`; their stacks are in the log."
)


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """The cause of a hang.

    Attributes:
        says: Which ranks hang and where, as a clause.
        is_program: Whether the program is certainly at fault, so that it would hang anywhere.
    """

    says: str
    is_program: bool = False


def judge_hang(exits: Sequence[RankExit], world_size: int) -> HangVerdict | None:
    """Return which ranks hang and where, and whether the program is at fault; None if no stacks were taken.

    Args:
        exits: Ends of the ranks of the hung gang, as far as known.
        world_size: The number of ranks.
    """
    looked = {exit_.rank: exit_.hang for exit_ in exits if exit_.hang is not None}
    if not looked:
        return None
    waiting = {rank: hang for rank, hang in looked.items() if hang.waits_in is not None}
    busy = {rank: hang for rank, hang in looked.items() if hang.waits_in is None and hang.place is not None}
    # A rank that had succeeded has no stack to give.
    over = {exit_.rank for exit_ in exits if exit_.ok and exit_.hang is None}
    silent = world_size - len(waiting) - len(busy) - len(over)
    if not waiting and not busy:
        return HangVerdict("no rank gave its stack, so where it hangs is not known")
    verdict = None if busy else _by_collectives(waiting)
    if world_size == 1:
        return verdict or HangVerdict(f"rank 0 hangs in {_where(looked[0])}")
    if verdict is None:
        verdict = HangVerdict(_partial_hang(waiting, busy) if busy else _all_wait(waiting))
    says = verdict.says
    if over:
        says += f"; {_names(sorted(over))} had succeeded"
    if silent == 1:
        quiet = next(rank for rank in range(world_size) if rank not in {*waiting, *busy, *over})
        says += f"; rank {quiet} gave no stack"
    elif silent:
        says += f"; {silent} ranks gave no stack"
    return HangVerdict(says, verdict.is_program)


@dataclass(frozen=True, slots=True)
class _StuckCollective:
    """The first collective of a process group that has not ended.

    Attributes:
        title: Its number and group.
        callers: The ranks that entered it, by operation, as far as the ranks must agree on it.
        missing: The ranks that have not entered it.
    """

    title: str
    callers: dict[str, list[int]]
    missing: list[int]

    @property
    def num_callers(self) -> int:
        """Return the number of ranks that entered it."""
        return sum(map(len, self.callers.values()))

    @classmethod
    def of(cls, group: str, ranks: dict[int, GroupProgress]) -> Self | None:
        """Return the one of a group; None if no rank waits in one."""
        number = min((progress.pending for progress in ranks.values() if progress.pending is not None), default=None)
        if number is None:
            return None
        callers: dict[str, list[int]] = {}
        for rank, progress in sorted(ranks.items()):
            if progress.pending == number:
                callers.setdefault(str(progress.operation), []).append(rank)
        kinds = {operation.partition(" of ")[0] for operation in callers}
        if len(kinds) == 1 and not kinds <= SAME_SIZED:
            callers = {min(callers): sorted(rank for ranks_ in callers.values() for rank in ranks_)}
        missing = [rank for rank, progress in sorted(ranks.items()) if progress.entered < number]
        return cls(f"collective {number} of {group}", callers, missing)


def _by_collectives(waiting: dict[int, Whereabouts]) -> HangVerdict | None:
    """Explain a hang in which all ranks wait by the collectives that they entered; None if that does not explain it.

    Behind a launcher a rank has several processes, which are named by the ranks that they know themselves by.
    """
    groups: dict[str, dict[int, GroupProgress]] = {}
    members: dict[int, Whereabouts] = {}
    for rank, hang in waiting.items():
        for progress in hang.collectives:
            member = rank if progress.rank is None else progress.rank
            of_group = groups.setdefault(progress.group, {})
            if member in of_group:
                return None  # the processes of several pods do not know each other
            of_group[member] = progress
            is_known = progress.place is not None or progress.waits_in is not None
            own = Whereabouts(place=progress.place, waits_in=progress.waits_in)
            members[member] = own if is_known or member != rank else hang
        if not hang.collectives:
            members[rank] = hang
    stuck = [one for group in sorted(groups) if (one := _StuckCollective.of(group, groups[group])) is not None]
    unequal = [one for one in stuck if len(one.callers) > 1]
    if unequal:
        calls = _operations(unequal[0].callers)
        says = f"the program is at fault: the ranks differ in {unequal[0].title}: {calls}"
        return HangVerdict(says, is_program=True)
    held_up = {rank for one in stuck for ranks in one.callers.values() for rank in ranks}
    incomplete = [one for one in stuck if one.missing]
    # A rank that waits in no other collective is the cause; one that does may itself be held up.
    causes = [one for one in incomplete if not held_up.issuperset(one.missing)]
    for one in causes or incomplete:
        is_crossed = not causes and len(incomplete) > 1 and all(one.missing for one in stuck)
        order = "; the ranks enter their groups in different orders" if is_crossed else ""
        ((operation, ranks),) = one.callers.items()
        where = _missing({rank: members[rank] for rank in one.missing})
        have = "has" if len(one.missing) == 1 else "have"
        wait = "waits" if len(ranks) == 1 else "wait"
        says = (
            f"{_names(one.missing)} {have} not entered {one.title}, {operation}, "
            f"in which {_names(ranks)} {wait}: {where}{order}"
        )
        return HangVerdict(f"the program is at fault: {says}" if is_crossed else says, is_program=is_crossed)
    if len(stuck) == 1 and stuck[0].num_callers == len(members):
        (operation,) = stuck[0].callers
        return HangVerdict(
            f"all {len(members)} ranks entered {stuck[0].title}, {operation}, and it does not end: "
            "the network or a device is the likely cause"
        )
    return None


def _missing(ranks: dict[int, Whereabouts]) -> str:
    """Return where the ranks are that have not entered a collective."""
    known = {rank: at for rank, at in ranks.items() if at.place is not None or at.waits_in is not None}
    if not known:
        return "the log has their stacks" if len(ranks) > 1 else "the log has its stack"
    return _hang(known, "waits" if any(at.waits_in is not None for at in known.values()) else "hangs")


def _operations(callers: dict[str, list[int]]) -> str:
    calls = [f"{_names(ranks)} {'calls' if len(ranks) == 1 else 'call'} {name}" for name, ranks in callers.items()]
    more = f" and {len(calls) - MOST_NAMED} more" if len(calls) > MOST_NAMED else ""
    return ", ".join(calls[:MOST_NAMED]) + more


def _partial_hang(waiting: dict[int, Whereabouts], busy: dict[int, Whereabouts]) -> str:
    """Explain a hang in which some ranks do not wait for others."""
    if waiting:
        others = "the others wait" if len(waiting) > 1 else f"rank {min(waiting)} waits"
        return f"{_hang(busy)}; {others} in {_calls(waiting)}"
    places = Counter(_where(hang) for hang in busy.values())
    (most, count), *rest = places.most_common()
    behind = _behind(busy)
    if behind is not None:
        return f"{_hang({behind: busy[behind]})}; the others are a step or more ahead"
    if len(busy) == 1:
        return f"rank {min(busy)} is in {most}"
    if not rest:
        return f"{_all(busy)} are in {most}, and which of them hangs is not known"
    odd = {rank: hang for rank, hang in busy.items() if _where(hang) != most}
    if count > 1 and len(odd) < count and len(odd) <= MOST_NAMED:
        return f"{_hang(odd)}; the others are in {most}"
    named = ", ".join(f"rank {rank} is in {_where(busy[rank])}" for rank in sorted(busy)[:MOST_NAMED])
    more = f" and {len(busy) - MOST_NAMED} more elsewhere" if len(busy) > MOST_NAMED else ""
    return f"{named}{more}, and which of them hangs is not known"


def _all_wait(waiting: dict[int, Whereabouts]) -> str:
    """Explain a hang in which every rank waits: one is behind, their calls differ, or the network is the cause."""
    if len(waiting) == 1:
        return f"rank {min(waiting)} waits in {_where(waiting[min(waiting)])}"
    calls = Counter(str(hang.waits_in) for hang in waiting.values())
    behind = _behind(waiting)
    if behind is not None:
        return (
            f"rank {behind} is behind, after step {waiting[behind].step}, and waits in {_where(waiting[behind])}; "
            f"the others wait in {_calls({rank: hang for rank, hang in waiting.items() if rank != behind})}"
        )
    if len(calls) > 1:
        (most, count), *_ = calls.most_common()
        odd = sorted(rank for rank, hang in waiting.items() if hang.waits_in != most)
        if count > len(odd) and len(odd) <= MOST_NAMED:
            named = _hang({rank: waiting[rank] for rank in odd}, "waits")
            return f"{named} while the others wait in {most}: the ranks do not call the same"
        named = ", ".join(f"rank {rank} waits in {_where(waiting[rank])}" for rank in sorted(waiting)[:MOST_NAMED])
        return f"{named}: the ranks do not call the same"
    places = {_where(hang) for hang in waiting.values()}
    where = _where(waiting[min(waiting)]) if len(places) == 1 else _calls(waiting)
    return f"{_all(waiting)} wait in {where}, and which of them is the cause is not known"


def _behind(ranks: dict[int, Whereabouts]) -> int | None:
    """Return the only rank with a lower step than all others."""
    steps = {rank: hang.step for rank, hang in ranks.items() if hang.step is not None}
    if len(steps) < len(ranks) or len(steps) < 2:
        return None
    first, second, *_ = sorted((step, rank) for rank, step in steps.items())
    return first[1] if first[0] < second[0] else None


def _hang(ranks: dict[int, Whereabouts], verb: str = "hangs") -> str:
    groups: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        groups.setdefault(_where(ranks[rank]), []).append(rank)
    parts = [f"{_names(of)} {verb if len(of) == 1 else verb[:-1]} in {place}" for place, of in groups.items()]
    more = f" and {plural(len(parts) - MOST_NAMED, 'place')} more" if len(parts) > MOST_NAMED else ""
    return ", ".join(parts[:MOST_NAMED]) + more


def _names(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > MOST_NAMED:
        return f"ranks {', '.join(map(str, ranks[:MOST_NAMED]))} and {len(ranks) - MOST_NAMED} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _all(ranks: dict[int, Whereabouts]) -> str:
    return f"all {len(ranks)} ranks that gave their stacks" if len(ranks) > 2 else _names(sorted(ranks))


def _calls(ranks: dict[int, Whereabouts]) -> str:
    names = sorted({str(hang.waits_in) for hang in ranks.values()})
    return " or ".join(names[:MOST_NAMED])


def _where(hang: Whereabouts) -> str:
    if hang.waits_in is None:
        return str(hang.place)
    return hang.waits_in if hang.place is None else f"{hang.waits_in}, called in {hang.place}"
