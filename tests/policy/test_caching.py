"""Versions that caches keep, and the order of readers at a store that cannot serve all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.data.caching import CachedVersion, StoreReader, even_rates, store_rates, targets_gb

AMOUNTS = st.floats(min_value=0.0, max_value=1e4)
READERS = st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=12).map(
    lambda pairs: [
        StoreReader(uid=str(number), wanted_gb_s=wanted, left_gb=left) for number, (wanted, left) in enumerate(pairs)
    ]
)


def a_version(name: str, *, size_gb: float = 100.0, cached_gb: float = 0.0, gb_s: float = 0.0) -> CachedVersion:
    return CachedVersion(version=name, size_gb=size_gb, cached_gb=cached_gb, gb_s=gb_s)


def test_the_version_that_saves_most_for_each_gigabyte_is_kept_first() -> None:
    versions = [a_version("large", size_gb=400.0, gb_s=0.4), a_version("small", gb_s=0.2)]
    assert targets_gb(versions, 250.0) == {"small": 100.0, "large": 150.0}


def test_versions_that_nobody_reads_keep_what_they_have_where_it_fits() -> None:
    versions = [a_version("read", gb_s=0.1), a_version("half", cached_gb=50.0), a_version("whole", cached_gb=100.0)]
    assert targets_gb(versions, 220.0) == {"read": 100.0, "whole": 100.0, "half": 20.0}


@given(st.lists(st.tuples(st.floats(1.0, 1e4), st.floats(0.0, 1.0), AMOUNTS), max_size=12), AMOUNTS)
def test_targets_never_exceed_the_caches_nor_any_version(drawn: list[tuple[float, float, float]], room: float) -> None:
    versions = [
        a_version(str(number), size_gb=size, cached_gb=size * part, gb_s=rate)
        for number, (size, part, rate) in enumerate(drawn)
    ]
    targets = targets_gb(versions, room)
    assert sum(targets.values()) <= room * (1 + 1e-9)
    assert all(0.0 <= targets[version.version] <= version.size_gb for version in versions)


def test_the_reader_with_the_least_left_is_served_first_and_the_others_a_tenth_evenly() -> None:
    readers = [StoreReader(uid=uid, wanted_gb_s=1.0, left_gb=left) for uid, left in (("long", 900.0), ("short", 9.0))]
    assert store_rates(readers, 1.0) == pytest.approx({"long": 0.05, "short": 0.95})


def test_a_store_that_serves_all_gives_each_what_it_wants() -> None:
    readers = [StoreReader(uid=uid, wanted_gb_s=0.5, left_gb=1.0) for uid in "ab"]
    assert store_rates(readers, 1.0) == {"a": 0.5, "b": 0.5}


@given(READERS, st.floats(min_value=1e-3, max_value=1e4))
def test_all_of_the_limit_is_used_and_nobody_gets_more_than_it_wants_or_nothing(
    readers: list[StoreReader], limit: float
) -> None:
    rates = store_rates(readers, limit)
    wanted = {reader.uid: reader.wanted_gb_s for reader in readers}
    assert sum(rates.values()) == pytest.approx(min(limit, sum(wanted.values())))
    for uid, rate in rates.items():
        assert rate <= wanted[uid] * (1 + 1e-9)
        assert rate > 0.0 or wanted[uid] == 0.0


@given(READERS, st.floats(min_value=1e-3, max_value=1e4))
def test_an_even_division_gives_less_only_to_who_wants_less(readers: list[StoreReader], limit: float) -> None:
    wanted = {reader.uid: reader.wanted_gb_s for reader in readers}
    rates = even_rates(wanted, limit)
    most = max(rates.values(), default=0.0)
    assert all(rate == pytest.approx(wanted[uid]) or rate == pytest.approx(most) for uid, rate in rates.items())
