"""Reads routes.json: the services, their access rules and their ready replicas."""

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from fairlead.errors import InvalidSpec
from fairlead.frozen import dataclass

VERSION = 2
CANARY, CONTROL = "canary", "control"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_ORIGIN = re.compile(r"https?://[a-z0-9._:\[\]-]+")
_HOST = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, slots=True)
class RouteKey:
    """An authorized key: its SHA-256 in hexadecimal digits, and its team.

    Attributes:
        expires_at: From when it is refused, in Unix seconds; None for never.
    """

    sha256: str
    team: str
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Backend:
    """A ready replica and the address on which it listens."""

    id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class RevisionRoute:
    """A revision's share of the requests and its ready replicas. A shadow gets copies only.

    Attributes:
        arm: Its side of a trial, `canary` or `control`; empty for neither. A revision may occur twice, once with an
            arm.
    """

    name: str
    weight: int
    shadow: bool
    replicas: tuple[Backend, ...]
    arm: str = ""


@dataclass(frozen=True, slots=True)
class CanaryRoute:
    """A trial that compares the requests of the canary with those of the control.

    Attributes:
        trial: Its name; a new name resets the counts.
        latency_s: A request that takes longer is slow; None for no limit.
        header: Lower-case name of the response header whose number is bad `above` or `below` a limit; None for none.
    """

    trial: str
    latency_s: float | None = None
    header: bytes | None = None
    above: float | None = None
    below: float | None = None


@dataclass(frozen=True, slots=True)
class ServiceRoute:
    """The routing configuration of a service.

    Attributes:
        keys: Authorized keys, possibly none; None if no key is needed.
        requests_per_minute: Requests that each team may begin within any 60 seconds; None for no limit.
        tokens_per_minute: A team whose tokens of the last 60 seconds reach this may begin no request; None for no
            limit.
        timeout_s: Limit from arrival to the first byte of the response, queueing included, and between two pieces of
            it.
        idempotent: A request that may have been begun can be retried at another replica.
        max_concurrency: Requests that one replica answers at a time, or None for no limit.
        max_queue: Requests that may wait for a replica to start or to have capacity.
        failure: Why no revision can serve.
        canary: The trial in progress.
        places: Requests that a replica serves concurrently without slowing down.
        most_in_flight: Requests, running and waiting, that are admitted while the service has replicas; more would be
            late.
        counts_tokens: Scaling uses token times, which are recorded for some requests.
        by_prefix: The replica is chosen by the prefix of the prompt.
        origins: Sites, as browsers write them in `Origin`, whose pages may use it.
    """

    name: str
    path: str | None
    hosts: tuple[str, ...]
    keys: tuple[RouteKey, ...] | None
    timeout_s: float
    idempotent: bool
    max_concurrency: int | None
    max_queue: int
    revisions: tuple[RevisionRoute, ...]
    failure: str | None
    canary: CanaryRoute | None = None
    places: float = 1.0
    most_in_flight: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    counts_tokens: bool = False
    by_prefix: bool = False
    origins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Routes:
    """All services by name, and the Unix datagram socket that wakes the writer of the routes."""

    services: dict[str, ServiceRoute]
    wake: str | None = None


