"""Sums up the costs of this calendar month for metrics, a day at a time, without reading the whole ledger each time."""

import logging
import threading
from collections import defaultdict
from collections.abc import Mapping

from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import LedgerKeeper
from fairlead.cluster.kubernetes.operator.ledger.usage_ledger import day_of
from fairlead.cluster.ledger_tables import month_of
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.ledger.usage import milliseconds

log = logging.getLogger(__name__)

# How old the sums of today and those of earlier days, which later findings rarely change, may be.
TODAY_S, EARLIER_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Micro-dollars by team and use, where no team has an empty name, and by model."""

    by_use: Mapping[tuple[str, str], int]
    by_model: Mapping[str, int]


class MonthCosts:
    """The costs of this month. Thread-safe."""

    def __init__(self, ledger: LedgerKeeper) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._days: dict[int, tuple[float, Sums]] = {}

    def read(self, now: float) -> Sums | None:
        """Return the sums up to about now; None if the ledger is unavailable and a day was never read."""
        first, today = day_of(milliseconds(month_of(now)[1])), day_of(milliseconds(now))
        with self._lock:
            self._days = {day: read for day, read in self._days.items() if day >= first}
            for day in range(first, today + 1):
                if day in self._days and now - self._days[day][0] < _age_s(day, self._days[day][0]):
                    continue
                costs = self._of_day(day, now)
                if costs is not None:
                    self._days[day] = now, costs
                elif day not in self._days:
                    return None
            by_use, by_model = defaultdict[tuple[str, str], int](int), defaultdict[str, int](int)
            for _, sums in self._days.values():
                for key, amount in sums.by_use.items():
                    by_use[key] += amount
                for model, amount in sums.by_model.items():
                    by_model[model] += amount
            return Sums(by_use=by_use, by_model=by_model)

    def _of_day(self, day: int, now: float) -> Sums | None:
        try:
            costs = self._ledger.costs_of(day, now)
        except ClusterError as error:
            log.warning("the costs of this month are not renewed: %s", error)
            return None
        if costs is None:
            return None
        by_use, by_model = defaultdict[tuple[str, str], int](int), defaultdict[str, int](int)
        for line in costs.statement.lines:
            by_use["" if line.key is None else line.key.team, line.use.value] += line.microusd
            if line.key is not None:
                by_model[line.key.model] += line.microusd
        return Sums(by_use=dict(by_use), by_model=dict(by_model))


def _age_s(day: int, read_at: float) -> float:
    """Return how old the sums of a day may be; what was read while it lasted is read once more when it is over."""
    return TODAY_S if day_of(milliseconds(read_at)) == day else EARLIER_S
