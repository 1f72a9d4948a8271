"""Visitors of the page, each with readers and a watcher that use the visitor's own rights.

On this machine there is one visitor. With signing in there is one for each token, read from the ``Authorization``
header or the cookie set by signing in. The token is used to access the cluster and stored nowhere else.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from fairlead.cluster.listing import PagedClient
from fairlead.errors import NotAllowed
from fairlead.frozen import dataclass
from fairlead.web.readers import Readers, Watcher

COOKIE = "fairlead-reader"
MOST_VISITORS = 16
# Interval at which the cluster is asked whether a token is still valid.
CHECK_S = 60.0
MOST_TOKEN = 3_800  # browsers keep cookies of 4,096 characters
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_NAMESPACE = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The token of a reader.

    Attributes:
        namespace: Namespace whose runs to show; empty for the default one.
    """

    token: str
    namespace: str = ""

    @property
    def key(self) -> str:
        """Return a key that does not reveal the token."""
        return hashlib.sha256(f"{self.namespace}:{self.token}".encode()).hexdigest()

    @property
    def cookie(self) -> str:
        """Return the value of the cookie; neither part contains a colon."""
        return f"{self.namespace}:{self.token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Authenticator:
    """Authentication of readers.

    Attributes:
        name: Returns the user name of a token. Raises `NotAllowed` for an invalid token.
        open_as: Opens the cluster with the rights of an identity, for one thread.
    """

    name: Callable[[Identity], str]
    open_as: Callable[[Identity], PagedClient]


def identity_of(headers: Mapping[str, str], cookies: Mapping[str, str]) -> Identity | None:
    """Return the identity of a request; the header takes precedence over the cookie."""
    kind, _, token = headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return read_identity(token, headers.get("Fairlead-Namespace", ""))
    namespace, colon, token = cookies.get(COOKIE, "").partition(":")
    return read_identity(token, namespace) if colon else None


def read_identity(token: str, namespace: str) -> Identity | None:
    """Parse an identity from a header or a cookie; None if it is malformed."""
    token, namespace = token.strip(), namespace.strip()
    if len(token) > MOST_TOKEN or not _TOKEN.fullmatch(token) or not _NAMESPACE.fullmatch(namespace):
        return None
    return Identity(token=token, namespace=namespace)


class Visitor:
    """A visitor and their open pages. Bound to the event loop in which it is created.

    Args:
        open_cluster: Opens the cluster for one thread.
        reader: Name of the signed-in reader, if the page requires signing in.
    """

    def __init__(self, open_cluster: Callable[[], PagedClient], reader: str | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.readers = Readers(open_cluster, reader)
        self.page_events: set[asyncio.Event] = set()
        self.used_at = self.checked_at = time.monotonic()
        self.is_closed = False

        def on_change() -> None:
            with suppress(RuntimeError):  # the loop is over
                loop.call_soon_threadsafe(self.refresh_pages)

        self._watcher = Watcher(open_cluster, on_change)

    def refresh_pages(self) -> None:
        """Refresh all open pages."""
        for event in self.page_events:
            event.set()

    def watch_if_open(self) -> None:
        """Watch for changes while a page is open."""
        self._watcher.want(bool(self.page_events))

    async def close(self) -> None:
        """Close the open pages and stop the threads."""
        self.is_closed = True
        self.refresh_pages()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._watcher.close)
        await loop.run_in_executor(None, self.readers.close)


class Visitors:
    """All visitors of a page with signing in."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._visitors: dict[str, Visitor] = {}
        self._lock = asyncio.Lock()

    async def find(self, identity: Identity) -> Visitor | None:
        """Return the visitor of an identity that the cluster accepted within the last minute; None if the page is full.

        Raises:
            NotAllowed: The cluster does not accept the token.
            ClusterError: The cluster cannot be reached.
        """
        loop = asyncio.get_running_loop()
        visitor = self._visitors.get(identity.key)
        if visitor is None or time.monotonic() - visitor.checked_at > CHECK_S:
            try:
                reader = await loop.run_in_executor(None, self._authenticator.name, identity)
            except NotAllowed:
                await self._drop(identity.key)
                raise
            async with self._lock:
                visitor = self._visitors.get(identity.key)
                if visitor is None:
                    if not await self._has_room():
                        return None
                    visitor = Visitor(lambda: self._authenticator.open_as(identity), reader)
                    self._visitors[identity.key] = visitor
            visitor.checked_at = time.monotonic()
        visitor.used_at = time.monotonic()
        return visitor

    async def forget(self, identity: Identity) -> None:
        """Close everything that an identity has open, and drop its token."""
        await self._drop(identity.key)

    async def close(self) -> None:
        """Close all visitors."""
        for key in tuple(self._visitors):
            await self._drop(key)

    def all(self) -> tuple[Visitor, ...]:
        """Return the current visitors."""
        return tuple(self._visitors.values())

    async def _has_room(self) -> bool:
        """Make room by removing the least recently seen visitor without an open page; return whether there is room."""
        if len(self._visitors) < MOST_VISITORS:
            return True
        idle = [(visitor.used_at, key) for key, visitor in self._visitors.items() if not visitor.page_events]
        if not idle:
            return False
        await self._drop(min(idle)[1])
        return True

    async def _drop(self, key: str) -> None:
        visitor = self._visitors.pop(key, None)
        if visitor is not None:
            await visitor.close()
