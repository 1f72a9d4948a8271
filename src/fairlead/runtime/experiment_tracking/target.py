"""The port to a tracker, and what a tracker is told of a run."""

from __future__ import annotations

import json
from typing import NamedTuple, Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Point(NamedTuple):
    """Metrics of one step."""

    at: float
    step: int | None
    values: Mapping[str, float]


class About(NamedTuple):
    """The run whose metrics they are.

    Attributes:
        parameters: Of a trial of a sweep; empty for other runs.
    """

    name: str
    uid: str
    team: str
    attempt: int
    command: str
    parameters: Mapping[str, object]


class Refused(Exception):
    """The tracker will not take it, however often it is asked."""


class Target(Protocol):
    """A tracker. One thread uses it; whatever else it raises is worth another try."""

    def begin(self) -> str:
        """Joins the tracker's run of this uid, which is made where there is none; says where it is seen.

        Raises:
            Refused: It cannot be used.
        """

    def send(self, points: Sequence[Point]) -> None:
        """Sends points; sent twice they are there once, or harm nothing.

        Raises:
            Refused: The tracker will not have them.
        """

    def hurry(self, timeout_s: float) -> None:
        """Waits no longer than this for an answer from now on. Another thread may call it."""

    def end(self, status: str | None) -> None:
        """Says how this start of the run ended: FINISHED, FAILED or KILLED; None where that is not known."""


def read_about(env: Mapping[str, str], command: str) -> About:
    """Read what the environment of a pod tells of its run."""
    try:
        parameters = json.loads(env.get("FAIRLEAD_PARAMS") or "{}")
    except ValueError:
        parameters = {}
    return About(
        name=env["FAIRLEAD_RUN"],
        uid=env["FAIRLEAD_RUN_UID"],
        team=env["FAIRLEAD_TEAM"],
        attempt=int(env["FAIRLEAD_ATTEMPT"]),
        command=command,
        parameters=parameters if isinstance(parameters, dict) else {},
    )
