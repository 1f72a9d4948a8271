"""The page over HTTP: whole views, the same kept up to date by server-sent events, and static files. It only reads."""

import asyncio
import errno
import json
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from fairlead.cluster.listing import PagedClient
from fairlead.errors import Conflict
from fairlead.web.readers import Readers, Watcher
from fairlead.web.rendering import HERE, environment
from fairlead.web.security import HEADERS, is_known_host, is_known_user, is_own_site

MOST_STREAMS = 64
# After a change was shown the next one is shown this much later at the earliest.
LEAST_S = 0.4
# A line that says nothing, by which a connection that is gone is noticed.
HEARTBEAT_S = 15.0
GRACE_S = 0.5
STATIC = {"app.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Page:
    """The application.

    Args:
        open_cluster: Opens the cluster anew, for one thread.
    """

    def __init__(self, open_cluster: Callable[[], PagedClient]) -> None:
        self._readers = Readers(open_cluster)
        self._open = open_cluster
        self._watcher: Watcher | None = None
        self._is_over = False
        self._changed: set[asyncio.Event] = set()

    def application(self) -> web.Application:
        """The application, to be served by aiohttp."""
        app = web.Application(middlewares=[self._guard], client_max_size=1024)
        app.router.add_get("/live", self._live)
        for name in STATIC:
            app.router.add_get(f"/static/{name}", self._static)
        app.router.add_get("/{path:.*}", self._view)
        app.on_startup.append(self._start)
        app.on_shutdown.append(self._end_streams)
        app.on_cleanup.append(self._stop)
        return app

    async def _start(self, app: web.Application) -> None:
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(self._tell)

        self._watcher = Watcher(self._open, tell)
        # What the first visitor would else wait for.
        for template in environment().list_templates():
            environment().get_template(template)

    async def _end_streams(self, app: web.Application) -> None:
        self._is_over = True
        self._tell()

    async def _stop(self, app: web.Application) -> None:
        loop = asyncio.get_running_loop()
        if self._watcher is not None:
            await loop.run_in_executor(None, self._watcher.close)
        await loop.run_in_executor(None, self._readers.close)

    def _tell(self) -> None:
        for event in self._changed:
            event.set()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = _refusal(request)
        if refused is not None:
            return refused
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = _plain(error.status, error.reason)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _view(self, request: web.Request) -> web.Response:
        loop = asyncio.get_running_loop()
        status, text = await loop.run_in_executor(self._readers.threads, self._readers.page, request.raw_path)
        headers = {"Cache-Control": "no-store"}
        return web.Response(status=status, text=text, content_type="text/html", headers=headers)

    async def _static(self, request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        keeps = "max-age=31536000, immutable" if "v" in request.query else "no-cache"
        body = (HERE / "static" / name).read_bytes()
        return web.Response(body=body, content_type=STATIC[name], charset="utf-8", headers={"Cache-Control": keeps})

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """Send a view anew whenever it has changed, until nobody listens."""
        if len(self._changed) >= MOST_STREAMS:
            return _plain(503, f"{MOST_STREAMS} pages are open; close some.")
        headers = {"Cache-Control": "no-store", "Content-Type": "text/event-stream", **HEADERS}
        response = web.StreamResponse(headers=headers)
        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            self._want()
            await response.prepare(request)
            # A line that says nothing, for proxies and tunnels that wait for a first one.
            await response.write(b": follows\n\n")
            await self._follow(request, response, changed)
        except ConnectionResetError:  # the page was closed
            pass
        finally:
            self._changed.discard(changed)
            self._want()
        return response

    def _want(self) -> None:
        if self._watcher is not None:
            self._watcher.want(bool(self._changed))

    async def _follow(self, request: web.Request, response: web.StreamResponse, changed: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        address, digest = request.query.get("view", "/"), request.query.get("digest", "")
        while not self._is_over:
            changed.clear()
            status, seen = await loop.run_in_executor(self._readers.threads, self._readers.look, address)
            if status in (400, 404):
                await response.write(b"event: gone\ndata: {}\n\n")
                return
            pause_s = 0.0
            if status == 200 and seen.digest != digest:
                digest, pause_s = seen.digest, LEAST_S
                told = {"title": seen.title, "digest": seen.digest, "main": seen.main}
                await response.write(f"data: {json.dumps(told)}\n\n".encode())
            else:
                await response.write(b": still\n\n")
            await asyncio.sleep(pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(seen.look_again_s, HEARTBEAT_S))


def _refusal(request: web.Request) -> web.Response | None:
    """Tell why a request is not answered at all; None when it is."""
    if not is_known_host(request.headers.get("Host")):
        return _plain(421, "This page answers to localhost and 127.0.0.1 only.")
    if not is_own_site(request.headers):
        return _plain(403, "Other sites may not read this page.")
    transport = request.transport
    if transport is None or not is_known_user(*map(transport.get_extra_info, ("peername", "sockname"))):
        return _plain(403, "This page is for the user who started it.")
    return None


def _plain(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers=HEADERS)


def listen(port: int) -> socket.socket:
    """A socket on loopback.

    Raises:
        Conflict: The port is taken.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise Conflict(f"Port {port} {why}. Give another with `--port`, or 0 for any that is free.") from error
    return listening


def serve(open_cluster: Callable[[], PagedClient], listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Args:
        ready: Called once the page answers.
    """
    asyncio.run(_serve(open_cluster, listening, ready))


async def _serve(open_cluster: Callable[[], PagedClient], listening: socket.socket, ready: Callable[[], None]) -> None:
    runner = web.AppRunner(Page(open_cluster).application(), access_log=None, shutdown_timeout=GRACE_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        over = asyncio.Event()
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, over.set)
        ready()
        await over.wait()
    finally:
        await runner.cleanup()
