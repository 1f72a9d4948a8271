"""Applies a team's limits on the duration of its runs: a default where a run has no ``max_duration``, and a maximum.

With them every run has an end that is kept, so that others can be promised a start. Replicas of endpoints have no end,
and what an engine runs is stopped by the engine alone. The driver of a pipeline waits for runs that may each take all
the time of the team, one after another; anybody can mark a run as one, so that it has an end too.

See decision 219.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from fairlead.specs.gang import GangSpec
from fairlead.specs.quantities import format_duration
from fairlead.specs.team import Team
from fairlead.specs.workload import PIPELINE_VARIABLE
from fairlead.state.snapshot import Workload, is_replica

DRIVER_TIMES = 10
"""The number of its team's longest runs, one after another, that the driver of a pipeline may outlast."""

Spec = TypeVar("Spec", bound=GangSpec)


def limit_of(spec: GangSpec, team: Team | None) -> float | None:
    """Return the ``max_duration`` in seconds that a run gets from its team; None if it has its own, or gets none."""
    if team is None or spec.max_duration_s is not None or spec.engine is not None:
        return None
    if is_replica(spec):
        return None
    limits = team.max_duration
    longest_s = limits.max_s if limits.max_s is not None else limits.default_s
    if PIPELINE_VARIABLE in getattr(spec, "env", ()) and spec.resources.gpu is None:
        return None if longest_s is None else DRIVER_TIMES * longest_s
    return limits.default_s if limits.default_s is not None else limits.max_s


def limited(spec: Spec, team: Team | None) -> Spec:
    """Return the spec with the limit that it gets from its team."""
    limit_s = limit_of(spec, team)
    # Every spec is a dataclass, which a protocol cannot demand.
    return spec if limit_s is None else replace(spec, max_duration_s=limit_s)  # type: ignore[type-var]


def refusal(spec: GangSpec, team: Team | None) -> str | None:
    """Return why a run asks for more than its team allows; None if it does not."""
    most_s = None if team is None else team.max_duration.max_s
    if team is None or most_s is None or spec.max_duration_s is None or spec.max_duration_s <= most_s:
        return None
    most = format_duration(most_s)
    return (
        f"max_duration: {format_duration(spec.max_duration_s)} is more than team {team.name} allows, which is {most}. "
        f"Give at most `max_duration: {most}` and save checkpoints: `fairlead resume` continues from the newest"
    )


class LimitedRuns:
    """The runs of a cluster with the limits of their teams; the same objects as long as neither changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Workload, Team | None, Workload]] = {}

    def of(self, workloads: Iterable[Workload], teams: Iterable[Team]) -> tuple[Workload, ...]:
        """Return the runs with their limits."""
        runs = tuple(workloads)
        by_name: Mapping[str, Team] = {team.name: team for team in teams if team.max_duration.is_set}
        if not by_name:
            self._known.clear()
            return runs
        known = self._known
        self._known = {}
        for run in runs:
            team, before = by_name.get(run.spec.team), known.get(run.uid)
            if before is None or before[0] is not run or before[1] is not team:
                spec = limited(run.spec, team)
                before = run, team, run if spec is run.spec else replace(run, spec=spec)
            self._known[run.uid] = before
        return tuple(entry for _, _, entry in self._known.values())
