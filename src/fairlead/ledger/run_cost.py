"""The cost of one run so far and from now on, as recorded in its object."""

from collections.abc import Mapping
from dataclasses import field

from fairlead.frozen import dataclass
from fairlead.ledger.usage import HOUR_MS, milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """Money and time of a run at one moment.

    Attributes:
        microusd: Cost up to then; None if no price is known for any node that it held.
        microusd_per_hour: Rate of all that it holds since then.
        goodput: Productive part of what it held; None before it held anything.
        seconds: Pod-seconds by use.
        waiting_s: Seconds in which it held nothing.
    """

    at: float
    microusd: int | None = None
    microusd_per_hour: int = 0
    goodput: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    waiting_s: float = 0.0

    def microusd_at(self, now: float) -> int | None:
        """Return its cost at a later time, assuming that it holds the same until then."""
        if self.microusd is None and not self.microusd_per_hour:
            return None
        since_ms = max(0, milliseconds(now - self.at))
        return (self.microusd or 0) + self.microusd_per_hour * since_ms // HOUR_MS
