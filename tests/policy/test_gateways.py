"""Several gateways side by side: what they count is summed, and what may be there is divided among them."""

from dataclasses import replace

import pytest

from fairlead.policy.kinds.parents import families_of
from fairlead.policy.serving.routes import gateways_for, places_here, places_on_cluster, routes
from fairlead.specs.serving import Access, Serving
from fairlead.state.demand import CanaryTraffic, Demand, Interval, RevisionTraffic, Second, merge, read_demand
from fairlead.state.endpoint_detail import CanaryTrial, Comparison, GatewayCounts, detail_of
from fairlead.state.snapshot import Snapshot
from tests.policy.test_serving import World, spec


def test_what_gateways_have_counted_is_summed_by_second_interval_and_revision() -> None:
    one = Demand(
        since=5.0, in_flight=2, queued=1, wake=8.0, last_request=11.0,
        seconds=(Second(at=10, arrivals=3, in_flight=2), Second(at=11, arrivals=1, in_flight=2)),
        intervals=(Interval(at=10, arrivals=4, ended=2, busy_s=0.5, took_s=1.0, took_s2=0.6),),
        revisions=(RevisionTraffic(name="r1", requests=4, errors=1, latency_s=1.0),),
        canaries=(CanaryTraffic(trial="r2@1", gateway="a@5", pairs=3),),
    )  # fmt: skip
    other = Demand(
        since=9.0, in_flight=1, wake=9.0, last_request=12.0, seconds=(Second(at=11, arrivals=2, in_flight=1),),
        intervals=(Interval(at=10, arrivals=2, ended=2, busy_s=0.5, took_s=1.0, took_s2=0.6),),
        revisions=(RevisionTraffic(name="r1", requests=2), RevisionTraffic(name="r2", requests=1)),
        canaries=(CanaryTraffic(trial="r2@1", gateway="b@9", pairs=2),),
    )  # fmt: skip
    found = merge((one, other))
    assert (found.since, found.in_flight, found.queued, found.wake, found.last_request) == (9.0, 3, 1, 8.0, 12.0)
    assert found.seconds == (Second(at=10, arrivals=3, in_flight=2), Second(at=11, arrivals=3, in_flight=3))
    (interval,) = found.intervals
    assert (interval.arrivals, interval.ended, interval.busy_s, interval.took_s) == (6, 4, 1.0, 2.0)
    assert [(each.name, each.requests, each.errors) for each in found.revisions] == [("r1", 6, 1), ("r2", 1, 0)]
    assert [each.gateway for each in found.canaries] == ["a@5", "b@9"]
    assert merge((other, one)) == replace(found, canaries=found.canaries[::-1])
    assert merge((one,)) is one


def test_one_gateway_is_asked_and_the_other_sleeps_through_it() -> None:
    document = {"since": 3.0, "services": {"a/b": {"in_flight": 1, "wake": 4.0}}}
    asked, quiet = (read_demand(each, "g", ["a/b"])["a/b"] for each in (document, {"since": 2.0, "services": {}}))
    found = merge((asked, quiet))
    assert (found.wake, found.in_flight, found.last_request) == (4.0, 1, None)


@pytest.mark.parametrize(
    ("changes", "there", "take_part"),
    [
        ({}, 0, 1),
        ({}, 3, 3),
        ({"max_concurrency": 1}, 3, 1),
        ({"max_concurrency": 5}, 3, 3),
        ({"access": Access(requests_per_minute=2)}, 3, 2),
        ({"access": Access(tokens_per_minute=1), "max_concurrency": 2}, 3, 1),
    ],
)
def test_no_more_gateways_take_part_than_bounds_can_be_divided_among(
    changes: dict[str, object], there: int, take_part: int
) -> None:
    assert gateways_for(replace(Serving(name="a", run="serve"), **changes), there) == take_part  # type: ignore[arg-type]


