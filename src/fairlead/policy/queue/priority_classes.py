"""Compares priorities: within a team as requested, among teams only as far as an administrator lets them count.

Anybody may write any ``priority``. So it orders the runs of one team; before those of another it counts up to the
``max_priority`` of the team, which is 0 unless an administrator sets it.
"""

from collections.abc import Mapping

from fairlead.frozen import dataclass
from fairlead.specs.gang import GangSpec
from fairlead.specs.team import Team
from fairlead.state.snapshot import Snapshot


def class_of(spec: GangSpec, team: Team | None) -> int:
    """Return the priority of a run that counts among teams."""
    return max(0, min(spec.priority, team.max_priority)) if team is not None else 0


@dataclass(frozen=True, slots=True)
class Priorities:
    """The priorities of the runs of a snapshot.

    Attributes:
        teams: The described teams, by name.
        is_one_team: Whether all runs are of one team, so that any priorities may be compared.
    """

    teams: Mapping[str, Team]
    is_one_team: bool

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Priorities":
        """Return the priorities of a snapshot."""
        first = next((run.spec.team for run in snapshot.workloads), "")
        is_one = all(run.spec.team == first for run in snapshot.workloads)
        return cls({team.name: team for team in snapshot.teams}, is_one)

    def counted(self, spec: GangSpec) -> int:
        """Return the priority that counts where runs of all teams are compared at once."""
        return spec.priority if self.is_one_team else class_of(spec, self.teams.get(spec.team))

    def is_lower(self, spec: GangSpec, other: GangSpec) -> bool:
        """Return whether a run has a lower priority than another."""
        if spec.team == other.team:
            return spec.priority < other.priority
        return class_of(spec, self.teams.get(spec.team)) < class_of(other, self.teams.get(other.team))
