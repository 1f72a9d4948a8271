"""Requests to an API server that is busy, broken, slow or gone."""

import threading
import time
from collections.abc import Iterator

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Unreachable
from fairlead.cluster.kubernetes.api.pacing import RateLimiter
from fairlead.cluster.kubernetes.operator.request_dispatch import Dispatcher
from tests.kubernetes.loopback import Answering, FaultyProxy, LoseAnswer, Object, Refuse, Stall, client_of, serving


class Echo(Answering):
    """Says what it was asked."""

    created: set[str] = set()  # noqa: RUF012 (of the class on purpose: each request has a handler of its own)

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "GET":
            self.reply(200, {"path": self.path})
        elif self.path in self.created:
            self.refuse(409, "AlreadyExists")
        else:
            self.created.add(self.path)
            self.reply(201, {"path": self.path})


@pytest.fixture
def url() -> Iterator[str]:
    Echo.created = set()
    with serving(Echo) as url:
        yield url


def first(*faults: Refuse | LoseAnswer | Stall) -> tuple[FaultyProxy, list[Refuse | LoseAnswer | Stall]]:
    left = list(faults)
    return FaultyProxy("", lambda _method, _path: left.pop(0) if left else None), left


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_or_broken_server_is_asked_again(url: str, status: int) -> None:
    proxy, left = first(Refuse(status), Refuse(status))
    proxy._upstream = url
    with serving(proxy.handler()) as front:
        assert client_of(front).get("/x")["path"] == "/x"
    assert not left
    assert len(proxy.seen) == 3


def test_retry_after_is_obeyed(url: str) -> None:
    proxy, _ = first(Refuse(429, "TooManyRequests", (("Retry-After", "1"),)))
    proxy._upstream = url
    with serving(proxy.handler()) as front:
        begun = time.monotonic()
        client_of(front).get("/x")
    assert time.monotonic() - begun >= 1.0


def test_a_wait_that_is_longer_than_our_patience_is_refused_at_once(url: str) -> None:
    proxy, _ = first(Refuse(429, "TooManyRequests", (("Retry-After", "3600"),)))
    proxy._upstream = url
    with serving(proxy.handler()) as front:
        begun = time.monotonic()
        with pytest.raises(ApiError) as refused:
            client_of(front).get("/x")
    assert refused.value.status == 429
    assert time.monotonic() - begun < 2.0


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422])
def test_a_refusal_is_final_and_says_the_servers_words(url: str, status: int) -> None:
    proxy, _ = first(Refuse(status, "Because"))
    proxy._upstream = url
    with serving(proxy.handler()) as front, pytest.raises(ApiError, match="said Because") as refused:
        client_of(front).get("/x")
    assert (refused.value.status, refused.value.reason, refused.value.unsure) == (status, "Because", False)
    assert len(proxy.seen) == 1


def test_a_creation_whose_answer_was_lost_is_found_to_exist(url: str) -> None:
    proxy, _ = first(LoseAnswer())
    proxy._upstream = url
    with serving(proxy.handler()) as front, pytest.raises(ApiError) as refused:
        client_of(front).create("/pods", {"name": "a"})
    assert refused.value.reason == "AlreadyExists"
    assert refused.value.unsure
    assert len(Echo.created) == 1


def test_a_connection_that_stalls_is_given_up_and_another_taken(url: str) -> None:
    proxy, _ = first(Stall(3.0))
    proxy._upstream = url
    with serving(proxy.handler()) as front:
        begun = time.monotonic()
        assert client_of(front, try_s=0.3).get("/x")["path"] == "/x"
    assert time.monotonic() - begun < 2.0


def test_a_server_that_is_away_is_awaited_only_so_long() -> None:
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="does not answer"):
        client_of("http://127.0.0.1:9", patience_s=0.5).get("/x")
    assert time.monotonic() - begun < 2.0


def test_a_portal_that_answers_in_html_is_told_apart(url: str) -> None:
    class Portal(Answering):
        def answer(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "12")
            self.end_headers()
            self.wfile.write(b"<html>login>")

    with serving(Portal) as front, pytest.raises(Unreachable, match="not JSON"):
        client_of(front).get("/x")


