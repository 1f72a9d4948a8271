"""A registry that is not to be trusted gets no login by a detour, and no file by a name."""

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.control.image.base_images import pull_base
from fairlead.control.image.content import MANIFEST
from fairlead.control.image.references import read_reference
from fairlead.control.image.registry import Registry, _challenges
from fairlead.control.image.registry_logins import Login
from fairlead.errors import ClusterError, NotAllowed

DIGEST = f"sha256:{'0' * 64}"
LOGIN = Login(user="ada", password="secret")
Answer = tuple[int, Mapping[str, str], bytes]


@contextmanager
def answering(answers: Mapping[str, Answer]) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A server that answers as told, by path; its address, and the requests that came, with their login."""
    came: list[tuple[str, str | None]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            came.append((self.path, self.headers.get("Authorization")))
            status, headers, body = answers.get(self.path.partition("?")[0], (404, {}, b""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", came
        finally:
            server.shutdown()
            thread.join(10)


def test_a_host_that_a_download_is_sent_to_may_not_ask_for_the_login(tmp_path: Path) -> None:
    with answering({"/token": (200, {}, b'{"token": "x"}')}) as (thief, seen):
        wants = {"WWW-Authenticate": f'Bearer realm="http://{thief}/token",service="x"'}
        with answering({"/blob": (401, wants, b"")}) as (elsewhere, _):
            path = f"/v2/acme/base/blobs/{DIGEST}"
            moved = (307, {"Location": f"http://{elsewhere}/blob"}, b"")
            with answering({path: moved}) as (host, _):
                base = read_reference(f"{host}/acme/base")
                with Registry(base, LOGIN) as there, pytest.raises(NotAllowed):
                    there.fetch(base.repository, DIGEST, tmp_path / "blob")
        assert seen == []


@pytest.mark.parametrize(
    ("header", "challenges"),
    [
        ("", []),
        ("Negotiate", [("negotiate", {})]),
        ("Negotiate YWJj==", [("negotiate", {})]),
        ('Basic realm="r"', [("basic", {"realm": "r"})]),
        (
            'Bearer realm="https://r/token",service="s, Basic realm=x" , Basic realm="r"',
            [("bearer", {"realm": "https://r/token", "service": "s, Basic realm=x"}), ("basic", {"realm": "r"})],
        ),
        (
            'Negotiate, NTLM TlRM, BASIC Realm = "a\\"b", bearer scope=x,realm="https://r/token"',
            [
                ("negotiate", {}),
                ("ntlm", {}),
                ("basic", {"realm": 'a"b'}),
                ("bearer", {"scope": "x", "realm": "https://r/token"}),
            ],
        ),
    ],
)
def test_challenges_are_told_apart(header: str, challenges: list[tuple[str, dict[str, str]]]) -> None:
    assert _challenges(header) == challenges


def test_a_token_is_fetched_where_a_password_would_do_too() -> None:
    with Registry(read_reference("registry.example.com/acme"), LOGIN) as there:
        for header in ("%s, Basic realm=r", "Basic realm=r, %s", "Basic realm=r,%s"):
            with pytest.raises(NotAllowed, match=r"http://tokens\.example"):
                there._authorize(header % 'Bearer realm="http://tokens.example/token"', "repository:acme:pull")


def test_a_registry_with_tls_has_the_login_shown_with_tls_only() -> None:
    with Registry(read_reference("registry.example.com/acme"), LOGIN) as there:
        with pytest.raises(NotAllowed, match="has to begin with https://"):
            there._authorize('Bearer realm="http://registry.example.com/token"', "repository:acme:pull")
        assert there._is_ours("/v2/acme/blobs/uploads/")
        assert there._is_ours("https://registry.example.com/v2/acme/blobs/uploads/1")
        assert not there._is_ours("http://registry.example.com/v2/acme/blobs/uploads/1")


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ({"layers": [], "config": {"digest": "sha256:../../secret", "size": 1}}, "names a part by"),
        ({"layers": [], "config": {"digest": "/etc/passwd", "size": 1}}, "names a part by"),
        ({"layers": []}, "is none of an image"),
        ([], "is none of an image"),
        (None, "is none of an image"),
    ],
)
def test_what_describes_no_image_is_told_and_names_no_file(described: Any, why: str, tmp_path: Path) -> None:
    body = b"<html>" if described is None else json.dumps(described).encode()
    answers: dict[str, Answer] = {"/v2/acme/base/manifests/latest": (200, {"Content-Type": MANIFEST}, body)}
    with answering(answers) as (host, _):
        reference = read_reference(f"{host}/acme/base")
        with Registry(reference, LOGIN) as there, pytest.raises(ClusterError, match=why):
            pull_base(there, reference, "linux/amd64", tmp_path)
    assert list(tmp_path.iterdir()) == []
