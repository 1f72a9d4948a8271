"""The state of the environment that a waiting run needs and that is not complete yet."""

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """An environment that is being made, or could not be.

    Attributes:
        message: What is being done; of one that failed, why, as one sentence.
        has_failed: It is not tried again before the run is submitted or resumed again.
        remedy: How to fix it; None where nothing is known.
    """

    message: str
    has_failed: bool = False
    remedy: str | None = None
