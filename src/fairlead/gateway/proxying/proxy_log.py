"""Counts requests that haproxy forwarded, from the lines that it logs when they end."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from fairlead.frozen import dataclass
from fairlead.gateway.access_log import AccessLogEntry
from fairlead.gateway.services import RoutedService, UpstreamReplica

_GONE = 499
_NUM_FIELDS = 15
_FALLBACK = "gateway"
_ENCODED = re.compile(r"#([0-9A-F]{2})")


@dataclass(frozen=True, slots=True)
class ProxiedReplica:
    """A replica under haproxy's name, with its revision."""

    replica: UpstreamReplica[Any]
    revision: str


class ProxiedRequests:
    """Parses haproxy's log and counts its requests.

    Attributes:
        ended: Number of completed requests, by service.
        malformed: Number of incomplete lines.
        broken: Replicas that are left out because they broke off responses.
    """

    def __init__(self, add_entry: Callable[[AccessLogEntry], None], count_unrouted: Callable[[int], None]) -> None:
        self._add_entry = add_entry
        self._count_unrouted = count_unrouted
        self._rest = b""
        self.ended: Counter[str] = Counter()
        self.malformed = 0
        self.broken: set[UpstreamReplica[Any]] = set()

    def take(
        self,
        data: bytes,
        services: Mapping[str, RoutedService[Any]],
        servers: Mapping[str, ProxiedReplica],
        now: float,
    ) -> None:
        """Count the complete lines and keep the rest.

        Args:
            services: Services by the names of their backends in haproxy.
            servers: Replicas by their names in haproxy.
            now: Time of the clock that replica back-off uses.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            # One byte is one character: haproxy escapes all others.
            fields = line.decode("latin-1").split(" ", _NUM_FIELDS - 1)
            try:
                if fields[1] != _FALLBACK:
                    self._count(fields, services.get(fields[0]), servers.get(fields[1]), now)
            except (IndexError, ValueError):
                self.malformed += 1

    def _count(
        self, fields: list[str], service: RoutedService[Any] | None, server: ProxiedReplica | None, now: float
    ) -> None:
        _, _, status_text, began, ended, length, answered, size, at_once, retries, state, remote, method, id_, path = (
            fields
        )
        status, ended_s = int(status_text), int(ended) / 1e6
        began_s = ended_s if began == "-" else int(began) / 1e6
        took_s = 0.0 if began == "-" else (int(ended) - int(began)) / 1e6
        cause, stage = state[0], state[1]
        if "#" in path:
            path = _ENCODED.sub(_character, path)
        bytes_in = int(length) if length.isdigit() else 0
        # Count what was sent if the response was cut short.
        bytes_out = int(answered) if answered.isdigit() and status < _GONE and cause == "-" else int(size)
        if service is None or server is None:
            self._count_unserved(
                AccessLogEntry(
                    began_s, id_, remote, method, path, "" if service is None else service.name,
                    status=status if status > 0 else _GONE, seconds=took_s, bytes_in=bytes_in, bytes_out=bytes_out,
                    error="the client went away" if status <= 0 else "haproxy answered by itself",
                ),
                service,
            )  # fmt: skip
            return
        replica = server.replica
        abandoned, error = cause == "C", ""
        if cause == "-":
            replica.answered()
        elif abandoned:
            error = "the client went away"
            status = status if stage == "D" and status > 0 else _GONE
        else:
            sentence = _ERRORS.get(cause + stage, f"haproxy ended it in state {cause}{stage}")
            error = sentence.format(replica=replica.backend.id)
            if cause == "S" and stage == "H":
                replica.broke_off(now)
                if replica.closed_until > now:
                    self.broken.add(replica)
        tries = 1 if retries == "0" else 1 + int(retries.lstrip("+"))
        # Concurrent requests share the slots of the replica equally.
        others, places = int(at_once), service.route.places
        metrics = service.metrics
        metrics.codes[server.revision, status] += 1
        metrics.end(ended_s, busy_s=took_s if others <= places else took_s * places / others, took_s=took_s)
        if not abandoned:
            failed = status >= 500 or cause in "SsP"
            metrics.revision(server.revision).add(failed=failed, duration_ms=took_s * 1e3)
        metrics.retries += tries - 1
        self.ended[service.name] += 1
        self._add_entry(
            AccessLogEntry(
                began_s, id_, remote, method, path, service.name, server.revision, replica.backend.id,
                status=status, seconds=took_s, tries=tries, bytes_in=bytes_in, bytes_out=bytes_out, error=error,
            )
        )  # fmt: skip

    def _count_unserved(self, entry: AccessLogEntry, service: RoutedService[Any] | None) -> None:
        """Count a request that reached no replica: haproxy answered it, or its client disconnected."""
        if service is None:
            self._count_unrouted(entry.status)
        else:
            service.metrics.codes["", entry.status] += 1
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


def _character(escape: re.Match[str]) -> str:
    """Decode a character that haproxy escaped, as it does with characters that are not valid in a URI."""
    return chr(int(escape[1], 16))
