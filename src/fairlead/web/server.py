"""Serves the page over HTTP: views, their updates by server-sent events, and an icon. Read-only.

On this machine it serves only the user who started it. With an `Authenticator` it serves other readers too, once they
have signed in.
"""

import asyncio
import ctypes
import errno
import json
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from fairlead.cluster.listing import PagedClient
from fairlead.errors import ClusterError, Conflict, NotAllowed
from fairlead.loopback import is_known_host
from fairlead.runtime.peer_users import is_known_user
from fairlead.web.rendering import HERE, environment, sign_in
from fairlead.web.security import HEADERS, headers_for, is_own_form, is_own_site
from fairlead.web.visitors import (
    COOKIE,
    MOST_TOKEN,
    MOST_VISITORS,
    Authenticator,
    Visitor,
    Visitors,
    identity_of,
    read_identity,
)

MOST_STREAMS = 64
# After a change was shown the next one is shown this much later at the earliest.
LEAST_S = 0.4
# Interval of comment lines, by which closed connections are noticed.
HEARTBEAT_S = 15.0
# An open page waits so long when the cluster cannot be asked who its reader is.
ASK_AGAIN_S = 5.0
GRACE_S = 0.5
PROBES = ("/livez", "/readyz")
M_ARENA_MAX = -8  # of malloc.h
ICON = HERE / "static" / "icon.svg"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Page:
    """The web application.

    Args:
        open_cluster: Opens the cluster for one thread.
        admission: Authenticates readers, and opens the cluster with their rights; None without signing in.
    """

    def __init__(self, open_cluster: Callable[[], PagedClient], admission: Authenticator | None = None) -> None:
        self._open = open_cluster
        self._visitors = None if admission is None else Visitors(admission)
        self._alone: Visitor | None = None

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(middlewares=[self._guard], client_max_size=2 * MOST_TOKEN)
        app.router.add_get("/live", self._live)
        app.router.add_get("/icon.svg", self._icon)
        if self._visitors is not None:
            for path in PROBES:
                app.router.add_get(path, self._probe)
            app.router.add_post("/sign-in", self._sign_in)
            app.router.add_post("/sign-out", self._sign_out)
        app.router.add_get("/{path:.*}", self._view)
        app.on_startup.append(self._start)
        app.on_shutdown.append(self._end_streams)
        app.on_cleanup.append(self._stop)
        return app

    async def _start(self, app: web.Application) -> None:
        if self._visitors is None:
            self._alone = Visitor(self._open)
            self._alone.readers.warm_up()
        # What the first visitor would else wait for.
        for template in environment().list_templates():
            environment().get_template(template)
        _return_free_memory()

    def _all(self) -> tuple[Visitor, ...]:
        if self._visitors is not None:
            return self._visitors.all()
        return () if self._alone is None else (self._alone,)

    async def _end_streams(self, app: web.Application) -> None:
        for visitor in self._all():
            visitor.is_closed = True
            visitor.refresh_pages()

    async def _stop(self, app: web.Application) -> None:
        if self._visitors is not None:
            await self._visitors.close()
        if self._alone is not None:
            await self._alone.close()

    async def _visitor(self, request: web.Request) -> Visitor | web.Response:
        """Return the visitor of a request, or the response that refuses it."""
        if self._visitors is None:
            assert self._alone is not None, "the application has started"
            return self._alone
        identity = identity_of(request.headers, request.cookies)
        if identity is None:
            return _sign_in_page(None)
        try:
            visitor = await self._visitors.find(identity)
        except NotAllowed as error:
            return _sign_in_page(str(error))
        except ClusterError as error:
            return _plain(503, str(error))
        return visitor or _plain(503, f"{MOST_VISITORS} readers are here; try again later.")

    async def _probe(self, request: web.Request) -> web.Response:
        return _plain(200, "ok")

    async def _sign_in(self, request: web.Request) -> web.Response:
        """Store a token that the cluster accepts in an HttpOnly cookie."""
        assert self._visitors is not None, "the address is there only then"
        form = await request.post()
        identity = read_identity(str(form.get("token", "")), str(form.get("namespace", "")))
        if identity is None:
            return _sign_in_page(
                f"Give a token of at most {MOST_TOKEN} characters, and a namespace of small letters, digits and "
                "hyphens, or none for your own."
            )
        try:
            await self._visitors.find(identity)
        except NotAllowed as error:
            return _sign_in_page(str(error))
        except ClusterError as error:
            return _plain(503, str(error))
        response = _moved("/")
        is_secure = request.headers.get("X-Forwarded-Proto", request.scheme) == "https"
        response.set_cookie(COOKIE, identity.cookie, httponly=True, samesite="Strict", secure=is_secure, path="/")
        return response

    async def _sign_out(self, request: web.Request) -> web.Response:
        """Close everything open for the token, and delete its cookie."""
        assert self._visitors is not None, "the address is there only then"
        identity = identity_of(request.headers, request.cookies)
        if identity is not None:
            await self._visitors.forget(identity)
        response = _moved("/")
        response.del_cookie(COOKIE, path="/")
        return response

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse | None = _refusal(request, is_for_others=self._visitors is not None)
        if response is None:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = _plain(error.status, error.reason)
        if not response.prepared:
            response.headers.update(headers_for(request.headers))
        return response

    async def _view(self, request: web.Request) -> web.Response:
        visitor = await self._visitor(request)
        if isinstance(visitor, web.Response):
            return visitor
        loop = asyncio.get_running_loop()
        status, text = await loop.run_in_executor(visitor.readers.threads, visitor.readers.page, request.raw_path)
        headers = {"Cache-Control": "no-store"}
        return web.Response(status=status, text=text, content_type="text/html", headers=headers)

    async def _icon(self, request: web.Request) -> web.Response:
        return web.Response(body=ICON.read_bytes(), content_type="image/svg+xml", headers={"Cache-Control": "no-cache"})

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """Send a view whenever it has changed, until the client disconnects."""
        visitor = await self._visitor(request)
        if isinstance(visitor, web.Response):
            return visitor
        if sum(len(visitor.page_events) for visitor in self._all()) >= MOST_STREAMS:
            return _plain(503, f"{MOST_STREAMS} pages are open; close some.")
        headers = {"Cache-Control": "no-store", "Content-Type": "text/event-stream", **HEADERS}
        response = web.StreamResponse(headers=headers)
        changed = asyncio.Event()
        visitor.page_events.add(changed)
        try:
            visitor.watch_if_open()
            await response.prepare(request)
            # A line that says nothing, for proxies and tunnels that wait for a first one.
            await response.write(b": follows\n\n")
            await self._follow(request, response, visitor, changed)
        except ConnectionResetError:  # the page was closed
            pass
        finally:
            visitor.page_events.discard(changed)
            visitor.watch_if_open()
        return response

    async def _follow(
        self, request: web.Request, response: web.StreamResponse, visitor: Visitor, changed: asyncio.Event
    ) -> None:
        loop = asyncio.get_running_loop()
        address, digest = request.query.get("view", "/"), request.query.get("digest", "")
        while not visitor.is_closed:
            # A token that does not hold any more ends the stream.
            current = await self._visitor(request)
            if isinstance(current, web.Response) and current.status == 503:  # whether it does, nobody can tell now
                await response.write(b": still\n\n")
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            if current is not visitor:
                await response.write(b"event: gone\ndata: {}\n\n")
                return
            changed.clear()
            status, seen = await loop.run_in_executor(visitor.readers.threads, visitor.readers.look, address)
            if status in (400, 404):
                await response.write(b"event: gone\ndata: {}\n\n")
                return
            pause_s = 0.0
            if status == 200 and seen.digest != digest:
                digest, pause_s = seen.digest, LEAST_S
                message = {"title": seen.title, "digest": seen.digest, "main": seen.main}
                await response.write(f"data: {json.dumps(message)}\n\n".encode())
            else:
                await response.write(b": still\n\n")
            await asyncio.sleep(pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(seen.look_again_s, HEARTBEAT_S))


