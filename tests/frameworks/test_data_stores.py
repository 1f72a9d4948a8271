"""Runs read data of Google Cloud Storage and of a mirror of the Hugging Face Hub, through the stores' own libraries.

The servers are stand-ins on loopback, which answer only to the keys of the secrets. `pytest -m frameworks` runs these.
"""

import hashlib
import io
import json
import os
import secrets
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.data_situations import HUB, PARQUET, PROGRAM, leaks
from tests.frameworks.environments import interpreter_with
from tests.home import end_everything

pytestmark = [pytest.mark.slow, pytest.mark.frameworks]
MOMENT = "2026-11-01T00:00:00.000000Z"
ROWS = 40


def parquet_of(first: int) -> bytes:
    """A file of half of the rows, in row groups of five."""
    arrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    sink = io.BytesIO()
    numbers = list(range(first, first + ROWS // 2))
    parquet.write_table(arrow.table({"x": numbers, "y": [str(number) for number in numbers]}), sink, row_group_size=5)
    return sink.getvalue()


class Store(BaseHTTPRequestHandler):
    """Answers GET requests that have the token; ``objects`` by their names."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    token: str

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            self._send(401, b'{"error": {"message": "Invalid Credentials"}}')
            return
        place = urlsplit(self.path)
        self.answer(unquote(place.path), {name: values[0] for name, values in parse_qs(place.query).items()})

    do_HEAD = do_GET  # noqa: N815

    def answer(self, path: str, query: dict[str, str]) -> None:
        raise NotImplementedError

    def content(self, name: str) -> None:
        """Send the range of an object that the request is for."""
        whole = self.objects[name]
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, stop = int(first), int(last or len(whole) - 1) + 1
        self._send(206, whole[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(whole)}"})

    def json(self, content: Any) -> None:
        self._send(200 if content is not None else 404, json.dumps(content or {"error": "no such object"}).encode())

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class CloudStorage(Store):
    """The JSON API of Google Cloud Storage, and the endpoint that gives a token for a signed assertion."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(200, json.dumps({"access_token": self.token, "expires_in": 3600, "token_type": "Bearer"}).encode())

    def answer(self, path: str, query: dict[str, str]) -> None:
        prefix = "/storage/v1/b/lake/o"
        if path.startswith(f"/download{prefix}/"):
            self.content(path.removeprefix(f"/download{prefix}/"))
        elif path == prefix:
            listed = [self._described(name) for name in self.objects if name.startswith(query.get("prefix", ""))]
            self.json({"items": listed})
        else:
            self.json(self._described(path.removeprefix(f"{prefix}/")))

    def _described(self, name: str) -> dict[str, str] | None:
        data = self.objects.get(name)
        if data is None:
            return None
        tag = hashlib.sha256(data).hexdigest()[:12]
        return {
            "name": name, "bucket": "lake", "size": str(len(data)), "etag": tag, "generation": "1",
            "timeCreated": MOMENT, "updated": MOMENT,
        }  # fmt: skip


class Hub(Store):
    """A mirror of one data set of the Hugging Face Hub."""

    def answer(self, path: str, query: dict[str, str]) -> None:
        api, files = "/api/datasets/lab/digits", "/datasets/lab/digits/resolve/"
        if path.startswith(files):
            self.content(path.removeprefix(files).partition("/")[2])
        elif path.startswith(f"{api}/tree/"):
            below = path.removeprefix(f"{api}/tree/").partition("/")[2]
            self.json([
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.objects.items() if name.startswith(below)
            ])  # fmt: skip
        else:
            known = path == api or path.startswith(f"{api}/revision/")
            self.json({"id": "lab/digits", "sha": "0" * 40} if known else None)


@contextmanager
def serving(kind: type[Store], objects: dict[str, bytes], token: str) -> Iterator[str]:
    """The URL of such a server."""
    handler = type(kind.__name__, (kind,), {"objects": objects, "token": token})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Desk:
    """A user in a directory of their own, whose Python has the libraries of these stores."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        python = interpreter_with("data-stores")
        self.directory = directory
        self._argv = (str(python), "-m", "fairlead.cli.main")
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLEAD_", "HF_"))}
        self._environ = {
            **variables, "PATH": f"{python.parent}:{os.environ['PATH']}", "FAIRLEAD_HOME": str(directory / "home"),
            **environ,
        }  # fmt: skip

    def __call__(self, *arguments: str, code: int = 0) -> str:
        ended = subprocess.run(
            [*self._argv, *arguments], cwd=self.directory, env=self._environ, capture_output=True, text=True,
            timeout=120.0, check=False,
        )  # fmt: skip
        said = ended.stdout + ended.stderr
        assert ended.returncode == code, said
        assert "Traceback" not in said
        return said


def read(desk: Desk, spec: str, check: str, changed: Any) -> str:
    """What is said when a run reads its data, and another one after the data was changed underneath."""
    (desk.directory / "train.py").write_text(PROGRAM.replace("CHECK", check))
    (desk.directory / "train.yaml").write_text(spec)
    said = desk("plan", "train.yaml")
    ran = desk("run", "train.yaml")
    assert f"read {ROWS} samples of version " in ran
    version = ran.partition("samples of version ")[2].split()[0]
    assert f"version {version}, 2 objects" in said
    for words in (("show", spec.split()[1]), ("events", spec.split()[1], "--json"), ("logs", spec.split()[1])):
        said += desk(*words)
    changed()
    refused = desk("run", "train.yaml", "--name", "other", "--set", f"data.train.version={version}", code=2)
    assert f"and not {version}, which was asked for" in refused
    return said + ran + refused


CHECK_ROWS = f"assert sorted((row['x'], row['y']) for row in samples) == [(n, str(n)) for n in range({ROWS})], samples"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end_everything(tmp_path / "home")


def test_parquet_on_google_cloud_storage_is_read_with_the_key_of_a_service_account(directory: Path) -> None:
    token = secrets.token_hex(16)
    own = generate_private_key(public_exponent=65537, key_size=2048)
    pem = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    objects = {"rows/a.parquet": parquet_of(0), "rows/b.parquet": parquet_of(ROWS // 2), "other/c.txt": b"c"}
    with serving(CloudStorage, objects, token) as url:
        # Without the second gcsfs asks another service, by gRPC, of which kind the bucket is, and waits for minutes.
        desk = Desk(directory, {"STORAGE_EMULATOR_HOST": url, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"})
        key = {
            "type": "service_account", "client_email": "a@b.iam", "private_key": pem, "private_key_id": "k",
            "project_id": "lake", "token_uri": f"{url}/token",
        }  # fmt: skip
        (directory / "key.json").write_text(json.dumps(key))
        said = desk("secrets", "set", "lake", "--from-file", "key.json=key.json")
        (directory / "key.json").unlink()
        said += read(desk, PARQUET, CHECK_ROWS, lambda: objects.update({"rows/a.parquet": parquet_of(1)}))
    keys = (token, pem, pem.splitlines()[5])
    assert [key for key in keys if key in said] == []
    assert leaks(directory, keys, besides=[directory / "home" / "secrets"]) == []


def test_a_data_set_of_a_mirror_of_the_hub_is_read_with_its_token(directory: Path) -> None:
    token = f"hf_{secrets.token_hex(16)}"
    objects = {"README.md": b"# Digits", "data/a.parquet": parquet_of(0), "data/b.parquet": parquet_of(ROWS // 2)}
    with serving(Hub, objects, token) as url:
        desk = Desk(directory, {"HF_ENDPOINT": url})
        (directory / "token").write_text(token)
        said = desk("secrets", "set", "hub", "--from-file", "HF_TOKEN=token")
        (directory / "token").unlink()
        said += read(desk, HUB, CHECK_ROWS, lambda: objects.update({"data/a.parquet": parquet_of(1)}))
    assert token not in said
    assert leaks(directory, [token], besides=[directory / "home" / "secrets"]) == []
