"""Queries by which endpoints scale, asked of a real Prometheus, and what becomes of those it cannot answer."""

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.prometheus import QueryFailed, ask_prometheus
from fairlead.specs.resources import Resources
from fairlead.specs.serving import PrometheusQuery, Scale, Serving
from fairlead.state.endpoint_detail import detail_of
from tests.cluster.test_endpoints import SERVER
from tests.home import end_everything
from tests.metrics.conftest import serving
from tests.waiting import until

NOBODY = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def url(prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("prometheus")
    (place / "prometheus.yml").write_text("global: {}\n")
    with serving(prometheus, place) as found:
        yield found


def asked(url: str, query: str) -> float:
    return ask_prometheus(PrometheusQuery(url=url, query=query, target=1.0))


@pytest.mark.parametrize(
    ("query", "number"), [("vector(2.5)", 2.5), ("scalar(vector(7))", 7.0), ("sum(absent(up))", 1.0), ("1 + 1", 2.0)]
)
def test_a_query_answers_one_number(url: str, query: str, number: float) -> None:
    assert asked(url, query) == number
    assert asked(f"{url}/", query) == number


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("nobody_exports_this", r"finds no series; .* `or vector\(0\)`"),
        ("sum(", "answers with status 400: invalid parameter .*query"),
        ("up[5m]", "a matrix, and one number is needed"),
        ("vector(0) / 0", "answers NaN, which is not a number"),
        ("label_replace(vector(1), 'a', 'b', '', '') or vector(2)", "finds 2 series, .* put `sum"),
        ("'text'", "a string, and one number"),
    ],
)
def test_what_is_not_one_number_says_why(url: str, query: str, why: str) -> None:
    with pytest.raises(QueryFailed, match=why):
        asked(url, query)


def test_a_server_that_is_out_says_so() -> None:
    with pytest.raises(QueryFailed, match=f"{NOBODY} does not answer: .*refused"):
        asked(NOBODY, "up")


def test_no_redirect_is_followed_and_words_that_are_no_prometheus_are_not_told() -> None:
    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(302 if self.path.startswith("/away") else 500)
            self.send_header("Location", "/secret")
            self.end_headers()
            self.wfile.write(b"a secret")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        at = f"http://127.0.0.1:{server.server_address[1]}"
        with pytest.raises(QueryFailed) as found:
            asked(f"{at}/away", "up")
        assert str(found.value) == f"{at}/away answers with status 302"
        with pytest.raises(QueryFailed) as found:
            asked(at, "up")
        assert str(found.value) == f"{at} answers with status 500"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_an_endpoint_follows_a_real_prometheus_and_stays_as_it_is_while_that_is_out(
    prometheus: Path, tmp_path: Path
) -> None:
    (tmp_path / "prometheus.yml").write_text("global: {}\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "server.py").write_text(SERVER)
    desk = LocalCluster.open(tmp_path / "home")
    try:
        with serving(prometheus, tmp_path) as url:
            query = PrometheusQuery(url=url, query="vector(25)", target=10.0)
            endpoint = desk.submit(
                Serving(
                    name="hello",
                    run=f"{sys.executable} server.py",
                    workdir=str(tmp_path / "work"),
                    replicas=1,
                    most_replicas=4,
                    scale=Scale(prometheus=query),
                    resources=Resources(cpu_milli=50),
                    grace_s=5.0,
                )
            )  # fmt: skip
            desk.nudge()
            until(lambda: detail_of(desk.get(endpoint.uid)).ready == 3)
        until(lambda: "MetricUnavailable" in [each.type for each in desk.events(endpoint.uid)], timeout_s=90.0)
        assert detail_of(desk.get(endpoint.uid)).ready == 3
        told = desk.get(endpoint.uid).status.reason.message
        assert told.startswith(f"3 of 3 replicas of r1 are ready; its query has no answer: {url} does not answer: ")
    finally:
        desk.close()
        end_everything(tmp_path / "home")
