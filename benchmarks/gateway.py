"""The gateway's cost of a request: its processor time and added latency, beside other proxies.

    python -m benchmarks.gateway [--requests 4000] [--connections 8] [--rounds 3] [--idle 1000] [--json]
                                 [--rate 100] [--doors NAME,...] [--peers]

One replica answers a short JSON document. It is called directly, through the gateway, through a simple proxy of
aiohttp's server and client, and through nginx and haproxy where they are installed, each with one worker, keep-alive on
both sides and no access log but the gateway's (`fairlead no log` is without). These doors take turns, in another order
each time, so that a slow moment of the machine affects all of them; figures are medians of the rounds, as is the ratio
to bare haproxy's processor time in the same round. Processor time is that of the door's processes, as the kernel's
scheduler counts it, which depends least on other load. Doors have one core, the client and the replica another.

Latencies are of a closed loop, so they include queueing. `--rate` sends that many requests a second instead, evenly and
without waiting for answers, on any core: the added latency over the same round's direct requests is the cost of a door
under low load. `--doors` selects doors. `--idle` measures the cost of that many idle services. `--peers` adds Ray
Serve's proxy, before its own replica, and LiteLLM's, which requests chat completions of the replica; each is installed
in its own environment.
"""

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import psutil

from benchmarks.peers import doors as peers
from tests.ports import free_ports

ANSWER = json.dumps(
    {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 8], "data": [0.125] * 8}]}
).encode()  # fmt: skip
CHAT_ANSWER = json.dumps(
    {"id": "c", "object": "chat.completion", "created": 1700000000, "model": "m",
     "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 8}, "finish_reason": "stop"}],
     "usage": {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 16}}
).encode()  # fmt: skip
PATH = "/m/v2/models/m/infer"
BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[0.1,0.2,0.3,0.4]}]}'
CHAT_PATH, CHAT_BODY = (
    "/v1/chat/completions",
    b'{"model":"m","messages":[{"role":"user","content":"Say eight words."}]}',
)
BARE = "haproxy"
STARTS_WITHIN_S = 60.0
IDLE_FOR_S = 10.0
LOG_READ_S = 0.25
"""Our gateway has read haproxy's log by then."""

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


class Door(NamedTuple):
    """A way to the replica: the processes that are that way, and what is asked there."""

    processes: list[psutil.Process]
    port: int
    path: str = PATH
    body: bytes = BODY


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
    parser.add_argument("--rate", type=_positive, help="requests a second, evenly, instead of one after the other")
    parser.add_argument("--doors", type=lambda text: text.split(","), help="these only, and directly (default all)")
    parser.add_argument("--peers", action="store_true", help="Ray Serve's proxy and LiteLLM's too")
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
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-", ignore_cleanup_errors=True) as name:
        rounds = measure(Path(name), arguments)
        idle = measure_idle(Path(name), arguments.idle) if arguments.idle else None
    doors = {
        name: {
            **{of: median(getattr(took, of) for took in all_took) for of in Took._fields},
            "added_p50_ms": _added(all_took, rounds["direct"], "p50_ms"),
            "added_p99_ms": _added(all_took, rounds["direct"], "p99_ms"),
            "times_bare": _times(all_took, rounds.get(BARE)),
            "cpu_us_rounds": [each.cpu_us for each in all_took],
        }
        for name, all_took in rounds.items()
    }
    if arguments.json:
        asked = {name: getattr(arguments, name) for name in ("requests", "connections", "rounds", "rate")}
        print(json.dumps({**asked, "load_of_machine": os.getloadavg()[0], "doors": doors, "idle": idle}))
        return
    print(f"{'':<18}{'cpu us':>8}{'x bare':>8}{'p50 ms':>8}{'p99 ms':>8}{'+p50':>8}{'+p99':>8}{'req/s':>8}")
    for name, told in doors.items():
        times = "" if told["times_bare"] is None else f"{told['times_bare']:.2f}"
        took = f"{told['p50_ms']:>8.2f}{told['p99_ms']:>8.2f}{told['added_p50_ms']:>8.2f}{told['added_p99_ms']:>8.2f}"
        print(f"{name:<18}{told['cpu_us']:>8.1f}{times:>8}{took}{told['per_s']:>8.0f}")
    if idle is not None:
        print(f"{idle['services']} idle services: {idle['cpu_percent']:.2f} % of a core, {idle['rss_mb']:.0f} MB")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


