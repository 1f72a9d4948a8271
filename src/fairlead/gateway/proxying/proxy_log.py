"""Counts requests that haproxy has passed on, by the lines that it writes when they are over."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.gateway.access_log import Entry
from fairlead.gateway.services import Replica, Service

_GONE = 499
_NUM_FIELDS = 15
_FALLBACK = b"door"
_ENCODED = re.compile(r"#([0-9A-F]{2})")


@dataclass(frozen=True, slots=True)
class Server:
    """A replica as haproxy calls it, and the revision that it is of."""

    replica: Replica[Any]
    revision: str


class PassedRequests:
    """Takes lines of haproxy's log.

    Attributes:
        ended: Requests that are over, by service.
        malformed: Lines that were not whole.
        broken: Replicas that are left out for breaking off their answers.
    """

    def __init__(self, add_entry: Callable[[Entry], None], count_unread: Callable[[int], None]) -> None:
        self._add_entry = add_entry
        self._count_unread = count_unread
        self._rest = b""
        self.ended: Counter[str] = Counter()
        self.malformed = 0
        self.broken: set[Replica[Any]] = set()

    def take(
        self,
        data: bytes,
        services: Mapping[bytes, Service[Any]],
        servers: Mapping[bytes, Server],
        now: float,
    ) -> None:
        """Count what whole lines there are, and keep the rest.

        Args:
            services: By haproxy's names of their backends.
            servers: By haproxy's names of them.
            now: Of the clock by which replicas are left out.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        ahead = time.time() - now
        for line in lines:
            fields = line.split(b" ", _NUM_FIELDS - 1)
            try:
                if fields[1] != _FALLBACK:
                    self._count(fields, services.get(fields[0]), servers.get(fields[1]), now, ahead)
            except (IndexError, ValueError):
                self.malformed += 1

    def _count(
        self, fields: list[bytes], service: Service[Any] | None, server: Server | None, now: float, ahead: float
    ) -> None:
        _, _, status_text, began, ended, length, answered, size, at_once, retries, state, remote, method, id_, path = (
            fields
        )
        status, began_us, ended_us = int(status_text), float(began) if began != b"-" else 0.0, float(ended)
        took_s = (ended_us - began_us) / 1e6 if began_us else 0.0
        began_s = (began_us or ended_us) / 1e6
        cause, stage = chr(state[0]), chr(state[1])
        entry = Entry(
            began_s, id_.decode(), remote.decode(), method.decode("latin-1"), _decoded(path), seconds=took_s
        )  # fmt: skip
        entry.bytes_in = int(length) if length.isdigit() else 0
        entry.bytes_out = int(answered) if answered.isdigit() and status < _GONE and cause == "-" else int(size)
        if service is None or server is None:
            entry.status = status if status > 0 else _GONE
            entry.service = "" if service is None else service.name
            entry.error = "the client went away" if status <= 0 else "haproxy answered by itself"
            if service is None:
                self._count_unread(entry.status)
            else:
                service.tally.codes["", entry.status] += 1
                self.ended[service.name] += 1
            self._add_entry(entry)
            return
        replica = server.replica
        entry.service, entry.revision, entry.replica = service.name, server.revision, replica.backend.id
        entry.tries = 1 + int(retries.lstrip(b"+"))
        abandoned = cause == "C"
        if abandoned:
            entry.error = "the client went away"
            status = status if stage == "D" and status > 0 else _GONE
        elif cause != "-":
            told = _ERRORS.get(cause + stage, f"haproxy ended it in state {cause}{stage}")
            entry.error = told.format(replica=replica.backend.id)
        entry.status = status
        if cause == "S" and stage == "H":
            replica.broke_off(now)
            if replica.closed_until > now:
                self.broken.add(replica)
        elif cause == "-":
            replica.answered()
        # Of so many at once each has had its part of the replica's places.
        busy_s = took_s * min(1.0, service.route.places / max(1, int(at_once)))
        tally = service.tally
        tally.codes[server.revision, status] += 1
        tally.end(ended_us / 1e6, busy_s=busy_s, took_s=took_s)
        if not abandoned:
            failed = status >= 500 or cause in "SsP"
            tally.revision(server.revision).add(failed=failed, duration_ms=took_s * 1e3)
        tally.retries += entry.tries - 1
        self.ended[service.name] += 1
        self._add_entry(entry)


_ERRORS = {
    "SC": "replica {replica} takes no connection",
    "SH": "replica {replica} ended the connection without an answer",
    "SD": "replica {replica}: its answer ends before its length",
    "sH": "replica {replica} did not answer in time",
    "sD": "no more of the answer came from replica {replica} in time",
    "cD": "the client took no more of the answer in time",
    "cH": "the body did not come in time",
    "PH": "replica {replica}: its answer is not HTTP/1.1 as it has to be",
    "PD": "replica {replica}: its answer is not HTTP/1.1 as it has to be",
    "KD": "the gateway ended",
}


def _decoded(path: bytes) -> str:
    """Return a path as it came: haproxy writes what is no URI character as its code."""
    text = path.decode("latin-1")
    return _ENCODED.sub(lambda found: chr(int(found[1], 16)), text) if "#" in text else text
