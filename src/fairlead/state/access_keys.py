"""Keys by which teams access endpoints. Only the hash of a key is stored: keys are random, so it cannot be reversed."""

import hashlib
import secrets

from fairlead.frozen import dataclass

PREFIX = "fl-"
"""The prefix by which secret scanners recognise leaked keys."""
RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """One key of a team.

    Attributes:
        name: The display name, unique within a team.
        sha256: The hash of the key, in hexadecimal digits.
        created_at: In Unix seconds.
    """

    team: str
    name: str
    sha256: str
    created_at: float


def new_key(team: str, name: str, now: float) -> tuple[str, AccessKey]:
    """Make a key; return its text, which is shown once and not stored, and its record."""
    text = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    return text, AccessKey(team=team, name=name, sha256=hash_of(text), created_at=now)


def hash_of(text: str) -> str:
    """Return the hash of a key."""
    return hashlib.sha256(text.encode()).hexdigest()
