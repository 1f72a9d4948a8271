"""What gateways tell of the tokens of a text server: of one replica, and seldom anew."""

import time
from collections.abc import Callable

import pytest

from fairlead.gateway.messages import ResponseHead
from fairlead.gateway.routes import Backend, RevisionRoute
from fairlead.gateway.text_requests import EVERY_S, FEWEST, KEPT, TextRequests
from fairlead.gateway.token_usage import TokenUsage
from fairlead.state.demand import Demand, TextRequest, merge, read_demand
from tests.gateway.conftest import Opener
from tests.gateway.parts import Replica, service
from tests.waiting import until


def routed(*names: str, revision: str = "r1") -> RevisionRoute:
    return RevisionRoute(revision, 1, False, tuple(Backend(name, "", 1) for name in names))


def serve(texts: TextRequests, num: int, *, at: float, took_s: float = 1.0, every_s: float = 0.5) -> None:
    for number in range(num):
        row = texts.begin("r1", "b", at + every_s * number)
        assert row is not None
        row.first = row.sent + 0.1
        texts.end(row, prompt=10, output=5, epoch=row.sent + took_s)


def following(*names: str) -> TextRequests:
    texts = TextRequests()
    texts.follow([routed(*names)])
    return texts


def test_all_gateways_keep_requests_of_the_same_replica() -> None:
    texts = following("c", "b")
    assert texts.begin("r1", "c", 1.0) is None
    assert texts.begin("r1", "b", 1.0) is not None


def test_what_is_told_stays_until_twice_as_much_is_known() -> None:
    texts = following("b")
    serve(texts, FEWEST - 1, at=1000.0)
    assert texts.as_json() == {"latest": [], "busiest": []}
    serve(texts, 1, at=1020.0)
    first = texts.as_json()
    assert len(first["latest"]) == FEWEST
    serve(texts, FEWEST, at=1030.0)
    assert texts.as_json() == first
    serve(texts, FEWEST, at=1045.0)
    assert len(texts.as_json()["latest"]) == 3 * FEWEST
    assert first["latest"][0] == ["b", 1000.0, 10, 5, 1000.1, 1001.0]


def test_many_are_told_anew_every_so_often_and_the_busiest_stay() -> None:
    texts = following("b")
    serve(texts, KEPT, at=10 * EVERY_S, took_s=8.0)
    busy = texts.as_json()["busiest"]
    serve(texts, KEPT, at=12 * EVERY_S, took_s=1.0)
    serve(texts, KEPT, at=14 * EVERY_S, took_s=1.0)
    told = texts.as_json()
    assert len(told["latest"]) == KEPT
    assert min(row[1] for row in told["latest"]) >= 12 * EVERY_S
    assert {row[5] - row[1] for row in told["busiest"]} == {8.0}
    assert len(busy) <= len(told["busiest"])


def test_a_revision_that_is_gone_tells_nothing() -> None:
    texts = following("b")
    serve(texts, FEWEST, at=1000.0)
    texts.follow([routed("b"), routed("c", revision="r2")])
    assert len(texts.as_json()["latest"]) == FEWEST
    texts.follow([routed("c", revision="r2")])
    assert texts.as_json() == {"latest": [], "busiest": []}


def test_a_request_that_nobody_answered_is_none() -> None:
    texts = following("b")
    row = texts.begin("r1", "b", 1.0)
    assert row is not None
    texts.drop(row)
    serve(texts, FEWEST, at=1000.0)
    assert len(texts.as_json()["latest"]) == FEWEST


def test_of_several_gateways_the_time_counts_of_which_all_tell() -> None:
    def told(begin: int, end: int) -> Demand:
        return Demand(
            latest_text=tuple(
                TextRequest(replica="b", sent=float(at), prompt=1, output=1) for at in range(begin, end, 2)
            )
        )

    found = merge((told(0, 40), told(11, 61), Demand()))
    assert [each.sent for each in found.latest_text] == sorted([*range(12, 40, 2), *range(11, 38, 2)])


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("events", "begun", "parts"),
    [
        ([ROLE], [False], (10, 0)),
        ([ROLE, WORD, WORD, DONE], [False, True, True, True], (10, 2)),
        ([WORD, WORD, WORD, DONE], [True] * 4, (10, 3)),
        ([ROLE, WORD, USAGE, DONE], [False, True, True, True], (7, 9)),
    ],
)
def test_tokens_of_a_stream_begin_with_the_first_that_says_something(
    events: list[bytes], begun: list[bool], parts: tuple[int, int]
) -> None:
    kind = (b"content-type", b"Content-Type", b"text/event-stream")
    usage = TokenUsage(ResponseHead(200, b"OK", [kind], frozenset(), -1, True))
    seen = []
    for event in events:
        usage.add(event)
        seen.append(usage.has_begun)
    assert seen == begun
    assert usage.parts(40) == parts


def test_a_door_tells_when_tokens_came(open_door: Opener, replicas: Callable[..., Replica]) -> None:
    replica = replicas()
    door = open_door({"m": service(replica, counts_tokens=True)})
    replica.go.release(3 * FEWEST)
    began = time.time()
    for _ in range(FEWEST):
        assert door.ask("/m/stream", method="POST", body=b"x" * 80).status == 200

    def found() -> Demand:
        return read_demand(door.demand(), "g", ["m"])["m"]

    until(lambda: found().latest_text, "requests are told")
    told = found().latest_text
    assert {(each.prompt, each.output) for each in told} == {(20, 2)}
    assert len({each.replica for each in told}) == 1
    for each in told:
        assert each.first is not None
        assert each.last is not None
        assert began <= each.sent <= each.first <= each.last <= time.time()
    assert replica.headers[0].get("accept-encoding") is None