def _positive(text: str) -> float:
    number = float(text)
    if number <= 0.0:
        raise argparse.ArgumentTypeError(f"{text}: a rate is more than nothing")
    return number


def _added(took: list[Took], direct: list[Took], which: Literal["p50_ms", "p99_ms"]) -> float:
    """Milliseconds more than directly in the same round: the median."""
    at = Took._fields.index(which)
    return median(door[at] - without[at] for door, without in zip(took, direct, strict=True))


def _times(took: list[Took], bare: list[Took] | None) -> float | None:
    """Divide a door's processor time by the bare proxy's of the same round; the median."""
    if bare is None or not took[0].cpu_us:
        return None
    return median(door.cpu_us / of_bare.cpu_us for door, of_bare in zip(took, bare, strict=True))


def measure(directory: Path, asked: argparse.Namespace) -> dict[str, list[Took]]:
    """All rounds of all doors that are there."""
    took: dict[str, list[Took]] = {}
    with ExitStack() as running:
        doors = open_doors(directory, running, with_peers=asked.peers)
        for name in asked.doors or ():
            if name not in doors:
                raise SystemExit(f"there is no door {name!r} here; there are {', '.join(doors)}")
        doors = {name: door for name, door in doors.items() if asked.doors is None or name in (*asked.doors, "direct")}
        if asked.rate is None:
            _part(doors)
        order = list(doors)
        for number in range(asked.rounds + 1):  # the first one is for warming up
            for name in order:
                door = doors[name]
                before = _processor_s(door.processes)
                begun = time.perf_counter()
                if asked.rate is None:
                    latencies = asyncio.run(ask(door, asked.requests, asked.connections))
                else:
                    latencies = asyncio.run(ask_steadily(door, asked.requests, asked.rate))
                lasted = time.perf_counter() - begun
                if name == "fairlead haproxy":
                    time.sleep(LOG_READ_S)
                cpu_us = (_processor_s(door.processes) - before) / asked.requests * 1e6
                latencies.sort()
                if number:
                    p50, p99 = latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.99)]
                    took.setdefault(name, []).append(Took(cpu_us, p50 * 1e3, p99 * 1e3, asked.requests / lasted))
            random.Random(number).shuffle(order)
    return {name: took[name] for name in doors}


def open_doors(directory: Path, running: ExitStack, *, with_peers: bool) -> dict[str, Door]:
    """Start the replica and all doors that are there."""
    backend, *ports = free_ports(9)
    running.enter_context(started(*own("replica", backend), port=backend))
    doors = {"direct": Door([], backend, PATH[2:])}
    haproxy = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    kinds: list[tuple[str, list[str]]] = [("fairlead", []), ("fairlead no log", ["--access-log", "none"])]
    if haproxy is not None:
        kinds.append(("fairlead haproxy", ["--haproxy", haproxy]))
    for name, options in kinds:
        place = directory / name.replace(" ", "-")
        process = running.enter_context(started(*gateway(place, ports[0], backend), *options, port=ports[0]))
        doors[name] = Door([process], ports.pop(0))
        if "--haproxy" in options:
            doors[name].processes.append(_haproxy_of(process, place))
    process = running.enter_context(started(*own("aiohttp", ports[0], backend), port=ports[0]))
    doors["aiohttp"] = Door([process], ports.pop(0))
    for name, text, words in (("nginx", NGINX, ("-c",)), (BARE, HAPROXY, ("-db", "-q", "-f"))):
        program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
        port = ports.pop(0)
        if program is None:
            continue
        place = directory / name
        place.mkdir()
        (place / "conf").write_text(text.format(directory=place, port=port, backend=backend))
        process = running.enter_context(started(program, *words, str(place / "conf"), port=port))
        doors[name] = Door([_worker(process)], port)
    if with_peers:
        for name, peer, path, body in (
            ("Ray Serve", peers.ray_serve(directory, ports[0], ANSWER.decode()), PATH, BODY),
            ("LiteLLM", peers.litellm(directory, ports[1], backend), CHAT_PATH, CHAT_BODY),
        ):
            found = running.enter_context(peer)
            if isinstance(found, str):
                print(f"{name} is not measured: {found}", file=sys.stderr)
            else:
                doors[name] = Door(found.processes, found.port, path, body)
    return doors


