"""The client's side of a connection: its stream, where it comes from, and until when it is waited for."""

import asyncio

from fairlead.gateway.access import is_valid
from fairlead.gateway.byte_stream import ByteStream
from fairlead.gateway.pace import ClientPace
from fairlead.gateway.services import RoutedService

HEAD_S = 10.0
"""Seconds for a head to arrive completely, from its first byte."""
NEVER = float("inf")

Ends = tuple[tuple[str, int] | None, tuple[str, int] | None]
"""Addresses and ports of a client and of the server that accepted it; None where they are not known."""


class GatewayClient:
    """A client on one connection. Times are those of the loop's clock, in seconds.

    Attributes:
        deadline: Time at which the current wait is given up.
        slow_at: Time at which the client counts as too slow, while its body or its reading is waited for.
        address: Its IP address; empty where it is not known.
        is_trusted: It is a proxy whose X-Forwarded-Host and -Proto are those of its own client.
        is_own_user: Its process is known to be this user's or root's.
        is_late: The task that answers was cancelled because `deadline` or `slow_at` had passed.
        is_slow: It was the client that was too slow.
        watched: Service and digest of the key of an answer that may last for ever; None for others.
    """

    def __init__(self, stream: ByteStream, loop: asyncio.AbstractEventLoop, ends: Ends, *, is_trusted: bool) -> None:
        self.stream = stream
        self.ends = ends
        self.address = "" if ends[0] is None else ends[0][0]
        self.is_trusted = is_trusted
        self.is_own_user = False
        self._loop = loop
        self.deadline = loop.time() + HEAD_S
        self.slow_at = NEVER
        self.is_late = self.is_slow = False
        self.watched: tuple[RoutedService[ByteStream], str] | None = None

    def is_overdue(self, now: float) -> bool:
        """Return whether the current wait is to be given up."""
        return self.deadline < now or self.slow_at < now

    def has_valid_key(self) -> bool:
        """Return whether the key of an answer that may last for ever is still valid; True for other answers."""
        return self.watched is None or is_valid(self.watched[1], self.watched[0].route.keys)

    def wait(self, seconds: float) -> None:
        """Give up the current wait after so many seconds from now."""
        self.deadline = self._loop.time() + seconds

    def extend_wait(self) -> None:
        """Wait for at least as long as for a head, as part of a body has come."""
        self.deadline = max(self.deadline, self._loop.time() + HEAD_S)

    async def drained(self, pace: ClientPace) -> None:
        """Wait until the client has read enough for more to be written, if it keeps to the pace.

        Raises:
            ConnectionLost: The connection is lost.
        """
        stream = self.stream
        if not stream.is_full:
            return
        since, unsent = self._loop.time(), stream.unsent
        self.slow_at = since + pace.patience_s
        await stream.drained()
        self.slow_at = NEVER
        pace.count(unsent - stream.unsent, self._loop.time() - since)