def test_requests_in_flight_are_bounded() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    class Slow(Answering):
        def answer(self) -> None:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.05)
            with lock:
                now[0] -= 1
            self.reply(200, {})

    with serving(Slow) as front:
        client = client_of(front, in_flight=3)
        threads = [threading.Thread(target=client.get, args=("/x",)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert most[0] == 3


def test_pages_are_followed_to_the_end() -> None:
    class Paged(Answering):
        def answer(self) -> None:
            number = int(self.path.rpartition("continue=")[2]) if "continue=" in self.path else 0
            metadata: Object = {"resourceVersion": "7", **({"continue": str(number + 1)} if number < 2 else {})}
            self.reply(200, {"metadata": metadata, "items": [{"number": number}]})

    with serving(Paged) as front:
        assert [item["number"] for item in client_of(front).items("/x")] == [0, 1, 2]


def test_pace_lets_a_burst_through_and_then_keeps_its_rate() -> None:
    pace = RateLimiter(per_second=50.0, burst=10)
    begun = time.monotonic()
    for _ in range(10):
        pace.wait()
    assert time.monotonic() - begun < 0.1
    for _ in range(10):
        pace.wait()
    assert 0.15 < time.monotonic() - begun < 1.0


def test_a_large_run_delays_no_small_one() -> None:
    done: list[str] = []
    gate = threading.Event()
    work = Dispatcher(1)
    work.submit("large", "gate", gate.wait)  # type: ignore[arg-type]  # its answer is not looked at
    for number in range(50):
        work.submit("large", f"large {number}", lambda: done.append("large"))
    work.submit("small", "small", lambda: done.append("small"))
    gate.set()
    assert work.drain(5.0)
    work.stop()
    assert done.index("small") <= 1
    assert len(done) == 51


def test_a_job_under_way_is_not_taken_twice() -> None:
    gate = threading.Event()
    work = Dispatcher(2)
    assert work.submit("run", "create a", gate.wait)  # type: ignore[arg-type]  # its answer is not looked at
    assert not work.submit("run", "create a", lambda: None)
    gate.set()
    assert work.drain(5.0)
    assert work.submit("run", "create a", lambda: None)
    work.stop()


def test_a_job_that_fails_each_time_is_tried_ever_more_rarely_and_at_once_again_when_it_has_succeeded() -> None:
    now, tried = [0.0], list[float]()

    def fail() -> None:
        tried.append(now[0])
        raise Unreachable("nobody there")

    work = Dispatcher(1, clock=lambda: now[0])
    for number in range(200):
        now[0] = number / 10 + 0.001
        work.submit("run", "create a", fail)
        assert work.drain(5.0)
    assert tried == pytest.approx([0.0, 0.2, 0.6, 1.4, 3.0, 6.2, 11.2, 16.2], abs=0.15)
    now[0] = 30.0
    assert work.submit("run", "create a", lambda: None)
    assert work.drain(5.0)
    assert work.submit("run", "create a", fail)
    assert work.drain(5.0)
    assert not work.submit("run", "create a", lambda: None)
    assert work.submit("run", "create b", lambda: None), "another job is not its fault"
    assert work.submit("another", "create a", lambda: None), "nor is another run"
    work.stop()


@pytest.mark.parametrize(
    "name", ["../secrets/token", "..", ".", "a/../../secrets", "a?watch=true", "a#b", "a b", "a%2f..%2fsecrets", "",
             "a/log/b", "é", "a\nHost: b", "a\\b", "a/b/c"],
)  # fmt: skip
@pytest.mark.parametrize("way", ["get", "merge", "delete", "create", "text", "items"])
def test_a_name_that_would_lead_to_another_object_is_of_none(name: str, way: str) -> None:
    """No request is sent: the server of this client would not answer."""
    client = client_of("http://127.0.0.1:9", patience_s=0.1)
    path = f"/apis/batch/v1/namespaces/research/jobs/{name}"
    with pytest.raises(ApiError, match="no object of that name") as error:
        list(client.items(path)) if way == "items" else getattr(client, way)(
            path, *([{}] if way in ("merge", "create") else [])
        )
    assert error.value.status == 404
    assert client.num_requests == 0


@pytest.mark.parametrize(
    "path",
    [
        "/version", "/readyz", "/api/v1/nodes", "/api/v1/nodes/ip-10-0-0-1.ec2.internal",
        "/api/v1/namespaces/research/pods/train-0-0/log", "/api/v1/namespaces/research",
        "/api/v1/namespaces/gpu/pods/dcgm-x:9400/proxy/metrics", "/apis/apps/v1", "/apis/batch",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainings.fairlead.dev",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:auth-delegator",
        "/apis/fairlead.dev/v1alpha1/namespaces/research/trainings/train/status",
        "/apis/fairlead.dev/v1alpha1/teams/research/status",
        "/apis/cluster.karmada.io/v1alpha1/clusters/member/proxy/api/v1/namespaces/a/pods/b/log",
    ],
)  # fmt: skip
def test_a_path_of_an_object_is_sent(path: str) -> None:
    with pytest.raises(Unreachable):
        client_of("http://127.0.0.1:9", patience_s=0.01).get(path)