def read_routes(text: str | bytes) -> Routes:
    """Read a routes.json. Unknown keys are ignored, as a newer supervisor may write more.

    Raises:
        InvalidSpec: The file is invalid; all errors are listed.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidSpec((f"routes.json is not JSON: {error}",)) from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        version = document.get("version") if isinstance(document, dict) else type(document).__name__
        raise InvalidSpec((f"routes.json has version {version!r}; this gateway reads version {VERSION}",))
    services = document.get("services")
    if not isinstance(services, dict):
        raise InvalidSpec(("routes.json has no mapping `services`",))
    problems: list[str] = []
    keys = _keys(document.get("keys", {}), problems)
    read: dict[str, ServiceRoute] = {}
    taken: dict[str, str] = {}
    for name, fields in services.items():
        reader = _Reader(name, fields, problems, keys)
        route = reader.service(name)
        read[name] = route
        for place in (*route.hosts, *((route.path,) if route.path is not None else ())):
            if place in taken:
                problems.append(f"{name}: {place} belongs to {taken[place]} already")
            taken.setdefault(place, name)
    wake = document.get("wake")
    if wake is not None and not isinstance(wake, str):
        problems.append(f"`wake` has to be null or the path of a socket; it is {wake!r}")
    if problems:
        raise InvalidSpec(tuple(problems))
    return Routes(read, wake)


def _keys(teams: Any, problems: list[str]) -> dict[str, tuple[RouteKey, ...]]:
    """Read the keys of teams, which all services share."""
    if not isinstance(teams, dict):
        problems.append(f"`keys` has to be a mapping of teams to hashes; it is {teams!r}")
        return {}
    keys_of: dict[str, tuple[RouteKey, ...]] = {}
    for team, hashes in teams.items():
        if not isinstance(hashes, dict):
            problems.append(f"`keys` of {team} have to be a mapping of hashes to times; it is {hashes!r}")
            continue
        for sha256, expires_at in hashes.items():
            if not _SHA256.fullmatch(sha256) or not (expires_at is None or _number(expires_at)):
                problems.append(f"`keys` of {team} have to be 64 hex digits with null or a time; one is {sha256!r}")
        keys_of[team] = tuple(RouteKey(sha256, team, expires_at) for sha256, expires_at in hashes.items())
    return keys_of


class _Reader:
    """Reads the values of one service's mapping; records errors in `problems` and substitutes a harmless value."""

    def __init__(self, name: str, fields: Any, problems: list[str], keys: dict[str, tuple[RouteKey, ...]]) -> None:
        self._name = name
        self._keys = keys
        self._problems = problems
        self._fields = fields if isinstance(fields, dict) else {}
        if not isinstance(fields, dict):
            self._wrong("has to be a mapping", fields)

    def service(self, name: str) -> ServiceRoute:
        fields = self._fields
        return ServiceRoute(
            name=name,
            path=self._take(
                fields, "path", None, lambda v: v is None or (isinstance(v, str) and _PATH.fullmatch(v)), "a path"
            ),
            hosts=tuple(
                self._take(host, "hosts", "", lambda v: isinstance(v, str) and _HOST.fullmatch(v), "small letters")
                for host in self._list(fields, "hosts", wrap="hosts")
            ),
            keys=None if fields.get("keys") is None else self._keys_of(fields),
            timeout_s=float(self._take(fields, "timeout_s", 60.0, _positive, "a positive number of seconds")),
            idempotent=self._take(fields, "idempotent", False, lambda v: isinstance(v, bool), "true or false"),
            max_concurrency=self._limit(fields, "max_concurrency"),
            max_queue=self._take(fields, "max_queue", 100, _whole, "a whole number, at least 0"),
            revisions=tuple(self._revision(revision) for revision in self._list(fields, "revisions")),
            failure=self._take(fields, "failure", None, lambda v: v is None or isinstance(v, str), "null or a text"),
            canary=self._canary(fields.get("canary")),
            places=float(self._take(fields, "places", 1.0, _positive, "a positive number")),
            most_in_flight=self._limit(fields, "most_in_flight"),
            requests_per_minute=self._limit(fields, "requests_per_minute"),
            tokens_per_minute=self._limit(fields, "tokens_per_minute"),
            counts_tokens=self._take(fields, "counts_tokens", False, lambda v: isinstance(v, bool), "true or false"),
            by_prefix=self._take(fields, "by_prefix", False, lambda v: isinstance(v, bool), "true or false"),
            origins=frozenset(
                self._take(
                    origin, "origins", "", lambda v: isinstance(v, str) and _ORIGIN.fullmatch(v), "SCHEME://HOST"
                )
                for origin in self._list(fields, "origins", wrap="origins")
            ),
        )

    def _limit(self, fields: dict[str, Any], key: str) -> int | None:
        limit: int | None = self._take(
            fields, key, None, lambda v: v is None or (_whole(v) and v > 0), "null or a positive number"
        )
        return limit

    def _canary(self, canary: Any) -> CanaryRoute | None:
        if canary is None:
            return None
        if not isinstance(canary, dict):
            self._wrong("`canary` has to be null or a mapping", canary)
            return None
        header = self._take(canary, "header", None, lambda v: v is None or (isinstance(v, str) and v != ""), "a header")
        return CanaryRoute(
            trial=self._take(canary, "trial", "", lambda v: isinstance(v, str) and v != "", "a text"),
            latency_s=self._take(canary, "latency_s", None, lambda v: v is None or _positive(v), "null or positive"),
            header=None if header is None else header.lower().encode(),
            above=self._take(canary, "above", None, lambda v: v is None or _number(v), "null or a number"),
            below=self._take(canary, "below", None, lambda v: v is None or _number(v), "null or a number"),
        )

    def _keys_of(self, fields: dict[str, Any]) -> tuple[RouteKey, ...]:
        """Return the keys of the teams with access."""
        each_team = (
            self._take(digest, "keys", "", lambda v: isinstance(v, str), "a list of teams")
            for digest in self._list(fields, "keys", wrap="keys")
        )
        return tuple(key for team in each_team for key in self._keys.get(team, ()))

    def _revision(self, fields: dict[str, Any]) -> RevisionRoute:
        return RevisionRoute(
            self._take(fields, "name", "", lambda v: isinstance(v, str) and v != "", "a text"),
            self._take(fields, "weight", 1, _whole, "a whole number, at least 0"),
            self._take(fields, "shadow", False, lambda v: isinstance(v, bool), "true or false"),
            tuple(self._backend(replica) for replica in self._list(fields, "replicas")),
            self._take(fields, "arm", "", lambda v: v in ("", CANARY, CONTROL), "`canary`, `control` or empty"),
        )

    def _backend(self, fields: dict[str, Any]) -> Backend:
        url = self._take(fields, "url", "http://127.0.0.1:1", lambda v: isinstance(v, str), "http://HOST:PORT")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if host is None or port is None or parts.scheme != "http" or parts.path not in ("", "/"):
            self._wrong("`url` of a replica has to be http://HOST:PORT", url)
        return Backend(
            self._take(fields, "id", "", lambda v: isinstance(v, str) and v != "", "a text"), host or "", port or 0
        )

    def _list(self, fields: dict[str, Any], key: str, *, wrap: str | None = None) -> list[Any]:
        """Return the items of a list; they must be mappings, or are wrapped in one under `wrap`."""
        items = fields.get(key, [])
        if not isinstance(items, list) or (wrap is None and not all(isinstance(item, dict) for item in items)):
            self._wrong(f"`{key}` has to be a list of {'texts' if wrap else 'mappings'}", items)
            return []
        return items if wrap is None else [{wrap: item} for item in items]

    def _take(self, fields: dict[str, Any], key: str, default: Any, holds: Callable[[Any], Any], what: str) -> Any:
        value = fields.get(key, default)
        if not holds(value):
            self._wrong(f"`{key}` has to be {what}", value)
            return default
        return value

    def _wrong(self, what: str, value: object) -> None:
        self._problems.append(f"{self._name}: {what}; it is {value!r}")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _positive(value: Any) -> bool:
    return _number(value) and bool(value > 0)
