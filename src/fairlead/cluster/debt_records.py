"""Writes the debts of teams as plain data and reads them back, so that the next process of a loop goes on from them."""

import math
from collections.abc import Mapping
from typing import Any

from fairlead.policy.queue.team_debts import MOST_S, DebtRecord, Reserved

# Teams with the largest debts; an annotation of the Lease has room for twice as many.
MOST_TEAMS = 500
MOST_BYTES = 128 * 1024
MOST_NAME = 253


def plain_debts(record: DebtRecord) -> dict[str, Any]:
    """Return plain data of a record that has observed something, the debts of at most ``MOST_TEAMS`` teams."""
    largest = sorted(record.debts_s.items(), key=lambda item: (-abs(item[1]), item[0]))[:MOST_TEAMS]
    reserved = {uid: [reservation.team, round(reservation.debt_s, 1)] for uid, reservation in record.reserved.items()}
    return {
        "at": round(record.at, 1),
        "debts": {team: round(debt_s, 1) for team, debt_s in largest},
        "reserved": dict(sorted(reserved.items())[:MOST_TEAMS]),
    }


def debts_of(content: Mapping[str, Any]) -> DebtRecord:
    """Return the record that ``plain_debts`` wrote; debts beyond the largest possible one count as that.

    Raises:
        ValueError: It is something else.
    """
    debts, reserved = content.get("debts"), content.get("reserved")
    if not isinstance(debts, dict) or not isinstance(reserved, dict) or max(len(debts), len(reserved)) > MOST_TEAMS:
        raise ValueError(f"it has to hold `at`, `debts` and `reserved`, of at most {MOST_TEAMS} teams each")
    reservations = dict[str, Reserved]()
    for uid, pair in reserved.items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("`reserved` has to hold pairs of a team and seconds")
        reservations[_name(uid)] = Reserved(team=_name(pair[0]), debt_s=max(0.0, _seconds(pair[1])))
    return DebtRecord(
        at=_number(content.get("at")),
        debts_s={_name(team): _seconds(debt_s) for team, debt_s in debts.items()},
        reserved=reservations,
    )


def _name(text: object) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= MOST_NAME:
        raise ValueError(f"names have to be texts of 1 to {MOST_NAME} characters")
    return text


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("times and debts have to be numbers")
    return float(value)


def _seconds(value: object) -> float:
    return max(-MOST_S, min(MOST_S, _number(value)))
