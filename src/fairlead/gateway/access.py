"""Decides who may ask for a service, and how often."""

import hashlib
import hmac
import math

from fairlead.gateway.messages import Refused, Request
from fairlead.gateway.routes import Key

KEY_FIELDS = (b"authorization", b"x-api-key")
"""Where a key may stand; with keys on, neither is passed on to a replica."""


class TokenBucket:
    """Lets a rate of requests through, and after a quiet while a second's worth at once, but at least one."""

    __slots__ = ("_at", "_level", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._level = max(1.0, rate)
        self._at = now

    def take(self, now: float) -> float:
        """Take one token: 0.0 when there was one, else the seconds until there is."""
        self._level = min(max(1.0, self.rate), self._level + (now - self._at) * self.rate)
        self._at = now
        if self._level >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self.rate


def team_of(request: Request, keys: tuple[Key, ...]) -> Key:
    """The key that a request shows.

    Raises:
        Refused: 401 when it shows none, 403 when it shows one that is not among these.
    """
    shown = request.single.get(b"x-api-key", b"")
    if not shown:
        scheme, _, credentials = request.single.get(b"authorization", b"").partition(b" ")
        shown = credentials.strip(b" ") if scheme.lower() == b"bearer" else b""
    if not shown:
        raise Refused(401, "this service needs a key: `Authorization: Bearer KEY` or `X-API-Key: KEY`")
    digest = hashlib.sha256(shown).hexdigest()
    found = None
    for key in keys:  # all of them, always: how long it takes tells nothing
        if hmac.compare_digest(digest, key.sha256):
            found = key
    if found is None:
        raise Refused(403, "this key is not one of the service's")
    return found


def allow(key: Key, buckets: dict[str, TokenBucket], now: float) -> None:
    """Count one request of a team.

    Raises:
        Refused: 429 while the team asks more often than it may.
    """
    if key.requests_per_second is None:
        return
    bucket = buckets.get(key.team)
    if bucket is None or bucket.rate != key.requests_per_second:
        bucket = buckets[key.team] = TokenBucket(key.requests_per_second, now)
    wait_s = bucket.take(now)
    if wait_s > 0.0:
        raise Refused(
            429,
            f"team {key.team} may ask {key.requests_per_second:g} times a second",
            retry_after_s=max(1, math.ceil(wait_s)),
        )
