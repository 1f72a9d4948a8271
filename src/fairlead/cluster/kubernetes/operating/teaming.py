"""A Team object as the operator keeps it: what the queue goes by. Pure."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.cluster.kubernetes.rendering.manifests import read_object
from fairlead.errors import InvalidSpec
from fairlead.specs.team import Team

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamObject:
    """A Team as it was read."""

    key: str
    version: int
    team: Team


def read_team(content: Mapping[str, Any]) -> TeamObject | None:
    """A Team of the API server; None, and a line in the log, where it breaks a rule that the server did not know of."""
    metadata = content["metadata"]
    try:
        team = read_object(content)
    except InvalidSpec as error:
        log.warning("Team %s is left out: %s", metadata["name"], error.problems[0])
        return None
    assert isinstance(team, Team), "the path of teams holds nothing else"
    return TeamObject(key=metadata["name"], version=int(metadata["resourceVersion"]), team=team)
