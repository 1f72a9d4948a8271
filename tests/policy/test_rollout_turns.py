"""New replicas take the places of old ones whoever waits before them; what is more than that waits its turn."""

import pytest

from fairlead.specs.formats.reading import parse
from fairlead.specs.training import Training
from tests.builders import node
from tests.policy.test_base_capacity import World, spec


def waits(name: str = "waits", **keys: object) -> Training:
    """A run that finds no room beside the endpoint."""
    given = {"run": "train", "resources": "{cpu: 4}", **keys}
    (found,) = parse("\n".join([f"name: {name}", *(f"{key}: {value}" for key, value in given.items())]))
    assert isinstance(found, Training)
    return found


def an_endpoint(replicas: int = 2, **keys: object) -> World:
    world = World(spec("{}", replicas=replicas, **keys), node("one", cpu_milli=4_000))
    world.run(20)
    world.cluster.submit(waits())
    world.run(5)
    return world


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_rollout_passes_a_run_that_waits_for_more_than_is_free(replicas: int) -> None:
    world = an_endpoint(replicas)
    world.change(spec("{}", replicas=replicas, run="better $PORT"))
    world.run(60)
    assert (world.detail.serving, len(world.ready())) == (2, replicas)
    assert world.fewest_in_all >= replicas, "the old ones stay until the new ones are ready"
    (big,) = (each for each in world.cluster.snapshot().workloads if each.spec.name == "waits")
    assert "4" in big.status.reason.message, "it waits all the same"


def test_a_rollout_without_surge_takes_the_places_that_its_own_leave() -> None:
    world = an_endpoint(2, rollout="{max_surge: 0}")
    world.change(spec("{}", replicas=2, rollout="{max_surge: 0}", run="better $PORT"))
    world.run(90)
    assert (world.detail.serving, len(world.ready())) == (2, 2)


def test_what_an_endpoint_wants_beyond_its_places_waits_its_turn() -> None:
    world = World(spec("{}", replicas=1), node("one", cpu_milli=4_000))
    world.run(20)
    # It fits beside the endpoint's place once the run before it has ended, which is known to come.
    world.cluster.submit(waits("ends", resources="{cpu: 1}", max_duration="1h"))
    world.run(5)
    world.cluster.submit(waits(resources="{cpu: 3}"))
    world.run(5)
    world.change(spec("{}", replicas=3, run="better $PORT"))
    world.run(60)
    assert (world.detail.serving, len(world.ready())) == (2, 1)
    world.change(spec("{}", replicas=2, run="better $PORT"))
    world.run(60)
    assert len(world.ready()) == 1, "one more is no rollout"


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_rollout_ends_where_there_is_room_for_no_surge(replicas: int) -> None:
    world = World(spec("{}", replicas=replicas), node("one", cpu_milli=replicas * 1000))
    world.run(20)
    world.change(spec("{}", replicas=replicas, run="better $PORT"))
    world.run(60)
    assert (world.detail.serving, len(world.ready())) == (2, replicas)
    assert world.detail.replaced == 0
    assert {each.spec.name[:7] for each in world.cluster.snapshot().workloads} == {"chat-r2"}
    assert world.fewest_in_all == replicas - 1
