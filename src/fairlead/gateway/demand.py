"""Writes demand.json: the demand by service, as input for autoscaling."""

import json
import os
from pathlib import Path
from typing import Any

from fairlead.gateway.services import Table

EVERY_S = 0.5
"""Minimum seconds between writes; a request to a sleeping service is written at once."""


class DemandFile:
    """The file demand.json, with the time at which the next write is due."""

    def __init__(self, path: Path, *, since: float, port: int, admin_port: int) -> None:
        self._path = path
        self._head: dict[str, Any] = {
            "version": 1, "since": since, "port": port, "pid": os.getpid(), "admin_port": admin_port,
        }  # fmt: skip
        self._next = 0.0
        self.failed: str | None = None
        """The error of the last write, or None."""

    def write_if_due(self, table: Table[Any], *, now: float, epoch: float) -> bool:
        """Write if something has changed and the interval has passed; return whether it was written."""
        if now < self._next or not table.touched:
            return False
        for service in table.touched:
            if service.tally.present:
                service.tally.look(epoch)
        self.write(table, now=now, epoch=epoch)
        return True

    def write(self, table: Table[Any], *, now: float, epoch: float) -> None:
        """Replace the file. Services without a request since the start of this gateway are omitted."""
        self._next = now + EVERY_S
        told = {
            name: {
                **service.tally.demand(queued=service.queued(), epoch=epoch),
                "canary": None if service.pairs is None else service.pairs.told(),
                "text": None if service.texts is None else service.texts.told(),
            }
            for name, service in table.services.items()
            if service.tally.last_request is not None
        }
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            draft.write_text(json.dumps({**self._head, "services": told}))
            draft.replace(self._path)
        except OSError as error:
            self.failed = str(error)
            return
        self.failed = None
        for service in [each for each in table.touched if not each.tally.present]:
            table.touched.discard(service)
