"""Output of pods that are gone comes from Loki, played by a server with its API: whole, in order, once."""

import json
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fairlead.cluster.kubernetes.client import pod_logs
from fairlead.cluster.kubernetes.client.kept_output import KeptOutput
from fairlead.cluster.kubernetes.client.loki import PAGE, Loki
from fairlead.cluster.kubernetes.client.pod_logs import PodLogs
from fairlead.cluster.output import EVERYTHING, LogQuery
from fairlead.errors import ClusterError
from tests.kubernetes.loopback import serving

AT_NS = 1_769_860_800 * 10**9
LABELS = ("fairlead_run_uid", "fairlead_attempt", "fairlead_index")
Kept = dict[tuple[int, int], list[tuple[int, str]]]


class Server:
    """A Loki with the lines of one run, which wants a token and a tenant."""

    def __init__(self, lines: Kept) -> None:
        self.lines = lines
        self.num_asked = 0

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.num_asked += 1
                path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
                allowed = self.headers["Authorization"] == "Bearer t" and self.headers["X-Scope-OrgID"] == "ml"
                code, body = (200, server.answer(path, query)) if allowed else (401, b"no org id")
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def answer(self, path: str, query: dict[str, list[str]]) -> bytes:
        assert path == "/loki/api/v1/query_range"
        assert (query["query"], query["direction"]) == (['{fairlead_run_uid="u1"}'], ["forward"])
        start, end, limit = (int(query[name][0]) for name in ("start", "end", "limit"))
        found = sorted(
            (at_ns, place, text) for place, lines in self.lines.items() for at_ns, text in lines if start <= at_ns < end
        )[:limit]
        streams: dict[tuple[int, int], list[list[str]]] = {}
        for at_ns, place, text in found:
            streams.setdefault(place, []).append([str(at_ns), text])
        result = [
            {
                "stream": {
                    "fairlead_run_uid": "u1",
                    "fairlead_attempt": str(place[0]),
                    "fairlead_index": str(place[1]),
                },
                "values": values,
            }
            for place, values in streams.items()
        ]
        return json.dumps({"status": "success", "data": {"resultType": "streams", "result": result}}).encode()


def logs_of(
    store: KeptOutput | None, query: LogQuery = EVERYTHING, kept: dict[tuple[int, int], str] | None = None
) -> list[str]:
    """The lines of a run that began at the first of them, of which no pod is there any more."""

    class Client:
        def items(self, *_: object) -> list[Any]:
            return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_logs, "kept_lines", lambda *_: dict(kept or {}))
        client: Any = Client()
        found = PodLogs(client, "team", "u1", query, ranks_per_pod=1, store=store, since=AT_NS / 1e9)
        return [f"{line.attempt}/{line.rank} {line.text}" for line in found.all()]


def test_lines_come_in_the_order_of_starts_and_times_with_their_ranks() -> None:
    lines: Kept = {
        (0, 0): [(AT_NS, "0| a"), (AT_NS + 2_000_000, "0! c")],
        (0, 1): [(AT_NS + 1_000_000, "1| b")],
        (1, 0): [(AT_NS + 10**9, "0| again")],
    }
    with serving(Server(lines).handler()) as url:
        loki = Loki(url=url, token="t", tenant="ml")
        assert logs_of(loki) == ["0/0 a", "0/1 b", "0/0 c", "1/0 again"]
        assert logs_of(loki, LogQuery(attempt=1)) == ["1/0 again"]
        assert logs_of(loki, LogQuery(ranks=frozenset({1}))) == ["0/1 b"]
        assert logs_of(loki, LogQuery(tail=2)) == ["0/0 c", "1/0 again"]


def test_more_lines_than_one_answer_has_come_once_each() -> None:
    # Three at a time, so that answers end between lines of one moment.
    many: Kept = {(0, 0): [(AT_NS + (number // 3) * 1000, f"0| line {number}") for number in range(2 * PAGE + 7)]}
    server = Server(many)
    with serving(server.handler()) as url:
        found = logs_of(Loki(url=url, token="t", tenant="ml"))
    assert len(found) == 2 * PAGE + 7
    assert len(set(found)) == len(found)
    assert server.num_asked <= 3 + 60, "a window of thirty days each"


def test_the_last_lines_are_shown_where_loki_does_not_answer_or_has_none() -> None:
    kept = {(0, 0): "2026-01-31T12:00:00Z 0| the end\n"}
    with serving(Server({}).handler()) as url:
        assert logs_of(Loki(url=url, token="t", tenant="ml"), kept=kept) == ["0/0 the end"]
        told = logs_of(Loki(url=url), kept=kept)
    assert told[0] == "0/0 the end"
    assert told[1].startswith(f"0/-1 fairlead: Loki at {url} answers 401: no org id")
    assert logs_of(None, kept=kept) == ["0/0 the end"]


def test_the_environment_names_the_server() -> None:
    assert Loki.of({}) is None
    named = {"FAIRLEAD_LOKI_URL": "https://loki/", "FAIRLEAD_LOKI_TOKEN": "t", "FAIRLEAD_LOKI_TENANT": "ml"}
    assert Loki.of(named) == Loki(url="https://loki", token="t", tenant="ml")
    with pytest.raises(ClusterError, match="give an address such as https://loki"):
        Loki.of({"FAIRLEAD_LOKI_URL": "loki.example.com"})
