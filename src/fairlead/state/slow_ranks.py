"""A slow rank of a running gang, as the control loop has detected it."""

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRankReport:
    """A rank that computes more slowly than its peers.

    Attributes:
        rank: Its number among all ranks.
        factor: Its own time as a multiple of its peers', above 1.
        since: The step with which it began.
        step_s: Seconds of a step.
        lost_s: Seconds of a step that would be won if it were as fast as its peers.
    """

    rank: int
    factor: float
    since: int
    step_s: float
    lost_s: float
