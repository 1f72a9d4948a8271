"""Names runs to the members of a team: their own by name, those of others as TEAM/NAME, or only by number.

A remedy may name a command for a run of the reader's team only: a command takes a name in one's own team, where another
run may have it. A replica goes by the name of its endpoint, which would replace it.
"""

import heapq
from collections.abc import Iterable, Set

from fairlead.frozen import dataclass
from fairlead.specs.gang import GangSpec
from fairlead.state.snapshot import shown_name
from fairlead.text.quantities import plural

MOST_NAMES = 5
# A run as reasons name it: its team and its name.
Name = tuple[str, str]


def name_of(spec: GangSpec) -> Name:
    """Return the team and the name of a run, or of the endpoint of which it is a replica."""
    return spec.team, shown_name(spec)


@dataclass(frozen=True, slots=True)
class Reader:
    """The members of a team, who read a reason.

    Attributes:
        shows_others: Whether the installation lets them know the names of other teams' runs.
    """

    team: str
    shows_others: bool = True

    def name(self, spec: GangSpec) -> str:
        """Return how a run is named."""
        team, name = name_of(spec)
        if team == self.team:
            return name
        return f"{team}/{name}" if self.shows_others else "a run of another team"

    def names(self, runs: Iterable[Name], most: int = MOST_NAMES) -> str:
        """Return how runs are named together, one's own first; empty for none."""
        uids = runs if isinstance(runs, Set) else set(runs)
        own = [name for team, name in uids if team == self.team]
        num_others = len(uids) - len(own)
        # Many runs may hold something, so not all of them are sorted.
        parts, number = heapq.nsmallest(most, own), len(own)
        if self.shows_others and num_others:
            others = (f"{team}/{name}" for team, name in uids if team != self.team)
            parts, number = [*parts, *heapq.nsmallest(most - len(parts), others)], len(uids)
        counts = [f"{number - len(parts)} more"] if number > len(parts) else []
        if num_others and not self.shows_others:
            counts.append(_of_others(num_others))
        return " and ".join((*((", ".join(parts),) if parts else ()), *counts))

    def own(self, runs: Iterable[Name]) -> str | None:
        """Return the first run of the reader's team, for a command; None if there is none."""
        return min((name for team, name in runs if team == self.team), default=None)


def _of_others(number: int) -> str:
    return "a run of another team" if number == 1 else f"{plural(number, 'run')} of other teams"
