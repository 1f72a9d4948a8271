"""A cache that follows a list through everything that interrupts a watch."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.kubernetes.api import watching
from fairlead.cluster.kubernetes.api.client import Object
from fairlead.cluster.kubernetes.api.paging import PAGE
from fairlead.cluster.kubernetes.api.shallow import loads, problem_of
from fairlead.cluster.kubernetes.api.watching import ObjectCache
from tests.kubernetes.loopback import NESTED, Answering, Listing, client_of, serving
from tests.waiting import PATIENCE_S, until


@dataclass(frozen=True)
class Thing:
    """What is kept of an object."""

    key: str
    version: int
    color: str


def read(content: Object) -> Thing | None:
    metadata = content["metadata"]
    color = metadata["labels"].get("color", "")
    return Thing(key=metadata["name"], version=int(metadata["resourceVersion"]), color=color)


Changes = list[tuple[str | None, str | None]]


@contextmanager
def following(listing: Listing, *, idle_s: float = 5.0) -> Iterator[tuple[ObjectCache[Thing], Changes]]:
    changes: Changes = []

    def changed(before: Thing | None, after: Thing | None) -> None:
        changes.append((None if before is None else before.key, None if after is None else after.key))

    with serving(listing.handler()) as url:
        cache = ObjectCache(client_of(url), "/things", read, changed, idle_s=idle_s)
        cache.start()
        try:
            until(lambda: cache.is_synced)
            yield cache, changes
        finally:
            cache.stop()


def names(cache: ObjectCache[Thing]) -> set[str]:
    return {thing.key for thing in cache.all()}


def test_a_long_list_is_taken_in_pages_and_then_watched() -> None:
    listing = Listing()
    for number in range(PAGE + 10):
        listing.put(f"n{number}")
    with following(listing) as (cache, _):
        assert len(names(cache)) == PAGE + 10
        assert listing.lists == 2
        listing.put("new")
        until(lambda: "new" in names(cache))
        listing.remove("n0")
        until(lambda: "n0" not in names(cache))
        assert listing.lists == 2


def test_that_everything_is_there_is_told_once_even_of_an_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FIRST_BACKOFF_S", 0.01)
    listing, told = Listing(), threading.Event()
    times: list[bool] = []

    def synced() -> None:
        times.append(cache.is_synced)
        told.set()

    with serving(listing.handler()) as url:
        cache = ObjectCache(client_of(url), "/things", read, lambda _before, _after: None, synced=synced)
        cache.start()
        try:
            assert told.wait(PATIENCE_S)
            listing.forget()
            listing.cut()
            until(lambda: listing.lists == 2 and listing.watches >= 2)
            assert times == [True]
        finally:
            cache.stop()


def test_a_broken_watch_goes_on_from_where_it_was() -> None:
    listing = Listing()
    listing.put("a")
    with following(listing) as (cache, changes):
        until(lambda: listing.watches == 1)
        listing.put("b")
        until(lambda: "b" in names(cache))
        listing.cut()
        listing.put("c")
        listing.remove("a")
        until(lambda: names(cache) == {"b", "c"})
        assert listing.lists == 1
        assert changes == [(None, "a"), (None, "b"), (None, "c"), ("a", "a"), ("a", None)]


def test_a_deletion_tells_the_last_word_on_the_object_first() -> None:
    listing = Listing()
    listing.put("a", color="red")
    last: list[str] = []
    with serving(listing.handler()) as url:
        cache = ObjectCache(
            client_of(url), "/things", read, lambda _, after: last.append(after.color if after else "gone")
        )
        cache.start()
        until(lambda: listing.watches == 1)
        listing.objects["a"]["metadata"]["labels"] = {"color": "blue"}
        listing.remove("a")
        until(lambda: not cache.all())
        cache.stop()
    assert last == ["red", "blue", "gone"]


def test_a_name_that_was_taken_again_outlives_whoever_had_it_before() -> None:
    listing = Listing()
    listing.put("a", color="old")
    with following(listing) as (cache, _):
        old = cache.all()[0].version
        listing.remove("a")
        listing.put("a", color="new")
        until(lambda: [thing.color for thing in cache.all()] == ["new"])
        cache.drop("a", old)
        assert names(cache) == {"a"}


def test_a_deleted_object_that_a_write_returns_without_its_version_leaves_the_cache_as_it_is() -> None:
    listing = Listing()
    listing.put("a", color="old")
    with following(listing) as (cache, _):
        before = cache.all()
        assert cache.put({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}) is None
        assert cache.all() == before
        assert cache.unreadable == ()


def test_word_of_a_deletion_that_comes_late_does_not_take_away_what_has_the_name_now() -> None:
    listing = Listing()
    listing.put("a", color="old")
    with following(listing) as (cache, _):
        until(lambda: listing.watches == 1)
        young = listing.version + 10
        cache.put({"metadata": {"name": "a", "resourceVersion": str(young), "labels": {"color": "new"}}})
        listing.remove("a")
        listing.put("b")
        until(lambda: "b" in names(cache))
        assert names(cache) == {"a", "b"}


def test_what_was_forgotten_is_listed_anew_and_what_vanished_meanwhile_is_noticed() -> None:
    listing = Listing()
    listing.put("a")
    listing.put("b")
    with following(listing) as (cache, changes):
        until(lambda: listing.watches == 1)
        with listing._changed:
            del listing.objects["a"]
            listing.objects["c"] = {"metadata": {"name": "c", "resourceVersion": "150", "labels": {}}}
            listing.version = 200
        listing.forget()
        listing.cut()
        until(lambda: names(cache) == {"b", "c"})
        assert listing.lists == 2
        assert ("a", None) in changes


def test_an_expired_watch_is_listed_anew() -> None:
    listing = Listing(bookmark_s=0.05)
    listing.put("a")
    with following(listing) as (cache, _):
        until(lambda: listing.watches == 1)
        with listing._changed:
            del listing.objects["a"]
            listing.version = 300
        listing.forget()
        until(lambda: not cache.all())


def test_bookmarks_move_the_place_from_which_it_goes_on() -> None:
    listing = Listing(bookmark_s=0.02)
    listing.put("a")
    with following(listing) as (cache, _):
        until(lambda: listing.watches == 1)
        with listing._changed:
            listing.version = 500  # changes of other kinds of objects
        until(lambda: cache._version == "500")
        listing.forgotten = 400
        listing.cut()
        listing.put("b")
        until(lambda: "b" in names(cache))
        assert listing.lists == 1


def test_a_half_dead_connection_is_given_up() -> None:
    listing = Listing()
    listing.put("a")
    with following(listing, idle_s=0.3) as (cache, _):
        until(lambda: listing.watches == 1)
        listing.is_silent = True
        listing.put("b")
        until(lambda: listing.watches >= 2)
        listing.is_silent = False
        until(lambda: "b" in names(cache))
        assert listing.lists == 1


def test_our_own_writes_are_there_at_once_and_older_news_do_not_undo_them() -> None:
    listing = Listing()
    listing.put("a")
    with following(listing) as (cache, _):
        cache.put({"metadata": {"name": "a", "resourceVersion": "900", "labels": {"color": "ours"}}})
        listing.put("a", color="older")
        listing.put("b")
        until(lambda: "b" in names(cache))
        kept = cache.get("a")
        assert kept is not None
        assert kept.color == "ours"


def test_an_answer_that_comes_after_the_deletion_does_not_bring_the_object_back() -> None:
    listing = Listing()
    listing.put("a")
    with following(listing) as (cache, _):
        listing.remove("a")
        until(lambda: not cache.all())
        cache.put({"metadata": {"name": "a", "resourceVersion": "101", "labels": {}}})
        assert not cache.all()


def test_what_we_wrote_while_a_list_was_under_way_is_not_taken_for_gone() -> None:
    listing = Listing()
    listing.put("a")
    with following(listing) as (cache, _):
        until(lambda: listing.watches == 1)
        cache.put({"metadata": {"name": "young", "resourceVersion": "900", "labels": {}}})
        listing.forget()
        listing.cut()
        until(lambda: listing.lists == 2 and listing.watches >= 2)
        assert "young" in names(cache)


def test_remembered_deletions_are_bounded() -> None:
    listing = Listing()
    with following(listing) as (cache, _):
        limit, watching.MOST_TOMBSTONES = watching.MOST_TOMBSTONES, 5
        try:
            for number in range(20):
                listing.put(f"n{number}")
                listing.remove(f"n{number}")
            listing.put("last")
            until(lambda: names(cache) == {"last"})
            assert len(cache._tombstones) <= 5
        finally:
            watching.MOST_TOMBSTONES = limit


POISON: dict[str, dict[str, Any]] = {
    "of another type": {"color": 5, "raises": TypeError},
    "too deep for the reader": {"color": NESTED},
    "of a value that overflows": {"raises": OverflowError},
    "of which the reader knows nothing": {"raises": KeyError},
}


def poisoned(content: Object) -> Thing | None:
    """A reader that fails as readers of untrusted objects do."""
    raised = content["metadata"]["labels"].get("raises")
    if raised is not None:
        raise {"OverflowError": OverflowError, "KeyError": KeyError, "TypeError": TypeError}[raised]("poison")
    return read(content)


@contextmanager
def following_poison(listing: Listing) -> Iterator[ObjectCache[Thing]]:
    with serving(listing.handler()) as url:
        cache = ObjectCache(client_of(url), "/things", poisoned, lambda _before, _after: None, idle_s=5.0)
        cache.start()
        try:
            until(lambda: cache.is_synced)
            yield cache
        finally:
            cache.stop()


@pytest.mark.parametrize("labels", POISON.values(), ids=POISON)
def test_an_object_that_cannot_be_read_is_set_apart_and_the_others_are_followed(
    labels: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    poison = {name: value.__name__ if isinstance(value, type) else value for name, value in labels.items()}
    listing = Listing()
    listing.put("a")
    listing.put("b", **poison)
    listing.put("c")
    with following_poison(listing) as cache:
        assert names(cache) == {"a", "c"}
        assert [each.key for each in cache.unreadable] == ["b"]
        until(lambda: listing.watches == 1)
        # By the watch too: a new one, one that was good before, and one that comes after both.
        listing.put("d", **poison)
        listing.put("a", **poison)
        listing.put("e")
        until(lambda: "e" in names(cache))
        assert names(cache) == {"a", "c", "e"}
        assert sorted(each.key for each in cache.unreadable) == ["a", "b", "d"]
        assert (listing.lists, listing.watches) == (1, 1)
        assert cache.trouble is None
        for key in ("a", "b", "d"):
            assert len([each for each in caplog.messages if f"cannot read {key}:" in each]) == 1
        # What is mended is read again, and what is deleted is gone.
        listing.put("b", color="red")
        listing.remove("a")
        listing.remove("d")
        until(lambda: names(cache) == {"b", "c", "e"})
        until(lambda: not cache.unreadable)
        assert listing.lists == 1


def test_an_object_that_cannot_be_read_counts_as_it_last_could_also_after_a_new_list() -> None:
    listing = Listing()
    listing.put("a", color="red")
    with following_poison(listing) as cache:
        until(lambda: listing.watches == 1)
        listing.put("a", raises="KeyError")
        until(lambda: bool(cache.unreadable))
        listing.forget()
        listing.cut()
        until(lambda: listing.lists == 2)
        listing.put("b")
        until(lambda: "b" in names(cache))
        assert [each.color for each in cache.all() if each.key == "a"] == ["red"]
        (apart,) = cache.unreadable
        assert (apart.name, apart.version, apart.path) == ("a", 102, "/things")
        assert "KeyError" in apart.problem


def test_an_object_that_is_left_out_from_now_on_leaves_the_cache_by_watch_and_by_list() -> None:
    """As a pod of others that takes no room any more, of which there may be any number."""

    def read_red(content: Object) -> Thing | None:
        thing = read(content)
        return thing if thing is not None and thing.color == "red" else None

    left: list[str] = []

    def changed(before: Thing | None, after: Thing | None) -> None:
        if before is not None and after is None:
            left.append(before.key)

    listing = Listing()
    for name in ("a", "b", "c"):
        listing.put(name, color="red")
    with serving(listing.handler()) as url:
        cache = ObjectCache(client_of(url), "/things", read_red, changed, idle_s=5.0)
        cache.start()
        try:
            until(lambda: listing.watches == 1)
            listing.put("a", color="blue")
            listing.put("d", color="blue")
            until(lambda: names(cache) == {"b", "c"})
            listing.put("a", color="red")
            until(lambda: names(cache) == {"a", "b", "c"})
            listing.forget()
            listing.put("b", color="blue")
            listing.cut()
            until(lambda: names(cache) == {"a", "c"})
        finally:
            cache.stop()
    assert left == ["a", "b"]


def test_a_follower_that_fails_at_one_object_hears_of_the_others() -> None:
    heard: list[str] = []

    def changed(_before: Thing | None, after: Thing | None) -> None:
        if after is not None and after.key == "b":
            raise RecursionError("poison")
        if after is not None:
            heard.append(after.key)

    listing = Listing()
    for name in ("a", "b", "c"):
        listing.put(name)
    with serving(listing.handler()) as url:
        cache = ObjectCache(client_of(url), "/things", read, changed)
        cache.start()
        try:
            until(lambda: cache.is_synced)
            assert heard == ["a", "c"]
            assert listing.lists == 1
        finally:
            cache.stop()


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.text() | st.integers() | st.floats(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_an_object_holds_the_cache_takes_it_or_sets_it_apart(content: Any) -> None:
    cache = ObjectCache(client_of("http://127.0.0.1:1"), "/things", read, lambda _before, _after: None)
    cache.put({"metadata": content})
    assert len(cache.unreadable) + len(cache.all()) <= 1


@given(st.binary(max_size=300), st.integers(200, 3000))
def test_a_text_that_is_nested_too_deeply_is_cut_at_its_deepest_part_only(text: bytes, depth: int) -> None:
    inner = json.dumps(text.decode("latin-1"))
    deep = '{"items":[{"metadata":{"name":"good"}},{"kind":"K","metadata":{"name":"bad"},"x":%s}]}' % (
        "[" * depth + inner + "]" * depth
    )
    good, bad = loads(deep.encode())["items"]
    assert good == {"metadata": {"name": "good"}}
    assert bad["metadata"] == {"name": "bad"}
    assert (problem_of(bad) is not None) == ("x" not in bad)


def test_a_line_without_an_end_is_cut_and_says_so() -> None:
    class Log(Answering):
        def answer(self) -> None:
            self.say(b"short\n" + b"x" * 300_000 + b"\nlast\n" + b"y" * 100_000, "text/plain")

    with serving(Log) as url, client_of(url).stream("/log", {}, idle_s=5.0) as stream:
        lines = list(stream)
    assert lines[0::2] == [b"short", b"last"]
    assert lines[1] == b"x" * 65_536 + b" ... (234464 more bytes of this line were cut)"


def test_a_log_without_an_end_is_read_up_to_a_limit() -> None:
    class Log(Answering):
        def answer(self) -> None:
            self.say(b"x" * 99 + b"\n" + b"y" * 10_000_000, "text/plain")

    with serving(Log) as url, client_of(url).stream("/log", {}, idle_s=5.0, most_bytes=200_000) as stream:
        lines = list(stream)
        assert stream.is_cut
    assert [len(line) for line in lines] == [99, 65_536 + len(" ... (xxxxxx more bytes of this line were cut)")]


def test_a_list_is_stale_from_when_its_watch_is_lost_until_it_is_followed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "MOST_BACKOFF_S", 0.05)
    listing, is_refusing = Listing(), threading.Event()
    handler: Any = listing.handler()

    class Moody(handler):  # type: ignore[misc] # a class that a function returns
        def answer(self) -> None:
            if is_refusing.is_set():
                self.refuse(403, "Forbidden")
            else:
                super().answer()

    with serving(Moody) as url:
        cache = ObjectCache(client_of(url), "/things", read, lambda _before, _after: None, idle_s=0.3)
        cache.start()
        try:
            until(lambda: cache.is_synced and cache.stale_s == 0.0)
            is_refusing.set()
            listing.cut()
            until(lambda: cache.stale_s > 0.5)
            assert cache.trouble is not None
            is_refusing.clear()
            until(lambda: cache.stale_s == 0.0)
        finally:
            cache.stop()
