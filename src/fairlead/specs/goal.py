"""The goal of a metric."""

from enum import StrEnum


class Goal(StrEnum):
    """The direction in which a metric improves."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"

    @property
    def sign(self) -> float:
        """Return the factor that converts a value to one that is to be minimized."""
        return 1.0 if self is Goal.MINIMIZE else -1.0
