"""Reads the bills for the page, the same as ``fairlead cost`` prints."""

from fairlead.cluster.ledger_tables import CostGrouping, Payer
from fairlead.errors import NotFound
from fairlead.ledger.bills import Statement
from fairlead.web.view import Question


def bill_of(question: Question, by: CostGrouping, since: float) -> Statement[Payer] | None:
    """Return the bills up to now by payer; None if no price is set or no costs are recorded."""
    cluster = question.cluster
    if cluster.machine is not None and not cluster.machine.prices():
        return None
    try:
        return cluster.costs(by, since=since, until=question.now)
    except NotFound:
        return None


def is_local(question: Question) -> bool:
    """Return whether prices are set on this machine rather than by the operator of a cluster."""
    return question.cluster.machine is not None
