"""Sums of this month are those of its days, read again only when they can have changed."""

from types import SimpleNamespace
from typing import Any, cast

from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import LedgerKeeper
from fairlead.cluster.kubernetes.operator.ledger.month_costs import EARLIER_S, TODAY_S, MonthCosts
from fairlead.errors import ClusterError
from fairlead.ledger.bills import BillLine, Statement
from fairlead.ledger.usage import DAY_MS, Holder, Use

NOON = seconds("2026-11-03T12:00:00Z")
TODAY = int(NOON * 1000) // DAY_MS
HOLDER = Holder(uid="u", run="r", team="vision", model="gpt", user="ann")


class Ledger:
    """A day costs a micro-dollar of work and ten of idle time, more after each reading."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.is_out = False
        self.problem: ClusterError | None = None

    def costs_of(self, day: int, now: float) -> Any:
        if self.problem is not None:
            raise self.problem
        if self.is_out:
            return None
        self.read.append(day)
        lines: tuple[BillLine[Holder | None], ...] = (
            BillLine(node="n", key=HOLDER, use=Use.PRODUCTIVE, microusd=len(self.read), unit_ms=1),
            BillLine(node="n", key=None, use=Use.IDLE, microusd=10, unit_ms=1),
        )
        return SimpleNamespace(statement=Statement(billed={"n": sum(line.microusd for line in lines)}, lines=lines))


def costs(ledger: Ledger) -> MonthCosts:
    return MonthCosts(cast(LedgerKeeper, ledger))


def test_a_month_is_the_sum_of_its_days_by_team_use_and_model() -> None:
    ledger = Ledger()
    sums = costs(ledger).read(NOON)
    assert sums is not None
    assert ledger.read == [TODAY - 2, TODAY - 1, TODAY]
    assert sums.by_use == {("vision", "productive"): 1 + 2 + 3, ("", "idle"): 30}
    assert sums.by_model == {"gpt": 6}


def test_only_what_may_have_changed_is_read_again() -> None:
    ledger = Ledger()
    month = costs(ledger)
    month.read(NOON)
    month.read(NOON + TODAY_S - 1)
    assert len(ledger.read) == 3
    month.read(NOON + TODAY_S)
    assert ledger.read[3:] == [TODAY]
    month.read(NOON + EARLIER_S)
    assert ledger.read[4:] == [TODAY - 2, TODAY - 1, TODAY]
    midnight = NOON + 12 * 3600
    month.read(midnight - TODAY_S / 2)
    ledger.read.clear()
    month.read(midnight + TODAY_S / 2)
    assert ledger.read == [TODAY, TODAY + 1], "the last seconds of a day are read when it is over"
    month.read(seconds("2026-12-01T00:00:05Z"))
    assert ledger.read[2:] == [TODAY + 28], "a new month begins with nothing"


def test_while_the_ledger_is_out_the_sums_stay_and_without_any_there_are_none() -> None:
    ledger = Ledger()
    month = costs(ledger)
    ledger.is_out = True
    assert month.read(NOON) is None
    ledger.is_out = False
    before = month.read(NOON)
    ledger.problem = ClusterError("the database is gone")
    assert month.read(NOON + 2 * EARLIER_S) == before
