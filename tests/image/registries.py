"""A real registry for tests: Debian's docker-registry, which speaks the distribution specification, on loopback.

With `Access.TOKENS` it trusts a server of ours that gives tokens as Docker's token authentication describes them: a
JSON Web Token that names what may be done with which repository, signed by a key whose certificate the registry has.
"""

import base64
import contextlib
import datetime
import enum
import http.server
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from tests.debian import program
from tests.ports import free_ports
from tests.processes import Child
from tests.waiting import until

USER, PASSWORD = "ada", "secret"
HTPASSWD = "ada:$2b$04$9FhzN3WItUQVwqqSriJlCeQjxprouZccPQVmUUJTZWjg0RRGHxowO\n"
ISSUER, SERVICE = "tests", "registry"
LIMIT_S = 600.0
"""Of a registry: two versions of Fairlead's image of 180 MB are built and taken to nodes while it serves."""


class Access(enum.Enum):
    """Demands of a registry on those who come."""

    NOTHING = enum.auto()
    PASSWORD = enum.auto()
    TOKENS = enum.auto()


@dataclass(kw_only=True)
class RegistryServer:
    """A registry that runs.

    Attributes:
        log: Its log, with every request.
    """

    host: str
    log: Path
    scopes: list[str] = field(default_factory=list)

    def requests(self, method: str) -> list[str]:
        """Paths that were asked for with a method so far."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [
            each["http.request.uri"]
            for each in lines
            if each.get("http.request.method") == method and each.get("msg", "").startswith("response completed")
        ]


@contextlib.contextmanager
def registry(place: Path, access: Access = Access.NOTHING) -> Iterator[RegistryServer]:
    """A registry that keeps its content in a directory."""
    binary = program("docker-registry", "docker-registry")
    place.mkdir(parents=True, exist_ok=True)
    port, tokens_port = free_ports(2)
    server = RegistryServer(host=f"127.0.0.1:{port}", log=place / "registry.log")
    config: dict[str, Any] = {
        "version": "0.1",
        "log": {"formatter": "json", "level": "info"},
        "storage": {"filesystem": {"rootdirectory": str(place / "content")}, "delete": {"enabled": True}},
        "http": {"addr": server.host, "secret": "of tests"},
    }
    with contextlib.ExitStack() as stack:
        if access is Access.PASSWORD:
            (place / "htpasswd").write_text(HTPASSWD)
            config["auth"] = {"htpasswd": {"realm": "tests", "path": str(place / "htpasswd")}}
        elif access is Access.TOKENS:
            stack.enter_context(_token_server(tokens_port, place / "tokens.pem", server.scopes))
            realm = f"http://127.0.0.1:{tokens_port}/token"
            trust = {"realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": str(place / "tokens.pem")}
            config["auth"] = {"token": trust}
        (place / "config.yml").write_text(yaml.safe_dump(config))
        with server.log.open("w") as log:
            argv = [str(binary), "serve", str(place / "config.yml")]
            child = stack.enter_context(Child(argv, limit_s=LIMIT_S, stdout=log, stderr=subprocess.STDOUT))

            def answers() -> bool:
                assert child.poll() is None, server.log.read_text()
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    return True
                return False

            stack.callback(child.kill)
            until(answers)
            yield server


def login_file(home: Path, host: str, **entry: str) -> Path:
    """A directory for DOCKER_CONFIG with a login, by default that of `USER`."""
    home.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (home / "config.json").write_text(json.dumps({"auths": {host: entry or {"auth": auth}}}))
    return home


@contextlib.contextmanager
def _token_server(port: int, bundle: Path, scopes: list[str]) -> Iterator[None]:
    """Give a token to who knows the password, or the refresh token, for what they ask for; nobody else gets any."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ISSUER)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    bundle.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    chain = [base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()]

    def token(asked: list[str]) -> str:
        allowed = []
        for scope in asked:
            kind, repository, actions = scope.split(":")
            allowed.append({"type": kind, "name": repository, "actions": actions.split(",")})
        at = int(time.time())
        claims = {
            "iss": ISSUER, "sub": USER, "aud": SERVICE, "exp": at + 300, "nbf": at - 60, "iat": at, "jti": "1",
            "access": allowed,
        }  # fmt: skip
        signed = f"{_web64({'typ': 'JWT', 'alg': 'RS256', 'x5c': chain})}.{_web64(claims)}"
        signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._give(parse_qs(urlsplit(self.path).query).get("scope", []), "token")

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            is_known = form["refresh_token"] == ["refreshing"] and form["grant_type"] == ["refresh_token"]
            self._give(form["scope"][0].split(), "access_token", is_known=is_known)

        def _give(self, asked: list[str], named: str, *, is_known: bool = False) -> None:
            header = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
            if not is_known and self.headers.get("Authorization") != header:
                self.send_response(401)
                body = b'{"errors": [{"message": "who are you?"}]}'
            else:
                scopes.extend(asked)
                self.send_response(200)
                body = json.dumps({named: token(asked)}).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(10)


def _web64(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
