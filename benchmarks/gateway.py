"""What the gateway costs a request: its own processor time and the latency that it adds, beside other doors.

    python -m benchmarks.gateway [--requests 4000] [--connections 8] [--rounds 3] [--idle 1000] [--json]

One replica answers a short JSON document. It is asked directly, through the gateway, through a door of aiohttp's server
and client as one writes it first, and through nginx and haproxy where they are installed, each with one worker,
keep-alive on both sides and no access log but the gateway's (`fairlead, no log` is without). The doors take turns, so
that a slow moment of the machine hits all of them; figures are medians of the rounds. Processor time is that of the
door's process alone and what a busy machine changes least. Latencies are of a closed loop, so they hold queueing too.
`--idle` counts what that many services take that nobody asks for.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from tests.ports import free_ports

ANSWER = json.dumps(
    {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 8], "data": [0.125] * 8}]}
).encode()  # fmt: skip
PATH = "/m/v2/models/m/infer"
STARTS_WITHIN_S = 60.0
IDLE_FOR_S = 10.0

NGINX = """
worker_processes 1; daemon off; pid {directory}/pid; error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 10000000;
  client_body_temp_path {directory}/a; proxy_temp_path {directory}/b; fastcgi_temp_path {directory}/c;
  uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
  upstream m {{ server 127.0.0.1:{backend}; keepalive 64; keepalive_requests 10000000; }}
  server {{ listen 127.0.0.1:{port}; location /m/ {{ proxy_pass http://m/; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_set_header Host $host; }} }}
}}
"""
HAPROXY = """
global
  nbthread 1
  maxconn 1000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend f
  bind 127.0.0.1:{port}
  http-request replace-path /m(/.*) \\1
  default_backend m
backend m
  server s 127.0.0.1:{backend}
"""


class Took(NamedTuple):
    """One round of one door: microseconds of its processor a request, milliseconds of requests, requests a second."""

    cpu_us: float
    p50_ms: float
    p99_ms: float
    per_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4000, help="requests of a round (default 4000)")
    parser.add_argument("--connections", type=int, default=8, help="clients at a time (default 8)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each door (default 3)")
    parser.add_argument("--idle", type=int, default=1000, help="services that nobody asks for (default 1000)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--serve", choices=("replica", "aiohttp"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--backend", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve == "replica":
        asyncio.run(serve_replica(arguments.port))
        return
    if arguments.serve == "aiohttp":
        asyncio.run(serve_aiohttp(arguments.port, arguments.backend))
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-") as directory:
        rounds = measure(Path(directory), arguments.requests, arguments.connections, arguments.rounds)
        idle = measure_idle(Path(directory), arguments.idle) if arguments.idle else None
    told = {name: Took(*(median(each) for each in zip(*took, strict=True))) for name, took in rounds.items()}
    direct = told["direct"]
    doors = {
        name: {
            **took._asdict(),
            "added_p50_ms": took.p50_ms - direct.p50_ms,
            "added_p99_ms": took.p99_ms - direct.p99_ms,
            "cpu_us_rounds": [each.cpu_us for each in rounds[name]],
        }
        for name, took in told.items()
    }
    if arguments.json:
        asked = {"requests": arguments.requests, "connections": arguments.connections, "rounds": arguments.rounds}
        print(json.dumps({**asked, "load_of_machine": os.getloadavg()[0], "doors": doors, "idle": idle}))
        return
    print(f"{'':<18}{'cpu us':>8}{'p50 ms':>8}{'p99 ms':>8}{'+p50':>8}{'+p99':>8}{'req/s':>8}")
    for name, took in told.items():
        added = f"{took.p50_ms - direct.p50_ms:>8.2f}{took.p99_ms - direct.p99_ms:>8.2f}"
        print(f"{name:<18}{took.cpu_us:>8.1f}{took.p50_ms:>8.2f}{took.p99_ms:>8.2f}{added}{took.per_s:>8.0f}")
    if idle is not None:
        print(f"{idle['services']} idle services: {idle['cpu_percent']:.2f} % of a core, {idle['rss_mb']:.0f} MB")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


def measure(directory: Path, requests: int, connections: int, rounds: int) -> dict[str, list[Took]]:
    """All rounds of all doors that are there."""
    backend, *ports = free_ports(7)
    took: dict[str, list[Took]] = {}
    with ExitStack() as running:
        running.enter_context(started(*own("replica", backend), port=backend))
        doors: dict[str, tuple[list[psutil.Process], int, str]] = {"direct": ([], backend, PATH[2:])}
        haproxy = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
        kinds: list[tuple[str, list[str]]] = [("fairlead", []), ("fairlead, no log", ["--access-log", "none"])]
        if haproxy is not None:
            kinds.append(("fairlead, haproxy", ["--haproxy", haproxy]))
        for name, options in kinds:
            place = directory / name.replace(", ", "-").replace(" ", "-")
            process = running.enter_context(started(*gateway(place, ports[0], backend), *options, port=ports[0]))
            doors[name] = ([process], ports.pop(0), PATH)
            if "--haproxy" in options:
                doors[name][0].append(_haproxy_of(process, place))
        process = running.enter_context(started(*own("aiohttp", ports[0], backend), port=ports[0]))
        doors["aiohttp"] = ([process], ports.pop(0), PATH)
        for name, text, words in (("nginx", NGINX, ("-c",)), ("haproxy", HAPROXY, ("-db", "-q", "-f"))):
            program = shutil.which(name)
            port = ports.pop(0)
            if program is None:
                continue
            place = directory / name
            place.mkdir()
            (place / "conf").write_text(text.format(directory=place, port=port, backend=backend))
            process = running.enter_context(started(program, *words, str(place / "conf"), port=port))
            doors[name] = ([_worker(process)], port, PATH)
        for number in range(rounds + 1):  # the first one is for warming up
            for name, (processes, port, path) in doors.items():
                before = _processor_s(processes)
                begun = time.perf_counter()
                latencies = asyncio.run(ask(port, path, requests, connections))
                lasted = time.perf_counter() - begun
                cpu_us = (_processor_s(processes) - before) / requests * 1e6
                latencies.sort()
                if number:
                    p50, p99 = latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.99)]
                    took.setdefault(name, []).append(Took(cpu_us, p50 * 1e3, p99 * 1e3, requests / lasted))
    return took


def measure_idle(directory: Path, services: int) -> dict[str, Any]:
    """Processor and memory of a gateway with services that nobody asks for."""
    (port,) = free_ports(1)
    with started(*gateway(directory / "idle", port, 9, services=services), port=port) as process:
        before, begun = _processor_s([process]), time.perf_counter()
        time.sleep(IDLE_FOR_S)
        percent = (_processor_s([process]) - before) / (time.perf_counter() - begun) * 100
        return {"services": services, "cpu_percent": percent, "rss_mb": process.memory_info().rss / 1e6}


def gateway(directory: Path, port: int, backend: int, *, services: int = 1) -> list[str]:
    """The command of a gateway; the services are all alike, and the first is `m`."""
    directory.mkdir()
    names = ["m", *(f"m{number}" for number in range(1, services))]
    told = {
        name: {
            "path": f"/{name}", "hosts": [f"{name}.localhost"], "keys": None, "timeout_s": 60, "idempotent": False,
            "max_concurrency": None, "max_queue": 100, "failure": None,
            "revisions": [
                {"name": "r1", "weight": 1, "shadow": False,
                 "replicas": [{"id": "u-0", "url": f"http://127.0.0.1:{backend}"}]}
            ],
        }
        for name in names
    }  # fmt: skip
    (directory / "routes.json").write_text(json.dumps({"version": 1, "services": told}))
    return [sys.executable, "-m", "fairlead.gateway", "--directory", str(directory), "--port", str(port)]


def own(what: str, port: int, backend: int = 0) -> list[str]:
    """The command of a server of this module."""
    return [sys.executable, "-m", "benchmarks.gateway", "--serve", what, "--port", str(port), "--backend", str(backend)]


@contextmanager
def started(*argv: str, port: int) -> Iterator[psutil.Process]:
    """Run a server until the block is left; it listens when the block begins."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{argv[0]} does not listen on port {port}")
            time.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10.0)


