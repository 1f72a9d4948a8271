"""Requests that would be late are refused at once, and what scaling by latency goes by is counted."""

from collections.abc import Callable

import pytest

from fairlead.gateway.messages import HttpError
from fairlead.gateway.request_metrics import INTERVAL_S, INTERVALS_KEPT, ServiceMetrics
from fairlead.gateway.routes import Backend, RevisionRoute, ServiceRoute
from fairlead.gateway.services import ReplicaLease, RoutedService
from tests.gateway.conftest import Opener
from tests.gateway.parts import Replica, service
from tests.waiting import until

Make = Callable[..., Replica]


def made(*, places: float = 1.0, most: int | None = None, replicas: int = 1) -> RoutedService[None]:
    backends = tuple(Backend(str(number), "127.0.0.1", 80) for number in range(replicas))
    revisions = (RevisionRoute("r1", 1, False, backends),)
    route = ServiceRoute("m", "/m", (), (), 60.0, False, None, 10, revisions, None, None, places, most)
    found: RoutedService[None] = RoutedService(route)
    found.update(route)
    return found


def given(by: RoutedService[None], now: float) -> ReplicaLease[None]:
    found = by.take(now)
    assert found is not None
    return found


def end(of: RoutedService[None], each: ReplicaLease[None], began: float, now: float) -> None:
    of.count(each, failed=False, duration_s=now - began, response=None, now=now, epoch=now)
    of.release(each, now)


def test_one_more_than_end_in_time_is_refused_and_is_counted_as_asked_for() -> None:
    busy = made(most=2)
    for _ in range(2):
        busy.arrive(1.0)
        busy.shed()
    busy.arrive(1.0)
    with pytest.raises(HttpError, match="2 requests are here already, more would be late") as refused:
        busy.shed()
    assert (refused.value.status, refused.value.retry_after_s) == (503, 1)
    assert busy.metrics.intervals[-1][1] == 3


def test_nobody_is_refused_while_a_service_starts() -> None:
    asleep = made(most=1, replicas=0)
    for _ in range(3):
        asleep.arrive(1.0)
        asleep.shed()


@pytest.mark.parametrize(("places", "busy_s"), [(1.0, 4.0), (2.0, 6.0)])
def test_the_time_for_which_places_are_taken_is_not_that_of_requests_that_queue(places: float, busy_s: float) -> None:
    one = made(places=places)
    first, second, third = given(one, 0.0), given(one, 1.0), given(one, 1.0)
    end(one, first, 0.0, 2.0)
    end(one, second, 1.0, 3.0)
    end(one, third, 1.0, 4.0)
    (found,) = one.metrics.intervals
    assert found == [0, 0, 3, busy_s, 7.0, 17.0]


def test_intervals_of_the_last_quarter_of_an_hour_are_kept() -> None:
    tally = ServiceMetrics()
    for second in range(0, 20 * 60, INTERVAL_S):
        tally.arrive(float(second))
    told = tally.demand(queued=0, epoch=20 * 60.0)["intervals"]
    assert len(told) == INTERVALS_KEPT - 1
    assert told[-1][:2] == [20 * 60 - INTERVAL_S, 1]


def test_a_door_refuses_what_would_be_late_and_serves_the_rest(open_python_door: Opener, replicas: Make) -> None:
    replica = replicas()
    door = open_python_door({"m": service(replica, most_in_flight=1)})
    held = door.ask_beside("/m/slow")
    until(lambda: replica.asked == ["/slow"], "a request")
    refused = door.ask("/m/echo")
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    replica.go.release()
    assert held.answer().status == 200
    assert door.ask("/m/echo").status == 200
