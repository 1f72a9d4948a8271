"""Authenticates the clients of a service and limits their request and token rates."""

import hashlib
import hmac
import math
import time
from collections import deque
from collections.abc import Mapping

from fairlead.gateway.messages import HttpError, RequestHead
from fairlead.gateway.routes import RouteKey, ServiceRoute

KEY_FIELDS = (b"authorization", b"x-api-key")
"""Header fields that may carry a key; on a service with keys, neither is forwarded to a replica."""
MINUTE_S = 60
MOST_USES = 4_000
"""Keys of which the last use is known, the latest: those of 40 teams."""


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
            HttpError: 429 while the team is at one of its limits.
        """
        for most, counted, what in (
            (route.requests_per_minute, self.requests, "requests"),
            (route.tokens_per_minute, self.tokens, "tokens"),
        ):
            wait_s = 0.0 if most is None else counted.wait_s(most, now)
            if wait_s > 0.0:
                raise HttpError(
                    429,
                    f"team {team} has had its {most} {what} of this minute",
                    retry_after_s=max(1, math.ceil(wait_s)),
                )
        self.requests.add(1, now)


class KeyUses:
    """Times of the last use of each key, in Unix seconds to the minute, by the hash of the key.

    Args:
        known: The uses of an earlier gateway.
    """

    def __init__(self, known: Mapping[str, int]) -> None:
        self._uses = dict(known)

    def note(self, key: RouteKey, epoch: float) -> None:
        """Record a use."""
        self._uses.pop(key.sha256, None)
        self._uses[key.sha256] = int(epoch) // MINUTE_S * MINUTE_S
        if len(self._uses) > MOST_USES:
            del self._uses[next(iter(self._uses))]

    def all(self) -> Mapping[str, int]:
        """Return the uses, those of revoked keys too."""
        return self._uses


def key_of(request: RequestHead, keys: tuple[RouteKey, ...]) -> RouteKey:
    """Return the key that the request carries.

    Raises:
        HttpError: 401 without a key, 403 for an unknown or expired key.
    """
    digest = digest_of(request)
    if not digest:
        raise HttpError(401, "this service needs a key: `Authorization: Bearer KEY` or `X-API-Key: KEY`")
    matching = None
    for key in keys:  # compares all keys, so that timing reveals nothing
        if hmac.compare_digest(digest, key.sha256):
            matching = key
    if matching is None:
        raise HttpError(403, "this key is not one of the service's")
    if _has_expired(matching):
        raise HttpError(403, "this key has expired; ask your team for a new one")
    return matching


def digest_of(request: RequestHead) -> str:
    """Return the SHA-256 of the key that the request carries, in hexadecimal digits; empty without one."""
    shown = request.single.get(b"x-api-key", b"")
    if not shown:
        scheme, _, credentials = request.single.get(b"authorization", b"").partition(b" ")
        shown = credentials.strip(b" ") if scheme.lower() == b"bearer" else b""
    return hashlib.sha256(shown).hexdigest() if shown else ""


def is_valid(digest: str, keys: tuple[RouteKey, ...] | None) -> bool:
    """Return whether a key with this digest, empty for none, is sufficient now."""
    return keys is None or any(hmac.compare_digest(digest, key.sha256) and not _has_expired(key) for key in keys)


def _has_expired(key: RouteKey) -> bool:
    return key.expires_at is not None and time.time() >= key.expires_at
