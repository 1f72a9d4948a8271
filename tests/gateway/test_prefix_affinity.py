"""Prompts go where their prefix is, adapters where they are loaded, and neither makes one replica do all the work."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable

import pytest

from fairlead.gateway import prefix_affinity
from fairlead.gateway.prefix_affinity import BLOCK, MOST_KNOWN, PrefixAffinity, Prompt, read_prompt
from fairlead.gateway.routes import Backend, RevisionRoute, ServiceRoute
from fairlead.gateway.services import ReplicaLease, RoutedService
from tests.gateway.conftest import Opener
from tests.gateway.parts import Replica, service

CHAT = b"/v1/chat/completions"
SYSTEM = "Be helpful. "


def chat(*texts: str, model: str = "m", system: str = SYSTEM) -> Prompt:
    """The prompt of a conversation: messages of the user and of the assistant in turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    told = {"model": model, "messages": [{"role": "system", "content": system}, *messages]}
    found = read_prompt(CHAT, json.dumps(told).encode())
    assert found is not None
    return found


def made(*ids: str, most: int | None = None, places: float = 4.0) -> RoutedService[None]:
    replicas = tuple(Backend(each, "127.0.0.1", 80) for each in ids)
    route = ServiceRoute(
        "m", "/m", (), None, 60.0, False, most, 100, (RevisionRoute("r1", 1, False, replicas),), None, places=places,
        by_prefix=True,
    )  # fmt: skip
    found: RoutedService[None] = RoutedService(route)
    found.update(route)
    return found


def sent(of: RoutedService[None], prompt: Prompt) -> ReplicaLease[None]:
    given = of.take(0.0, prompt)
    assert given is not None
    return given


def answered(of: RoutedService[None], prompt: Prompt) -> str:
    """The replica of a request that is over before the next one comes."""
    given = sent(of, prompt)
    of.release(given, 0.0)
    return given.replica.id


