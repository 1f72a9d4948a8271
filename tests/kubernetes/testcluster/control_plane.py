"""etcd, API server, controller manager, scheduler and kwok on loopback: all of Kubernetes but the machines."""

import base64
import fcntl
import http.client
import io
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trustme
import yaml

from tests.kubernetes.testcluster import binaries, leftovers
from tests.kubernetes.testcluster.errors import Broken
from tests.kubernetes.testcluster.processes import Server
from tests.ports import free_ports

ADMIN = "admin"
CLIENT_QPS = 5_000

API_SERVICE = "10.96.0.1"
"""The address of the Service `kubernetes`, the first of the services' network."""

POD_GROUPS = {
    "apiserver": ["--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1beta1=true"],
    "controller-manager": ["--feature-gates=GenericWorkload=true"],
    "scheduler": ["--feature-gates=GenericWorkload=true"],
}
"""Flags of a control plane that has PodGroups, from 1.37 on; by default none has."""

INTERNAL = "internal.kubeconfig"
STAGES = Path(__file__).with_name("stages.yaml")


class ControlPlane:
    """One control plane; use it as a context, or ``start`` and ``stop`` it.

    What processes leave that were killed, the next control plane that starts takes away.

    Args:
        version: Kubernetes version, of those in ``binaries/``.
        users: Further users by name, each with its groups; their tokens are their names. RBAC gives them nothing.
        client_qps: Requests a second that scheduler and controller manager allow themselves; None leaves Kubernetes'
            defaults, 50 and 20, with which 1,000 pods take half a minute to be bound.
        flags: Added to the command line of a server, by the server's name.
        audit: Keep the requests of all users but the control plane's own in ``audit_log``.
    """

    def __init__(
        self,
        *,
        version: str = binaries.DEFAULT,
        users: Mapping[str, Sequence[str]] | None = None,
        audit: bool = False,
        client_qps: int | None = CLIENT_QPS,
        flags: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.version = version
        self._limits = [f"--kube-api-qps={client_qps}", f"--kube-api-burst={client_qps}"] if client_qps else []
        self._flags = flags or {}
        self._users = {ADMIN: ("system:masters",), **(users or {})}
        self._audit = audit
        leftovers.sweep()
        self.home = leftovers.new_home()
        """Everything of it, logs among it; gone when it stops."""
        self._alive = (self.home / leftovers.LOCK).open("w")
        fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._servers: dict[str, Server] = {}
        self._readers = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []
        self.url = ""
        self.etcd_url = ""

    def __enter__(self) -> "ControlPlane":
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop(
            keep_logs=kind is not None and not issubclass(kind, KeyboardInterrupt) if isinstance(kind, type) else False
        )

    @property
    def kubectl(self) -> Path:
        """A kubectl that fits."""
        return binaries.ensure(self.version, ["kubectl"])["kubectl"]

    @property
    def audit_log(self) -> Path:
        """Audit events, one JSON object a line."""
        return self.home / "audit.jsonl"

    def start(self) -> None:
        """Start everything; seconds, once the binaries exist.

        Raises:
            Unavailable: This machine cannot build the binaries.
            Broken: A part of it did not come up.
        """
        try:
            self._bring_up()
        except BaseException as error:
            self.stop(keep_logs=isinstance(error, Broken))
            raise

    def stop(self, *, keep_logs: bool = False) -> None:
        """Kill everything and remove its files, but for the logs if somebody wants to read them."""
        for connection in self._connections:
            connection.close()
        for server in reversed(self._servers.values()):
            server.kill()
        leftovers.remove(self.home, keep_logs=keep_logs)
        self._alive.close()

    def await_namespace(self, name: str) -> None:
        """Wait until a new namespace takes pods: the controllers put the service account there that they need."""
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self._servers["controller-manager"].until(lambda: self.exists(path), f"the service account of {name}")

    def kill(self, name: str) -> None:
        """SIGKILL for ``etcd``, ``apiserver``, ``controller-manager``, ``scheduler`` or ``kwok``."""
        self._servers[name].kill()

    def restart(self, name: str) -> None:
        """Start a part of it again, and wait until it serves."""
        server = self._servers[name]
        server.kill()
        server.start()
        if name == "apiserver":
            server.until(self._is_ready, "/readyz")
        elif name == "etcd":
            server.until(lambda: server.said("ready to serve client requests"), "client service")
        elif name == "kwok":
            server.until(lambda: server.said("Starting HTTP server"), "service")

    def kubeconfig(self, user: str = ADMIN, *, namespace: str = "default") -> Path:
        """A kubeconfig file for a user."""
        path = self.home / f"kubeconfig-{user}-{namespace}"
        self._write_kubeconfig(path, self.url, user, namespace)
        return path

    def _write_kubeconfig(self, path: Path, url: str, user: str, namespace: str) -> None:
        authority = base64.b64encode((self.home / "ca.pem").read_bytes()).decode()
        context = {"cluster": "test", "user": user, "namespace": namespace}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "contexts": [{"name": "test", "context": context}],
                    "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": authority}}],
                    "users": [{"name": user, "user": {"token": user}}],
                }
            )
        )

    def request(self, method: str, path: str, body: object = None, *, user: str = ADMIN, kind: str = "json") -> Any:
        """One request of a user, for tests; the parsed answer.

        Args:
            kind: Of the body: ``json``, or ``merge-patch+json``, ``apply-patch+yaml`` and the like.

        Raises:
            urllib.error.HTTPError: The API server refused it.
        """
        if method == "GET":
            return self._read(path, user)
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {user}", "Content-Type": f"application/{kind}"},
        )
        with urllib.request.urlopen(request, context=self._tls(), timeout=30) as answer:
            return json.load(answer)

    def _read(self, path: str, user: str) -> Any:
        """Ask on a connection that stays: whoever waits for something looks twenty times a second."""
        headers = {"Authorization": f"Bearer {user}"}
        connection: http.client.HTTPSConnection | None = getattr(self._readers, "connection", None)
        if connection is None:
            host = self.url.removeprefix("https://")
            connection = http.client.HTTPSConnection(host, timeout=30, context=self._tls())
            self._readers.connection = connection
            self._connections.append(connection)
        was_open = connection.sock is not None
        try:
            try:
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException):
                connection.close()
                if not was_open:
                    raise
                connection.request("GET", path, headers=headers)  # the server may have been another since
                answer = connection.getresponse()
            content = answer.read()
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise urllib.error.URLError(error) from error
            raise
        if answer.status >= 400:
            url = self.url + path
            raise urllib.error.HTTPError(url, answer.status, answer.reason, answer.headers, io.BytesIO(content))
        return json.loads(content)

    def exists(self, path: str) -> bool:
        """Tell whether the API server has something at this path."""
        return self._answers(path, 404)

    def serves(self, path: str) -> bool:
        """Tell whether the objects of a kind that was defined just now can be asked for."""
        return self._answers(path, 404, 429)  # 429 while the storage for them is made

    def _answers(self, path: str, *absent: int) -> bool:
        try:
            self.request("GET", path)
        except urllib.error.HTTPError as error:
            if error.code in absent:
                return False
            raise
        return True

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.home / "ca.pem"))

    def _is_ready(self) -> bool:
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {ADMIN}"})
        try:
            with urllib.request.urlopen(request, context=self._tls(), timeout=10) as answer:
                return bool(answer.status == 200)
        except (OSError, http.client.HTTPException):  # it does not listen yet, or is not ready
            return False

    def _bring_up(self) -> None:
        paths = binaries.ensure(self.version)
        etcd_port, peer_port, self._api_port, kwok_port = free_ports(4)
        self.url = f"https://127.0.0.1:{self._api_port}"
        self.etcd_url = f"http://127.0.0.1:{etcd_port}"
        self._prepare()
        self._write_identity()
        self._servers |= {
            server.name: server
            for server in (
                self._server("etcd", paths, _etcd(self.home, etcd_port, peer_port)),
                self._server("apiserver", paths, self._apiserver(etcd_port)),
                self._server("controller-manager", paths, [*_controller_manager(self.home), *self._limits]),
                self._server("scheduler", paths, [*_scheduler(self.home), *self._limits]),
                self._server("kwok", paths, _kwok(self.home, kwok_port)),
            )
        }
        for name in self._servers:
            self.restart(name)
        self.await_namespace("default")

    def _server(self, name: str, paths: Mapping[str, Path], argv: Sequence[str]) -> Server:
        binary = paths[name if name in paths else f"kube-{name}"]
        return Server(
            name, [str(binary), *argv, *self._flags.get(name, ())], self.home / f"{name}.log", network=self._network
        )

    def _apiserver(self, etcd_port: int) -> list[str]:
        return [*self._listening, *_apiserver(self.home, etcd_port, audit=self._audit)]

    @property
    def _listening(self) -> list[str]:
        """The API server's flags for where it is reached."""
        return ["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self._api_port}"]

    def _prepare(self) -> None:
        """What the servers need before they start."""

    @property
    def _network(self) -> str | None:
        """The network namespace that the servers run in; None is ours."""
        return None

    @property
    def _internal_url(self) -> str:
        """Where the servers themselves find the API server."""
        return self.url

    def _write_identity(self) -> None:
        """Certificates, the key of service accounts, and the users' tokens."""
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.home / "ca.pem"))
        serving = authority.issue_cert("127.0.0.1", "localhost", "kubernetes.default.svc", API_SERVICE)
        serving.private_key_pem.write_to_path(str(self.home / "serving.key"))
        (self.home / "serving.pem").write_bytes(b"".join(blob.bytes() for blob in serving.cert_chain_pems))
        authority.issue_cert("service-accounts").private_key_pem.write_to_path(str(self.home / "accounts.key"))
        lines = [f'{name},{name},{name},"{",".join(groups)}"' for name, groups in self._users.items()]
        (self.home / "tokens.csv").write_text("\n".join(lines) + "\n")
        (self.home / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
        self._write_kubeconfig(self.home / INTERNAL, self._internal_url, ADMIN, "default")


AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "users": [ADMIN, "system:apiserver"]}, {"level": "Metadata"}],
}


