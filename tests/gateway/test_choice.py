"""Revisions by weight, replicas by what they have to do, and those that are broken left out."""

import asyncio
from collections import Counter

import pytest

from fairlead.gateway.messages import HttpError, read_request
from fairlead.gateway.routes import Backend, RevisionRoute, ServiceRoute
from fairlead.gateway.services import (
    FIRST_BACK_OFF_S,
    LONGEST_BACK_OFF_S,
    ReplicaLease,
    RoutedService,
    ServiceTable,
)


def route(
    *revisions: RevisionRoute, name: str = "m", most: int | None = None, queue: int = 10, failure: str | None = None
) -> ServiceRoute:
    return ServiceRoute(name, f"/{name}", (), (), 60.0, False, most, queue, revisions, failure)


def revision(name: str, *ids: str, weight: int = 1, shadow: bool = False) -> RevisionRoute:
    return RevisionRoute(name, weight, shadow, tuple(Backend(each, "127.0.0.1", 80) for each in ids))


def service(*revisions: RevisionRoute, most: int | None = None, queue: int = 10) -> RoutedService[None]:
    made: RoutedService[None] = RoutedService(route(*revisions, most=most, queue=queue))
    made.update(made.route)
    return made


def taken(of: RoutedService[None], now: float = 0.0) -> ReplicaLease[None]:
    given = of.take(now)
    assert given is not None
    return given


def test_shares_follow_the_weights_without_runs_of_one() -> None:
    made = service(revision("a", "1", weight=5), revision("b", "2", weight=1), revision("c", "3", weight=1))
    assert "".join(taken(made).revision.name for _ in range(14)) == "aabacaa" * 2


def test_a_revision_of_weight_nothing_and_a_shadow_get_none() -> None:
    made = service(revision("a", "1", weight=0), revision("b", "2"), revision("c", "3", shadow=True, weight=9))
    assert {taken(made).revision.name for _ in range(10)} == {"b"}


def test_the_replica_with_least_to_do_is_next_and_equal_ones_take_turns() -> None:
    made = service(revision("a", "1", "2", "3"))
    first = [taken(made) for _ in range(3)]
    assert [each.replica.backend.id for each in first] == ["1", "2", "3"]
    made.release(first[1], 0.0)
    assert [taken(made).replica.backend.id for _ in range(2)] == ["2", "1"]


def test_a_full_replica_gets_nothing() -> None:
    made = service(revision("a", "1", "2"), most=2)
    assert Counter(taken(made).replica.backend.id for _ in range(4)) == {"1": 2, "2": 2}
    assert made.take(0.0) is None


def test_a_replica_that_refuses_is_left_out_and_then_tried_by_one() -> None:
    made = service(revision("a", "1", "2"))
    given = taken(made)
    given.replica.refused(0.0)
    made.release(given, 0.0)
    assert {taken(made, 0.0).replica.backend.id for _ in range(4)} == {"2"}
    later = FIRST_BACK_OFF_S
    assert [taken(made, later).replica.backend.id for _ in range(3)] == ["1", "2", "2"]


def test_the_time_that_it_is_left_out_grows_to_a_bound_and_ends_with_an_answer() -> None:
    made = service(revision("a", "1"))
    replica = made.revisions[0].replicas[0]
    now, waits = 0.0, []
    for _ in range(8):
        replica.refused(now)
        waits.append(round(replica.closed_until - now, 6))
        now = replica.closed_until
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_BACK_OFF_S, LONGEST_BACK_OFF_S]
    replica.answered()
    assert taken(made, now).replica is replica
    replica.refused(now)
    assert replica.closed_until == now + FIRST_BACK_OFF_S


def test_refusals_of_requests_that_were_on_their_way_count_once() -> None:
    replica = service(revision("a", "1")).revisions[0].replicas[0]
    for _ in range(50):
        replica.refused(0.0)
    assert replica.closed_until == FIRST_BACK_OFF_S


