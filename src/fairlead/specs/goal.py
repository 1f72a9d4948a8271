"""The values of a metric that are good ones."""

from enum import StrEnum


class Goal(StrEnum):
    """The direction in which a metric gets better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"

    @property
    def sign(self) -> float:
        """The factor that makes a value one of which less is better."""
        return 1.0 if self is Goal.MINIMIZE else -1.0
