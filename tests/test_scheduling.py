"""Whole runs of the tests: files begin longest first, and a worker that dies costs one test."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.scheduling import SET_UPS, SHARE_NOTHING, LongestFirst, SetUp, by_file, set_up_of

TESTS = ["a.py::1", "a.py::2", "a.py::3", "b.py::1", "c.py::1", "c.py::2"]


class Fake:
    """A worker that notes what it is given; `run` is the one that it works on next."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        assert not self.shutting_down
        self.given += [TESTS[index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True

    def run(self, scheduler: LongestFirst) -> None:
        """Run the next test; as the real one, only with another behind it or the news that there is none."""
        assert len(self.given) > 1 or self.shutting_down, "waits for ever"
        scheduler.mark_test_complete(self, TESTS.index(self.given.pop(0)))


def joined(scheduler: LongestFirst, *workers: Fake) -> None:
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, TESTS)
        if scheduler.collection_is_completed:
            scheduler.schedule()


@pytest.fixture
def scheduler() -> LongestFirst:
    return LongestFirst(2, {"b.py": 50.0, "c.py": 5.0})


def test_the_longest_files_are_first_and_unknown_ones_count_by_their_tests() -> None:
    files = [[TESTS[index] for index in part.tests] for part in by_file(TESTS, {"b.py": 50.0, "c.py": 0.25})]
    assert files == [["b.py::1"], TESTS[:3], TESTS[4:]]


def test_tests_that_share_nothing_go_one_by_one_each_with_its_part_of_the_time() -> None:
    tests = [*(f"{SHARE_NOTHING[0]}::{n}" for n in range(3)), "b.py::1", "b.py::2", "c.py::1"]
    parts = by_file(tests, {SHARE_NOTHING[0]: 90.0, "b.py": 40.0, "c.py": 5.0})
    assert [part.tests for part in parts] == [[3, 4], [0], [1], [2], [5]]


def test_a_few_rounds_of_chaos_begin_before_many_tests_of_rules() -> None:
    tests = [*(f"tests/policy/test_order.py::{n}" for n in range(40)), "tests/chaos/test_chaos.py::1"]
    assert [part.tests for part in by_file(tests, {})] == [[40], list(range(40))]


def test_nothing_begins_before_all_workers_have_found_the_tests(scheduler: LongestFirst) -> None:
    first, second = Fake(), Fake()
    joined(scheduler, first)
    assert not first.given
    joined(scheduler, second)
    assert first.given == ["b.py::1", "c.py::1", "c.py::2"], "one test alone would not begin"
    assert second.given == TESTS[:3]


def test_every_test_runs_once_and_then_all_is_over(scheduler: LongestFirst) -> None:
    workers = Fake(), Fake()
    joined(scheduler, *workers)
    for worker in workers:
        while worker.given:
            worker.run(scheduler)
    assert scheduler.tests_finished
    assert not scheduler.has_pending


@pytest.mark.parametrize("done", range(3))
def test_a_worker_that_dies_at_the_very_end_costs_the_test_that_it_ran(scheduler: LongestFirst, done: int) -> None:
    dies, lives = Fake(), Fake()
    joined(scheduler, lives, dies)
    while lives.given:
        lives.run(scheduler)
    for _ in range(done):
        dies.run(scheduler)
    left = list(dies.given)
    assert scheduler.remove_node(dies) == left[0]
    heir = Fake()
    joined(scheduler, heir)
    assert heir.given == left[1:]
    while heir.given:
        heir.run(scheduler)
    assert scheduler.tests_finished


def test_a_worker_that_dies_before_it_has_found_the_tests_is_replaced(scheduler: LongestFirst) -> None:
    dies, lives, heir = Fake(), Fake(), Fake()
    scheduler.add_node(dies)
    joined(scheduler, lives)
    assert scheduler.remove_node(dies) is None
    joined(scheduler, heir)
    while lives.given:
        lives.run(scheduler)
    assert heir.given


def test_workers_that_find_different_tests_are_refused(scheduler: LongestFirst) -> None:
    joined(scheduler, Fake())
    other = Fake()
    scheduler.add_node(other)
    with pytest.raises(RuntimeError, match="different tests"):
        scheduler.add_node_collection(other, TESTS[1:])


def shares(*files: str) -> Callable[[str], str | None]:
    """Have these files use the first kind of set-up."""
    return lambda file: next(iter(SET_UPS)) if file in files else None


def begun(scheduler: LongestFirst, num_workers: int) -> list[Fake]:
    workers = [Fake() for _ in range(num_workers)]
    joined(scheduler, *workers)
    return workers


def test_files_that_share_what_is_costly_stay_with_few_workers_while_others_have_something_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SET_UPS, next(iter(SET_UPS)), SetUp(re.compile(""), workers=1, seconds=40.0))
    seconds = {"a.py": 9.0, "b.py": 8.0, "c.py": 7.0}
    first, second = begun(LongestFirst(2, seconds, shares("a.py", "b.py")), 2)
    assert first.given == TESTS[:3]
    assert second.given == TESTS[4:], "b.py is longer, but the other worker has what it needs"


