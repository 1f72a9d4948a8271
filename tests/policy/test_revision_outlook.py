"""What another spec would make of an endpoint is what its judge makes of it."""

from dataclasses import replace

import pytest

from fairlead.policy.serving.revision_outlook import RevisionOutlook, revision_outlook
from fairlead.specs.formats.reading import parse
from fairlead.specs.serving import Serving
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.snapshot import Intent
from tests.policy.test_serving import World, spec


def outlook_of(world: World, **changes: str) -> RevisionOutlook:
    return revision_outlook(world.serving, spec(**changes), world.now)


def served(**changes: str) -> World:
    """An endpoint of which a first revision serves."""
    world = World(spec=spec(**changes))
    world.run(10)
    assert detail_of(world.serving).serving == 1
    return world


@pytest.mark.parametrize(
    "changes",
    [{"run": "other"}, {"replicas": "3"}, {"run": "other", "canary": "{within: 2h}"}, {"rollout": "{max_surge: 0}"}],
    ids=str,
)
def test_the_revision_that_is_foretold_is_the_one_that_comes(changes: dict[str, str]) -> None:
    world = served(replicas="2")
    changes = {"replicas": "2", **changes}
    told = outlook_of(world, **changes)
    world.change(spec(**changes))
    world.run(1)
    detail = detail_of(world.serving)
    assert told.name == f"r{detail.target}"
    assert told.is_new == (detail.target != 1)
    assert told.replaces == ("r1" if detail.target != 1 else None)
    assert bool(told.rollout) == (detail.target != 1)
    world.run(20)
    tried = any(each.startswith("CanaryStarted") for each in world.events)
    assert tried == any(each.startswith("canary: ") for each in told.rollout)


def test_what_served_before_comes_back_without_a_trial() -> None:
    world = served()
    world.change(spec(run="other"))
    world.run(20)
    told = outlook_of(world, canary="{steps: [10%]}")
    assert (told.name, told.replaces, told.is_new) == ("r1", "r2", False)
    assert not any(each.startswith("canary: ") for each in told.rollout)
    assert any(each.startswith("canary: ") for each in outlook_of(world, run="new", canary="{steps: [10%]}").rollout)


def test_how_replicas_take_turns_is_told_by_what_is_wanted() -> None:
    world = served(replicas="3")
    first, last = outlook_of(world, run="other", replicas="3", rollout="{max_surge: 2}", ready_within="90s").rollout
    assert first.startswith("new replicas start first, at most 5 replicas at once (`rollout.max_surge: 2`)")
    assert last == "if none of r2 is ready within 1m30s, r1 stays"
    first, _ = outlook_of(world, run="other", replicas="3", rollout="{max_surge: 0}").rollout
    assert first.startswith("one replica of r1 is removed before each new one starts")
    shadow = outlook_of(
        world, run="other", replicas="3", idempotent="true", canary="{shadow: true, steps: [5%, 20%]}"
    ).rollout[1]
    assert shadow.startswith("canary: r2 gets copies of 5 %, 20 % of the requests")


def test_a_first_revision_that_never_served_is_replaced_and_nothing_stays() -> None:
    world = World(spec=spec(), start_s=lambda _: None)
    world.run(10)
    told = outlook_of(world, run="other")
    assert (told.name, told.replaces) == ("r2", "r1")
    assert not any("stays" in each for each in told.rollout)


def test_a_suspended_endpoint_serves_nothing_until_it_is_resumed() -> None:
    world = served()
    suspended = replace(world.serving, intent=Intent.SUSPEND)
    (only,) = revision_outlook(suspended, spec(run="other"), world.now).rollout
    assert only.startswith("nothing serves until `fairlead resume chat`")


def test_an_engine_is_told_as_the_one_that_replaces() -> None:
    (at_engine,) = parse("{kind: Serving, name: chat, image: 'a:1', run: serve, engine: kserve}")
    assert isinstance(at_engine, Serving)
    world = served()
    world.serving = replace(world.serving, spec=at_engine)
    new = replace(at_engine, image="a:2")
    told = revision_outlook(world.serving, new, world.now)
    assert told.rollout[0] == "KServe replaces the replicas of r1"
