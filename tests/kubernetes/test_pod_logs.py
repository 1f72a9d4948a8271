"""Lines of kubelet's logs into lines of ranks, read on after a break without a loss and without a repetition."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.client import pod_logs
from fairlead.cluster.kubernetes.client.pod_logs import KUBELET, Mark, PodLogs
from fairlead.cluster.kubernetes.operator.runs.log_archive import last_lines
from fairlead.cluster.kubernetes.workloads.log_lines import parse
from fairlead.cluster.output import EVERYTHING, LogQuery, Watermark
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
        self.asked: list[dict[str, str]] = []

    def items(self, path: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        assert query == {"labelSelector": "fairlead.dev/run-uid=u"}
        return [_pod(name) for name in self._logs]

    def text(self, path: str, query: Mapping[str, str]) -> str:
        found = self._logs[path.split("/")[-2]]
        if isinstance(found, int):
            raise _refused(path, found)
        self.asked.append({name: value for name, value in query.items() if name not in ("container", "timestamps")})
        lines = [each for each in found.splitlines(keepends=True) if each[:19] >= query.get("sinceTime", "")[:19]]
        text = "".join(lines[-int(query["tailLines"]) :] if "tailLines" in query else lines)
        return text[: int(query.get("limitBytes", len(text)))]

    def get(self, path: str) -> dict[str, Any]:
        if self._kept is None:
            raise _refused(path, 404)
        return {"data": dict(self._kept)}


def _pod(name: str) -> dict[str, Any]:
    run, attempt, index = name.split("-")
    labels = {"fairlead.dev/attempt": attempt, "fairlead.dev/index": index}
    owner = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Training", "name": run, "uid": "u", "controller": True}
    metadata = {"name": name, "namespace": "ns", "labels": labels, "ownerReferences": [owner]}
    states = [{"name": "ranks", "state": {"terminated": {"exitCode": 0}}}]
    return {"metadata": metadata, "status": {"containerStatuses": states}}


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


def at(second: int, text: str) -> str:
    return f"2026-01-31T12:{second // 60:02}:{second % 60:02}Z {text}\n"


def test_the_last_lines_are_asked_for_and_no_more() -> None:
    whole = "".join(at(n, f"{n % 2}| {n}") for n in range(600))
    client = Recorded({"r-0-0": whole, "r-1-0": whole})
    assert read(client, LogQuery(tail=2)) == ["1.0 598", "1.1 599"]
    assert client.asked == [{"tailLines": "2"}]
    # Where others' lines are among them, more are asked for.
    assert read(client, LogQuery(tail=3, ranks=frozenset({1})))[-1] == "1.1 599"
    assert read(client, LogQuery(tail=2, pattern=re.compile("00$"))) == ["1.0 400", "1.0 500"]
    assert read(client, LogQuery(tail=601))[:2] == ["0.1 599", "1.0 0"]
    assert len(read(client, LogQuery(tail=5000))) == 1200


def test_a_time_is_left_to_the_server_as_far_as_it_can() -> None:
    client = Recorded({"r-0-0": "".join(at(n, f"0| {n}") for n in range(100))})
    since, until = 1769860800.0 + 50.5, 1769860800.0 + 52
    assert read(client, LogQuery(since=since, until=until)) == ["0.0 51", "0.0 52"]
    assert client.asked == [{"sinceTime": "2026-01-31T12:00:50Z"}]


def test_a_start_is_read_when_it_is_its_turn() -> None:
    client = Recorded(WHOLE)
    logs = PodLogs(client, "ns", "u", EVERYTHING, ranks_per_pod=2)  # type: ignore[arg-type] # a part of it
    assert next(logs.all()).text == "a"
    assert len(client.asked) == 1


def test_what_kubelet_rotated_away_is_told_where_it_was() -> None:
    rotated = at(70, "0| 70") + at(71, "1| 71") + at(71, '-# {"0":[60,600],"1":[51,510]}') + at(72, "0| 72")
    client = Recorded({"r-0-0": rotated})
    assert read(client) == [
        "0.0 ... 59 lines (597 B) of rank 0 were dropped here: " + KUBELET,
        "0.1 ... 50 lines (507 B) of rank 1 were dropped here: " + KUBELET,
        "0.0 70",
        "0.1 71",
        "0.0 72",
    ]
    assert read(client, LogQuery(tail=2)) == ["0.1 71", "0.0 72"]
    logs = PodLogs(client, "ns", "u", EVERYTHING, ranks_per_pod=2)  # type: ignore[arg-type] # a part of it
    assert [(each.rank, each.lines) for each in logs.dropped()] == [(0, 59), (1, 50)]


def test_nothing_is_told_where_nothing_is_missing_and_no_line_is_cut_at_what_only_python_takes_for_an_end() -> None:
    odd = "\x0b \x0c \x1c \x85 \u2028 \x00 end"
    log = at(1, f"0| {odd}") + at(1, f'-# {{"0":[1,{len(odd.encode()) + 1}]}}') + at(2, "0| -# no counts")
    client = Recorded({"r-0-0": log})
    client.text = lambda path, query: log  # type: ignore[method-assign] # line ends as they are
    assert read(client) == [f"0.0 {odd}", "0.0 -# no counts"]


def test_words_of_kubelet_itself_are_shown() -> None:
    client = Recorded({"r-0-0": "unable to retrieve container logs for containerd://0123\n"})
    client.text = lambda path, query: "unable to retrieve container logs for containerd://0123"  # type: ignore[method-assign]
    assert read(client) == ["0.-1 unable to retrieve container logs for containerd://0123"]


class Streamed(Recorded):
    """One whose logs are followed too; a pod of ``gone`` goes while it is."""

    gone: str | None = None

    def get(self, path: str, *, patience_s: float = 0.0) -> dict[str, Any]:
        name = path.split("/")[-1]
        return _pod(name) if name in self._logs else super().get(path)

    @contextmanager
    def stream(
        self, path: str, query: Mapping[str, str], *, idle_s: float, most_line_bytes: int
    ) -> Iterator[list[bytes]]:
        assert query["follow"] == "true"
        assert most_line_bytes > 0
        if path.split("/")[-2] == self.gone:
            raise _refused(path, 404)
        yield [each.encode() for each in self.text(path, query).splitlines()]


def test_a_follower_repeats_nothing_and_knows_when_it_has_caught_up() -> None:
    client, watermark, began = Streamed(WHOLE), Watermark(), time.time()
    logs = PodLogs(client, "ns", "u", EVERYTHING, ranks_per_pod=2)  # type: ignore[arg-type] # a part of it
    texts = [line.text for line in logs.follow(lambda: watermark.reached > began, watermark)]
    assert texts == ["a", "c", "e", "f", "g"]
    watermark = Watermark()
    query = LogQuery(tail=1)
    logs = PodLogs(client, "ns", "u", query, ranks_per_pod=2)  # type: ignore[arg-type] # a part of it
    assert [line.text for line in logs.follow(lambda: watermark.reached > began, watermark)] == ["g"]


def test_what_was_kept_of_a_pod_that_goes_while_it_is_followed_comes_too() -> None:
    client = Streamed({"r-0-0": at(1, "0| a") + at(2, "0| b")}, {"0-0": at(1, "0| a") + at(2, "0| b") + at(3, "0| c")})
    client.gone = "r-0-0"
    logs = PodLogs(client, "ns", "u", EVERYTHING, ranks_per_pod=2)  # type: ignore[arg-type] # a part of it
    assert [line.text for line in logs.follow(lambda: True)] == ["a", "b", "c"]


class Passing(Streamed):
    """One whose pods and kept output are different at each look; the last ones stay."""

    def __init__(self, looks: list[dict[str, str]], kept: list[dict[str, str]]) -> None:
        super().__init__({name: text for look in looks for name, text in look.items()}, {})
        self._looks, self._keeps = looks, kept

    def items(self, path: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        now = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        return [_pod(name) for name in now]

    def get(self, path: str, *, patience_s: float = 0.0) -> dict[str, Any]:
        if "configmaps" in path:
            return {"data": self._keeps.pop(0) if len(self._keeps) > 1 else self._keeps[0]}
        return super().get(path)


def test_an_attempt_whose_pods_came_and_went_between_two_looks_is_followed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "LOOK_S", 0.1)
    first, last = {"r-0-0": at(1, "0| a")}, {"r-3-0": at(4, "0| d")}
    kept = {"0-0": at(1, "0| a"), "1-0": at(2, "0| b"), "2-0": at(3, "0| c")}
    for query, expected in ((EVERYTHING, "abcd"), (LogQuery(tail=1), "abcd"), (LogQuery(attempt=2), "c")):
        # What the operator keeps later than the next attempt begins comes after what that has said.
        for keeps, is_late in (([{}, kept], False), ([{}, {}, {"0-0": kept["0-0"]}, kept], True)):
            client = Passing([first, first, last], keeps)
            looked = iter([False] * 4)
            logs = PodLogs(client, "ns", "u", query, ranks_per_pod=2)  # type: ignore[arg-type] # a part of it
            over = partial(next, looked, True)
            found = [line.text for line in logs.follow(over, None, lambda: 4)]
            assert "".join(sorted(found) if is_late else found) == expected, query


def test_a_run_that_is_over_before_anybody_looks_is_followed_as_soon_as_its_output_is_kept() -> None:
    client = Passing([{}], [{}, {}, {}, {"0-0": at(1, "0| a"), "0-1": at(2, "2| b")}])
    logs = PodLogs(client, "ns", "u", EVERYTHING, ranks_per_pod=2)  # type: ignore[arg-type] # a part of it
    assert [line.text for line in logs.follow(lambda: True, None, lambda: 1)] == ["a", "b"]
    # Of a run that never started nothing is awaited.
    logs = PodLogs(Passing([{}], [{}]), "ns", "u", EVERYTHING, ranks_per_pod=2)  # type: ignore[arg-type] # a part of it
    began = time.monotonic()
    assert list(logs.follow(lambda: True, None, lambda: 0)) == []
    assert time.monotonic() - began < pod_logs.REST_S


def test_starts_before_the_last_lines_are_not_shown_by_a_follower() -> None:
    kept = {"0-0": at(1, "0| a") + at(2, "0| b"), "1-0": at(3, "0| c")}
    client = Passing([{"r-2-0": at(4, "0| d") + at(5, "0| e")}], [kept])
    logs = PodLogs(client, "ns", "u", LogQuery(tail=3), ranks_per_pod=2)  # type: ignore[arg-type] # a part of it
    assert [line.text for line in logs.follow(lambda: True, None, lambda: 3)] == ["c", "d", "e"]


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
        client = Client(ClusterAccess(context="test", server=url, credentials=Anonymous()))
        kept = last_lines(client, "ns/r-0-0", 200).splitlines()
        assert last_lines(client, "ns/r-0-0", 10_000).splitlines() == written
        client.close()
    assert kept[:-1] == written[-len(kept) + 1 :]
    assert kept[-1] == f'2026-01-31T12:00:39Z -# {{"0":[40,{sum(len(f"line {n}") + 1 for n in range(40))}]}}'
    assert sum(len(each) + 1 for each in kept[:-1]) <= 200
    dropped = 40 - (len(kept) - 1)
    first, *rest = read(Recorded({}, {"0-0": "\n".join(kept)}))
    assert re.fullmatch(
        rf"0\.0 \.\.\. {dropped} lines \(\d+ B\) of rank 0 were dropped here: the pod is gone, and of its output "
        r"the last \d+ B were kept",
        first,
    )
    assert rest == [f"0.0 line {n}" for n in range(dropped, 40)]
    assert asked[0]["container"] == ["ranks"]
    assert json.dumps(asked[0]["follow"]) == '["true"]'
