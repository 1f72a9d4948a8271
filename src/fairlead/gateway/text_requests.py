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

    def as_json(self) -> list[Any]:
        """Return the row in the format of demand.json."""
        times = (None if time is None else round(time, 4) for time in (self.first, self.last))
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
        serving = [revision for revision in revisions if revision.replicas and revision.weight and not revision.shadow]
        most = max(serving, key=lambda revision: (revision.weight, revision.name), default=None)
        replica = None if most is None else min(replica.id for replica in most.replicas)
        if replica is not None and replica != self.replica:
            self.replica = replica
            self._rows.clear()
            self._ended = 0
        names = {revision.name for revision in revisions}
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
        num = sum(row.last is not None for row in self._latest)
        is_due = min(2 * num, KEPT) <= self._ended if num < KEPT // 2 else False
        # By wall clock, so that all gateways sample the same time.
        is_due |= int(epoch) // EVERY_S > int(self._told_at) // EVERY_S and self._ended >= FEWEST
        if self._ended >= FEWEST and is_due:
            self._tell(epoch)

    def as_json(self) -> dict[str, list[list[Any]]]:
        """Return the samples in the format of demand.json."""
        return {
            "latest": [row.as_json() for row in self._latest],
            "busiest": [row.as_json() for row in self._busiest],
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
    return rows if all(row.revision in revisions for row in rows) else []


def _density(rows: Iterable[TextRow], epoch: float) -> float:
    """Return the average number of concurrent requests over the time in which they were sent."""
    rows = list(rows)
    ends = [epoch if row.last is None else row.last for row in rows]
    taken = sum(end - row.sent for row, end in zip(rows, ends, strict=True))
    return taken / max(1e-3, max(row.sent for row in rows) - min(row.sent for row in rows))