def _refusal(request: web.Request, *, is_for_others: bool) -> web.Response | None:
    """Return the response that refuses a request; None for an allowed one."""
    if is_for_others:
        # Any name and any user: what somebody sees follows from their token, which a browser sends to this name alone.
        is_read = request.method in ("GET", "HEAD")
        if not (is_own_site(request.headers) if is_read else is_own_form(request.headers)):
            return _plain(403, "Other sites may not use this page.")
        return None
    if not is_known_host(request.headers.get("Host")):
        return _plain(421, "This page answers to localhost and 127.0.0.1 only.")
    if not is_own_site(request.headers):
        return _plain(403, "Other sites may not read this page.")
    transport = request.transport
    if transport is None or not is_known_user(*map(transport.get_extra_info, ("peername", "sockname"))):
        return _plain(403, "This page is for the user who started it.")
    return None


def _sign_in_page(message: str | None) -> web.Response:
    headers = {"Cache-Control": "no-store", "WWW-Authenticate": "Bearer"}
    return web.Response(status=401, text=sign_in(message), content_type="text/html", headers=headers)


def _moved(address: str) -> web.Response:
    return web.Response(status=303, headers={"Location": address, "Cache-Control": "no-store"})


def _plain(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n")


def listen(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Open a listening socket, on loopback unless another address is given.

    Raises:
        Conflict: The port is in use, or the address does not belong to this machine.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise Conflict(f"Port {port} {why}. Give another with `--port`, or 0 for any that is free.") from error
    return listening


def serve(
    open_cluster: Callable[[], PagedClient],
    listening: socket.socket,
    ready: Callable[[], None],
    admission: Authenticator | None = None,
) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Args:
        ready: Called once the page answers.
        admission: Authenticates readers; None without signing in.
    """
    _share_one_heap()
    asyncio.run(_serve(Page(open_cluster, admission), listening, ready))


def _share_one_heap() -> None:
    """Limit malloc to one arena, if the C library supports that.

    With 100,000 runs kept, glibc's further arenas for readers cost 2 MB of 61, and readers take turns anyway.
    """
    with suppress(OSError, AttributeError):  # neither glibc nor anything like it
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _return_free_memory() -> None:
    """Return what malloc has free to the kernel, if the C library supports that.

    Imports and the compilation of templates leave 2 MB free between what is in use.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


async def _serve(page: Page, listening: socket.socket, ready: Callable[[], None]) -> None:
    runner = web.AppRunner(page.application(), access_log=None, shutdown_timeout=GRACE_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        over = asyncio.Event()
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, over.set)
        ready()
        await over.wait()
    finally:
        await runner.cleanup()
