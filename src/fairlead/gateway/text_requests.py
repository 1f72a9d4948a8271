"""Keeps when requests of one replica of a text server had their tokens, for those who decide how many replicas to have.

All gateways look at the same replica, for a replica's pace depends on all that it has. What is told stays the same for
a while, so that nobody works it out anew each time: it is told anew each time twice as many are known, until there are
as many as are kept, and every so often then. Beside the latest requests those are told from when there were most.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from fairlead.gateway.routes import RevisionRoute

FEWEST, KEPT = 24, 128
EVERY_S = 120
# Requests have to be so much denser for others to be told as the busiest.
BUSIER = 1.2


class TextRow:
    """A request of the replica, as far as it is. Times are seconds since the epoch.

    Attributes:
        prompt: Its tokens, and ``output`` those of the answer, estimated until usage is told.
    """

    __slots__ = ("first", "last", "output", "prompt", "replica", "revision", "sent")

    def __init__(self, revision: str, replica: str, sent: float) -> None:
        self.revision = revision
        self.replica = replica
        self.sent = sent
        self.prompt = 0
        self.output = 0
        self.first: float | None = None
        self.last: float | None = None

    def told(self) -> list[Any]:
        """As demand.json has it."""
        times = (None if each is None else round(each, 4) for each in (self.first, self.last))
        return [self.replica, round(self.sent, 4), self.prompt, self.output, *times]


class TextRequests:
    """The requests of a service.

    Attributes:
        replica: Whose are kept; None for nobody's.
    """

    def __init__(self) -> None:
        self.replica: str | None = None
        self._rows: deque[TextRow] = deque(maxlen=KEPT)
        self._latest: list[TextRow] = []
        self._busiest: list[TextRow] = []
        self._ended = 0
        self._told_at = 0.0

    def follow(self, revisions: Sequence[RevisionRoute]) -> None:
        """Keep requests of the first replica of the revision that has most of them, and none of revisions gone."""
        there = [each for each in revisions if each.replicas and each.weight and not each.shadow]
        most = max(there, key=lambda each: (each.weight, each.name), default=None)
        replica = None if most is None else min(each.id for each in most.replicas)
        if replica is not None and replica != self.replica:
            self.replica = replica
            self._rows.clear()
            self._ended = 0
        names = {each.name for each in revisions}
        self._latest = _of(self._latest, names)
        self._busiest = _of(self._busiest, names)

    def begin(self, revision: str, replica: str, epoch: float) -> TextRow | None:
        """Note that a replica was given a request; None where it is another one's than is kept."""
        if replica != self.replica:
            return None
        row = TextRow(revision, replica, epoch)
        self._rows.append(row)
        return row

    def drop(self, row: TextRow) -> None:
        """Forget a request that nobody has answered."""
        if row in self._rows:
            self._rows.remove(row)

    def end(self, row: TextRow, *, prompt: int, output: int, epoch: float) -> None:
        """Note that a request is over."""
        row.prompt, row.output, row.last = prompt, output, epoch
        if row.replica != self.replica:
            return
        self._ended += 1
        num = sum(each.last is not None for each in self._latest)
        is_due = min(2 * num, KEPT) <= self._ended if num < KEPT // 2 else False
        # By the clock, so that gateways tell of the same time.
        is_due |= int(epoch) // EVERY_S > int(self._told_at) // EVERY_S and self._ended >= FEWEST
        if self._ended >= FEWEST and is_due:
            self._tell(epoch)

    def told(self) -> dict[str, list[list[Any]]]:
        """As demand.json has it."""
        return {
            "latest": [each.told() for each in self._latest],
            "busiest": [each.told() for each in self._busiest],
        }

    def _tell(self, epoch: float) -> None:
        self._latest = list(self._rows)
        self._told_at = epoch
        self._ended = 0
        more = len(self._latest) > len(self._busiest)
        if not self._busiest or _density(self._latest, epoch) > _density(self._busiest, epoch) * (
            1.0 if more else BUSIER
        ):
            self._busiest = self._latest


def _of(rows: list[TextRow], revisions: set[str]) -> list[TextRow]:
    return rows if all(each.revision in revisions for each in rows) else []


def _density(rows: Iterable[TextRow], epoch: float) -> float:
    """Return how many requests were there at once, on average over the time for which they came."""
    rows = list(rows)
    ends = [epoch if each.last is None else each.last for each in rows]
    taken = sum(end - each.sent for each, end in zip(rows, ends, strict=True))
    return taken / max(1e-3, max(each.sent for each in rows) - min(each.sent for each in rows))
