"""Runs the gateway process: its sockets, haproxy in front where configured, and an orderly shutdown."""

import asyncio
import contextlib
import functools
import gc
import os
import socket
from ipaddress import ip_address
from pathlib import Path

from fairlead.frozen import dataclass
from fairlead.gateway.admin import AdminStream, ScrapeGuard
from fairlead.gateway.gateway_server import LAME_DUCK_S, GatewayServer, GatewaySettings
from fairlead.gateway.proxying.haproxy import STATUS_FILE, Haproxy
from fairlead.gateway.proxying.haproxy_config import FALLBACK_SOCKET, GATEWAY_SOCKET
from fairlead.gateway.proxying.proxy_log import ProxiedRequests


async def serve(
    settings: GatewaySettings,
    listening: socket.socket,
    admin: socket.socket,
    stop: asyncio.Event,
    guard: ScrapeGuard | None = None,
) -> None:
    """Answer until `stop` is set, then drain.

    Args:
        listening: Listening socket for clients; if the caller holds it too, no connection is refused while one gateway
            takes over from another.
        admin: Listening socket for metrics.
        guard: Judges who may read metrics that are not for this machine alone; None lets everyone.
    """
    loop = asyncio.get_running_loop()
    gateway = GatewayServer(settings, loop, listening.getsockname()[0])
    gateway.reload_routes()
    entrance = Entrance(gateway, listening)
    await entrance.open()
    is_local = ip_address(admin.getsockname()[0]).is_loopback
    admin_server = await loop.create_server(
        lambda: AdminStream(gateway, is_local=is_local, guard=None if is_local else guard), sock=admin
    )
    (settings.directory / STATUS_FILE).unlink(missing_ok=True)
    front = None if settings.haproxy is None else await _put_in_front(gateway, settings, settings.haproxy, entrance)
    gateway.publish_ready(port=listening.getsockname()[1], admin_port=admin.getsockname()[1])
    gc.collect()
    gc.freeze()  # exempt present objects, so that collections scan requests only
    watch = loop.create_task(gateway.watch())
    await stop.wait()
    await asyncio.sleep(0)  # accept connections that the kernel has already completed
    entrance.shut()
    if front is not None:
        front.haproxy.stop()
    listening.close()
    gateway.draining = True
    if front is not None:
        await front.end()
    await gateway.drain()
    admin_server.close()
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch


class Entrance:
    """The listening socket, on which the gateway process accepts connections unless haproxy does."""

    def __init__(self, gateway: GatewayServer, listening: socket.socket) -> None:
        self.listening = listening
        self._gateway = gateway
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Start accepting connections."""
        if self._server is None:
            mine = self.listening.dup()  # a server closes its socket
            self._server = await self._gateway.loop.create_server(self._gateway.accept, sock=mine, backlog=1024)

    def shut(self) -> None:
        """Stop accepting connections; open ones stay."""
        if self._server is not None:
            self._server.close()
            self._server = None


async def _put_in_front(
    gateway: GatewayServer, settings: GatewaySettings, program: Path, entrance: Entrance
) -> "_FrontProxy":
    """Let haproxy accept the connections, and the gateway process take what haproxy forwards to it."""
    servers = []
    for name, falls_back in ((GATEWAY_SOCKET, False), (FALLBACK_SOCKET, True)):
        path = settings.directory / name
        path.unlink(missing_ok=True)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(settings.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            made.bind(f"/proc/self/fd/{directory}/{name}")  # the path of a socket is limited to about a hundred bytes
        finally:
            os.close(directory)
        path.chmod(0o600)
        made.setblocking(False)
        accept = functools.partial(gateway.accept_proxied, falls_back=falls_back)
        servers.append(await gateway.loop.create_unix_server(accept, sock=made, backlog=1024))
    gateway.haproxy = Haproxy(
        program,
        settings.directory,
        entrance,
        gateway.table,
        ProxiedRequests(gateway.log, gateway.count_unrouted),
        most_connections=settings.most_connections,
        most_body=settings.most_body,
        grace_s=settings.grace_s,
        is_guarded=gateway.guard is not None,
        trusted=tuple(map(str, settings.trusted)),
    )
    return _FrontProxy(
        gateway.haproxy, gateway.loop.create_task(gateway.haproxy.run(gateway.report)), servers, settings.grace_s
    )


@dataclass(frozen=True, slots=True)
class _FrontProxy:
    haproxy: Haproxy
    task: "asyncio.Task[None]"
    servers: list[asyncio.Server]
    grace_s: float

    async def end(self) -> None:
        """End haproxy while the gateway process behind it still answers."""
        await self.task
        await self.haproxy.end(self.grace_s, lame_duck_s=LAME_DUCK_S)
        for server in self.servers:
            server.close()
