"""Runs the gateway in a pod, `python -m fairlead.gateway.in_cluster`, connected to the operator by the API server.

Routes come from one ConfigMap for each team, and one that lists the teams, which are watched; demand goes into another,
which this pod owns and which is deleted with it. The operator may thus be killed and restarted anywhere, while requests
are forwarded as before. The process that answers requests is a child: the parent holds its listening socket, so that no
connection is refused while it is restarted.

With `--proxy haproxy` the image's haproxy takes what needs no decision straight to replicas, as on one machine.

It needs only the standard library and three rights of the API server: to watch ConfigMaps of its namespace, to write
one, and to ask who may read its metrics.

See decision 48.
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
LABEL, DEMAND, TEAM_ROUTES = "fairlead.dev/content", "demand", "routes"
VERSION = 2
PORT = 8700
WATCH_S, SILENCE_S, REQUEST_S = 300, 90.0, 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
PUBLISH_S, WOKEN_S = 1.0, 0.1
"""Minimum seconds between writes of demand; and the same while requests wait for a replica."""
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
"""Networks of pods and nodes: an Ingress controller's X-Forwarded-Host and -Proto are believed."""
BACKLOG = 4096
REFUSE_S = 0.25
"""Seconds after SIGTERM in which connections that the kernel has completed are still accepted."""

Object = dict[str, Any]
ERRORS = (OSError, ValueError, KeyError, http.client.HTTPException)
"""The API server fails or responds unexpectedly."""


class ApiServer:
    """A client of the API server with the rights of this pod's account."""

    def __init__(self, host: str, port: int, namespace: str, account: Path = ACCOUNT) -> None:
        self._host, self._port = host, port
        self._token = account / "token"
        self._tls = ssl.create_default_context(cafile=os.fspath(account / "ca.crt"))
        self._place = f"/api/v1/namespaces/{namespace}/configmaps"

    @classmethod
    def of_environment(cls, account: Path) -> "ApiServer":
        """Return the API server of the cluster in which this pod runs."""
        environ = os.environ
        host, port = environ["KUBERNETES_SERVICE_HOST"], int(environ["KUBERNETES_SERVICE_PORT"])
        return cls(host, port, environ["POD_NAMESPACE"], account)

    def create(self, path: str, body: Object) -> Object:
        """Create an object, such as a review, and return the answer.

        Raises:
            OSError, ValueError, http.client.HTTPException: The API server fails or responds unexpectedly.
        """
        return self._json("POST", path, body, "application/json")

    def routes(self) -> Iterator[Object | None]:
        """Yield the current routes and their changes until the watch ends; None while there are none.

        Raises:
            OSError, ValueError, http.client.HTTPException: The API server fails or responds unexpectedly.
        """
        chosen = f"{self._place}?labelSelector={LABEL}%3D{TEAM_ROUTES}"
        listed = self._json("GET", chosen)
        parts = RouteParts()
        for configmap in listed.get("items") or ():
            parts.take(configmap)
        yield parts.whole()
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
                if event["type"] == "ERROR":
                    return  # resource version expired: list again
                if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                    parts.take(event["object"], is_there=event["type"] != "DELETED")
                    yield parts.whole()
        finally:
            connection.close()

    def publish(self, name: str, body: Object) -> None:
        """Create or replace this pod's ConfigMap.

        Raises:
            OSError, ValueError, http.client.HTTPException: The API server fails or responds unexpectedly.
        """
        self._json("PATCH", f"{self._place}/{name}?fieldManager=fairlead-gateway&force=true", body)

    def _json(
        self, method: str, path: str, body: Object | None = None, content_type: str = "application/apply-patch+yaml"
    ) -> Object:
        connection = self._connection(REQUEST_S)
        try:
            headers = {**self._headers(), "Content-Type": content_type}
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


