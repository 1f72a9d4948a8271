"""Records the token times of requests to one replica of a text server, as input for autoscaling.

All gateways record the same replica, as the pace of a replica depends on all of its requests. The published sample
stays the same for a while, so that its reader need not recompute: it is renewed each time that the number of requests
has doubled, up to half of the kept number, and at fixed times afterwards. Beside the latest sample the one of the
highest load is published.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from fairlead.gateway.routes import RevisionRoute

FEWEST, KEPT = 24, 128
EVERY_S = 120
# Minimum ratio of densities for a sample to replace the busiest.
BUSIER = 1.2


class TextRow:
    """A request of the replica, as far as it has come. Times are seconds since the epoch.

    Attributes:
        prompt: Its tokens, and ``output`` those of the response, estimated without reported usage.
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
        """Return the row in the format of demand.json."""
        times = (None if each is None else round(each, 4) for each in (self.first, self.last))
        return [self.replica, round(self.sent, 4), self.prompt, self.output, *times]


class TextRequests:
    """The recorded requests of a service.

    Attributes:
        replica: The recorded replica, or None.
    """

    def __init__(self) -> None:
        self.replica: str | None = None
        self._rows: deque[TextRow] = deque(maxlen=KEPT)
        self._latest: list[TextRow] = []
        self._busiest: list[TextRow] = []
        self._ended = 0
        self._told_at = 0.0

    def follow(self, revisions: Sequence[RevisionRoute]) -> None:
        """Record the first replica of the revision with the highest weight, and drop samples of removed revisions."""
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
        """Record a request sent to a replica; None if it is not the recorded replica."""
        if replica != self.replica:
            return None
        row = TextRow(revision, replica, epoch)
        self._rows.append(row)
        return row

    def drop(self, row: TextRow) -> None:
        """Forget a request that got no response."""
        if row in self._rows:
            self._rows.remove(row)

    def end(self, row: TextRow, *, prompt: int, output: int, epoch: float) -> None:
        """Record the end of a request."""
        row.prompt, row.output, row.last = prompt, output, epoch
        if row.replica != self.replica:
            return
        self._ended += 1
        num = sum(each.last is not None for each in self._latest)
        is_due = min(2 * num, KEPT) <= self._ended if num < KEPT // 2 else False
        # By wall clock, so that all gateways sample the same time.
        is_due |= int(epoch) // EVERY_S > int(self._told_at) // EVERY_S and self._ended >= FEWEST
        if self._ended >= FEWEST and is_due:
            self._tell(epoch)

    def told(self) -> dict[str, list[list[Any]]]:
        """Return the samples in the format of demand.json."""
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
    """Return the average number of concurrent requests over the time in which they were sent."""
    rows = list(rows)
    ends = [epoch if each.last is None else each.last for each in rows]
    taken = sum(end - each.sent for each, end in zip(rows, ends, strict=True))
    return taken / max(1e-3, max(each.sent for each in rows) - min(each.sent for each in rows))
