"""A virtual clock that moves only when told to."""


class Clock:
    """Virtual time in Unix seconds; the default start is an arbitrary date well after 1970."""

    def __init__(self, now: float = 1_000_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        """Return the current time."""
        return self._now

    def advance_to(self, at: float) -> None:
        """Move forward to ``at``; a time in the past leaves the clock where it is."""
        self._now = max(self._now, at)
