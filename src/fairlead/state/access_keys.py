"""Keys by which teams access endpoints. Only the hash of a key is stored: keys are random, so it cannot be reversed."""

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fairlead.frozen import dataclass

PREFIX = "fl-"
"""The prefix by which secret scanners recognise leaked keys."""
RANDOM_BYTES = 32
MOST_KEYS = 100
"""Keys that a team may have. Gateways know them all, so one team's must not be a burden to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """One key of a team.

    Attributes:
        name: The display name, unique within a team.
        sha256: The hash of the key, in hexadecimal digits.
        created_at: In Unix seconds.
        expires_at: From when it is refused, in Unix seconds; None for never.
        last_used_at: When a gateway last let a request with it pass, in Unix seconds, up to ten minutes late; None if
            that is not known.
    """

    team: str
    name: str
    sha256: str
    created_at: float
    expires_at: float | None = None
    last_used_at: float | None = None


def new_key(team: str, name: str, now: float, *, valid_s: float | None = None) -> tuple[str, AccessKey]:
    """Make a key; return its text, which is shown once and not stored, and its record.

    Args:
        valid_s: How long it is valid; None for until it is revoked.
    """
    text = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    expires_at = None if valid_s is None else now + valid_s
    return text, AccessKey(team=team, name=name, sha256=hash_of(text), created_at=now, expires_at=expires_at)


def too_many(team: str, keys: Iterable[AccessKey], options: str = "") -> str | None:
    """Return why a team may have no further key, and what to do; None if it may.

    Args:
        options: Options of a command that select the cluster.
    """
    own = [key for key in keys if key.team == team]
    if len(own) < MOST_KEYS:
        return None
    oldest = min(own, key=lambda key: (key.created_at, key.name))
    revoke = f"fairlead keys revoke {oldest.name} --team {team} {options}".rstrip()
    return f"Team {team} has {len(own)} keys; it may have {MOST_KEYS}. Revoke one first: `{revoke}` removes the oldest."


def kept_keys(keys: Iterable[AccessKey]) -> tuple[AccessKey, ...]:
    """Return the keys of a team that count: the oldest ones, if it has more than it may."""
    return tuple(sorted(keys, key=lambda key: (key.created_at, key.name))[:MOST_KEYS])


def with_uses(keys: Iterable[AccessKey], uses: Mapping[str, float]) -> tuple[AccessKey, ...]:
    """Return the keys with the times of their last uses, which are given by their hashes."""
    return tuple(replace(key, last_used_at=uses[key.sha256]) if key.sha256 in uses else key for key in keys)


def hash_of(text: str) -> str:
    """Return the hash of a key."""
    return hashlib.sha256(text.encode()).hexdigest()
