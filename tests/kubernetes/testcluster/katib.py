"""A real Katib beside a control plane: its controller, its database manager, and the services that suggest values.

The controller calls services by their names in the cluster, which nothing here resolves. So it is given a proxy, which
knows where each of them is. The pods of a service that suggests values are played by kwok, and its program is
Goptuna's: a process for each, in a network of its own, since it listens at a fixed port.
"""

import os
import shlex
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.kubernetes.testcluster import binaries, relaying, webhooks
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.engines import define, kept
from tests.kubernetes.testcluster.errors import Unavailable
from tests.kubernetes.testcluster.fakes import add_nodes
from tests.kubernetes.testcluster.processes import Server
from tests.ledger.databases import postgres_programs, postgres_server
from tests.ports import free_ports

NAMESPACE, MANAGER = "kubeflow", "katib-db-manager"
CERTIFICATES = Path("/tmp/cert")
"""The place where the controller looks for them, whatever it is told."""
ALGORITHMS = ("random", "tpe", "cmaes")
"""Those that Goptuna has; Katib's release has other programs for two of them."""
SERVICE_PORT = 6789
OF_EXPERIMENTS = "experiment.katib.kubeflow.org"
"""The end of the names of webhooks that are asked about Experiments."""
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context that Pod Security "restricted" asks for and which Katib's own configuration lacks."""
CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
LINE_MOST = 4096


