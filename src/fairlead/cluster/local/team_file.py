"""The teams of one machine: a file of Team documents in the state directory, if somebody put one there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.errors import ClusterError, InvalidSpec

if TYPE_CHECKING:
    from pathlib import Path

    from fairlead.specs.team import Team


def read_teams(path: Path) -> tuple[Team, ...]:
    """The teams of the file.

    Raises:
        ClusterError: Something is wrong with it; nothing is decided on half of what was meant.
    """
    # Here and not above: hardly any machine has teams, and what only lists runs need not load what reads specs.
    from fairlead.specs.formats.reading import load_file
    from fairlead.specs.team import Team

    try:
        specs = load_file(path)
    except InvalidSpec as error:
        raise ClusterError(f"{error.problems[0]}. Mend or remove the file; until then nothing is started.") from error
    strangers = [spec for spec in specs if not isinstance(spec, Team)]
    if strangers:
        raise ClusterError(f"{path}: {strangers[0].name} is a {type(strangers[0]).__name__}; give Teams only there.")
    return tuple(spec for spec in specs if isinstance(spec, Team))
