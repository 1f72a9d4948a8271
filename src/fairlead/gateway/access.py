"""Authenticates the clients of a service and limits their request and token rates."""

import hashlib
import hmac
import math
from collections import deque

from fairlead.gateway.messages import Refused, Request
from fairlead.gateway.routes import Key, ServiceRoute

KEY_FIELDS = (b"authorization", b"x-api-key")
"""Header fields that may carry a key; on a service with keys, neither is forwarded to a replica."""
MINUTE_S = 60


class MinuteCount:
    """A sliding count over the last 60 seconds, in buckets of a second, so that no window exceeds the limit."""

    __slots__ = ("_seconds", "total")

    def __init__(self) -> None:
        self.total = 0
        self._seconds: deque[list[int]] = deque()

    def add(self, amount: int, now: float) -> None:
        """Add an amount at the current time."""
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += amount
        else:
            self._seconds.append([second, amount])
        self.total += amount

    def wait_s(self, most: int, now: float) -> float:
        """Return the seconds until the count falls below `most`; 0.0 if it already is."""
        while self._seconds and self._seconds[0][0] + 1 + MINUTE_S <= now:
            self.total -= self._seconds.popleft()[1]
        left = self.total
        if left < most:
            return 0.0
        for second, amount in self._seconds:
            left -= amount
            if left < most:
                return second + 1 + MINUTE_S - now
        return float(MINUTE_S)


class TeamUse:
    """Requests and tokens that one team used of a service in the last minute."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = MinuteCount()
        self.tokens = MinuteCount()

    def begin(self, team: str, route: ServiceRoute, now: float) -> None:
        """Count one request of the team.

        Raises:
            Refused: 429 while the team is at one of its limits.
        """
        for most, counted, what in (
            (route.requests_per_minute, self.requests, "requests"),
            (route.tokens_per_minute, self.tokens, "tokens"),
        ):
            wait_s = 0.0 if most is None else counted.wait_s(most, now)
            if wait_s > 0.0:
                raise Refused(
                    429,
                    f"team {team} has had its {most} {what} of this minute",
                    retry_after_s=max(1, math.ceil(wait_s)),
                )
        self.requests.add(1, now)


def team_of(request: Request, keys: tuple[Key, ...]) -> str:
    """Return the team whose key the request carries.

    Raises:
        Refused: 401 without a key, 403 for an unknown key.
    """
    shown = request.single.get(b"x-api-key", b"")
    if not shown:
        scheme, _, credentials = request.single.get(b"authorization", b"").partition(b" ")
        shown = credentials.strip(b" ") if scheme.lower() == b"bearer" else b""
    if not shown:
        raise Refused(401, "this service needs a key: `Authorization: Bearer KEY` or `X-API-Key: KEY`")
    digest = hashlib.sha256(shown).hexdigest()
    found = None
    for key in keys:  # compares all keys, so that timing reveals nothing
        if hmac.compare_digest(digest, key.sha256):
            found = key
    if found is None:
        raise Refused(403, "this key is not one of the service's")
    return found.team
