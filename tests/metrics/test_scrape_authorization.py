"""Read an operator's metrics with and without the right, and its probes among silent clients."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.control.health import CONNECTIONS_MOST, Health, serve
from fairlead.errors import ClusterError
from fairlead.gateway.scrape_authorization import ALLOWED_S, ANSWERS_MOST, TOKEN_MOST, ScrapeAuthorizer


class Reviews:
    """An API server that knows two tokens; `asked` are the reviews that it made."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_away = False

    def create(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(path.rpartition("/")[2])
        if self.is_away:
            raise ApiError("POST", 503, "ServiceUnavailable", "away")
        if content["kind"] == "TokenReview":
            token = content["spec"]["token"]
            user = {"username": token, "groups": ["g"]}
            return {"status": {"authenticated": token in ("reader", "other"), "user": user}}
        assert content["spec"]["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        return {"status": {"allowed": content["spec"]["user"] == "reader" and content["spec"]["groups"] == ["g"]}}


def an_authorizer(reviews: Reviews, now: list[float] | None = None) -> ScrapeAuthorizer:
    times = now if now is not None else [0.0]
    return ScrapeAuthorizer(reviews.create, (ClusterError,), clock=lambda: times[0])


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    health = Health(numbers=lambda: {"fairlead_leader": 1.0}, trouble=str)
    server = serve(health, "127.0.0.1", 0, an_authorizer(Reviews()))
    yield server
    server.shutdown()
    server.server_close()


def status_of(server: ThreadingHTTPServer, path: str, token: str | None = None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_address[1]}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_only_who_may_get_metrics_reads_them_and_everyone_the_probes(server: ThreadingHTTPServer) -> None:
    found = [status_of(server, "/metrics", token) for token in ("reader", "other", "unknown", None)]
    assert found == [200, 403, 401, 401]
    assert [status_of(server, path) for path in ("/livez", "/readyz")] == [200, 200]


@pytest.mark.slow
def test_a_probe_is_answered_while_silent_clients_hold_all_connections(server: ThreadingHTTPServer) -> None:
    silent = [socket.create_connection(server.server_address[:2]) for _ in range(2 * CONNECTIONS_MOST)]  # type: ignore[arg-type]
    try:
        for each in silent:
            each.sendall(b"GET / HTTP/1.1\r\n")
        assert status_of(server, "/livez") == 200
        assert len(server._open) <= CONNECTIONS_MOST  # type: ignore[attr-defined]
    finally:
        for each in silent:
            each.close()


def test_the_api_server_is_asked_once_a_minute_for_a_token() -> None:
    reviews, now = Reviews(), [0.0]
    judge = an_authorizer(reviews, now)
    assert [judge("Bearer reader") for _ in range(3)] == [HTTPStatus.OK] * 3
    assert reviews.asked == ["tokenreviews", "subjectaccessreviews"]
    now[0] = ALLOWED_S
    reviews.is_away = True
    assert judge("Bearer reader") is HTTPStatus.SERVICE_UNAVAILABLE
    reviews.is_away = False
    assert judge("Bearer reader") is HTTPStatus.OK


def test_what_is_no_token_is_not_asked_about_and_answers_are_bounded() -> None:
    reviews = Reviews()
    judge = an_authorizer(reviews)
    for header in (None, "", "Bearer", "Bearer  ", "Basic reader", f"Bearer {'x' * (TOKEN_MOST + 1)}"):
        assert judge(header) is HTTPStatus.UNAUTHORIZED
    assert not reviews.asked
    for number in range(2 * ANSWERS_MOST):
        judge(f"Bearer {number}")
    assert len(judge._answers) == ANSWERS_MOST
