"""OpenAI's routes: completions and conversations, whole and streamed, and what is refused."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.runtime.serving.completions import Completion
from tests.serving.predictors import Endless
from tests.serving.replica import Answer, Replica
from tests.waiting import until


@pytest.fixture(scope="module")
def words() -> Iterator[Replica]:
    with Replica("Words", max_batch_size=4) as replica:
        yield replica


def complete(replica: Replica, prompt: Any, **more: Any) -> Answer:
    return replica.post("/v1/completions", {"model": "model", "prompt": prompt, **more})


def chat(replica: Replica, *messages: Any, **more: Any) -> Answer:
    return replica.post("/v1/chat/completions", {"model": "model", "messages": list(messages), **more})


def events(answer: Answer) -> list[Any]:
    assert answer.headers["Content-Type"].startswith("text/event-stream"), answer.body
    lines = answer.body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_the_models_are_those_that_generate(words: Replica) -> None:
    assert [each["id"] for each in words.get("/v1/models").json()["data"]] == ["model"]
    assert words.get("/v1/models/model").json()["object"] == "model"
    assert words.get("/v1/models/other").status == 404
    assert words.post("/v2/models/model/infer", {}).status == 404


def test_a_completion_has_its_text_reason_and_use(words: Replica) -> None:
    answer = complete(words, "one two three").json()
    assert (answer["object"], answer["model"]) == ("text_completion", "model")
    assert answer["choices"] == [{"index": 0, "finish_reason": "stop", "logprobs": None, "text": "one two three"}]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


def test_a_completion_ends_at_its_most_tokens(words: Replica) -> None:
    (choice,) = complete(words, ["one two three"], max_tokens=2).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("one two ", "length")


def test_pieces_without_text_count_as_tokens_and_are_not_streamed(words: Replica) -> None:
    (choice,) = complete(words, "none none one two", max_tokens=3).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("one ", "length")
    chunks = events(complete(words, "none one", stream=True))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["one", ""]


def test_a_completion_ends_before_a_stop_also_across_pieces(words: Replica) -> None:
    (choice,) = complete(words, "one two three", stop=["o three", "never"]).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("one tw", "stop")


def test_a_conversation_is_answered(words: Replica) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    answer = chat(words, {"role": "system", "content": "be"}, {"role": "user", "content": parts}).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "system: be user: hello assistant:"}


def test_a_stream_has_the_same_text_in_pieces(words: Replica) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events(complete(words, "one two three", stop="three", **options))
    assert [chunk["choices"][0]["text"] for chunk in chunks[:-1]] == ["one ", "two ", ""]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 3)
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_streamed_conversation_begins_with_its_role(words: Replica) -> None:
    chunks = events(chat(words, {"role": "user", "content": "hi"}, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": "user: "}, {"content": "hi "}, {"content": "assistant:"}, {}]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("word", "status"), [("refuse", 400), ("fail", 500)])
def test_a_predictor_that_fails_at_once_is_an_error(words: Replica, word: str, status: int, stream: bool) -> None:
    answer = complete(words, word, stream=stream)
    assert answer.status == status
    assert "generate()" in answer.json()["error"]["message"]


def test_a_predictor_that_fails_later_ends_the_stream_with_an_error(words: Replica) -> None:
    answer = complete(words, "one fail", stream=True)
    assert answer.status == 200
    first, last, rest = answer.body.decode().split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "one "
    assert "raised KeyError" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert rest == ""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "other"}, "there is no model 'other'; there is 'model'"),
        ({"model": None}, "model is None"),
        ({"prompt": ["a", "b"]}, "give one text"),
        ({"prompt": [[1, 2]]}, "give one text"),
        ({"max_tokens": 0}, "max_tokens is 0; give a whole number, 1 to"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"temperature": 3}, "temperature is 3; give a number, 0 to 2"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.5}, "top_p is not supported: generate() of this predictor takes none"),
        ({"stop": [""]}, "each of 1 to 256 characters"),
        ({"stop": ["a"] * 17}, "a list of at most 16"),
        ({"n": 2}, "n is 2, which is not supported"),
        ({"n": True}, "n is True, which is not supported"),
        ({"logit_bias": {"1": 2}}, "logit_bias is {'1': 2}, which is not supported"),
        ({"stream": 1}, "stream is 1; give true or false"),
        ({"stream_options": {"include_usage": True}}, 'stream_options is for "stream": true'),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options has 'x'"),
        ({"colour": "red"}, "'colour' is not supported"),
        ({"messages": []}, "'messages' is not supported"),
    ],
)
def test_what_cannot_be_honoured_is_refused(words: Replica, given: dict[str, Any], says: str) -> None:
    answer = words.post("/v1/completions", {"model": "model", "prompt": "one", **given})
    assert answer.status in (400, 404)
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("hello", "messages[0] is 'hello'"),
        ({"role": "tool", "content": "x"}, "messages[0] has the role 'tool'"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content that is not text"),
        ({"role": "user"}, "content that is not text"),
    ],
)
def test_a_message_that_is_no_text_is_refused(words: Replica, message: Any, says: str) -> None:
    answer = chat(words, message)
    assert (answer.status, says in answer.json()["error"]["message"]) == (400, True)
    assert chat(words).status == 400


def test_what_asks_for_nothing_is_taken(words: Replica) -> None:
    nothing = {"n": 1, "logprobs": None, "presence_penalty": 0, "top_p": 1, "seed": 3, "user": "me"}
    assert complete(words, "one", **nothing).status == 200


def test_a_client_that_goes_away_ends_its_text() -> None:
    Endless.closed.clear()
    with Replica("Endless", max_batch_size=1) as replica:
        body = json.dumps({"model": "model", "prompt": "", "stream": True, "max_tokens": 1_000_000}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", replica.port), timeout=60.0) as connection:
            connection.sendall(head + body)
            assert connection.recv(100)
        until(Endless.closed.is_set, "end of the text")
        # Its turn is another's.
        assert complete(replica, "", max_tokens=3).json()["choices"][0]["text"] == "xxx"


def test_texts_take_turns_and_further_ones_wait() -> None:
    body = json.dumps({"model": "model", "prompt": "", "stream": True, "max_tokens": 1_000_000}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    with Replica("Endless", max_batch_size=2, max_queue=0) as replica:
        for running in (1, 2):
            connection = socket.create_connection(("127.0.0.1", replica.port), timeout=60.0)
            with connection:
                connection.sendall(head + body)
                assert connection.recv(100)
                assert replica.metric('fairlead:num_requests_running{model_name="model"}') == 1
                if running == 1:
                    with socket.create_connection(("127.0.0.1", replica.port), timeout=60.0) as second:
                        second.sendall(head + body)
                        assert second.recv(100)  # both are served
                        refused = complete(replica, "")
                        assert (refused.status, int(refused.headers["Retry-After"]) >= 1) == (429, True)
                    until(
                        lambda: replica.metric('fairlead:num_requests_running{model_name="model"}') == 1,
                        "only one that runs",
                    )
            until(lambda: replica.metric('fairlead:num_requests_running{model_name="model"}') == 0, "none that runs")
        assert replica.metric('fairlead:time_to_first_token_seconds_count{model_name="model"}') == 3
        assert replica.metric('fairlead:generation_tokens_total{model_name="model"}') > 3


@pytest.mark.parametrize("stops", [(), ("ab",), ("aab", "c"), ("abab",)])
def test_pieces_do_not_change_what_a_stop_cuts(stops: tuple[str, ...]) -> None:
    text = "aaabaabcababab"
    ends = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    for size in range(1, len(text) + 1):
        completion = Completion(
            kind="text_completion", model="m", prompt="", max_tokens=100, temperature=0.0, sampling={}, stops=stops,
            stream=False, include_usage=False, id="i", created=0,
        )  # fmt: skip
        passed = ""
        for begin in range(0, len(text), size):
            passed += completion.add(text[begin : begin + size])
            if completion.finish is not None:
                break
        passed += completion.end()
        assert passed == completion.text == text[: min(ends, default=len(text))]
