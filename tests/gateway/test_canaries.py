"""A canary and an equal slice of the old revision: who gets which requests, and how they are compared."""

from collections import Counter
from collections.abc import Callable

import pytest

from fairlead.errors import InvalidSpec
from fairlead.gateway.canaries import MOST_AHEAD, Pairs
from fairlead.gateway.messages import ResponseHead
from fairlead.gateway.routes import Backend, CanaryRoute, RevisionRoute, ServiceRoute, read_routes
from fairlead.gateway.services import RoutedService
from tests.gateway.conftest import Opener
from tests.gateway.parts import Replica, revision, service
from tests.waiting import until

Make = Callable[..., Replica]

TRIAL = CanaryRoute("r2@1", 0.25, b"x-score", None, 0.5)


def scored(value: bytes) -> ResponseHead:
    return ResponseHead(200, b"OK", [(b"x-score", b"X-Score", value)], frozenset(), 0, True)


def add(pairs: Pairs, arm: str, *, failed: bool = False, took_s: float = 0.1, score: bytes = b"0.9") -> None:
    pairs.add(arm, failed=failed, duration_s=took_s, response=scored(score))


def backends(*ids: str) -> tuple[Backend, ...]:
    return tuple(Backend(each, "127.0.0.1", 80) for each in ids)


def tried(*revisions: RevisionRoute, canary: CanaryRoute | None = TRIAL) -> ServiceRoute:
    return ServiceRoute("m", "/m", (), (), 60.0, False, None, 10, revisions, None, canary)


def test_a_pair_counts_by_what_only_one_of_it_did() -> None:
    pairs = Pairs(TRIAL)
    add(pairs, "canary", failed=True, took_s=0.3)
    add(pairs, "control", took_s=0.3)
    add(pairs, "control", score=b"0.2")
    add(pairs, "canary")
    assert pairs.as_json() == {"trial": "r2@1", "pairs": 2, "worse": {"failed": 1}, "better": {"metric": 1}}


def test_the_first_of_one_side_is_compared_with_the_first_of_the_other() -> None:
    pairs = Pairs(TRIAL)
    for number in range(3):
        add(pairs, "control", failed=number == 0)
    add(pairs, "canary", failed=True)
    assert pairs.as_json() == {"trial": "r2@1", "pairs": 1, "worse": {}, "better": {}}


def test_a_side_that_is_far_ahead_is_compared_by_its_latest() -> None:
    pairs = Pairs(TRIAL)
    for number in range(MOST_AHEAD + 1):
        add(pairs, "control", failed=number == 0)
    for _ in range(MOST_AHEAD):
        add(pairs, "canary")
    assert (pairs.num_pairs, dict(pairs.better)) == (MOST_AHEAD, {})


@pytest.mark.parametrize(("score", "bad"), [(b"0.5", 0), (b"0.4", 1), (b"good", 0), (b"nan", 0)])
def test_a_score_is_bad_beyond_its_bound_and_what_is_no_number_is_not(score: bytes, bad: int) -> None:
    pairs = Pairs(TRIAL)
    add(pairs, "canary", score=score)
    add(pairs, "control")
    assert pairs.worse["metric"] == bad


def test_the_slices_are_equal_and_the_rest_goes_to_the_old_one() -> None:
    made: RoutedService[None] = RoutedService(tried())
    made.update(
        tried(
            RevisionRoute("r1", 800, False, backends("a", "b")),
            RevisionRoute("r1", 100, False, backends("c"), "control"),
            RevisionRoute("r2", 100, False, backends("d"), "canary"),
        )
    )
    got = Counter[tuple[str, str]]()
    for _ in range(200):
        given = made.take(0.0)
        assert given is not None
        got[given.replica.backend.id, given.revision.arm] += 1
        made.release(given, 0.0)
    assert got == {("a", ""): 80, ("b", ""): 80, ("c", "control"): 20, ("d", "canary"): 20}


def test_a_replica_on_both_sides_of_its_revision_is_one_replica() -> None:
    made: RoutedService[None] = RoutedService(tried())
    made.update(
        tried(
            RevisionRoute("r1", 500, False, backends("a")),
            RevisionRoute("r1", 250, False, backends("a"), "control"),
            RevisionRoute("r2", 250, False, backends("b"), "canary"),
        )
    )
    given = [made.take(0.0) for _ in range(4)]
    assert {each.replica.backend.id: each.replica.outstanding for each in given if each is not None} == {"a": 3, "b": 1}


def test_another_trial_begins_to_count_anew_and_its_end_ends_it() -> None:
    made: RoutedService[None] = RoutedService(tried())
    made.update(tried())
    assert made.pairs is not None
    add(made.pairs, "canary")
    before = made.pairs
    made.update(tried())
    assert made.pairs is before
    made.update(tried(canary=CanaryRoute("r2@2")))
    assert made.pairs is not before
    made.update(tried(canary=None))
    assert made.pairs is None


