"""Reads pages of workloads from the local cluster's database, by its indexes."""

import sqlite3

from fairlead.cluster.listing import Listing
from fairlead.cluster.local.tables import WORKLOAD, readable
from fairlead.state.snapshot import AnyWorkload, Phase

# Up to this many matching names are looked up one by one; if more match, a scan by age finds a page soon.
FEW = 500


def page(db: sqlite3.Connection, listing: Listing) -> tuple[AnyWorkload, ...]:
    """Return the workloads of a page, newest first."""
    conditions, values = list[str](), list[object]()
    # The index is chosen here: unfinished workloads are few, but SQLite has no statistics that say so.
    index = ""
    if listing.is_over is not None:
        conditions.append(f"final = {int(listing.is_over)}")
        index = "" if listing.is_over else " INDEXED BY one_unfinished_of_a_name"
    if listing.phases:
        conditions.append(f"phase IN ({', '.join('?' * len(listing.phases))})")
        values += sorted(listing.phases)
    for column, wanted in (("team", listing.team), ("kind", listing.kind)):
        if wanted is not None:
            conditions.append(f"{column} = ?")
            values.append(wanted)
    if listing.top_only:
        conditions.append("parent IS NULL")
    if listing.after is not None:
        conditions.append("(created_at, uid) < (?, ?)")
        values += listing.after
    if listing.text:
        condition, name_values = _by_name(db, listing.text.lower())
        conditions.append(condition)
        values += name_values
        index = index if name_values else ""
    rows = db.execute(
        f"SELECT {WORKLOAD} FROM workloads{index} WHERE {' AND '.join(conditions) or '1'} "
        "ORDER BY created_at DESC, uid DESC LIMIT ?",
        (*values, listing.limit),
    ).fetchall()
    return tuple(readable(rows))


def num_kept(db: sqlite3.Connection) -> int:
    """Count the stored workloads."""
    return int(db.execute("SELECT count(*) FROM workloads").fetchone()[0])


def num_unfinished(db: sqlite3.Connection) -> dict[Phase, int]:
    """Count the unfinished workloads by phase."""
    rows = db.execute(
        "SELECT phase, count(*) FROM workloads INDEXED BY one_unfinished_of_a_name WHERE final = 0 GROUP BY phase"
    ).fetchall()
    return {Phase(phase): int(count) for phase, count in rows}


def _by_name(db: sqlite3.Connection, text: str) -> tuple[str, list[object]]:
    """Return the condition that a name contains a text, with its values."""
    rows = db.execute(
        "SELECT rowid FROM workloads INDEXED BY workloads_by_name WHERE instr(lower(name), ?) LIMIT ?", (text, FEW)
    ).fetchall()
    if len(rows) < FEW:
        return f"rowid IN ({', '.join(str(int(row[0])) for row in rows)})", []
    return "instr(lower(name), ?)", [text]
