"""The likeliest mistakes with data, at a real S3 server where they can be made there, named before anything starts."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fairlead.control.data import upload_directory
from tests.cli.conftest import Call
from tests.cli.test_datasets import files
from tests.s3 import S3, s3, s3_binary

__all__ = ["s3", "s3_binary"]


def spec(source: str) -> str:
    """A file of a run with this data."""
    Path("train.yaml").write_text(f"run: python -c pass\ndata: {{train: {source}}}\n")
    return "train.yaml"


MISTAKES = [
    ("s3://modles/rows", {}, "there is no bucket modles at http://127.0.0.1"),
    ("s3://models/row", {}, "s3://models/row has no objects; correct the path, which is compared by whole parts"),
    ("s3://models/rows/0", {}, "s3://models/rows/0 has no objects; correct the path"),
    ("{from: s3://models/rows, include: '*.tar'}", {}, "none of the 4 objects of s3://models/rows matches include"),
    ("s3://models/rows", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "does not know these credentials (SignatureDoesNotMatch)"),
    ("s3://models/rows", {"AWS_ACCESS_KEY_ID": "nobody"}, "does not know these credentials ("),
    ("s3://models/rows", {"AWS_DEFAULT_REGION": "eu-west-1"}, "the bucket models is in another region; set AWS_REGION"),
    ("s3://models/rows", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "http://127.0.0.1:9 cannot be reached: "),
    ("{from: s3://models/rows, credentials: reader}", {}, "there is no secret `reader`"),
    ("http://127.0.0.1/rows/", {}, "is a directory, which an HTTP server does not list; name its files"),
    ("rows", {}, "there is no directory"),
    ("rows@2", {}, "there is no Dataset rows of team default or shared with it; there is none; `fairlead apply FILE`"),
]


def test_each_mistake_is_named_before_anything_starts(call: Call, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    files(Path("one"))
    upload_directory(Path("one"), "s3://models/rows")
    assert call("plan", spec("s3://models/rows")).code == 0
    wrong = []
    for source, variables, sentence in MISTAKES:
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            answer = call("run", spec(source))
        if answer.code != 2 or sentence not in answer.err:
            wrong.append((source, variables, answer.code, answer.err))
    assert wrong == []
    assert call("status", "--json").out.strip() == "[]"


class Refusing(BaseHTTPRequestHandler):
    """Answers as S3 does where a session is over, or an account lacks a right, by the name of the bucket."""

    def do_GET(self) -> None:
        status, code = (400, "ExpiredToken") if self.path.startswith("/expired") else (403, "AccessDenied")
        content = f"<Error><Code>{code}</Code></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "reader-secret")
    yield
    server.shutdown()
    thread.join(60)
    server.server_close()


@pytest.mark.parametrize(
    ("bucket", "sentence"),
    [
        ("expired", "the credentials for s3://expired/rows have expired; sign in again (ExpiredToken)"),
        ("denied", "these credentials have no right to list in the bucket denied (AccessDenied); ask its owner"),
    ],
)
def test_expired_keys_and_missing_rights_are_told_apart(call: Call, refusing: None, bucket: str, sentence: str) -> None:
    answer = call("run", spec(f"s3://{bucket}/rows"))
    assert (answer.code, sentence in answer.err, "reader-secret" in answer.err) == (2, True, False), answer.err


def test_a_cache_without_room_is_named_by_warm(call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_DATA_CACHE", "1Ki")
    said = call("data", "warm", str(files(Path("one")))).out
    assert "0 B of version" in said
    assert "It has no room for the other 3.91 KiB, which runs read from the store each time" in said