class Client(asyncio.Protocol):
    """Asks one request after the other on one connection."""

    def __init__(self, request: bytes, count: list[int], latencies: list[float], done: "asyncio.Future[None]") -> None:
        self._request = request
        self._count = count
        self._latencies = latencies
        self._done = done
        self._buffer = b""
        self._begun = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._buffer.endswith(ANSWER):
            return
        if not self._buffer.startswith(b"HTTP/1.1 200 "):
            self._done.set_exception(RuntimeError(self._buffer[:200].decode("latin-1")))
            return
        self._latencies.append(time.perf_counter() - self._begun)
        self._buffer = b""
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(f"the connection ended: {exc} {self._buffer[:200]!r}"))

    def _ask(self) -> None:
        if self._count[0] == 0:
            if not self._done.done():
                self._done.set_result(None)
            self._transport.close()
            return
        self._count[0] -= 1
        self._begun = time.perf_counter()
        self._transport.write(self._request)


async def ask(port: int, path: str, requests: int, connections: int) -> list[float]:
    """Seconds of each request of a closed loop."""
    loop = asyncio.get_running_loop()
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[0.1,0.2,0.3,0.4]}]}'
    request = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    count, latencies = [requests], list[float]()
    dones = [loop.create_future() for _ in range(connections)]
    for done in dones:
        await loop.create_connection(
            lambda done=done: Client(request, count, latencies, done),  # type: ignore[misc]  # bound at once
            "127.0.0.1",
            port,
        )
    async with asyncio.timeout(600.0):
        await asyncio.gather(*dones)
    return latencies


class Replica(asyncio.Protocol):
    """Answers each request with the same document."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        if len(body) < length:
            return
        self._buffer = body[length:]
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
        )


async def serve_replica(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Replica, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


async def serve_aiohttp(port: int, backend: int) -> None:
    """A door of aiohttp's server and client that does nothing but pass on."""
    from aiohttp import ClientSession, web

    async with ClientSession(auto_decompress=False) as session:

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            url = f"http://127.0.0.1:{backend}{request.path_qs[2:]}"
            async with session.request(request.method, url, data=request.content, headers=request.headers) as got:
                return web.Response(status=got.status, body=await got.read(), content_type=got.content_type)

        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


def _worker(process: psutil.Process) -> psutil.Process:
    """The process that does the work: nginx's master has one child."""
    children: list[psutil.Process] = process.children()
    return children[0] if children else process


def _haproxy_of(gateway: psutil.Process, directory: Path) -> psutil.Process:
    """The haproxy of a gateway, once it passes requests on."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    told = directory / "proxy.json"
    while not (told.exists() and json.loads(told.read_text())["held"] == {}):
        if time.monotonic() > deadline:
            raise SystemExit(f"haproxy does not run: {told.read_text() if told.exists() else 'nothing is told'}")
        time.sleep(0.05)
    (process,) = gateway.children()
    return process


def _processor_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    main()
