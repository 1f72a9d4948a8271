"""Shows costs by run, team, model or day, with idle rows: the same rows as ``fairlead cost``."""

from typing import Any

from fairlead.cluster.cost_rows import cost_rows
from fairlead.cluster.ledger_tables import CostGrouping
from fairlead.cluster.output import parse_moment
from fairlead.ledger.usage import Use
from fairlead.text.money import describe_microusd
from fairlead.web.bills import bill_of, is_local
from fairlead.web.view import Answer, BadQuery, Question

WINDOWS = ("24h", "7d", "30d", "90d")
MOST = 200


def cost(question: Question) -> Answer:
    """Show the parts of the bill since a time, by payer and use."""
    by = CostGrouping(question.one_of("by", tuple(grouping.value for grouping in CostGrouping), "run"))
    since = question.query.get("since", "").strip() or "30d"
    try:
        start = parse_moment(since, question.now)
    except ValueError as error:
        raise BadQuery(f"since: {error}.") from None
    if start > question.now:
        raise BadQuery(f"since: {since!r} is still to come; give a time that is past, such as 7d.")
    values: dict[str, Any] = {
        "by": by.value, "since": since, "start": start, "groupings": [grouping.value for grouping in CostGrouping],
        "windows": WINDOWS, "is_local": is_local(question), "rows": [], "billed": None, "num_left": 0, "uses": [],
    }  # fmt: skip
    bill = question.paced.value(("cost", by, since), lambda: bill_of(question, by, start))
    if bill is not None:
        rows = cost_rows(bill, by)
        shown = (
            rows if by is CostGrouping.DAY else [*rows[:MOST], *(row for row in rows[MOST:] if row[by.value] is None)]
        )
        whole = bill.billed_microusd
        values |= {
            "rows": [_row(row, by, whole) for row in shown],
            "billed": describe_microusd(whole),
            "num_left": len(rows) - len(shown),
            "uses": _uses(rows, whole),
        }
    return Answer(title="Cost", template="cost.html", values=values, look_again_s=30.0)


def _row(row: dict[str, Any], by: CostGrouping, whole: int) -> dict[str, Any]:
    return {
        "name": "(no run)" if row[by.value] is None else row[by.value] or "-",
        "uid": row.get("uid"),
        "cost": describe_microusd(row["microusd"]),
        "part": row["microusd"] / whole if whole else 0.0,
        "node_hours": row["node_hours"],
        "uses": [
            (use, describe_microusd(amount))
            for use, amount in sorted(row["uses"].items(), key=lambda item: -item[1])
            if amount
        ],
    }


def _uses(rows: list[dict[str, Any]], whole: int) -> list[dict[str, Any]]:
    """Divide the whole bill by use: each with its amount and its part of a bar, in percent."""
    uses, at = [], 0.0
    for use in Use:
        amount = sum(row["uses"].get(use.value, 0) for row in rows)
        if amount and whole:
            width = 100 * amount / whole
            uses.append({"use": use.value, "cost": describe_microusd(amount), "begin": at, "width": width})
            at += width
    return uses
