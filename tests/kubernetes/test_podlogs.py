"""Lines of kubelet's logs into lines of ranks, read on after a break without a loss and without a repetition."""

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.config import Access
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.operating.lastlines import last_lines
from fairlead.cluster.kubernetes.people.podlogs import Mark, PodLogs, parse
from fairlead.cluster.output import EVERYTHING, LogQuery
from fairlead.cluster.port import LogLine
from fairlead.errors import ClusterError
from tests.kubernetes.loopback import serving


def line(text: str, *, at: float, rank: int = 0, stream: str = "o", attempt: int = 0) -> LogLine:
    return LogLine(at=at, attempt=attempt, rank=rank, stream=stream, text=text)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("2026-01-31T12:00:00.5Z 3| step 1", line("step 1", at=1769860800.5, rank=3)),
        ("2026-01-31T13:00:00.25+01:00 0! oh", line("oh", at=1769860800.25, stream="e")),
        ("2026-01-31T12:00:00Z -| set up", line("set up", at=1769860800.0, rank=-1)),
        ("2026-01-31T12:00:00Z python3: not found", line("python3: not found", at=1769860800.0, rank=-1)),
        ("2026-01-31T12:00:00Z 12| ", line("", at=1769860800.0, rank=12)),
        ("2026-01-31T12:00:00Z 1|   two", line("  two", at=1769860800.0, rank=1)),
    ],
)
def test_a_line_tells_time_rank_and_stream(raw: str, expected: LogLine) -> None:
    found = parse(raw, 0)
    assert found is not None
    assert found[1] == expected


@pytest.mark.parametrize("raw", ["", "no time at all", "2026-99-99T12:00:00Z 0| x"])
def test_what_has_no_time_is_no_line(raw: str) -> None:
    assert parse(raw, 0) is None


def test_reading_on_repeats_nothing_and_loses_nothing() -> None:
    mark = Mark()
    times = [10, 20, 20, 30, 30]
    assert [mark.is_new(at) for at in times] == [True] * 5
    assert mark.again() == "1970-01-01T00:00:00Z"
    # kubelet starts again at the whole second, and one more line has come with the last time.
    assert [mark.is_new(at) for at in (*times, 30, 40)] == [False] * 5 + [True, True]
    assert mark.again() is not None
    assert [mark.is_new(at) for at in (30, 30, 30, 40, 40)] == [False, False, False, False, True]


class Recorded:
    """A client that answers from what a server would hold; logs by pod, or an HTTP status."""

    def __init__(self, logs: Mapping[str, str | int], kept: Mapping[str, str] | None = None) -> None:
        self._logs, self._kept = logs, kept

    def items(self, path: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        assert query == {"labelSelector": "fairlead.dev/run-uid=u"}
        return [_pod(name) for name in self._logs]

    def text(self, path: str, query: Mapping[str, str]) -> str:
        found = self._logs[path.split("/")[-2]]
        if isinstance(found, int):
            raise _refused(path, found)
        return found

    def get(self, path: str) -> dict[str, Any]:
        if self._kept is None:
            raise _refused(path, 404)
        return {"data": dict(self._kept)}


def _pod(name: str) -> dict[str, Any]:
    _, attempt, index = name.split("-")
    labels = {"fairlead.dev/attempt": attempt, "fairlead.dev/index": index}
    states = [{"name": "ranks", "state": {"terminated": {"exitCode": 0}}}]
    return {"metadata": {"name": name, "labels": labels}, "status": {"containerStatuses": states}}


def _refused(path: str, status: int) -> ClusterError:
    return ApiError(path, status, "Reason", "the server's word")


def read(client: Recorded, query: LogQuery = EVERYTHING) -> list[str]:
    logs = PodLogs(client, "ns", "u", query, ranks_per_pod=2)  # type: ignore[arg-type] # a part of it
    return [f"{each.attempt}.{each.rank} {each.text}" for each in logs.all()]


WHOLE = {
    "r-1-0": "2026-01-31T12:00:05Z 0| e\n2026-01-31T12:00:07Z 1| g\n",
    "r-1-1": "2026-01-31T12:00:06Z 2| f\n",
    "r-0-0": "2026-01-31T12:00:01Z 0| a\n2026-01-31T12:00:03Z 1| c\n",
}


def test_all_ranks_are_merged_through_restarts() -> None:
    kept = {"0-1": "2026-01-31T12:00:02Z 3| b\n2026-01-31T12:00:09Z 3| late"}
    assert read(Recorded(WHOLE, kept)) == ["0.0 a", "0.3 b", "0.1 c", "0.3 late", "1.0 e", "1.2 f", "1.1 g"]
    assert read(Recorded(WHOLE, kept), LogQuery(ranks=frozenset({3}))) == ["0.3 b", "0.3 late"]
    assert read(Recorded(WHOLE), LogQuery(attempt=1, ranks=frozenset({2}))) == ["1.2 f"]


def test_what_was_kept_stands_in_for_a_log_that_cannot_be_read() -> None:
    logs: dict[str, str | int] = {**WHOLE, "r-1-1": 502}
    assert "1.-1 the log of pod r-1-1 cannot be read: the server's word" in read(Recorded(logs))
    assert read(Recorded(logs, {"1-1": "2026-01-31T12:00:06Z 2| kept", "1-0": "2026-01-31T12:00:06Z 0| no"}))[-3:] == [
        "1.0 e",
        "1.2 kept",
        "1.1 g",
    ]


def test_a_right_that_is_missing_is_an_error_and_not_an_empty_log() -> None:
    with pytest.raises(ClusterError, match="server's word"):
        read(Recorded({"r-0-0": 403}))


def test_the_last_lines_fit_and_say_what_was_cut() -> None:

    asked: list[dict[str, list[str]]] = []
    written = [f"2026-01-31T12:00:{second:02}Z 0| line {second}" for second in range(40)]

    class Kubelet(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(parse_qs(urlsplit(self.path).query))
            body = "".join(f"{each}\n" for each in written).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with serving(Kubelet) as url:
        client = Client(Access(context="test", server=url, credentials=Anonymous()))
        kept = last_lines(client, "ns/r-0-0", 200).splitlines()
        assert last_lines(client, "ns/r-0-0", 10_000).splitlines() == written
        client.close()
    assert kept[1:] == written[-len(kept) + 1 :]
    assert kept[0].endswith(f"-! the pod is gone; of its output the last {len(kept) - 1} lines were kept")
    assert sum(len(each) + 1 for each in kept[1:]) <= 200
    assert asked[0]["container"] == ["ranks"]
    assert json.dumps(asked[0]["follow"]) == '["true"]'
