"""Of pods on no node, of which a tenant may create any number, so many are held of each namespace and of each run."""

import logging
from typing import Any

import pytest

from fairlead.cluster.kubernetes.informers import informers
from tests.kubernetes.test_foreign_objects import GIVES_WAY, ROOM, RUN, World, a_pod, owner, world

__all__ = ["world"]

MOST, MOST_OF_RUN = 5, 3


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informers, "MOST_OF_NAMESPACE", MOST)
    monkeypatch.setattr(informers, "MOST_OF_RUN", MOST_OF_RUN)


def unbound(name: str, owners: list[dict[str, Any]], namespace: str = "evil", **more: Any) -> dict[str, Any]:
    content = a_pod(name, owners, namespace, **more)
    del content["spec"]["nodeName"]
    content["status"] = {"phase": "Pending"}
    return content


def of_ghost(index: int, namespace: str = "evil") -> dict[str, Any]:
    """A pod with everything that one of a run would have which is not there."""
    return unbound(f"ghost-0-{index}", owner("ghost", "no-uid"), namespace, index=index)


def held(world: World, namespace: str = "evil") -> list[str]:
    return sorted(pod.key for pod in world.view.pods.all() if pod.key.startswith(f"{namespace}/"))


@pytest.mark.parametrize("what", ["of no run", "claims", "placeholders"])
def test_a_namespace_has_so_many_and_another_one_as_many_of_its_own(
    world: World, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    def made(index: int, namespace: str) -> dict[str, Any]:
        if what == "claims":
            return unbound(f"mine-{index}", owner("train", RUN), namespace, index=index)
        if what == "placeholders":
            content = unbound(f"ghost-room-{index}", owner("ghost", "no-uid"), namespace, index=index, **ROOM)
            content["spec"] |= GIVES_WAY
            return content
        return of_ghost(index, namespace)

    world.view.bound_pods()
    before = world.readings()
    with caplog.at_level(logging.WARNING):
        for index in range(3 * MOST):
            world.view.pods.put(made(index, "evil"))
    assert len(held(world)) == MOST
    assert len([each for each in caplog.messages if "are on no node and of no gang" in each]) == 1
    world.view.pods.put(made(0, "other"))
    assert len(held(world, "other")) == 2  # beside one that was there
    assert world.readings() == before


def test_a_pod_that_is_gone_or_bound_leaves_its_place(world: World) -> None:
    world.view.bound_pods()
    pods = [world.view.pods.put(of_ghost(index)) for index in range(MOST)]
    assert world.view.pods.put(of_ghost(MOST)) is None
    assert pods[0] is not None
    world.view.pods.drop(pods[0].key, pods[0].version)
    assert world.view.pods.put(of_ghost(MOST)) is not None
    bound = a_pod("ghost-0-1", owner("ghost", "no-uid"), "evil", index=1)
    assert world.view.pods.put(bound) is not None
    assert world.view.pods.put(of_ghost(MOST + 1)) is not None
    assert world.view.pods.put(of_ghost(MOST + 2)) is None


def test_a_pod_that_is_left_out_is_held_once_it_takes_room(world: World) -> None:
    world.view.bound_pods()
    for index in range(MOST + 1):
        world.view.pods.put(of_ghost(index))
    assert f"evil/ghost-0-{MOST}" not in held(world)
    on_node = world.held_by_others("n0")
    world.view.pods.put(a_pod(f"ghost-0-{MOST}", owner("ghost", "no-uid"), "evil", index=MOST))
    assert world.held_by_others("n0") == on_node + 1000


def test_a_run_has_all_members_of_its_gang_and_so_many_others(world: World) -> None:
    world.view.bound_pods()
    for attempt in range(1, 4):
        for index in range(20):
            content = unbound(f"train-{attempt}-{index}", owner("train", RUN), "victim", index=index)
            content["metadata"]["labels"]["fairlead.dev/attempt"] = str(attempt)
            world.view.pods.put(content)
    pods = world.view.pods_of(RUN)
    assert len(pods) == 2 + 2 * 2 + MOST_OF_RUN
    for index in range(2):
        world.view.pods.put(unbound(f"train-0-{index}", owner("train", RUN), "victim", index=index))
    assert {"victim/train-0-0", "victim/train-0-1"} <= set(world.view.pods_of(RUN))
    assert len(world.view.pods_of(RUN)) == len(pods)


def test_pods_are_bounded_when_the_runs_are_there(world: World) -> None:
    for index in range(3 * MOST):
        world.view.pods.put(of_ghost(index))
    before = world.readings()
    assert len(held(world)) == 3 * MOST
    world.view.bound_pods()
    assert len(held(world)) == MOST
    assert world.readings() == before
    assert world.view.pods.put(of_ghost(99)) is None
