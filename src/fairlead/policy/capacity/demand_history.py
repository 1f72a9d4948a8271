"""Records the nodes of a pool needed minute by minute, for the forecast, and the lead times of nodes."""

from dataclasses import replace

from fairlead.frozen import dataclass

SLOT_S = 60.0
# Two weeks and a day: a week to compare the same time of other weeks with, and a week to judge it by.
MOST_SLOTS = 15 * 24 * 60
# Clouds take 3 to 8 minutes for a GPU node, most of it for its drivers.
FIRST_LEAD_S = 300.0
MOST_LEADS = 20
LEAD_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandHistory:
    """The past need of one pool.

    Attributes:
        needed: The maximum of each full minute, oldest first.
        minute: The current minute of Unix time; None before the first look.
        greatest: The maximum in that minute so far.
        latest: The need at the last look, which holds until the next.
        leads: Lead times of the last nodes in seconds, oldest first.
    """

    needed: tuple[int, ...] = ()
    minute: int | None = None
    greatest: int = 0
    latest: int = 0
    leads: tuple[float, ...] = ()

    def noted(self, needed: int, now: float) -> "DemandHistory":
        """Return the history after a look."""
        minute = int(now // SLOT_S)
        if self.minute is None or minute < self.minute:
            return replace(self, minute=minute, greatest=needed, latest=needed)
        if minute == self.minute:
            if needed == self.latest and needed <= self.greatest:
                return self
            return replace(self, greatest=max(self.greatest, needed), latest=needed)
        gap = min(minute - self.minute - 1, MOST_SLOTS)
        past = (*self.needed, self.greatest, *(self.latest,) * gap)[-MOST_SLOTS:]
        return replace(self, needed=past, minute=minute, greatest=max(self.latest, needed), latest=needed)

    def came(self, lead_s: float) -> "DemandHistory":
        """Return the history after a node has come, with its lead time."""
        return replace(self, leads=(*self.leads, lead_s)[-MOST_LEADS:])

    @property
    def lead_s(self) -> float:
        """Return the time within which four of five nodes came."""
        if not self.leads:
            return FIRST_LEAD_S
        ordered = sorted(self.leads)
        return ordered[min(len(ordered) - 1, int(LEAD_SHARE * len(ordered)))]
