"""Keys by which teams may ask endpoints. Only a key's hash is kept: it is random, so that nobody finds it by that."""

import hashlib
import secrets

from fairlead.frozen import dataclass

PREFIX = "fl-"
"""A key that leaked is found by it, as those who look through repositories do."""
RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """One key of a team.

    Attributes:
        name: What people call it; of one team no other has it.
        sha256: Of the key, in hexadecimal digits.
        created_at: In Unix seconds.
    """

    team: str
    name: str
    sha256: str
    created_at: float


def new_key(team: str, name: str, now: float) -> tuple[str, AccessKey]:
    """Make a key: its text, which is shown once and kept nowhere, and what is kept of it."""
    text = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    return text, AccessKey(team=team, name=name, sha256=hash_of(text), created_at=now)


def hash_of(text: str) -> str:
    """Return what is kept of a key."""
    return hashlib.sha256(text.encode()).hexdigest()
