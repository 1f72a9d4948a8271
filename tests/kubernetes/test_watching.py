"""A cache that follows a list through everything that interrupts a watch."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from fairlead.cluster.kubernetes.api import watching
from fairlead.cluster.kubernetes.api.client import PAGE, Object
from fairlead.cluster.kubernetes.api.watching import Cache
from tests.kubernetes.loopback import Listing, client_of, serving
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
def following(listing: Listing, *, idle_s: float = 5.0) -> Iterator[tuple[Cache[Thing], Changes]]:
    changes: Changes = []

    def changed(before: Thing | None, after: Thing | None) -> None:
        changes.append((None if before is None else before.key, None if after is None else after.key))

    with serving(listing.handler()) as url:
        cache = Cache(client_of(url), "/things", read, changed, idle_s=idle_s)
        cache.start()
        try:
            until(lambda: cache.is_synced)
            yield cache, changes
        finally:
            cache.stop()


def names(cache: Cache[Thing]) -> set[str]:
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
        cache = Cache(client_of(url), "/things", read, lambda _before, _after: None, synced=synced)
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
        cache = Cache(client_of(url), "/things", read, lambda _, after: last.append(after.color if after else "gone"))
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
