"""The debts of teams in a file of the state directory: written by the supervisor, read by it and by commands."""

import logging
import math
import time
from pathlib import Path

from fairlead.cluster.debt_records import MOST_BYTES, debts_of, plain_debts
from fairlead.policy.queue.team_debts import DebtRecord
from fairlead.runtime.podfiles import write_json
from fairlead.untrusted_json import parse_object

log = logging.getLogger(__name__)

EVERY_S = 10.0


def read_debts(path: Path) -> DebtRecord:
    """Return the debts; none if there is no file, or if it holds something else, which is logged."""
    try:
        with path.open("rb") as file:
            return debts_of(parse_object(file.read(MOST_BYTES + 1), max_bytes=MOST_BYTES, finite=True))
    except FileNotFoundError:
        return DebtRecord()
    except (OSError, ValueError) as error:
        log.warning("debts of teams begin at nothing, since %s cannot be read: %s", path, error)
        return DebtRecord()


class DebtWriter:
    """Replaces the file when debts have changed, at most every ``EVERY_S`` seconds."""

    def __init__(self, path: Path, written: DebtRecord) -> None:
        self._path = path
        self._written = written
        self._next_at = -math.inf

    def write(self, record: DebtRecord, *, at_once: bool = False) -> None:
        """Write what is not written yet, if it is time; a disk that refuses it gets it at the next time."""
        same = (record.debts_s, record.reserved) == (self._written.debts_s, self._written.reserved)
        if same or (time.monotonic() < self._next_at and not at_once):
            return
        self._next_at = time.monotonic() + EVERY_S
        try:
            write_json(self._path, plain_debts(record), durably=False)
        except OSError as error:
            log.warning("debts of teams are not written: %s", error)
        else:
            self._written = record