@pytest.mark.parametrize("num_gateways", [1, 2, 3, 7])
def test_gateways_let_no_more_through_together_than_one_would(num_gateways: int) -> None:
    access = "{requests_per_minute: 10, tokens_per_minute: 9}"
    given = spec(replicas="1..4", scale="{latency: 2s}", max_concurrency="5", max_queue="20", access=access)
    world = World(given, in_flight=lambda _: 4, service_s=0.1)
    world.run(30)
    snapshot = world.snapshot()
    (alone,) = routes(snapshot, places_here(snapshot), {})["services"].values()
    (found,) = routes(snapshot, places_here(snapshot), {}, (), num_gateways)["services"].values()
    part = gateways_for(world.serving.spec, num_gateways)
    for key in ("max_concurrency", "requests_per_minute", "tokens_per_minute"):
        assert 1 <= found[key] <= found[key] * part <= alone[key]
    assert found["max_queue"] * part >= alone["max_queue"] == 20


def test_pairs_of_several_gateways_add_up_through_their_deaths() -> None:
    world = World(spec(replicas="2", canary="{within: 1h}"), in_flight=lambda _: 1)
    world.run(5)
    world.change(spec(replicas="2", canary="{within: 1h}", env="{VERSION: b}"))
    world.run(5)
    counts = {"a@1": 10, "b@1": 20}

    def look() -> int:
        trial = detail_of(world.serving).canary
        assert trial is not None
        canaries = tuple(CanaryTraffic(trial=trial.name, gateway=name, pairs=num) for name, num in counts.items())
        world.told_canaries = canaries
        world.run(2)
        found = detail_of(world.serving).canary
        assert found is not None
        return found.seen["failed"].pairs

    assert look() == 30
    counts = {"b@1": 25}
    assert look() == 35, "what one had that is gone stays counted"
    counts = {"b@1": 25, "c@9": 4}
    assert look() == 39
    counts = {"a@1": 11, "b@1": 25, "c@9": 2}
    assert look() == 11 + 25 + 4 + 2, "one that counts anew adds to what it had"


def test_of_many_gateways_that_came_and_went_only_the_sum_is_kept() -> None:
    world = World(spec(replicas="2", canary="{within: 1h}"), in_flight=lambda _: 1)
    world.run(5)
    world.change(spec(replicas="2", canary="{within: 1h}", env="{VERSION: b}"))
    world.run(5)
    for number in range(30):
        trial = detail_of(world.serving).canary
        assert trial is not None
        world.told_canaries = (CanaryTraffic(trial=trial.name, gateway=f"g{number}", pairs=1),)
        world.run(1)
    trial = detail_of(world.serving).canary
    assert trial is not None
    assert trial.seen["failed"].pairs == 30
    assert len(trial.gateways) <= 10
    counts = GatewayCounts(gateway="g", counts=(Comparison(name="failed", pairs=3),))
    assert CanaryTrial(name="r2@1", old=1, began_at=0.0, rules="", gateways=(counts, counts)).seen["failed"].pairs == 6


def test_on_a_cluster_an_endpoint_is_found_by_the_names_of_its_service() -> None:
    world = World(spec())
    parent = world.serving
    elsewhere = replace(parent, uid="other", spec=replace(parent.spec, team="ads"))
    alone = Snapshot(nodes=(), workloads=(), pods=(), parents=(parent,))
    team = parent.spec.team
    found = places_on_cluster(alone)[parent.uid]
    assert found.name == f"{team}/chat"
    hosts = (f"serve-chat.{team}", f"serve-chat.{team}.svc", f"serve-chat.{team}.svc.cluster.local")
    assert found.hosts == hosts
    both = places_on_cluster(replace(alone, parents=(parent, elsewhere)))
    assert both[parent.uid] == found, "another team's endpoint of the name changes nothing"
    assert both["other"].name == "ads/chat"
    assert not set(both["other"].hosts) & set(hosts)
    assert set(families_of(replace(alone, parents=(parent, elsewhere)))) == {parent.uid, "other"}