def _part(doors: dict[str, Door]) -> None:
    """Give doors a core of their own where there are two, so that who asks does not take their time."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    pinned = [process for door in doors.values() for process in door.processes]
    others = psutil.Process().children(recursive=True)
    for process, core in [
        *((each, cores[0]) for each in [psutil.Process(), *others]),
        *((p, cores[1]) for p in pinned),
    ]:
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {core})


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
    (directory / "routes.json").write_text(json.dumps({"version": 2, "services": told}))
    return [sys.executable, "-m", "fairlead.gateway", "--directory", str(directory), "--port", str(port)]


def own(what: str, port: int, backend: int = 0) -> list[str]:
    """The command of a server of this module."""
    return [sys.executable, "-m", "benchmarks.gateway", "--serve", what, "--port", str(port), "--backend", str(backend)]


@contextmanager
def started(*argv: str, port: int) -> Iterator[psutil.Process]:
    """Run a server until the block is left; it listens when the block begins."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True)
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


class Connection(asyncio.Protocol):
    """Asks one request at a time, and tells when its answer is whole: the seconds that it took."""

    def __init__(
        self, request: bytes, answered: "Callable[[Connection, float], None]", broken: "asyncio.Future[None]"
    ) -> None:
        self._request = request
        self._answered = answered
        self._broken = broken
        self._buffer = b""
        self._begun = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self) -> None:
        """Send the request."""
        self._begun = time.perf_counter()
        self._transport.write(self._request)

    def close(self) -> None:
        """End the connection."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not _is_whole(self._buffer):
            return
        if self._buffer.startswith(b"HTTP/1.1 200 "):
            self._buffer = b""
            self._answered(self, time.perf_counter() - self._begun)
        elif not self._broken.done():
            self._broken.set_exception(RuntimeError(self._buffer[:200].decode("latin-1")))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._broken.done():
            self._broken.set_exception(RuntimeError(f"the connection ended: {exc} {self._buffer[:200]!r}"))


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return body.endswith(b"0\r\n\r\n") if length is None else len(body) >= int(length[1])


Answered = Callable[[Connection, float], None]


async def _connect(
    door: Door, answered: "Callable[[Connection, float], None]", over: "asyncio.Future[None]"
) -> Connection:
    request = (
        f"POST {door.path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(door.body)}\r\n\r\n"
    ).encode() + door.body
    loop = asyncio.get_running_loop()
    _, made = await loop.create_connection(lambda: Connection(request, answered, over), "127.0.0.1", door.port)
    return made


async def ask(door: Door, requests: int, connections: int) -> list[float]:
    """Seconds of each request of a closed loop."""
    over = asyncio.get_running_loop().create_future()
    latencies: list[float] = []
    left = requests

    def go_on(connection: Connection) -> None:
        nonlocal left
        if left:
            left -= 1
            connection.ask()

    def answered(connection: Connection, took_s: float) -> None:
        latencies.append(took_s)
        go_on(connection)
        if len(latencies) == requests and not over.done():
            over.set_result(None)

    there = [await _connect(door, answered, over) for _ in range(connections)]
    for each in there:
        go_on(each)
    async with asyncio.timeout(600.0):
        await over
    for each in there:
        each.close()
    return latencies


async def ask_steadily(door: Door, requests: int, per_s: float) -> list[float]:
    """Seconds of each request, sent at even times, on a connection that has nothing under way or is new."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    latencies: list[float] = []
    free: list[Connection] = []
    everything: list[Connection] = []

    def answered(connection: Connection, took_s: float) -> None:
        latencies.append(took_s)
        free.append(connection)
        if len(latencies) == requests and not over.done():
            over.set_result(None)

    begun = loop.time()
    for number in range(requests):
        await asyncio.sleep(begun + number / per_s - loop.time())
        if not free:
            everything.append(await _connect(door, answered, over))
            free.append(everything[-1])
        free.pop().ask()
    async with asyncio.timeout(600.0):
        await over
    for each in everything:
        each.close()
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
        answer = CHAT_ANSWER if head.startswith(b"POST /v1/chat") else ANSWER
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer)
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
    """Seconds of processor that they have had, their threads that have ended left out."""
    return sum(_thread_s(process, thread.id) for process in processes for thread in process.threads())


def _thread_s(process: psutil.Process, thread: int) -> float:
    return int(Path(f"/proc/{process.pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    main()