def openings(num: int, length: int = 2_000) -> list[str]:
    return [f"question {number} " * (length // 12) for number in range(num)]


def test_each_turn_of_a_conversation_goes_where_the_turns_before_went() -> None:
    gateway = made("a", "b", "c", "d")
    where = {text: answered(gateway, chat(text)) for text in openings(40)}
    assert len(set(where.values())) == 4
    for text, replica in where.items():
        assert answered(gateway, chat(text, "answer " * 200, "more " * 50)) == replica
        assert answered(gateway, chat(text, "answer " * 200, "more " * 50, "yes " * 300, "and")) == replica


def test_two_gateways_that_share_nothing_agree_on_conversations() -> None:
    one, other = made("a", "b", "c", "d"), made("d", "b", "a", "c")
    for text in openings(200, length=8_000):
        assert answered(one, chat(text)) == answered(other, chat(text))
        longer = chat(text, "answer " * 200, "more " * 50)
        assert answered(one, longer) == answered(other, longer)
    # The same in every process, as those of bytes and texts are not.
    assert chat("hello").opening.hex() == "86c93910e7193a17"


def test_conversations_spread_evenly_over_replicas() -> None:
    gateway = made("a", "b", "c", "d")
    counts = Counter(answered(gateway, chat(text, system="")) for text in openings(2_000, length=24))
    assert min(counts.values()) > 440, counts


def test_a_hot_prefix_does_not_overload_one_replica() -> None:
    gateway = made("a", "b", "c", "d")
    hot = chat("the same question")
    counts = Counter(sent(gateway, hot).replica.id for _ in range(200))
    assert max(counts.values()) <= 2 + prefix_affinity.BOUND * 50, counts
    assert min(counts.values()) >= 20, counts


def test_short_prompts_that_no_replica_has_are_spread_by_load() -> None:
    gateway = made("a", "b", places=1.0)
    counts = Counter(sent(gateway, chat("the same question", system="")).replica.id for _ in range(10))
    assert max(counts.values()) <= 6


def test_a_long_prompt_counts_as_several_requests() -> None:
    gateway = made("a", "b")
    long = chat("a very long document " * 4_000)
    busy = sent(gateway, long)
    assert busy.replica.load > 8
    assert {sent(gateway, chat(text)).replica.id for text in openings(8, length=24)} == {"a", "b"} - {busy.replica.id}
    gateway.release(busy, 0.0)
    assert busy.replica.load == 0.0
    assert sent(gateway, long).replica.load == 1.0


def test_a_common_system_prompt_that_is_most_of_a_prompt_is_used_where_it_is() -> None:
    gateway = made("a", "b", "c", "d", places=2.0)
    system = "The rules of the shop. " * 400
    home = answered(gateway, chat("first question", system=system))
    assert {answered(gateway, chat(text, system=system)) for text in openings(20, length=100)} == {home}
    busy = [sent(gateway, chat(text, system=system)).replica.id for text in openings(20, length=100)]
    assert len(set(busy)) >= 3
    assert max(Counter(busy).values()) <= 9


def test_replicas_that_come_and_go_move_few_conversations() -> None:
    names = [f"replica-{number}" for number in range(8)]
    texts = openings(400)
    # Gateways that know nothing, so that hashes alone decide.
    before = {text: answered(made(*names), chat(text)) for text in texts}
    more = {text: answered(made(*names, "new"), chat(text)) for text in texts}
    moved = [text for text in texts if more[text] != before[text]]
    assert {more[text] for text in moved} == {"new"}
    assert len(moved) < len(texts) * 0.18
    fewer = {text: answered(made(*names[:-1]), chat(text)) for text in texts}
    assert all(fewer[text] == before[text] for text in texts if before[text] != names[-1])


def test_a_replica_that_is_gone_is_not_waited_for_and_its_conversations_stay_together() -> None:
    gateway = made("a", "b", "c")
    text = openings(1)[0]
    lost = answered(gateway, chat(text))
    left = made(*({"a", "b", "c"} - {lost})).route
    gateway.update(left)
    now = answered(gateway, chat(text, "answer " * 300, "more"))
    assert now != lost
    assert answered(gateway, chat(text, "answer " * 300, "more", "yes " * 300, "and")) == now


def test_an_adapter_goes_to_few_replicas_which_have_it_loaded() -> None:
    gateways = [made(*"abcdefgh") for _ in range(2)]
    rng = random.Random(1)
    holders: dict[str, set[str]] = {}
    for number in range(4_000):
        adapter = f"adapter-{rng.randrange(32)}"
        gateway = rng.choice(gateways)
        holders.setdefault(adapter, set()).add(answered(gateway, chat(f"question {number}", model=adapter, system="")))
    assert sum(map(len, holders.values())) <= 36  # the first requests of each gateway know of no adapters
    assert len(set().union(*holders.values())) == 8


def test_a_prefix_that_was_computed_with_another_adapter_is_none() -> None:
    one, other = chat("question", model="one"), chat("question", model="other")
    assert not set(one.blocks) & set(other.blocks)
    assert one.blocks == chat("question, and more", model="one").blocks


def test_one_model_alone_is_spread_by_conversations_and_again_once_no_adapter_is_asked_for() -> None:
    gateway = made("a", "b", "c", "d")
    assert len({answered(gateway, chat(text)) for text in openings(40)}) == 4
    answered(gateway, chat("question", model="adapter"))
    texts = [f"{number} other {number}" * 400 for number in range(300)]
    replicas = [answered(gateway, chat(text)) for text in texts]
    assert len(set(replicas[1:100])) == 1
    assert len(set(replicas[140:])) == 4


def test_a_full_replica_gets_none_and_who_waits_goes_where_its_prefix_is() -> None:
    async def wait() -> None:
        gateway = made("a", "b", most=1)
        text = openings(1)[0]
        home = answered(gateway, chat(text))
        given = {each.replica.id: each for each in (sent(gateway, chat(text)), sent(gateway, chat(text)))}
        assert gateway.take(0.0, chat(text)) is None
        longer = chat(text, "answer " * 300, "more")
        futures: list[asyncio.Future[ReplicaLease[None]]] = [
            asyncio.get_running_loop().create_future() for _ in range(2)
        ]
        gateway.join_queue(futures[0], longer)
        gateway.join_queue(futures[1], longer)
        gateway.leave_queue(futures[1], 0.0)
        gateway.release(given[home], 0.0)
        assert futures[0].result().replica.id == home
        assert gateway.affinity is not None
        known = gateway.affinity.matches(longer, ("a", "b"))
        assert known[home] == len(longer.blocks)
        assert not gateway._prompts

    asyncio.run(wait())


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_affinity, "MOST_KNOWN", 1_000)
    assert MOST_KNOWN > 1_000
    known = PrefixAffinity()
    first = chat("first " * 500)
    known.note(first, "a")
    for number in range(300):
        known.note(chat(f"{number} " * 2_000, system=""), "b")
    assert known.num_known == 1_000
    assert known.matches(first, ("a",)) == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b"\xff\xfe",
        b'{"messages": []}',
        b'{"model": "m"}',
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": 1' + b"0" * 10_000 + b"}",
    ],
)
def test_a_body_that_is_no_prompt_is_passed_on_as_any_other(body: bytes) -> None:
    assert read_prompt(CHAT, body) is None


@pytest.mark.parametrize(
    "told",
    [
        {"model": "m", "prompt": "text " * 500},
        {"model": "m", "prompt": ["text " * 500, "more"]},
        {"model": "m", "prompt": list(range(2_000))},
        {"model": "m", "input": "text " * 500},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "text " * 500}]}]},
        {"messages": [{"role": "user", "content": "\ud800 " * 1_250}]},
        {"messages": [{"content": None}, {"role": "user", "content": "text " * 500}], "tools": [{"type": "function"}]},
    ],
)
def test_prompts_of_all_forms_are_read(told: object) -> None:
    first, again = (read_prompt(b"/v1/completions", json.dumps(told).encode()) for _ in range(2))
    assert first is not None
    assert first == again
    assert len(first.blocks) >= 2_500 // BLOCK


def test_requests_of_other_routes_are_not_read() -> None:
    assert read_prompt(b"/v1/embeddings", b'{"input": "text"}') is None


def test_requests_through_a_gateway_follow_their_prefix(open_door: Opener, replicas: Callable[..., Replica]) -> None:
    there = [replicas(name) for name in ("a", "b", "c")]
    door = open_door({"m": service(*there, by_prefix=True)})
    where: dict[str, set[str]] = {}
    for turn in range(3):
        for text in openings(12):
            messages = [{"role": "user", "content": text}]
            messages += [{"role": "assistant", "content": "answer " * 300}, {"role": "user", "content": "go on"}] * turn
            body = json.dumps({"model": "m", "messages": messages})
            answer = door.ask("/m/v1/chat/completions", method="POST", body=body)
            assert answer.json()["body"] == body
            where.setdefault(text, set()).add(answer.json()["replica"])
    assert all(len(found) == 1 for found in where.values()), where
    assert len(set().union(*where.values())) == 3
