"""Reads the teams of one machine from an optional file of Team documents in the state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.deferred import deferred
from fairlead.errors import ClusterError, InvalidSpec
from fairlead.specs.team import Team

if TYPE_CHECKING:
    from pathlib import Path

    from fairlead.specs.formats import reading
    from fairlead.specs.team import Team
else:
    reading = deferred("fairlead.specs.formats.reading")


def read_teams(path: Path) -> tuple[Team, ...]:
    """Return the teams of the file.

    Raises:
        ClusterError: The file is malformed; no part of it counts.
    """
    try:
        specs = reading.load_file(path)
    except InvalidSpec as error:
        raise ClusterError(f"{error.problems[0]}. Fix or remove the file.") from error
    strangers = [spec for spec in specs if not isinstance(spec, Team)]
    if strangers:
        raise ClusterError(f"{path}: {strangers[0].name} is a {type(strangers[0]).__name__}; give Teams only there.")
    teams = tuple(spec for spec in specs if isinstance(spec, Team))
    if any(team.name == path.stem for team in teams):
        raise ClusterError(
            f"{path}: a team has no name, or that of the file; give `name: NAME`, such as `name: vision`."
        )
    return teams