class RouteParts:
    """The routes of all teams, of which each is in a ConfigMap of its own."""

    def __init__(self) -> None:
        self._parts: dict[str, Object] = {}
        self._teams: list[str] | None = None

    def take(self, configmap: Object, *, is_there: bool = True) -> None:
        """Take in a ConfigMap; one that cannot be read leaves what was read of it before."""
        name = configmap["metadata"]["name"]
        if not is_there:
            self._parts.pop(name, None)
            return
        try:
            document = unpacked((configmap.get("binaryData") or {})[ROUTES_KEY])
            if name == ROUTES:
                self._teams = [str(team) for team in document["teams"]]
            else:
                self._parts[name] = {"services": dict(document["services"]), "keys": dict(document["keys"])}
        except (KeyError, TypeError, ValueError) as error:
            _say(f"the routes in {name} are as they were: {error}")

    def whole(self) -> Object | None:
        """Return the routes of the teams that are listed; None while it is not known which have any.

        Of a team only services under its own name and its own keys count.
        """
        if self._teams is None:
            return None
        services: Object = {}
        keys: Object = {}
        for team in self._teams:
            part = self._parts.get(f"{ROUTES}-{team}", {"services": {}, "keys": {}})
            services |= {name: route for name, route in part["services"].items() if name.startswith(f"{team}/")}
            keys |= {team: part["keys"][team]} if team in part["keys"] else {}
        return {"version": VERSION, "services": services, "keys": keys}


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

    def follow_routes(self) -> None:
        """Write the routes to routes.json whenever they change; runs for ever."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                for routes in self._server.routes():
                    if routes is not None:
                        self._write_routes(routes)
                    pause_s = FIRST_PAUSE_S
            except ERRORS as error:
                _say(f"routes are as they were: {error}")
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            time.sleep(pause_s)

    def publish_demand(self) -> None:
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
            except ERRORS as error:
                _say(f"demand is not told: {error}")
                time.sleep(PUBLISH_S)

    def publish(self, seen: object = None) -> object:
        """Write demand to the API server if its version differs from `seen`, and return the version."""
        path = self._directory / "demand.json"
        file_status = path.stat()
        version = (file_status.st_mtime_ns, file_status.st_ino)
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


class GatewaySupervisor:
    """Supervises the process that answers requests, and holds its listening socket."""

    def __init__(
        self,
        directory: Path,
        listening: socket.socket,
        grace_s: float,
        haproxy: Path | None = None,
        metrics_port: int | None = None,
        account: Path | None = None,
    ) -> None:
        self._directory = directory
        self._metrics_port = metrics_port
        self._account = account
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
        gateway = self._listening.fileno()
        command = [
            sys.executable, "-m", "fairlead.gateway", "--directory", os.fspath(self._directory),
            "--listen-fd", str(gateway), "--grace", str(self._grace_s), "--access-log", "-",
        ]  # fmt: skip
        if self._metrics_port is not None:
            command += ["--admin-host", _any_address(), "--admin-port", str(self._metrics_port)]
        if self._account is not None:
            command += ["--metrics-account", os.fspath(self._account)]
        command += [f"--trusted-proxy={network}" for network in PRIVATE]
        if self._haproxy is not None:
            command += ["--haproxy", os.fspath(self._haproxy)]
        return subprocess.Popen(command, pass_fds=[gateway], stdin=subprocess.DEVNULL)


def main() -> None:
    """Wait for routes, then serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m fairlead.gateway.in_cluster", description="The gateway in a pod.")
    parser.add_argument("--directory", type=Path, required=True, help="an empty directory of its own")
    parser.add_argument("--port", type=int, default=PORT, help=f"port to listen on (default {PORT})")
    parser.add_argument(
        "--metrics-port",
        type=int,
        help="port of metrics, for those whom the API server lets get /metrics (default: any port of loopback)",
    )
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
    server = ApiServer.of_environment(arguments.account)
    relay = Relay(server, arguments.directory, {"name": environ["POD_NAME"], "uid": environ["POD_UID"]})
    stop = threading.Event()
    gateways: list[GatewaySupervisor] = []

    def end(*_: object) -> None:
        stop.set()
        relay.routed.set()
        for supervisor in gateways:
            supervisor.end()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    threading.Thread(target=relay.follow_routes, daemon=True).start()
    while not relay.routed.wait(1.0):
        pass  # in steps, so that signals are handled in between
    if stop.is_set():
        return
    # Not before: a ready pod gets requests, for which there would be no routes yet.
    gateways.append(
        GatewaySupervisor(
            arguments.directory,
            _listen(arguments.port),
            arguments.grace,
            haproxy,
            arguments.metrics_port,
            arguments.account,
        )
    )
    threading.Thread(target=relay.publish_demand, daemon=True).start()
    code = gateways[0].run()
    with suppress(*ERRORS):
        relay.publish()
    sys.exit(code)


def _listen(port: int) -> socket.socket:
    host = _any_address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    gateway = socket.create_server((host, port), family=family, backlog=BACKLOG)
    os.set_inheritable(gateway.fileno(), True)
    return gateway


def _any_address() -> str:
    # A pod has addresses of one family, or of two, of which the first is its primary one.
    return "::" if ":" in os.environ.get("POD_IP", "") else "0.0.0.0"


def _say(text: str) -> None:
    print(f"gateway: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
