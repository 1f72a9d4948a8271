"""The bills that the page shows: those of ``fairlead cost``."""

from fairlead.cluster.ledger_tables import Grouping, Payer
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.errors import NotFound
from fairlead.ledger.bills import Statement
from fairlead.web.view import Question


def bill_of(question: Question, by: Grouping, since: float) -> Statement[Payer] | None:
    """Return the bills up to now, by who pays; None where no price is set or no costs are kept."""
    cluster = question.cluster
    if isinstance(cluster, LocalCluster) and not cluster.prices():
        return None
    try:
        return cluster.costs(by, since=since, until=question.now)
    except NotFound:
        return None


def is_local(question: Question) -> bool:
    """Tell whether prices are set on this machine, and not by those who run a cluster."""
    return isinstance(question.cluster, LocalCluster)
