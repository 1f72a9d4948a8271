"""Work that several threads share."""

import logging
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Unreachable
from fairlead.cluster.kubernetes.operator.request_dispatch import Dispatcher
from fairlead.cluster.kubernetes.operator.retry_delays import FORGOTTEN_S, MOST_AGAIN_S, RetryDelays
from fairlead.errors import ClusterError

WAIT_S = 60.0


class World:
    """A dispatcher on a clock that only the test moves."""

    def __init__(self, num_threads: int) -> None:
        self.now = 0.0
        self.refusals: list[tuple[str, str]] = []
        self.work = Dispatcher(num_threads, clock=lambda: self.now, refused=lambda *told: self.refusals.append(told))

    def fail(self, error: Exception, times: int) -> None:
        """Submit a job that fails so, each time that its delay has passed."""

        def job() -> None:
            raise error

        for _ in range(times):
            assert self.work.submit("run", "create a pod", job)
            assert self.work.drain(WAIT_S)
            assert not self.work.submit("run", "create a pod", job)
            self.now += MOST_AGAIN_S


@pytest.fixture
def world() -> Iterator[World]:
    world = World(num_threads=4)
    yield world
    world.work.stop()


def test_what_is_refused_again_and_again_is_logged_once_and_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        world.fail(ApiError("POST pods", 500, "InternalError", "failed calling webhook"), times=5)
    assert len(caplog.records) == 1
    assert world.refusals == [
        ("run", "create a pod: POST pods: failed calling webhook (HTTP 500 InternalError)"),
    ]
    assert world.work.refused == {"run"}


@pytest.mark.parametrize(
    "error", [Unreachable("no answer"), ApiError("POST pods", 401, "Unauthorized", ""), ClusterError("no database")]
)
def test_an_outage_is_no_refusal(world: World, error: ClusterError) -> None:
    world.fail(error, times=3)
    assert world.refusals == []


def test_one_refusal_is_none(world: World) -> None:
    world.fail(ApiError("POST pods", 503, "", "restarting"), times=1)
    assert world.work.submit("run", "create a pod", lambda: None)
    assert world.work.drain(WAIT_S)
    assert (world.refusals, world.work.refused) == ([], set())


def test_what_failed_before_takes_half_of_the_threads(world: World) -> None:
    """Slow failures, as of a webhook that does not answer, leave the other threads to other runs."""
    held, num_held = threading.Event(), threading.Semaphore(0)

    def fail() -> None:
        raise ApiError("POST pods", 500, "InternalError", "context deadline exceeded")

    def hang() -> None:
        num_held.release()
        assert held.wait(WAIT_S)

    for number in range(8):
        world.work.submit(f"hostile-{number}", f"create {number}", fail)
    assert world.work.drain(WAIT_S)
    world.now += MOST_AGAIN_S
    for number in range(8):
        assert world.work.submit(f"hostile-{number}", f"create {number}", hang)
    for _ in range(2):
        assert num_held.acquire(timeout=WAIT_S)
    done = threading.Event()
    assert world.work.submit("other", "create other", done.set)
    assert done.wait(WAIT_S)
    assert not num_held.acquire(blocking=False)
    held.set()
    assert world.work.drain(WAIT_S)


def test_one_team_takes_no_more_than_its_part_of_the_threads() -> None:
    work, held, num_held = Dispatcher(4, most_of_team=2), threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        num_held.release()
        assert held.wait(WAIT_S)

    for number in range(8):
        assert work.submit(f"hostile-{number}", f"read {number}", hang, team="hostile")
    for _ in range(2):
        assert num_held.acquire(timeout=WAIT_S)
    done = threading.Event()
    assert work.submit("other", "read other", done.set, team="other")
    assert done.wait(WAIT_S)
    assert not num_held.acquire(blocking=False)
    held.set()
    assert work.drain(WAIT_S)
    work.stop()


def test_a_delay_doubles_up_to_a_maximum_and_is_forgotten_when_nobody_tries_again() -> None:
    now = [0.0]
    delays = RetryDelays[str](lambda: now[0])
    waited = []
    for failures in range(1, 9):
        assert delays.fail("a") == failures
        begun = now[0]
        while delays.is_delayed("a"):
            now[0] += 0.1
        waited.append(round(now[0] - begun, 1))
    assert waited == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0], abs=0.11)
    assert (delays.failed(), delays.delayed()) == (["a"], [])
    now[0] += FORGOTTEN_S + 1
    assert delays.failed() == []
    delays.fail("b")
    assert delays.failed() == ["b"]
    delays.succeed("b")
    assert not delays.has_failed("b")


def test_reports_of_one_namespace_take_few_threads_and_those_of_another_go_on() -> None:
    work, num_held, held = Dispatcher(4), threading.Semaphore(0), threading.Event()
    done = list[str]()

    def job(name: str) -> None:
        num_held.release()
        held.wait(WAIT_S)
        done.append(name)

    for number in range(6):
        assert work.submit("events of a", f"a {number}", partial(job, f"a {number}"), most=1)
    assert work.submit("events of b", "b 0", partial(job, "b 0"), most=1)
    for _ in range(2):
        assert num_held.acquire(timeout=WAIT_S)
    assert not num_held.acquire(timeout=0.05), "a third one runs"
    held.set()
    assert work.drain(WAIT_S)
    assert sorted(done) == [*(f"a {number}" for number in range(6)), "b 0"]
    work.stop()
