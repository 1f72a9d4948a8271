"""Writes arrivals as our own table, which ``reading`` reads back unchanged."""

import csv
import io
from collections.abc import Iterable, Mapping

from fairlead.specs.formats.rendering import render_short
from fairlead.traces.arrivals import Arrival
from fairlead.traces.reading import COST_COLUMNS, DATA_COLUMNS, OWN_COLUMNS, PROFILE_COLUMNS

PLAIN_COLUMNS = ("name", "team", "nodes", "priority", "max_duration", "expected_duration", "deadline")


def write_trace(arrivals: Iterable[Arrival], comments: Iterable[str] = ()) -> str:
    """Format the table, with a comment line for each sentence; columns without any value are left out."""
    rows = [_row(arrival) for arrival in arrivals]
    filled = {column for column in OWN_COLUMNS if any(column in row for row in rows)}
    columns = [column for column in OWN_COLUMNS if column in filled]
    text = io.StringIO()
    for comment in comments:
        text.write(f"# {comment}\n")
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n", extrasaction="ignore")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _row(arrival: Arrival) -> Mapping[str, object]:
    spec = render_short(arrival.spec)
    row: dict[str, object] = {
        "submit_s": _number(arrival.at_s),
        "duration_s": _number(arrival.duration_s),
        **{name: spec[name] for name in PLAIN_COLUMNS if name in spec},
        **{name: value for name, value in spec.get("resources", {}).items() if name in OWN_COLUMNS},
    }
    if arrival.spec.resources.colocate:
        row["colocate"] = "true"
    if arrival.spec.capacity.spot:
        row["spot"] = "auto" if arrival.spec.capacity.auto else "true"
    if arrival.spec.capacity.max_price is not None:
        row["max_price"] = _number(arrival.spec.capacity.max_price)
    if "every" in (checkpoint := spec.get("checkpoint", {})):
        row["checkpoint_every"] = checkpoint["every"]
    for column in COST_COLUMNS:
        if (seconds := getattr(arrival, column)) is not None:
            row[column] = _number(seconds)
    if arrival.profile is not None:
        measured_s = (arrival.profile.iteration_s, *arrival.profile.stages_s)
        row |= {column: _number(value) for column, value in zip(PROFILE_COLUMNS, measured_s, strict=True)}
    if (reads := arrival.reads) is not None:
        values = (reads.version, _number(reads.size_gb), _number(reads.gb_s * 1e3))
        row |= dict(zip(DATA_COLUMNS, values, strict=True))
    return row


def _number(value: float) -> str:
    """Format integers without a decimal point, and other numbers exactly."""
    return str(int(value)) if value == int(value) else repr(value)
