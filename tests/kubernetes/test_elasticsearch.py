"""Output of pods that are gone comes from Elasticsearch, played by a server with its API: whole, in order, once."""

import json
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fairlead.cluster.kubernetes.client.elasticsearch import PAGE, Elasticsearch
from fairlead.cluster.kubernetes.client.log_stores import log_store
from fairlead.cluster.kubernetes.client.loki import Loki
from fairlead.errors import ClusterError
from tests.kubernetes.loopback import serving
from tests.kubernetes.test_loki import AT_NS, logs_of

AT_MS = AT_NS // 10**6
Line = tuple[int, int, int, str]
"""Time in milliseconds, attempt, index and text."""


class Server:
    """An Elasticsearch with the lines of one run and of another whose uid has the same beginning; wants a key."""

    def __init__(self, lines: list[Line]) -> None:
        documents = [self.document("u1", *line) for line in lines]
        self.documents = [*documents, self.document("u1 u2", AT_MS, 0, 0, "0| of another")]
        self.scrolls: dict[str, list[dict[str, Any]]] = {}
        self.num_asked = 0

    @staticmethod
    def document(uid: str, at_ms: int, attempt: int, index: int, text: str) -> dict[str, Any]:
        at = f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
        source = {
            "@timestamp": at_ms, "log": text + "\n", "fairlead_run_uid": uid, "fairlead_attempt": str(attempt),
            "fairlead_index": str(index),
        }  # fmt: skip
        return {"_source": source, "fields": {"@timestamp": [at]}}

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code, answer = 401, {"error": "no key"}
                if self.headers["Authorization"] == "ApiKey k":
                    code, answer = 200, server.answer(self.command, self.path, body)
                content = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_DELETE(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def answer(self, method: str, address: str, body: dict[str, Any]) -> dict[str, Any]:
        self.num_asked += 1
        path, query = urlsplit(address).path, parse_qs(urlsplit(address).query)
        if method == "DELETE":
            assert path == "/_search/scroll"
            del self.scrolls[body["scroll_id"]]
            return {"succeeded": True}
        if path == "/_search/scroll":
            return self.page(body["scroll_id"])
        assert (path, query["scroll"]) == ("/fairlead-*/_search", ["1m"])
        assert body["size"] == PAGE
        of_run, within = body["query"]["bool"]["filter"]
        bounds = within["range"]["@timestamp"]
        assert of_run == {"match": {"fairlead_run_uid": "u1"}}
        found = [
            each for each in self.documents if bounds["gte"] <= each["_source"]["@timestamp"] <= bounds["lte"]
        ]  # a match finds both uids
        self.scrolls["s1"] = sorted(found, key=lambda each: each["_source"]["@timestamp"])
        return self.page("s1")

    def page(self, scroll: str) -> dict[str, Any]:
        hits, self.scrolls[scroll] = self.scrolls[scroll][:PAGE], self.scrolls[scroll][PAGE:]
        return {"_scroll_id": scroll, "hits": {"hits": hits}}


def test_lines_come_in_the_order_of_starts_and_times_with_their_ranks() -> None:
    lines = [
        (AT_MS + 1000, 1, 0, "0| again"),
        (AT_MS, 0, 0, "0| a"),
        (AT_MS + 2, 0, 0, "0! c"),
        (AT_MS + 1, 0, 1, "1| b"),
    ]
    server = Server(lines)
    with serving(server.handler()) as url:
        assert logs_of(Elasticsearch(url=url, api_key="k")) == ["0/0 a", "0/1 b", "0/0 c", "1/0 again"]
    assert server.scrolls == {}, "it is told that nobody reads on"


def test_more_lines_than_one_answer_has_come_once_each() -> None:
    server = Server([(AT_MS + number // 3, 0, 0, f"0| line {number}") for number in range(2 * PAGE + 7)])
    with serving(server.handler()) as url:
        found = logs_of(Elasticsearch(url=url, api_key="k"))
    assert found == [f"0/0 line {number}" for number in range(2 * PAGE + 7)]
    assert server.num_asked == 4


def test_the_last_lines_are_shown_where_it_does_not_answer_or_has_documents_of_another_form() -> None:
    kept = {(0, 0): "2026-01-31T12:00:00Z 0| the end\n"}
    server = Server([])
    with serving(server.handler()) as url:
        assert logs_of(Elasticsearch(url=url, api_key="k"), kept=kept) == ["0/0 the end"]
        told = logs_of(Elasticsearch(url=url), kept=kept)
        server.documents = [{"_source": {"fairlead_run_uid": "u1", "@timestamp": AT_MS}}]
        other = logs_of(Elasticsearch(url=url, api_key="k"), kept=kept)
    assert told[1].startswith(f"0/-1 fairlead: Elasticsearch at {url} answers 401: ")
    assert "has documents of another form" in other[1]


def test_the_environment_names_one_store() -> None:
    assert log_store({}) is None
    named = {"FAIRLEAD_ELASTICSEARCH_URL": "https://es:9200/", "FAIRLEAD_ELASTICSEARCH_API_KEY": "k"}
    assert log_store(named) == Elasticsearch(url="https://es:9200", api_key="k")
    other = log_store({**named, "FAIRLEAD_ELASTICSEARCH_INDEX": "logs-*"})
    assert isinstance(other, Elasticsearch)
    assert other.indices == "logs-*"
    assert log_store({"FAIRLEAD_LOKI_URL": "https://loki"}) == Loki(url="https://loki")
    with pytest.raises(ClusterError, match="give an address such as https://elasticsearch"):
        log_store({"FAIRLEAD_ELASTICSEARCH_URL": "es"})
    with pytest.raises(ClusterError, match="both name where output is kept"):
        log_store({**named, "FAIRLEAD_LOKI_URL": "https://loki"})
