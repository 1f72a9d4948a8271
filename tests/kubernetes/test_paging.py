"""Lists and watches of objects as large as anybody stores them take little memory, and none is lost for another."""

import json
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.kubernetes.api import paging, watching
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.paging import METADATA, PAGE, Object, TooLong, cut_event, read_pages
from fairlead.cluster.kubernetes.api.shallow import problem_of
from fairlead.errors import ClusterError
from tests.kubernetes.loopback import Listing, client_of, serving
from tests.kubernetes.test_watching import following, names
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

KIB = 1024


class Source:
    """A list of objects of given sizes, which counts the bytes of its pages."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.read: list[int] = []
        self.broken_off = 0

    def page(self, path: str, query: Mapping[str, str], *, most_bytes: int, accept: str) -> tuple[Object, int]:
        begin = int(query.get("continue", 0))
        end = begin + int(query["limit"])
        items: list[Object] = [{"metadata": {"name": str(number)}} for number in range(len(self.sizes))[begin:end]]
        if accept == METADATA:
            length = 100 * len(items)
        else:
            length = sum(self.sizes[begin:end])
            items = [{**item, "spec": {}} for item in items]
        if length > most_bytes:
            self.broken_off += 1
            raise TooLong(path)
        self.read.append(length)
        onward = {"continue": str(end)} if end < len(self.sizes) else {}
        return {"metadata": onward, "items": items}, length


def listed(source: Source) -> list[Object]:
    return [item for page in read_pages(source, "/things", {}) for item in page["items"]]


def test_few_large_objects_or_many_small_ones_are_in_a_page() -> None:
    small, large = Source([10 * KIB] * 1000), Source([1500 * KIB] * 100)
    assert len(listed(small)) == 1000
    assert small.broken_off == 1
    assert len(small.read) < 6
    assert len(listed(large)) == 100
    assert large.broken_off < 6, "the first page, down from 500 objects"
    assert max(large.read) <= paging.MOST_PAGE_BYTES


@given(st.lists(st.sampled_from([1, 2_000, 10_000, 300_000, 1_500_000, 6_000_000]), max_size=60))
def test_each_object_is_listed_once_and_in_order_whatever_its_size(sizes: list[int]) -> None:
    source = Source(sizes)
    items = listed(source)
    assert [item["metadata"]["name"] for item in items] == [str(number) for number in range(len(sizes))]
    assert [problem_of(item) is not None for item in items] == [size > paging.MOST_PAGE_BYTES for size in sizes]
    assert all(length <= paging.MOST_PAGE_BYTES for length in source.read)


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MOST_PAGE_BYTES", 64 * KIB)
    monkeypatch.setattr(watching, "MOST_EVENT_BYTES", 64 * KIB)
    monkeypatch.setattr(watching, "FIRST_BACKOFF_S", 0.01)


@pytest.mark.usefixtures("small_bounds")
def test_an_object_that_is_too_long_is_set_apart_and_the_others_are_followed() -> None:
    listing = Listing()
    for name in ("a", "c"):
        listing.put(name)
    listing.put_spec("b", {"run": "x" * 100 * KIB})
    with following(listing) as (cache, _):
        assert names(cache) == {"a", "c"}
        (apart,) = cache.unreadable
        assert (apart.name, apart.version) == ("b", listing.version)
        assert "make it smaller" in apart.problem
        listing.put("d")
        until(lambda: "d" in names(cache))
        listing.put_spec("b", {"run": "x"})
        until(lambda: "b" in names(cache))
        assert not cache.unreadable


@pytest.mark.usefixtures("small_bounds")
def test_an_object_that_becomes_too_long_is_set_apart_without_another_list() -> None:
    listing = Listing()
    listing.put("a")
    with following(listing) as (cache, _):
        lists = listing.lists
        listing.put_spec("b", {"run": "x" * 100 * KIB})
        until(lambda: [apart.name for apart in cache.unreadable] == ["b"])
        assert cache.unreadable[0].kind == "Thing"
        listing.put("c")
        until(lambda: "c" in names(cache))
        listing.remove("b")
        until(lambda: not cache.unreadable)
        assert listing.lists == lists


@pytest.mark.usefixtures("small_bounds")
def test_an_event_that_is_not_understood_leads_to_a_list_and_not_to_the_same_event_for_ever() -> None:
    listing = Listing()
    listing.put("a")
    with following(listing) as (cache, _):
        listing.put("long", text="x" * 100 * KIB)  # in its metadata
        until(lambda: [apart.name for apart in cache.unreadable] == ["long"])
        listing.put("c")
        until(lambda: "c" in names(cache))


@pytest.mark.parametrize("line", [b"x" * 10, b'{"type":"ADDED","object":{"metadata":{"name":"a', b'{"type":"ADDED"}'])
def test_a_cut_event_without_metadata_is_refused(line: bytes) -> None:
    with pytest.raises(ClusterError):
        cut_event(line)


@given(st.binary(max_size=300))
def test_whatever_was_cut_is_an_event_or_is_refused(tail: bytes) -> None:
    head = b'{"type":"MODIFIED","object":{"apiVersion":"a/v1","kind":"K","metadata":'
    try:
        event = cut_event(head + tail)
    except ClusterError:
        return
    assert problem_of(event["object"]) is not None


def test_a_list_for_a_command_leaves_out_what_is_too_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(paging, "MOST_PAGE_BYTES", 64 * KIB)
    listing = Listing()
    listing.put("a")
    listing.put_spec("b", {"run": "x" * 100 * KIB})
    with serving(listing.handler()) as url:
        assert [item["metadata"]["name"] for item in client_of(url).items("/things")] == ["a"]
    assert "b is left out" in caplog.text


def test_a_page_of_empty_lists_takes_no_more_memory_than_a_page_may() -> None:
    """The worst JSON for Python: three bytes are a list, and a place in another one."""
    hostile = json.dumps({"metadata": {}, "items": [{"spec": [[]] * (paging.MOST_PAGE_BYTES // 4)}]}).encode()
    assert len(hostile) <= paging.MOST_PAGE_BYTES + KIB
    tracemalloc.start()
    try:
        value: Any = json.loads(hostile)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value["items"]
    assert peak < 100 << 20
    assert PAGE * 1_500 * KIB > 700 << 20, "as much as a page of such objects would have been, before Python reads it"


def test_a_real_api_server_gives_the_metadata_of_a_long_object_and_the_others_whole(
    plane: ControlPlane, access: ClusterAccess, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "MOST_PAGE_BYTES", 64 * KIB)
    place = f"/api/v1/namespaces/{namespace}/configmaps"
    for name, size in (("a", 10), ("b", 200 * KIB), ("c", 10)):
        plane.request("POST", place, {"metadata": {"name": name}, "data": {"x": "y" * size}})
    items = [item for page in Client(access).pages(place) for item in page["items"]]
    own = {item["metadata"]["name"]: problem_of(item) is not None for item in items}
    assert {name: own[name] for name in "abc"} == {"a": False, "b": True, "c": False}
