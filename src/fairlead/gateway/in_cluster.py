"""Runs the gateway in a pod, `python -m fairlead.gateway.in_cluster`, connected to the operator by the API server.

Routes come from one ConfigMap, which is watched; demand goes into another, which this pod owns and which is deleted
with it. The operator may thus be killed and restarted anywhere, while requests are forwarded as before. The process
that answers requests is a child: the parent holds its listening socket, so that no connection is refused while it is
restarted.

With `--proxy haproxy` the image's haproxy takes what needs no decision straight to replicas, as on one machine.

It needs only the standard library and two rights of the API server: to watch the first ConfigMap and to write the
second.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairlead.gateway.packing import DEMAND_KEY, ROUTES_KEY, packed, unpacked
from fairlead.gateway.proxying.programs import HAPROXY, PROXIES, PYTHON, find_haproxy

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ROUTES = "fairlead-routes"
LABEL, DEMAND = "fairlead.dev/content", "demand"
PORT = 8700
WATCH_S, SILENCE_S, REQUEST_S = 300, 90.0, 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
PUBLISH_S, WOKEN_S = 1.0, 0.1
"""Minimum seconds between writes of demand; and the same while requests wait for a replica."""
BACKLOG = 4096
REFUSE_S = 0.25
"""Seconds after SIGTERM in which connections that the kernel has completed are still accepted."""

Object = dict[str, Any]


class ApiServer:
    """A client of the API server with the rights of this pod's account."""

    def __init__(self, host: str, port: int, namespace: str, account: Path = ACCOUNT) -> None:
        self._host, self._port = host, port
        self._token = account / "token"
        self._tls = ssl.create_default_context(cafile=os.fspath(account / "ca.crt"))
        self._place = f"/api/v1/namespaces/{namespace}/configmaps"

    def routes(self) -> Iterator[Object | None]:
        """Yield the current routes and their changes until the watch ends; None while there are none.

        Raises:
            OSError, ValueError, http.client.HTTPException: The API server fails or responds unexpectedly.
        """
        chosen = f"{self._place}?fieldSelector=metadata.name%3D{ROUTES}"
        listed = self._json("GET", chosen)
        found = listed.get("items") or [None]
        yield _routes_in(found[0])
        version = listed["metadata"]["resourceVersion"]
        more = f"&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}&resourceVersion={version}"
        connection = self._connection(SILENCE_S)
        try:
            connection.request("GET", chosen + more, headers=self._headers())
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise ValueError(f"a watch of the routes is answered with {answer.status}")
            while line := answer.readline():
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    yield _routes_in(event["object"])
                elif event["type"] == "ERROR":
                    return  # resource version expired: list again
        finally:
            connection.close()

    def publish(self, name: str, body: Object) -> None:
        """Create or replace this pod's ConfigMap.

        Raises:
            OSError, ValueError, http.client.HTTPException: The API server fails or responds unexpectedly.
        """
        self._json("PATCH", f"{self._place}/{name}?fieldManager=fairlead-gateway&force=true", body)

    def _json(self, method: str, path: str, body: Object | None = None) -> Object:
        connection = self._connection(REQUEST_S)
        try:
            headers = {**self._headers(), "Content-Type": "application/apply-patch+yaml"}
            connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise ValueError(f"{method} {path} is answered with {answer.status}: {content[:500].decode('latin-1')}")
        document = json.loads(content)
        if not isinstance(document, dict):
            raise ValueError(f"{method} {path} is answered with something else than an object")
        return document

    def _connection(self, timeout_s: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)

    def _headers(self) -> dict[str, str]:
        # Read each time, as the token is renewed while the pod runs.
        return {"Authorization": f"Bearer {self._token.read_text().strip()}", "User-Agent": "fairlead-gateway"}


def _routes_in(configmap: Object | None) -> Object | None:
    text = ((configmap or {}).get("binaryData") or {}).get(ROUTES_KEY)
    return None if text is None else unpacked(text)


