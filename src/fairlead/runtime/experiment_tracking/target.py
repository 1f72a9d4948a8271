"""The port to a tracker, and the facts about a run that a tracker receives."""

from __future__ import annotations

import json
from typing import NamedTuple, Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class MetricPoint(NamedTuple):
    """Metrics of one step, with the time in Unix seconds."""

    at: float
    step: int | None
    values: Mapping[str, float]


class About(NamedTuple):
    """The run to which the metrics belong.

    Attributes:
        parameters: The parameters of a sweep's trial; empty for other runs.
    """

    name: str
    uid: str
    team: str
    attempt: int
    command: str
    parameters: Mapping[str, object]


class Refused(Exception):
    """The tracker refuses the request, and would refuse a retry too."""


class TrackerTarget(Protocol):
    """A tracker, used by one thread. Any exception other than ``Refused`` is retried."""

    def begin(self) -> str:
        """Join the tracker's run of this uid, created if needed, and return its address.

        Raises:
            Refused: The tracker cannot be used.
        """

    def send(self, points: Sequence[MetricPoint]) -> None:
        """Send points; sending them twice is harmless.

        Raises:
            Refused: The tracker refuses the points.
        """

    def hurry(self, timeout_s: float) -> None:
        """Set the time-out for answers from now on. Another thread may call it."""

    def end(self, status: str | None) -> None:
        """Set the final status of this attempt: FINISHED, FAILED or KILLED; None if it is not known."""


def read_about(env: Mapping[str, str], command: str) -> About:
    """Read the facts about a pod's run from its environment."""
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
