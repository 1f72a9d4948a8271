"""Answers to the queries by which endpoints scale."""

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer.

    Attributes:
        at: Unix time of the query.
        replicas: Ready replicas of the endpoint at that time.
    """

    at: float
    value: float
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Answers to one query.

    Attributes:
        since: Time of the first query.
        samples: Those of the last two minutes, oldest first.
        problem: Why the newest query has no answer, as a clause; None if it has one or is still pending.
    """

    since: float
    samples: tuple[Sample, ...] = ()
    problem: str | None = None
