"""The gateway process: `python -m fairlead.gateway --directory DIR --port N`."""

import argparse
import asyncio
import os
import resource
import signal
import socket
import sys
from ipaddress import ip_network
from pathlib import Path

from fairlead.gateway import handover
from fairlead.gateway.admin import ScrapeGuard
from fairlead.gateway.gateway_server import GatewaySettings
from fairlead.gateway.in_cluster import ERRORS, ApiServer
from fairlead.gateway.lifecycle import serve
from fairlead.gateway.scrape_authorization import ScrapeAuthorizer
from fairlead.gateway.standby import StandbyProcess, sign, wait_to_take_over

FILES_BESIDE = 64
"""File descriptors reserved for uses other than connections."""


def main() -> None:
    """Listen, serve until SIGTERM or SIGINT, then finish the requests in flight."""
    parser = argparse.ArgumentParser(prog="python -m fairlead.gateway", description="Reverse proxy of endpoints.")
    parser.add_argument("--directory", type=Path, required=True, help="directory of routes.json and demand.json")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--port", type=int, help="port to listen on; 0 for any that is free")
    where.add_argument("--listen-fd", type=int, help="a listening socket, inherited from the process that started this")
    parser.add_argument("--hand-on", type=Path, help="Unix socket that passes the listening socket to each client")
    parser.add_argument("--admin-port", type=int, default=0, help="port of metrics (default 0: any)")
    parser.add_argument("--admin-host", default="127.0.0.1", help="address of metrics (default 127.0.0.1)")
    parser.add_argument(
        "--metrics-account",
        type=Path,
        metavar="DIR",
        help="let only those read metrics whom the cluster's API server lets get /metrics; DIR has the token of an "
        "account that may ask it, and its CA",
    )
    parser.add_argument("--reuse-port", action="store_true", help="share the port with other gateways (SO_REUSEPORT)")
    parser.add_argument(
        "--access-log",
        default=None,
        help="file of the access log (default DIR/access.log), `-` for standard output, or `none`",
    )
    parser.add_argument("--access-log-mb", type=int, default=64, help="size at which it is rotated (default 64)")
    parser.add_argument("--max-body-mb", type=int, default=1024, help="largest body of a request (default 1024)")
    parser.add_argument(
        "--max-connections", type=int, default=4096, help="maximum number of client connections (default 4096)"
    )
    parser.add_argument(
        "--haproxy",
        type=Path,
        help="path of haproxy, which then forwards requests that need no decision of the gateway",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another host that leads to a gateway on loopback, as of a reverse proxy here; may be repeated",
    )
    parser.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        type=ip_network,
        metavar="NETWORK",
        help="network, such as 10.0.0.0/8, of proxies whose X-Forwarded-Host and -Proto are believed; may be repeated",
    )
    parser.add_argument("--standby", action="store_true", help="keep a process that takes over if this one is killed")
    parser.add_argument(
        "--lock-fd", type=int, help="an inherited lock file, into which a standby that takes over writes its process id"
    )
    parser.add_argument(
        "--after", type=int, metavar="FD", help="be the standby of the process at the other end of this socket"
    )
    parser.add_argument(
        "--grace", type=float, default=30.0, help="seconds to finish requests after SIGTERM (default 30)"
    )
    arguments = parser.parse_args()
    if not arguments.directory.is_dir():
        parser.error(f"--directory: {arguments.directory} is not a directory")
    for name in ("access_log_mb", "max_body_mb", "max_connections", "grace"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} has to be more than 0; it is {getattr(arguments, name)}")
    log = arguments.directory / "access.log" if arguments.access_log is None else Path(arguments.access_log)
    is_stream = arguments.access_log == "-"
    if is_stream:
        log = Path("/dev/stdout")
    settings = GatewaySettings(
        directory=arguments.directory,
        access_log=None if arguments.access_log == "none" else log,
        access_log_bytes=sys.maxsize if is_stream else arguments.access_log_mb * 1_000_000,
        most_body=arguments.max_body_mb * 1_000_000,
        most_connections=min(arguments.max_connections, (_allow_files() - FILES_BESIDE) // 2),
        grace_s=arguments.grace,
        haproxy=arguments.haproxy,
        names=frozenset(name.lower() for name in arguments.allow_host),
        trusted=tuple(arguments.trusted_proxy),
        is_guarded=True,
    )
    if settings.haproxy is not None:
        if sys.platform != "linux":
            parser.error("--haproxy: only on Linux")
        if not os.access(settings.haproxy, os.X_OK):
            parser.error(f"--haproxy: {settings.haproxy} is not a program")
    try:
        listening = _listening(arguments)
        admin = _bound(arguments.admin_host, arguments.admin_port, reuse_port=False)
        handing_on = None if arguments.hand_on is None else handover.listen(arguments.hand_on)
    except OSError as error:
        sys.exit(f"gateway: cannot listen: {error}")
    asyncio.run(_until_told(settings, listening, admin, handing_on, arguments))


async def _until_told(
    settings: GatewaySettings,
    listening: socket.socket,
    admin: socket.socket,
    handing_on: socket.socket | None,
    arguments: argparse.Namespace,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    standby: StandbyProcess | None = None
    if arguments.standby:
        lock = [] if arguments.lock_fd is None else [arguments.lock_fd]
        standby = StandbyProcess(loop, listening, _own_arguments(sys.argv[1:]), lock)

    def end() -> None:
        if standby is not None:
            standby.end()  # before the listening socket is closed, which it holds too
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if handing_on is not None:
        loop.add_reader(handing_on, handover.hand_on, handing_on, listening)
    await serve(settings, listening, admin, stop, _guard(arguments.metrics_account))


def _guard(account: Path | None) -> ScrapeGuard | None:
    """Return the judge of who may read metrics."""
    if account is None:
        return None
    server = ApiServer.of_environment(account)
    return ScrapeGuard(ScrapeAuthorizer(server.create, ERRORS))


def _own_arguments(arguments: list[str]) -> list[str]:
    """Return the arguments of this process without `--after FD`, which its own standby appends last."""
    return arguments[:-2] if arguments[-2:-1] == ["--after"] else arguments


def _listening(arguments: argparse.Namespace) -> socket.socket:
    if arguments.after is not None:
        listening = wait_to_take_over(socket.socket(fileno=arguments.after))
        print(f"gateway: process {os.getpid()} takes over, as the one before is gone", file=sys.stderr, flush=True)
        if arguments.lock_fd is not None:
            sign(arguments.lock_fd)
        return listening
    if arguments.listen_fd is None:
        return _bound(arguments.host, arguments.port, reuse_port=arguments.reuse_port)
    inherited = socket.socket(fileno=arguments.listen_fd)
    if not inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise OSError(f"file descriptor {arguments.listen_fd} is not a listening socket")
    inherited.setblocking(False)
    return inherited


def _bound(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made


def _allow_files() -> int:
    """Raise the soft limit of open files, to 65,536 at most, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


if __name__ == "__main__":
    main()
