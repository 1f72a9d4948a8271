"""A finding of a check: readable by a person and countable by a program."""

from fairlead.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        ok: True if nothing stands in the way.
        remedy: A fix, as a command where there is one; for an ``ok`` finding, a way to make more possible.
    """

    what: str
    ok: bool
    says: str
    remedy: str | None = None
