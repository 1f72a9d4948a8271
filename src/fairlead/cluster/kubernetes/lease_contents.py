"""Contents of the operator's Lease: how long it holds, and the debts of teams in its annotations."""

import logging
from collections.abc import Mapping

from fairlead.cluster.debt_records import MOST_BYTES, debts_of
from fairlead.cluster.kubernetes.names import DEBTS
from fairlead.policy.queue.team_debts import DebtRecord
from fairlead.untrusted_json import parse_object

DURATION_S = 15.0
"""Seconds for which a Lease holds; client-go has 15 too."""

log = logging.getLogger(__name__)


def debts_on(annotations: Mapping[str, str]) -> DebtRecord:
    """Return the debts; none if there are none, or if they cannot be read, which is logged."""
    text = annotations.get(DEBTS)
    if text is None:
        return DebtRecord()
    try:
        return debts_of(parse_object(text, max_bytes=MOST_BYTES, finite=True))
    except ValueError as error:
        log.warning("debts of teams begin at nothing, since %s of the Lease cannot be read: %s", DEBTS, error)
        return DebtRecord()
