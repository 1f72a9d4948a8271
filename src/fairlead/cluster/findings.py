"""A finding of somebody who looked: a value that a person reads and a program can count."""

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        ok: Nothing that would get in the way.
        remedy: What to do about it, a command where there is one; on an ``ok`` finding what would make more possible.
    """

    what: str
    ok: bool
    says: str
    remedy: str | None = None
