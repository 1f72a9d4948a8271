"""A release goes to sites wave by wave, stops at the first gate that it fails, and waits for nobody for ever."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster.records import build, plain
from fairlead.policy.kinds.parents import judge_parents
from fairlead.policy.kinds.serving import progress
from fairlead.policy.serving.site_waves import stage_of
from fairlead.specs.serving import Serving
from fairlead.specs.serving_sites import ServingSite, Waves, divide
from fairlead.state.endpoint_detail import Revision, ServingDetail
from fairlead.state.site_rollouts import SiteReport, SiteStage
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload
from tests.builders import status
from tests.policy.sites import NAMES, World, endpoint, links

HOUR_S = 3600.0


def always(_name: str, _now: float) -> bool:
    return True


def serving_everywhere(world: World) -> World:
    """Return the world once its first release has passed all waves."""
    world.run(6 * HOUR_S, until=lambda: world.detail.serving == 1)
    assert world.detail.serving == 1
    world.run(2 * HOUR_S, until=lambda: all(site.serves == 1 for site in world.sites.values()))
    for site in world.sites.values():
        site.unanswered = 0
    world.events.clear()
    return world


def test_waves_are_what_steps_say_in_the_order_of_the_spec() -> None:
    names = [f"s{number}" for number in range(10)]
    assert divide(("1", "30%"), names) == (("s0",), ("s1", "s2"), tuple(names[3:]))
    assert divide(("s7+s8", "s9", "5"), names) == (("s7", "s8"), ("s9",), ("s0", "s1"), tuple(names[2:7]))
    assert divide(("100%",), names) == (tuple(names),)
    assert divide((), names) == (tuple(names),)
    assert divide(("1",), ()) == ()


def test_a_good_release_reaches_all_sites_wave_by_wave() -> None:
    world = World(spec=endpoint(), link=always)
    world.run(HOUR_S, until=lambda: world.detail.serving == 1)
    assert [event.reason.message for event in world.events if event.type == "WaveStarted"] == [
        "r1 goes to wave 1 of 4: s00",
        "r1 goes to wave 2 of 4: 9 sites",
        "r1 goes to wave 3 of 4: 20 sites",
        "r1 goes to wave 4 of 4: 20 sites",
    ]
    assert world.events[-1].type == "RevisionReady"
    assert {site.serves for site in world.sites.values()} == {1}
    assert world.serving.status.reason.message == "r1 serves at 50 of 50 sites"
    assert progress(world.serving) == "50/50 sites"


def test_a_bad_release_stops_at_the_first_gate_and_all_return_while_links_come_and_go() -> None:
    for seed in range(2):
        world = serving_everywhere(World(spec=endpoint(), link=links(seed, NAMES), bad=frozenset({2})))
        world.change(run="serve 2")
        world.run(6 * HOUR_S, until=lambda: any(event.type == "RevisionFailed" for event in world.events))  # noqa: B023
        assert world.ordered[2] == {"s00"}
        world.link = always
        world.run(HOUR_S)
        assert {site.serves for site in world.sites.values()} == {1}
        assert {site.unanswered for site in world.sites.values()} == {0}
        assert "all sites return to r1 from r2: s00: of 40 pairs of requests only its own failed in 31" in [
            event.reason.message.partition("; s")[0] for event in world.events
        ]
        message = world.serving.status.reason.message
        assert message.startswith("r1 serves at 50 of 50 sites; r2 was rolled back: s00: of 40 pairs")


def test_no_site_serves_an_unsigned_release() -> None:
    world = serving_everywhere(World(spec=endpoint(), link=links(1, NAMES), unsigned=frozenset({2})))
    world.change(run="serve 2")
    world.run(3 * HOUR_S)
    assert world.ordered[2] == {"s00"}
    assert not any(2 in site.served for site in world.sites.values())
    assert {site.serves for site in world.sites.values()} == {1}


def test_a_site_that_is_cut_off_for_an_hour_answers_throughout_and_catches_up_when_it_returns() -> None:
    began = 1_000_000.0 + 10 * HOUR_S

    def link(name: str, now: float) -> bool:
        return name != "s30" or not began <= now < began + HOUR_S

    world = serving_everywhere(World(spec=endpoint(), link=link))
    world.run(began - world.now + 60.0)
    world.change(run="serve 2")
    world.run(began + HOUR_S - world.now - 60.0)
    assert world.detail.serving == 2, "the last wave goes on without it after the deadline"
    assert world.sites["s30"].serves == 1
    assert world.serving.status.reason.message == "r2 serves at 49 of 50 sites; away: s30 (r1)"
    world.run(300.0)
    assert (world.sites["s30"].serves, world.sites["s30"].unanswered) == (2, 0)
    messages = [event.reason.message for event in world.events]
    assert "s30 does not answer and keeps r1: no route to host" in messages
    assert "s30 answers after 1h with r1" in messages


def test_a_wave_whose_sites_are_all_away_waits_and_says_so() -> None:
    world = World(spec=endpoint(), link=lambda name, _now: name != "s00")
    world.run(3 * HOUR_S)
    assert world.ordered.get(1, set()) == set()
    assert world.serving.status.reason.message == ("wave 1 of 4: r1 serves at 0 of 50 sites; away: s00 (no release)")


def test_no_further_wave_begins_while_it_is_paused_or_before_it_was_held() -> None:
    waves = Waves(steps=("1", "20%"), hold_s=600.0, deadline_s=60.0)
    world = World(spec=endpoint(waves=waves), link=always)
    world.run(500.0)
    assert world.ordered[1] == {"s00"}
    world.change(waves=replace(waves, pause=True))
    world.run(HOUR_S)
    assert world.ordered[1] == {"s00"}
    assert "no further wave begins while `waves.pause` is set" in world.serving.status.reason.message
    world.change(waves=replace(waves, hold_s=0.0))
    world.run(600.0)
    assert len(world.ordered[1]) == 50


def test_a_first_release_that_fails_goes_no_further() -> None:
    world = World(spec=endpoint(), link=always, bad=frozenset({1}))
    world.run(HOUR_S)
    assert world.ordered[1] == {"s00"}
    assert "r1 goes to no further site: s00: " in world.events[-1].reason.message
    world.change(run="serve 2")
    world.run(HOUR_S)
    assert {site.serves for site in world.sites.values()} == {2}


def test_a_site_that_catches_up_and_fails_keeps_its_release_and_takes_nobody_back() -> None:
    world = serving_everywhere(World(spec=endpoint(), link=always))
    world.link = lambda name, _now: name != "s49"
    world.change(run="serve 2")
    world.run(HOUR_S)
    assert world.detail.serving == 2
    world.bad, world.link = frozenset({2}), always
    world.run(HOUR_S)
    assert (world.sites["s49"].serves, world.detail.target) == (1, 2)
    assert world.serving.status.reason.message == (
        "r2 serves at 49 of 50 sites; s49: of 40 pairs of requests only its own failed in 31"
    )


def test_a_site_that_leaves_the_spec_loses_its_endpoint_and_one_that_joins_gets_the_good_release() -> None:
    world = serving_everywhere(World(spec=endpoint(NAMES[:3]), link=always))
    sites = {name: ServingSite(context=name) for name in (*NAMES[1:3], "s07")}
    world.change(sites=sites)
    world.sites = {**world.sites, "s07": type(world.sites["s00"])("s07")}
    world.step()
    wanted = {site.name: site.wanted for site in world.rollout.sites}
    assert wanted == {"s00": 0, "s01": 1, "s02": 1, "s07": 1}
    world.reports["s00"] = SiteReport(settled=Intent.DELETE)
    world.step()
    assert world.rollout.site("s00") is None


def test_the_detail_is_stored_and_read_as_it_is() -> None:
    world = World(spec=endpoint(NAMES[:3]), link=always)
    world.run(60.0)
    assert build(ServingDetail, plain(world.detail)) == world.detail


@pytest.mark.parametrize(
    ("detail", "stage"),
    [
        (ServingDetail(serving=1, ready=1, wanted=1), SiteStage.SERVING),
        (ServingDetail(serving=1, ready=0, wanted=1), SiteStage.ROLLING),
        (ServingDetail(serving=1, ready=0, wanted=0), SiteStage.SERVING),
        (ServingDetail(serving=7, ready=1, wanted=1), SiteStage.ROLLING),
    ],
)
def test_the_endpoint_of_a_site_tells_how_its_release_does(detail: ServingDetail, stage: SiteStage) -> None:
    revision = Revision(number=1, spec="{}", replica="{}", created_at=100.0)
    world = World(spec=endpoint(NAMES[:1]), link=always)
    detail = replace(detail, revisions=(revision,), asked=1, target=1)
    leaf = replace(world.serving, status=replace(status(Phase.RUNNING), detail=detail))
    assert stage_of(leaf, revision, 101.0)[0] is stage
    # Its cluster has yet to look at a spec that has just been replaced, and reports the revision before.
    assert stage_of(leaf, None, 101.0)[0] is SiteStage.ROLLING
    assert stage_of(leaf, replace(revision, failed="slow"), 101.0) == (SiteStage.FAILED, "slow")
    late = replace(leaf, status=replace(leaf.status, detail=replace(detail, serving=None)))
    assert stage_of(late, revision, 100.0 + leaf.spec.ready_within_s)[0] is SiteStage.FAILED


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    number=st.integers(1, 12),
    steps=st.lists(st.sampled_from(("1", "10%", "30%", "50%", "100%")), max_size=4),
    min_share=st.sampled_from((0.2, 0.5, 1.0)),
    bad=st.booleans(),
    up_s=st.sampled_from((100.0, 600.0, 5_000.0)),
)
def test_whatever_the_links_do_a_rollout_is_safe(
    seed: int, number: int, steps: list[str], min_share: float, bad: bool, up_s: float
) -> None:
    """A wave begins only after enough of the one before serve; a bad release stays in its wave; all answer always."""
    names = NAMES[:number]
    ordered = tuple(sorted(set(steps), key=lambda step: 0 if step == "1" else int(step[:-1])))
    waves = Waves(steps=ordered, deadline_s=300.0, min_share=min_share)
    world = World(spec=endpoint(names, waves), link=links(seed, names, up_s=up_s), bad=frozenset({2} if bad else ()))
    world.link, real = always, world.link
    serving_everywhere(world)
    world.link = real
    world.change(run="serve 2")
    parts = divide(ordered, names)
    for _ in range(200):
        before = world.rollout.wave if world.rollout.release == 2 else 0
        world.now += world.step_s
        world.step()
        rollout = world.rollout
        if rollout.release == 2 and rollout.wave > before:
            wave = parts[before]
            num = sum(
                site.release == 2 and site.stage is SiteStage.SERVING for site in rollout.sites if site.name in wave
            )
            assert num >= max(1, math.ceil(min_share * len(wave) - 1e-9))
        assert all(site.unanswered == 0 for site in world.sites.values())
    if bad:
        assert world.ordered.get(2, set()) <= set(parts[0])
    world.link = always
    world.run(2 * HOUR_S, until=lambda: {site.serves for site in world.sites.values()} == {1 if bad else 2})
    assert {site.serves for site in world.sites.values()} == {1 if bad else 2}


@pytest.mark.parametrize("is_answering", [True, False])
def test_a_stop_waits_for_a_site_that_does_not_answer_no_longer_than_a_wave_does(is_answering: bool) -> None:
    world = serving_everywhere(World(spec=endpoint(NAMES[:2]), link=always))
    settled = SiteReport(since=world.now, stage=SiteStage.ROLLING, settled=Intent.STOP)
    busy = replace(settled, settled=None)
    reports = {NAMES[0]: settled, NAMES[1]: busy if is_answering else replace(busy, trouble="no route to host")}
    serving = replace(world.serving, intent=Intent.STOP)

    def judged(now: float) -> Workload[Serving] | None:
        seen = Snapshot(nodes=(), workloads=(), pods=(), parents=(serving,), sites={serving.uid: reports})
        (change,) = judge_parents(seen, now) or (None,)
        return None if change is None or change.status is None else replace(serving, status=change.status)

    stopping = judged(world.now)
    assert stopping is not None
    assert stopping.status.reason.message == "stopped on request; waiting for its endpoints at 1 site: s01"
    serving = stopping
    assert judged(world.now + 599.0) is None
    stopped = judged(world.now + 600.0)
    if is_answering:
        assert stopped is None
        return
    assert stopped is not None
    assert stopped.status.phase is Phase.STOPPED
    assert stopped.status.reason.message == "stopped on request; s01 did not answer and keeps its endpoint"