def test_three_answers_broken_off_in_a_row_count_as_a_refusal() -> None:
    made = service(revision("a", "1"))
    replica = made.revisions[0].replicas[0]
    for _ in range(2):
        replica.broke_off(0.0)
    replica.answered()
    for _ in range(2):
        replica.broke_off(0.0)
    assert made.take(0.0) is not None
    replica.broke_off(0.0)
    assert made.take(0.0) is None


def test_a_replica_keeps_what_it_does_when_routes_change_and_a_removed_one_gets_no_more() -> None:
    made = service(revision("a", "1", "2"))
    one, two = taken(made), taken(made)
    gone = made.update(route(revision("a", "2", "3")))
    assert gone == [one.replica]
    assert one.replica.removed
    assert two.replica.outstanding == 1
    assert [taken(made).replica.backend.id for _ in range(2)] == ["3", "3"] or two.replica.outstanding == 2
    made.release(one, 0.0)
    assert one.replica.outstanding == 0


def test_a_replica_that_moves_to_another_revision_is_the_same_one() -> None:
    made = service(revision("a", "1"))
    given = taken(made)
    assert made.update(route(revision("b", "1"))) == []
    assert made.revisions[0].replicas == [given.replica]


def test_who_waits_longest_is_next() -> None:
    async def wait() -> list[bool]:
        made = service(revision("a", "1"), most=1)
        busy = taken(made)
        waiters = [asyncio.get_running_loop().create_future() for _ in range(3)]
        for waiter in waiters:
            made.join_queue(waiter)
        waiters[0].cancel()
        made.release(busy, 0.0)
        return [waiter.done() for waiter in waiters]

    assert asyncio.run(wait()) == [True, True, False]


def test_as_many_wait_as_may() -> None:
    async def wait() -> None:
        made = service(revision("a"), queue=2)
        for _ in range(2):
            made.join_queue(asyncio.get_running_loop().create_future())
        made.waiting[0].cancel()
        made.join_queue(asyncio.get_running_loop().create_future())
        with pytest.raises(HttpError, match="no replica is ready yet and 2 requests wait already") as refused:
            made.join_queue(asyncio.get_running_loop().create_future())
        assert (refused.value.status, refused.value.retry_after_s) == (429, 1)

    asyncio.run(wait())


def test_a_place_that_was_given_to_one_who_left_goes_to_the_next() -> None:
    async def wait() -> None:
        made = service(revision("a", "1"), most=1)
        busy = taken(made)
        first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
        made.join_queue(first)
        made.join_queue(second)
        made.release(busy, 0.0)
        made.leave_queue(first, 0.0)
        assert second.done()
        assert made.revisions[0].replicas[0].outstanding == 1

    asyncio.run(wait())


def test_those_who_wait_for_a_service_that_fails_are_told_why() -> None:
    async def wait() -> None:
        made = service(revision("a"))
        waiter = asyncio.get_running_loop().create_future()
        made.join_queue(waiter)
        made.update(route(revision("a"), failure="no GPU is left"))
        made.admit_waiting(0.0)
        with pytest.raises(HttpError, match="no GPU is left"):
            waiter.result()
        with pytest.raises(HttpError, match="no GPU is left"):
            made.join_queue(asyncio.get_running_loop().create_future())

    asyncio.run(wait())


def test_those_who_wait_for_a_service_that_is_taken_away_are_told_so() -> None:
    async def wait() -> None:
        table: ServiceTable[None] = ServiceTable()
        table.update({"m": route(revision("a"))})
        waiter = asyncio.get_running_loop().create_future()
        table.services["m"].join_queue(waiter)
        table.update({})
        with pytest.raises(HttpError, match="m is no longer served"):
            waiter.result()
        assert table.find(read_request(b"GET /m/x HTTP/1.1\r\nHost: x\r\n\r\n")) is None

    asyncio.run(wait())
