"""Writes demand.json: the demand by service, as input for autoscaling."""

import json
import os
from pathlib import Path
from typing import Any

from fairlead.gateway.access import KeyUses
from fairlead.gateway.services import ServiceTable

EVERY_S = 0.5
"""Minimum seconds between writes; a request to a sleeping service is written at once."""


class DemandFile:
    """The file demand.json, with the time at which the next write is due."""

    def __init__(self, path: Path, key_uses: KeyUses, *, since: float, port: int, admin_port: int) -> None:
        self._path = path
        self._key_uses = key_uses
        self._head: dict[str, Any] = {
            "version": 1, "since": since, "port": port, "pid": os.getpid(), "admin_port": admin_port,
        }  # fmt: skip
        self._next = 0.0
        self.failed: str | None = None
        """The error of the last write, or None."""

    def write_if_due(self, table: ServiceTable[Any], *, now: float, epoch: float) -> bool:
        """Write if something has changed and the interval has passed; return whether it was written."""
        if now < self._next or not table.touched:
            return False
        for service in table.touched:
            if service.metrics.present:
                service.metrics.look(epoch)
        self.write(table, now=now, epoch=epoch)
        return True

    def write(self, table: ServiceTable[Any], *, now: float, epoch: float) -> None:
        """Replace the file. Services without a request since the start of this gateway are omitted."""
        self._next = now + EVERY_S
        services = {
            name: {
                **service.metrics.demand(queued=service.queued(), epoch=epoch),
                "canary": None if service.pairs is None else service.pairs.as_json(),
                "text": None if service.texts is None else service.texts.as_json(),
            }
            for name, service in table.services.items()
            if service.metrics.last_request is not None
        }
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            draft.write_text(json.dumps({**self._head, "services": services, "keys": self._key_uses.all()}))
            draft.replace(self._path)
        except OSError as error:
            self.failed = str(error)
            return
        self.failed = None
        table.touched.difference_update([service for service in table.touched if not service.metrics.present])


def read_key_uses(path: Path) -> dict[str, int]:
    """Return when keys were last used, by their hashes, as an earlier gateway wrote it; empty if there was none."""
    try:
        uses = json.loads(path.read_bytes())["keys"]
        return {str(digest): int(epoch) for digest, epoch in uses.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # the first one, or one of an older version