@pytest.mark.parametrize(("cost", "also"), [(7.0, TESTS[3:4]), (9.0, [])])
def test_whoever_has_nothing_else_to_do_takes_part_when_that_pays(
    monkeypatch: pytest.MonkeyPatch, cost: float, also: list[str]
) -> None:
    monkeypatch.setitem(SET_UPS, next(iter(SET_UPS)), SetUp(re.compile(""), workers=1, seconds=cost))
    seconds = {"a.py": 9.0, "b.py": 8.0, "c.py": 7.0}
    scheduler = LongestFirst(2, seconds, shares("a.py", "b.py"))
    _, second = begun(scheduler, 2)
    second.run(scheduler)
    assert second.given == [TESTS[5], *also]
    assert second.shutting_down


def test_what_only_so_many_may_have_is_set_up_by_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SET_UPS, next(iter(SET_UPS)), SetUp(re.compile(""), workers=1, seconds=0.0, at_most=True))
    scheduler = LongestFirst(2, {"a.py": 9.0, "b.py": 8.0, "c.py": 7.0}, shares("a.py", "b.py"))
    first, second = begun(scheduler, 2)
    while second.given:
        second.run(scheduler)
    assert second.shutting_down
    assert scheduler.remove_node(first) == TESTS[0], "the owner dies"
    heir = Fake()
    joined(scheduler, heir)
    while heir.given:
        heir.run(scheduler)
    assert scheduler.tests_finished, "what a dead worker had is no longer had"


def test_nothing_more_is_handed_out_once_the_time_is_over_and_what_is_left_is_known() -> None:
    is_over = False
    scheduler = LongestFirst(1, {"b.py": 50.0, "c.py": 5.0}, is_over=lambda: is_over)
    (worker,) = begun(scheduler, 1)
    assert worker.given == ["b.py::1", "c.py::1", "c.py::2"]
    worker.run(scheduler)
    is_over = True
    while worker.given:
        worker.run(scheduler)
    assert scheduler.left == TESTS[:3]
    assert scheduler.tests_finished
    assert worker.shutting_down


def test_one_worker_alone_comes_to_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = dict(zip(("a.py", "b.py", "c.py"), SET_UPS, strict=True))
    scheduler = LongestFirst(1, {"a.py": 9.0, "b.py": 8.0}, kinds.get)
    (worker,) = begun(scheduler, 1)
    while worker.given:
        worker.run(scheduler)
    assert scheduler.tests_finished


def test_what_a_file_shares_shows_in_its_text(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    for text, kind in [
        ("with started(lambda: RealCluster(2), request) as made: ...  # namespace: str", "real nodes"),
        ("def test(plane: ControlPlane) -> None: ...", "control plane"),
        ("def test(namespace: str, cluster: WorkloadApi) -> None: ...", "control plane"),
        ("torch = torch_or_skip()", "torch"),
        ("def test() -> None: ...", None),
    ]:
        file.write_text(text)
        assert set_up_of(file) == kind
