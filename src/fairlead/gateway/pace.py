"""The least rate at which a client has to send a body or take an answer, so that a slow one holds no replica's slot.

See decision 166.
"""

LEAST_RATE = 16 * 1024
"""Bytes a second that a client has to send or take on average, counting only the time that it is waited for."""
WINDOW_S = 60.0
"""Seconds for which a client may fall behind the least rate: it may be silent for so long, or be slower for longer."""
WHOLE_S = 1800.0
"""Seconds for which one body or one answer waits for its client altogether, however fast that is."""


class ClientPace:
    """The waits for one client in one direction: a bucket of seconds, which bytes fill and waits empty."""

    __slots__ = ("_credit_s", "_left_s")

    def __init__(self) -> None:
        self._credit_s = WINDOW_S
        self._left_s = WHOLE_S

    @property
    def patience_s(self) -> float:
        """Return the seconds for which the client may be waited for now."""
        return min(self._credit_s, self._left_s)

    def count(self, num_bytes: int, waited_s: float) -> None:
        """Count a wait that ended with so many bytes."""
        self._credit_s = min(WINDOW_S, self._credit_s - waited_s + num_bytes / LEAST_RATE)
        self._left_s -= waited_s
