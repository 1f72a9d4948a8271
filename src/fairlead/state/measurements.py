"""Answers to the query by which an endpoint scales, as somebody has asked for them."""

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer.

    Attributes:
        at: Unix time at which it was asked for.
        replicas: Replicas of the endpoint that were ready then.
    """

    at: float
    value: float
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Answers to one query.

    Attributes:
        since: When it was first asked.
        samples: Those of the last two minutes, oldest first.
        problem: Why the newest question has no answer, as a clause; None where it has one, or is yet to have one.
    """

    since: float
    samples: tuple[Sample, ...] = ()
    problem: str | None = None
