"""Renders a statement as rows, one per payer, with the same figures in every output format."""

from collections import defaultdict
from typing import Any

from fairlead.cluster.ledger_tables import CostGrouping, Payer
from fairlead.ledger.bills import BillLine, Statement
from fairlead.ledger.usage import HOUR_MS, WHOLE


def cost_rows(statement: Statement[Payer], by: CostGrouping) -> list[dict[str, Any]]:
    """Return a row per payer, highest cost first, days in order; the row for idle capacity comes last."""
    lines: defaultdict[Payer, list[BillLine[Payer]]] = defaultdict(list)
    for line in statement.lines:
        lines[line.key].append(line)
    rows = [_row(payer, payer_lines, by) for payer, payer_lines in lines.items()]
    if by is CostGrouping.DAY:
        return sorted(rows, key=lambda row: str(row["day"]))
    return sorted(rows, key=lambda row: (row[by.value] is None, -row["microusd"], str(row[by.value])))


def _row(payer: Payer, lines: list[BillLine[Payer]], by: CostGrouping) -> dict[str, Any]:
    row: dict[str, Any] = {by.value: None if payer is None else payer[0]}
    if by is CostGrouping.RUN:
        row["uid"] = None if payer is None else payer[1]
    uses: defaultdict[str, int] = defaultdict(int)
    for line in lines:
        uses[line.use.value] += line.microusd
    hours = sum(line.unit_ms for line in lines) / (WHOLE * HOUR_MS)
    return {**row, "microusd": sum(uses.values()), "node_hours": round(hours, 6), "uses": dict(uses)}