class Relay:
    """Copies routes from the API server to the gateway's files, and demand back.

    Attributes:
        routed: Set once the gateway has routes.
    """

    def __init__(self, server: ApiServer, directory: Path, pod: Mapping[str, str]) -> None:
        self._server = server
        self._directory = directory
        self._pod = pod
        self._woken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        wake = directory / "relay.sock"
        wake.unlink(missing_ok=True)
        self._woken.bind(os.fspath(wake))
        self._wake_path = os.fspath(wake)
        self.routed = threading.Event()

    def follow(self) -> None:
        """Write the routes to routes.json whenever they change; runs for ever."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                for routes in self._server.routes():
                    if routes is not None:
                        self._write_routes(routes)
                    pause_s = FIRST_PAUSE_S
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                _say(f"routes are as they were: {error}")
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            time.sleep(pause_s)

    def tell(self) -> None:
        """Write demand to the API server whenever it changes; runs for ever."""
        seen: object = None
        last = 0.0
        while True:
            self._woken.settimeout(PUBLISH_S / 2)
            woken = False
            with suppress(TimeoutError):
                self._woken.recv(1)
                woken = True
            now = time.monotonic()
            if not woken and now - last < PUBLISH_S:
                continue
            time.sleep(max(0.0, last + WOKEN_S - now))
            try:
                seen = self.publish(seen)
                last = time.monotonic()
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                _say(f"demand is not told: {error}")
                time.sleep(PUBLISH_S)

    def publish(self, seen: object = None) -> object:
        """Write demand to the API server if its version differs from `seen`, and return the version."""
        path = self._directory / "demand.json"
        found = path.stat()
        version = (found.st_mtime_ns, found.st_ino)
        if version == seen:
            return seen
        demand = json.loads(path.read_bytes())
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self._pod["name"], "uid": self._pod["uid"]}
        metadata = {"name": self._pod["name"], "labels": {LABEL: DEMAND}, "ownerReferences": [owner]}
        self._server.publish(
            self._pod["name"],
            {
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
                "binaryData": {DEMAND_KEY: packed(demand)},
            },
        )  # fmt: skip
        return version

    def _write_routes(self, routes: Object) -> None:
        draft = self._directory / ".routes.json"
        draft.write_text(json.dumps({**routes, "wake": self._wake_path}))
        draft.replace(self._directory / "routes.json")
        self.routed.set()


class Gateways:
    """Supervises the process that answers requests, and holds its listening socket."""

    def __init__(
        self,
        directory: Path,
        listening: socket.socket,
        grace_s: float,
        haproxy: Path | None = None,
        metrics_port: int | None = None,
    ) -> None:
        self._directory = directory
        self._metrics_port = metrics_port
        self._listening = listening
        self._grace_s = grace_s
        self._haproxy = haproxy
        self._process: subprocess.Popen[bytes] | None = None
        self._ends = False

    def run(self) -> int:
        """Start a process, and restart it when it ends, until `end`; return the exit code of the last."""
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            self._process = self._start()
            if self._ends:
                self._process.terminate()
            code = self._process.wait()
            if self._ends:
                return code
            _say(f"the gateway ended with {code}; another one follows")
            pause_s = FIRST_PAUSE_S if time.monotonic() - began > SILENCE_S else min(LONGEST_PAUSE_S, 2 * pause_s)
            time.sleep(pause_s)

    def end(self) -> None:
        """Terminate the running process, which finishes the requests in flight.

        Soon after, connections are refused by all holders of the listening socket, this process and haproxy included:
        otherwise they would wait in its backlog until those requests have ended.
        """
        if self._ends:
            return
        self._ends = True
        if self._process is not None:
            self._process.terminate()
        refusing = threading.Timer(REFUSE_S, self._refuse)
        refusing.daemon = True
        refusing.start()

    def _refuse(self) -> None:
        with suppress(OSError):  # closed or refusing already
            self._listening.shutdown(socket.SHUT_RD)

    def _start(self) -> "subprocess.Popen[bytes]":
        door = self._listening.fileno()
        command = [
            sys.executable, "-m", "fairlead.gateway", "--directory", os.fspath(self._directory),
            "--listen-fd", str(door), "--grace", str(self._grace_s), "--access-log", "-",
        ]  # fmt: skip
        if self._metrics_port is not None:
            command += ["--admin-host", _any_address(), "--admin-port", str(self._metrics_port)]
        if self._haproxy is not None:
            command += ["--haproxy", os.fspath(self._haproxy)]
        return subprocess.Popen(command, pass_fds=[door], stdin=subprocess.DEVNULL)


def main() -> None:
    """Wait for routes, then serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m fairlead.gateway.in_cluster", description="The gateway in a pod.")
    parser.add_argument("--directory", type=Path, required=True, help="an empty directory of its own")
    parser.add_argument("--port", type=int, default=PORT, help=f"port to listen on (default {PORT})")
    parser.add_argument("--metrics-port", type=int, help="port of metrics for all (default: any port of loopback)")
    parser.add_argument("--account", type=Path, default=ACCOUNT, help="where its token and the API server's CA are")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds to finish in after TERM (default 30)")
    parser.add_argument("--proxy", choices=PROXIES, default=PYTHON, help=f"program in front (default {PYTHON}: none)")
    arguments = parser.parse_args()
    haproxy = find_haproxy() if arguments.proxy == HAPROXY else None
    if arguments.proxy == HAPROXY and haproxy is None:
        sys.exit(
            "gateway: --proxy haproxy, and this image has no haproxy in its PATH; build one on a base that has it "
            "(`apt-get install haproxy`), or `fairlead install` with --gateway-proxy python"
        )
    arguments.directory.mkdir(parents=True, exist_ok=True)
    environ = os.environ
    server = ApiServer(
        environ["KUBERNETES_SERVICE_HOST"], int(environ["KUBERNETES_SERVICE_PORT"]), environ["POD_NAMESPACE"],
        arguments.account,
    )  # fmt: skip
    relay = Relay(server, arguments.directory, {"name": environ["POD_NAME"], "uid": environ["POD_UID"]})
    stop = threading.Event()
    gateways: list[Gateways] = []

    def end(*_: object) -> None:
        stop.set()
        relay.routed.set()
        for each in gateways:
            each.end()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    threading.Thread(target=relay.follow, daemon=True).start()
    while not relay.routed.wait(1.0):
        pass  # in steps, so that signals are handled in between
    if stop.is_set():
        return
    # Not before: a ready pod gets requests, for which there would be no routes yet.
    gateways.append(
        Gateways(arguments.directory, _listen(arguments.port), arguments.grace, haproxy, arguments.metrics_port)
    )
    threading.Thread(target=relay.tell, daemon=True).start()
    code = gateways[0].run()
    with suppress(OSError, ValueError, KeyError, http.client.HTTPException):
        relay.publish()
    sys.exit(code)


def _listen(port: int) -> socket.socket:
    host = _any_address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.create_server((host, port), family=family, backlog=BACKLOG)
    os.set_inheritable(door.fileno(), True)
    return door


def _any_address() -> str:
    # A pod has addresses of one family, or of two, of which the first is its primary one.
    return "::" if ":" in os.environ.get("POD_IP", "") else "0.0.0.0"


def _say(text: str) -> None:
    print(f"gateway: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