def _etcd(home: Path, port: int, peer_port: int) -> list[str]:
    return [
        f"--data-dir={home / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{port}",
        f"--advertise-client-urls=http://127.0.0.1:{port}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
        f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
        "--unsafe-no-fsync",
        # Alone it has nobody to send signs of life to, by default ten a second; it takes office at the first of them.
        "--heartbeat-interval=500",
        "--election-timeout=5000",
        "--log-level=info",
    ]


def _apiserver(home: Path, etcd_port: int, *, audit: bool) -> list[str]:
    argv = [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        f"--tls-cert-file={home / 'serving.pem'}",
        f"--tls-private-key-file={home / 'serving.key'}",
        f"--token-auth-file={home / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={home / 'accounts.key'}",
        f"--service-account-signing-key-file={home / 'accounts.key'}",
        "--service-cluster-ip-range=10.96.0.0/16",
        # Bound to loopback there is no address that an endpoint may have.
        "--endpoint-reconciler-type=none",
        "--allow-privileged=true",
        "--max-requests-inflight=2000",
        "--max-mutating-requests-inflight=1000",
    ]
    if audit:
        argv += [f"--audit-policy-file={home / 'audit-policy.yaml'}", f"--audit-log-path={home / 'audit.jsonl'}"]
    return argv


def _controller_manager(home: Path) -> list[str]:
    return [
        f"--kubeconfig={home / INTERNAL}",
        f"--service-account-private-key-file={home / 'accounts.key'}",
        f"--root-ca-file={home / 'ca.pem'}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--secure-port=0",
        # Twice as long as kwok takes to renew a lease of 40 s.
        "--node-monitor-grace-period=20s",
        "--node-monitor-period=1s",
    ]


def _scheduler(home: Path) -> list[str]:
    return [
        f"--kubeconfig={home / INTERNAL}",
        "--leader-elect=false",
        "--secure-port=0",
    ]


def _kwok(home: Path, port: int) -> list[str]:
    return [
        f"--kubeconfig={home / INTERNAL}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--cidr=10.244.0.1/16",
        "--node-ip=127.0.0.1",
        "--node-lease-duration-seconds=40",
        f"--server-address=127.0.0.1:{port}",
        f"--config={STAGES}",
    ]
