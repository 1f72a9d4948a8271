"""Writes the histories of nodes as plain data and reads them back, bounded in number and size."""

import json
from collections.abc import Mapping
from typing import Any

from fairlead.frozen import dataclass
from fairlead.policy.health.node_risk import MOST_NODES, MOST_TEAMS
from fairlead.state.node_health import (
    MOST_RECENT,
    FailureCause,
    Histories,
    NodeFailure,
    NodeHistory,
    NodeOutage,
)
from fairlead.untrusted_json import fields, items, moment, number, parse_object, text

MOST_BYTES = 900 * 1024
"""Bytes of a record; an object of Kubernetes takes a mebibyte in all."""
MOST_COUNTED = 2000
"""Runs and conditions of which it is known that they are counted, the newest."""
MOST_NAME = 253
MOST_WHY = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """The histories of a cluster's nodes.

    Attributes:
        counted: The time of the newest failure that is counted, by the uid of its run, or by node and condition.
    """

    histories: Histories
    counted: Mapping[str, float]


NOTHING = NodeRecord(histories={}, counted={})


def plain_history(history: NodeHistory) -> dict[str, Any]:
    """Return the plain data of one history."""
    content: dict[str, Any] = {"since": round(history.since, 1)}
    if history.failures:
        content |= {"failures": round(history.failures, 4), "at": round(history.at, 1)}
    if history.by_team:
        content["teams"] = {team: round(part, 4) for team, part in history.by_team.items()}
    if history.recent:
        content["recent"] = [
            [round(one.at, 1), one.cause.value, round(one.share, 4), one.team, one.run] for one in history.recent
        ]
    if history.was_out:
        content["was_out"] = True
    if history.out is not None:
        content["out"] = {"since": round(history.out.since, 1), "why": history.out.why[:MOST_WHY]}
    return content


def history_of(node: str, content: object) -> NodeHistory | None:
    """Return the history that ``plain_history`` wrote; None of anything else. What it cannot hold is left out."""
    values = fields(content)
    since = moment(values.get("since"))
    if since is None or not 0 < len(node) <= MOST_NAME:
        return None
    teams = {name: _amount(part) for name, part in list(fields(values.get("teams")).items())[:MOST_TEAMS]}
    out = fields(values.get("out"))
    out_since = moment(out.get("since"))
    return NodeHistory(
        node=node,
        since=since,
        failures=_amount(values.get("failures")),
        at=moment(values.get("at")) or since,
        by_team={name: part for name, part in teams.items() if len(name) <= MOST_NAME and part > 0},
        recent=tuple(
            one for entry in items(values.get("recent"))[:MOST_RECENT] if (one := _failure(entry)) is not None
        ),
        was_out=values.get("was_out") is True,
        out=None if out_since is None else NodeOutage(since=out_since, why=text(out.get("why"), MOST_WHY) or ""),
    )


def dump_record(record: NodeRecord) -> str:
    """Return the text of a record, without what is older than the rest where it would be too long."""
    newest = sorted(record.counted.items(), key=lambda item: (-item[1], item[0]))[:MOST_COUNTED]
    histories = record.histories
    for most in (MOST_RECENT, 4, 1):
        content = {
            "nodes": {name: _with_most(plain_history(history), most) for name, history in histories.items()},
            "counted": {uid: round(at, 1) for uid, at in sorted(newest)},
        }
        written = json.dumps(content, separators=(",", ":"))
        if len(written) <= MOST_BYTES:
            break
    return written


def record_of(written: str) -> NodeRecord:
    """Return the record of a text that ``dump_record`` wrote.

    Raises:
        ValueError: It is something else.
    """
    content = parse_object(written, max_bytes=MOST_BYTES, finite=True)
    nodes = list(fields(content.get("nodes")).items())[:MOST_NODES]
    histories = {name: history for name, entry in nodes if (history := history_of(name, entry)) is not None}
    counted = list(fields(content.get("counted")).items())[:MOST_COUNTED]
    times = {uid: at for uid, value in counted if (at := moment(value)) is not None and len(uid) <= 2 * MOST_NAME}
    return NodeRecord(histories=histories, counted=times)


def _with_most(content: dict[str, Any], most: int) -> dict[str, Any]:
    recent = content.get("recent")
    return content if recent is None or len(recent) <= most else {**content, "recent": recent[-most:]}


def _failure(entry: object) -> NodeFailure | None:
    at, cause, share, team, run = (*items(entry)[:5], *[None] * 5)[:5]
    when = moment(at)
    if when is None or cause not in FailureCause.__members__.values():
        return None
    return NodeFailure(
        at=when,
        cause=FailureCause(cause),
        share=min(1.0, _amount(share)),
        team=text(team, MOST_NAME) or "",
        run=text(run, MOST_NAME) or "",
    )


def _amount(value: object) -> float:
    amount = number(value)
    return 0.0 if amount is None or not 0 <= amount < 1e6 else amount