class _Services(socketserver.ThreadingTCPServer):
    """A proxy to services by their names in the cluster; one that suggests values begins when it is first asked for."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, manager: int, program: Path, home: Path, stack: ExitStack) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self._manager, self._program, self._home, self._stack = manager, program, home, stack
        self._ports: dict[str, int] = {}
        # Programs end with the thread that started them, and that of a connection is a short one.
        self._starter = stack.enter_context(ThreadPoolExecutor(1))
        self._lock = threading.Lock()

    def port_of(self, host: str) -> int:
        if host.partition(".")[0] == MANAGER:
            return self._manager
        with self._lock:
            if host not in self._ports:
                self._ports[host] = self._starter.submit(self._suggest, host).result()
            return self._ports[host]

    def _suggest(self, host: str) -> int:
        """Begin a service in a network of its own; the port of this one that leads there."""
        door = socket.create_server(("127.0.0.1", 0))
        relay = shlex.join([sys.executable, relaying.__file__, str(door.fileno()), "127.0.0.1", str(SERVICE_PORT)])
        script = f"ip link set lo up && {{ {shlex.quote(str(self._program))} & }} && exec {relay}"
        argv = ["unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script]
        server = Server(host, argv, self._home / f"{host}.log", pass_fds=(door.fileno(),))
        server.start()
        port = int(door.getsockname()[1])
        self._stack.callback(server.kill)
        door.close()
        return port


class _Connection(socketserver.StreamRequestHandler):
    """A connection by way of the proxy."""

    server: _Services

    def handle(self) -> None:
        method, target, _ = self.rfile.readline(LINE_MOST).decode().split()
        assert method == "CONNECT", f"{method} {target}: only services are behind this proxy"
        while self.rfile.readline(LINE_MOST).strip():
            pass
        host = target.rpartition(":")[0]
        with socket.create_connection(("127.0.0.1", self.server.port_of(host))) as there:
            self.wfile.write(CONNECTED)
            back = threading.Thread(target=_carry, args=(there, self.connection), daemon=True)
            back.start()
            _carry(self.connection, there)
            back.join()


def _carry(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # one of the two has hung up


@contextmanager
def katib(plane: ControlPlane) -> Iterator[Server]:
    """Katib, once its controller serves and its webhooks answer; built by ``build --all`` alone.

    Raises:
        Unavailable: It is not built, or it cannot run here.
    """
    if os.geteuid() != 0:
        raise Unavailable("Katib's controller reads certificates from a fixed place; mounting that needs root")
    if postgres_programs() is None:
        raise Unavailable("Katib keeps metrics in a database; `apt-get install postgresql` brings one")
    programs = {part: binaries.ensure_engine(f"katib-{part}") for part in ("controller", "db-manager", "goptuna")}
    source = binaries.source_of("katib-controller") / "manifests/v1beta1/components"
    define(plane, source / "crd", "*.yaml")
    # The only node with what Katib's pods ask for besides processors and memory.
    add_nodes(plane, 1, prefix="katib", gpus=0, others={"ephemeral-storage": "100Gi"})
    home = plane.home / "katib"
    home.mkdir(exist_ok=True)
    metrics, health, webhook, manager = free_ports(4)
    config = {
        "apiVersion": "config.kubeflow.org/v1beta1",
        "kind": "KatibConfig",
        "init": {
            "certGenerator": {"enable": False},
            "controller": {
                "webhookPort": webhook,
                "metricsAddr": f"127.0.0.1:{metrics}",
                "healthzAddr": f"127.0.0.1:{health}",
                "trialResources": ["Job.v1.batch"],
            },
        },
        "runtime": {
            "suggestions": [
                {"algorithmName": each, "image": "goptuna", "securityContext": RESTRICTED} for each in ALGORITHMS
            ]
        },
    }
    (home / "katib-config.yaml").write_text(yaml.safe_dump(config))
    data = {"katib-config.yaml": yaml.safe_dump(config)}
    kept(plane, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    kept(plane, f"/api/v1/namespaces/{NAMESPACE}/configmaps", {"metadata": {"name": "katib-config"}, "data": data})
    authority = webhooks.certified(home / "cert")
    with ExitStack() as stack:
        database = urlsplit(stack.enter_context(postgres_server()).url)
        # This database asks for no password; but without one the manager takes the next word for it.
        settings = {
            "DB_NAME": "postgres", "DB_USER": database.username, "DB_PASSWORD": "any",
            "KATIB_POSTGRESQL_DB_HOST": database.hostname,
            "KATIB_POSTGRESQL_DB_PORT": database.port, "KATIB_POSTGRESQL_DB_DATABASE": database.path[1:],
        }  # fmt: skip
        argv = [*_environment(settings), str(programs["db-manager"]), f"-listen-address=127.0.0.1:{manager}"]
        kept_manager = _begun(stack, MANAGER, argv, plane.home / "katib-db-manager.log")
        kept_manager.until(lambda: kept_manager.said("Start Katib manager"), "its database")
        services = stack.enter_context(_Services(manager, programs["goptuna"], home, stack))
        threading.Thread(target=services.serve_forever, name="katib services", daemon=True).start()
        stack.callback(services.shutdown)
        settings_of_controller = {
            "KUBECONFIG": plane.kubeconfig(), "KATIB_CORE_NAMESPACE": NAMESPACE,
            "HTTPS_PROXY": f"http://127.0.0.1:{services.server_address[1]}",
        }  # fmt: skip
        controller = [
            *_environment(settings_of_controller),
            str(programs["controller"]),
            f"-katib-config={home}/katib-config.yaml",
        ]
        place = shlex.quote(str(CERTIFICATES))
        mounted = f"mkdir -p {place} && mount --bind {shlex.quote(str(home / 'cert'))} {place}"
        script = f"{mounted} && exec {shlex.join(controller)}"
        server = _begun(stack, "katib", ["unshare", "--mount", "sh", "-c", script], plane.home / "katib.log")
        server.until(
            lambda: server.said("Serving webhook server") and server.said("Starting workers"), "its controllers"
        )
        configurations = list(yaml.safe_load_all((source / "webhook" / "webhooks.yaml").read_text()))
        for each in configurations:
            # Nothing runs in the pods of its Jobs, so that it has no container to add there.
            each["webhooks"] = [hook for hook in each["webhooks"] if hook["name"].endswith(OF_EXPERIMENTS)]
        stack.enter_context(webhooks.registered(plane, configurations, webhook, authority))
        yield server


def _begun(stack: ExitStack, name: str, argv: list[str], log: Path) -> Server:
    server = Server(name, argv, log)
    stack.callback(server.kill)
    server.start()
    return server


def _environment(settings: Mapping[str, object]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in settings.items())]
