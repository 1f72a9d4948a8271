"""Writes of many objects, of which some take long or fail."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fairlead.cluster.kubernetes.informers.urgent_passes import UrgentPasses
from fairlead.cluster.kubernetes.operator.write_pool import WritePool
from fairlead.errors import ClusterError
from tests.waiting import until

WAIT_S = 60.0
Work = Callable[[int], bool]


@pytest.fixture
def answered() -> Iterator[threading.Event]:
    """Set when slow writes get their answer."""
    answered = threading.Event()
    yield answered
    answered.set()


def pool(work: Work, wake: Callable[[], None] = lambda: None) -> WritePool[int]:
    return WritePool(work, str, team_of=lambda item: "ab"[item >= 900], num_threads=2, wake=wake, slow_s=0.2)


def test_work_that_follows_from_the_first_does_not_wait_for_the_last() -> None:
    done: list[int] = []
    last = threading.Event()

    def work(item: int) -> bool:
        if item == 2:
            assert last.wait(WAIT_S)
        done.append(item)
        return item != 1

    def meanwhile() -> None:
        if sorted(done) == [0, 1]:
            last.set()

    writes = WritePool(work, str, team_of=lambda _: "", num_threads=2, wake=lambda: None, slow_s=WAIT_S)
    assert writes.write([0, 1, 2], meanwhile) == (True, False, True)


def test_many_writes_of_a_team_delay_neither_those_of_another_nor_the_next_pass() -> None:
    done: list[int] = []
    woken = threading.Event()

    def work(item: int) -> bool:
        time.sleep(0.02)
        done.append(item)
        return True

    items = [*range(500), 900]  # five seconds of writes
    begun = time.monotonic()
    results = pool(work, woken.set).write(items, lambda: None)
    assert time.monotonic() - begun < 4.0
    assert 900 in done[:3]
    assert [item for item, is_written in zip(items, results, strict=True) if is_written] == sorted(done)
    assert len(done) < len(items)
    assert woken.is_set(), "the next pass comes at once"


def test_work_goes_on_beside_writes_that_end_one_after_the_other() -> None:
    calls: list[int] = []

    def work(item: int) -> bool:
        time.sleep(0.01)
        return True

    pool(work).write(list(range(60)), lambda: calls.append(1))
    assert calls


def test_a_write_without_an_answer_keeps_no_other_waiting_and_is_not_repeated(answered: threading.Event) -> None:
    begun: list[int] = []
    woken = threading.Event()

    def work(item: int) -> bool:
        begun.append(item)
        return item < 5 or answered.wait(WAIT_S)

    writes = pool(work, woken.set)
    # More slow ones than threads.
    assert writes.write([5, 6, 7, 0, 1], lambda: None) == (False, False, False, True, True)
    assert writes.slow() == {"5": 5, "6": 6, "7": 7}
    assert writes.write([6, 2], lambda: None) == (False, True)
    assert begun.count(6) == 1
    answered.set()
    assert woken.wait(WAIT_S)
    until(lambda: not writes.slow())
    assert writes.write([6], lambda: None) == (True,)


def test_an_error_is_raised_after_all_others_are_written() -> None:
    written: list[int] = []

    def work(item: int) -> bool:
        if item == 0:
            raise ClusterError("no answer")
        written.append(item)
        return True

    with pytest.raises(ClusterError, match="no answer"):
        pool(work).write(list(range(6)), lambda: None)
    assert sorted(written) == [1, 2, 3, 4, 5]


def test_an_urgent_pass_waits_for_the_first_write_of_each_team_alone() -> None:
    done: list[int] = []

    def work(item: int) -> bool:
        done.append(item)
        return True

    urgent = UrgentPasses()
    writes = WritePool(
        work, str, team_of=lambda item: "abc"[item // 100], num_threads=1, wake=lambda: None,
        is_urgent=urgent.are_beside,
    )  # fmt: skip
    urgent.request("a")
    assert all(writes.write([*range(100), 100, 200], lambda: None)), "those of the team itself are written first"
    done.clear()
    urgent.request("b")
    assert writes.write([*range(100), 100, 200], lambda: None) == (True, *[False] * 99, True, True)
    assert done == [0, 100, 200]


def test_a_team_whose_writes_wait_in_the_api_server_has_fewer_at_once_and_another_team_does_not_wait_for_them() -> None:
    at_once, most_at_once, begun_at = 0, [0], dict[int, float]()
    lock, is_busy = threading.Lock(), [False]

    def work(item: int) -> bool:
        nonlocal at_once
        with lock:
            at_once += item < 900
            most_at_once[0] = max(most_at_once[0], at_once)
            begun_at[item] = time.monotonic()
        time.sleep(0.15 if is_busy[0] and item < 900 else 0.002)
        with lock:
            at_once -= item < 900
        return True

    writes = WritePool(
        work, str, team_of=lambda item: "ab"[item >= 900], num_threads=8, wake=lambda: None, slow_s=WAIT_S
    )  # fmt: skip
    writes.write(list(range(60)), lambda: None)
    assert most_at_once[0] == 8
    is_busy[0] = True
    for _ in range(4):
        writes.write(list(range(60)), lambda: None)
    most_at_once[0] = 0
    begun = time.monotonic()
    writes.write([*range(60), 900, 901], lambda: None)
    assert most_at_once[0] <= 2
    assert max(begun_at[900], begun_at[901]) - begun < 0.1
    is_busy[0] = False
    for _ in range(4):
        writes.write(list(range(100)), lambda: None)
    assert most_at_once[0] > 6, "it is given back"
