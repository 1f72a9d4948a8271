"""Those who look at the page: each has readers and a watcher with rights of their own.

On this machine there is one visitor. A page that asks who reads has one for each token, which it gets from the header
``Authorization`` or from the cookie that signing in leaves. The token is used for the cluster and kept nowhere else.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from fairlead.cluster.listing import PagedClient
from fairlead.errors import NotAllowed
from fairlead.web.readers import Readers, Watcher

COOKIE = "fairlead-reader"
MOST_VISITORS = 16
# The cluster is asked so often whether a token still holds.
CHECK_S = 60.0
MOST_TOKEN = 3_800  # browsers keep cookies of 4,096 characters
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_NAMESPACE = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A reader by their token.

    Attributes:
        namespace: The one whose runs they want to see; empty for their own.
    """

    token: str
    namespace: str = ""

    @property
    def key(self) -> str:
        """A name for it that tells nothing of the token."""
        return hashlib.sha256(f"{self.namespace}:{self.token}".encode()).hexdigest()

    @property
    def cookie(self) -> str:
        """The value of the cookie; neither part has a colon."""
        return f"{self.namespace}:{self.token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The way in which a page that asks who reads finds that out.

    Attributes:
        name: The name under which the cluster knows a token. Raises `NotAllowed` where it knows none.
        open_as: Opens the cluster for an identity, for one thread.
    """

    name: Callable[[Identity], str]
    open_as: Callable[[Identity], PagedClient]


def identity_of(headers: Mapping[str, str], cookies: Mapping[str, str]) -> Identity | None:
    """The identity that a request brings; the header outweighs the cookie."""
    kind, _, token = headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return read_identity(token, headers.get("Fairlead-Namespace", ""))
    namespace, colon, token = cookies.get(COOKIE, "").partition(":")
    return read_identity(token, namespace) if colon else None


def read_identity(token: str, namespace: str) -> Identity | None:
    """An identity from what somebody has sent; None where it can be none."""
    token, namespace = token.strip(), namespace.strip()
    if len(token) > MOST_TOKEN or not _TOKEN.fullmatch(token) or not _NAMESPACE.fullmatch(namespace):
        return None
    return Identity(token=token, namespace=namespace)


class Visitor:
    """A visitor, and the pages that they have open. Belongs to the event loop that it is made in.

    Args:
        open_cluster: Opens the cluster anew, for one thread.
        reader: Their name, where the page asks for it.
    """

    def __init__(self, open_cluster: Callable[[], PagedClient], reader: str | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.readers = Readers(open_cluster, reader)
        self.changed: set[asyncio.Event] = set()
        self.used_at = self.checked_at = time.monotonic()
        self.is_over = False

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is over
                loop.call_soon_threadsafe(self.tell)

        self._watcher = Watcher(open_cluster, tell)

    def tell(self) -> None:
        """Let all open pages look again."""
        for event in self.changed:
            event.set()

    def want(self) -> None:
        """Look for changes while a page is open."""
        self._watcher.want(bool(self.changed))

    async def close(self) -> None:
        """End the open pages and the threads."""
        self.is_over = True
        self.tell()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._watcher.close)
        await loop.run_in_executor(None, self.readers.close)


class Visitors:
    """All visitors of a page that asks who reads."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._visitors: dict[str, Visitor] = {}
        self._lock = asyncio.Lock()

    async def find(self, identity: Identity) -> Visitor | None:
        """The visitor of an identity, which the cluster has known within the last minute; None when there is no room.

        Raises:
            NotAllowed: The cluster does not know the token, or not any more.
            ClusterError: It cannot be asked.
        """
        loop = asyncio.get_running_loop()
        visitor = self._visitors.get(identity.key)
        if visitor is None or time.monotonic() - visitor.checked_at > CHECK_S:
            try:
                reader = await loop.run_in_executor(None, self._admission.name, identity)
            except NotAllowed:
                await self._drop(identity.key)
                raise
            async with self._lock:
                visitor = self._visitors.get(identity.key)
                if visitor is None:
                    if not await self._has_room():
                        return None
                    visitor = Visitor(lambda: self._admission.open_as(identity), reader)
                    self._visitors[identity.key] = visitor
            visitor.checked_at = time.monotonic()
        visitor.used_at = time.monotonic()
        return visitor

    async def forget(self, identity: Identity) -> None:
        """End what an identity has open, and keep its token no more."""
        await self._drop(identity.key)

    async def close(self) -> None:
        """End everything."""
        for key in tuple(self._visitors):
            await self._drop(key)

    def all(self) -> tuple[Visitor, ...]:
        """Those who are here."""
        return tuple(self._visitors.values())

    async def _has_room(self) -> bool:
        """Make room by sending away who has no page open and has looked least lately."""
        if len(self._visitors) < MOST_VISITORS:
            return True
        idle = [(each.used_at, key) for key, each in self._visitors.items() if not each.changed]
        if not idle:
            return False
        await self._drop(min(idle)[1])
        return True

    async def _drop(self, key: str) -> None:
        visitor = self._visitors.pop(key, None)
        if visitor is not None:
            await visitor.close()