def test_what_a_client_did_not_wait_for_counts_as_slow_where_it_was() -> None:
    made: RoutedService[None] = RoutedService(tried())
    made.update(tried(RevisionRoute("r2", 1, False, backends("b"), "canary")))
    given = made.take(0.0)
    assert given is not None
    assert made.pairs is not None
    made.count(given, failed=True, duration_s=0.1, response=None, now=1.0, epoch=1.0, abandoned=True)
    made.count(given, failed=True, duration_s=0.3, response=None, now=1.0, epoch=1.0, abandoned=True)
    add(made.pairs, "control")
    assert made.pairs.as_json()["worse"] == {"slow": 1}
    assert made.metrics.revision("r2").requests == 0


@pytest.mark.parametrize(
    ("canary", "says"),
    [
        ("1", "`canary` has to be null or a mapping"),
        ('{"trial": ""}', "`trial` has to be a text"),
        ('{"trial": "a", "latency_s": 0}', "`latency_s` has to be null or positive"),
        ('{"trial": "a", "below": "x"}', "`below` has to be null or a number"),
    ],
)
def test_a_trial_that_is_wrong_is_refused(canary: str, says: str) -> None:
    with pytest.raises(InvalidSpec, match=says):
        read_routes(f'{{"version": 2, "services": {{"m": {{"canary": {canary}}}}}}}')


def test_a_door_tells_what_became_of_both_sides_and_counts_them_by_revision(
    open_python_door: Opener, replicas: Make
) -> None:
    old, new = replicas("old"), replicas("new")
    sides = [revision("r1", old, weight=500) | {"arm": "control"}, revision("r2", new, weight=500) | {"arm": "canary"}]
    door = open_python_door({"m": service(revisions=sides, canary={"trial": "r2@1"})})
    # They take turns, the first one first.
    for path in ("/m/echo", "/m/status/500", "/m/echo", "/m/echo"):
        door.ask(path)
    until(lambda: (door.demand()["services"].get("m") or {"canary": {"pairs": 0}})["canary"]["pairs"] == 2, "pairs")
    told = door.demand()["services"]["m"]
    assert told["canary"] == {"trial": "r2@1", "pairs": 2, "worse": {"failed": 1}, "better": {}}
    assert {name: each["requests"] for name, each in told["revisions"].items()} == {"r1": 2, "r2": 2}


def test_a_shadow_is_compared_by_copies_of_the_requests_of_the_other_side(
    open_python_door: Opener, replicas: Make
) -> None:
    old, new = replicas("old"), replicas("new")
    sides = [
        revision("r1", old, weight=500),
        revision("r1", old, weight=500) | {"arm": "control"},
        revision("r2", new, weight=500, shadow=True) | {"arm": "canary"},
    ]
    door = open_python_door({"m": service(revisions=sides, canary={"trial": "r2@1"}, idempotent=True)})
    new.go.release()

    def told() -> object:
        found = door.demand()["services"].get("m", {"canary": None, "revisions": {}})
        return found["canary"], {name: each["requests"] for name, each in found["revisions"].items()}

    compared = {"trial": "r2@1", "pairs": 1, "worse": {}, "better": {}}
    assert [door.ask(path).status for path in ("/m/echo", "/m/status/500")] == [200, 500]
    # A copy that is late is compared with the next request, whose answer is another.
    until(lambda: told() == (compared, {"r1": 2, "r2": 1}), "one of two compared", timeout_s=60.0)
    assert [door.ask(path).status for path in ("/m/echo", "/m/echo")] == [200, 200]
    # Not counted: what is too long to be copied, since the shadow has nothing to be compared with it.
    assert [door.ask(method="POST", body=b"x" * 1_100_000).status for _ in range(2)] == [200, 200]
    until(lambda: told() == (compared | {"pairs": 2}, {"r1": 6, "r2": 2}), "two of six compared", timeout_s=60.0)
    assert len(new.asked) == 2


def test_metrics_count_a_replica_on_both_sides_once(open_python_door: Opener, replicas: Make) -> None:
    old, new = replicas("old"), replicas("new")
    sides = [
        revision("r1", old, weight=500),
        revision("r1", old, weight=250) | {"arm": "control"},
        revision("r2", new, weight=250) | {"arm": "canary"},
    ]
    door = open_python_door({"m": service(revisions=sides, canary={"trial": "r2@1"})})
    told = door.ask("/metrics", admin=True).body.decode()
    found = [line for line in told.splitlines() if line.startswith("fairlead_gateway_replicas{")]
    assert sorted(line.rpartition(" ")[2] for line in found) == ["1.0", "1.0"]
