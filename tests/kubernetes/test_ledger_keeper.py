"""Prices of nodes as an operator sees them come, change and go, from caches that are fed by hand."""

from pathlib import Path
from typing import Any

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import Access
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import LedgerKeeper
from fairlead.cluster.kubernetes.operator.ledger.usage_ledger import UsageLedger
from fairlead.cluster.kubernetes.operator.runs.informers import Informers
from fairlead.policy.placement.node_eligibility import PRICE_LABEL

BORN = "2026-11-01T00:00:00Z"
NOW = seconds("2026-11-20T00:00:00Z")


def a_node(version: int, price: str) -> dict[str, Any]:
    metadata = {"name": "n", "resourceVersion": str(version), "creationTimestamp": BORN, "labels": {PRICE_LABEL: price}}
    ready = {"type": "Ready", "status": "True"}
    allocatable = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    return {"metadata": metadata, "spec": {}, "status": {"allocatable": allocatable, "conditions": [ready]}}


def test_a_node_costs_from_its_creation_until_it_goes_at_the_price_of_each_time(tmp_path: Path) -> None:
    view = Informers(Client(Access(context="none", server="http://127.0.0.1:9", credentials=Anonymous())))
    place = str(tmp_path / "ledger.db")
    first = LedgerKeeper(view, place)
    view.nodes.put(a_node(1, "2.5"))
    first.act(NOW)
    view.nodes.put(a_node(2, "3"))
    first.act(NOW + 10)
    first.act(NOW + 11)
    first.rest()
    # While nobody led the node went; it is billed until it was seen last.
    view.nodes.drop("n", 3)
    second = LedgerKeeper(view, place)
    second.act(NOW + 60)
    assert second.trouble is None
    second.rest()
    ledger = UsageLedger(place)
    changes = [(each.from_ms / 1000, each.rate) for each in ledger.price_changes()["n"]]
    ledger.close()
    assert changes[:2] == [(seconds(BORN), 2_500_000), (NOW + 10, 3_000_000)]
    assert changes[2][1] is None
    assert NOW + 10 <= changes[2][0] <= NOW + 11
    assert len(changes) == 3
