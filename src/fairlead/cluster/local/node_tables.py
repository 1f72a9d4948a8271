"""The history of this machine as a node, in the local cluster's database. The callers manage transactions."""

import json
import sqlite3

from fairlead.cluster.node_records import MOST_BYTES, history_of, plain_history
from fairlead.policy.health.node_risk import charged, forgotten
from fairlead.state.node_health import Histories, Incident
from fairlead.untrusted_json import parse_object

# Made with the first failure: most machines have none, and an older version may open the database.
_TABLE = "CREATE TABLE IF NOT EXISTS node_histories (node TEXT PRIMARY KEY, content TEXT NOT NULL)"
_HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'node_histories'"


def histories(db: sqlite3.Connection) -> Histories:
    """Return the histories by node; none before the first failure."""
    if db.execute(_HAS_TABLE).fetchone() is None:
        return {}
    rows = db.execute("SELECT node, content FROM node_histories").fetchall()
    read = ((node, history_of(node, parse_object(content, max_bytes=MOST_BYTES))) for node, content in rows)
    return {node: history for node, history in read if history is not None}


def charge(db: sqlite3.Connection, incident: Incident) -> None:
    """Enter a failure in the histories of its nodes, in the transaction of the change that ends the attempt."""
    (first_at,) = db.execute("SELECT min(created_at) FROM workloads").fetchone()
    since = dict.fromkeys(incident.nodes, incident.at if first_at is None else float(first_at))
    known = forgotten(charged(histories(db), incident, since), incident.nodes, incident.at)
    db.execute(_TABLE)
    db.execute("DELETE FROM node_histories")
    db.executemany(
        "INSERT INTO node_histories (node, content) VALUES (?, ?)",
        [(node, json.dumps(plain_history(history))) for node, history in known.items()],
    )
