"""The earliest start of a gang beside those that hold room and those that were promised some."""

import math
from collections import Counter

from fairlead.policy.queue.timeline import Timeline
from fairlead.state.snapshot import Grant, Node, Pod, PodPhase
from tests.policy.fleets import node, shape


def holder(uid: str, on: str, *, devices: int = 0, cpu: int = 0, first: int = 0) -> Pod:
    uuids = tuple(f"{on}-{i}" for i in range(first, first + devices))
    grant = Grant(cpu_milli=cpu, gpu_uuids=uuids, gpu_milli=1000 if devices else 0)
    return Pod(
        uid=f"{uid}-0-0", workload_uid=uid, attempt=0, index=0, node=on, grant=grant, phase=PodPhase.RUNNING,
        created_at=0.0,
    )  # fmt: skip


def timeline(nodes: tuple[Node, ...], *held: tuple[Pod, float]) -> Timeline:
    return Timeline.of(nodes, [pod for pod, _ in held], {pod.workload_uid: until for pod, until in held}, 0.0)


def test_what_fits_now_starts_now() -> None:
    assert timeline((node("a", gpus=4),)).earliest(shape(gpus=4), 1, 10.0).start == 0.0


def test_a_gang_starts_when_enough_have_left() -> None:
    held = timeline(
        (node("a", gpus=4), node("b", gpus=4)), (holder("x", "a", devices=4), 50.0), (holder("y", "b", devices=1), 90.0)
    )
    assert held.earliest(shape(gpus=4), 1, 10.0).start == 50.0
    whole = held.earliest(shape(gpus=4), 2, 10.0)
    assert (whole.start, whole.after) == (90.0, "y")
    assert Counter(where for where, _ in whole.parts) == {"a": 1, "b": 1}
    # Looking changes nothing.
    assert held.earliest(shape(gpus=3), 1, 10.0).start == 0.0


def test_a_promise_is_room_for_nobody_else_while_it_lasts() -> None:
    held = timeline((node("a", gpus=4),), (holder("x", "a", devices=2), 50.0))
    held.claim(held.earliest(shape(gpus=4), 1, 30.0))
    assert held.earliest(shape(gpus=2), 1, 50.0).start == 0.0
    assert held.earliest(shape(gpus=2), 1, 51.0).start == 80.0
    assert held.earliest(shape(gpus=2), 1, math.inf).start == 80.0


def test_of_what_is_free_now_only_what_the_promise_needs_is_kept() -> None:
    held = timeline((node("a", gpus=8),), (holder("x", "a", devices=4), 50.0))
    claim = held.earliest(shape(gpus=6), 1, 10.0)
    kept = [uuid for _, grant in claim.keeps for uuid in grant.gpu_uuids]
    assert (claim.start, len(kept)) == (50.0, 2)


def test_without_any_known_end_all_that_it_could_use_is_kept() -> None:
    nodes = (node("a", gpus=4), node("b", gpus=2), node("c"))
    held = timeline(nodes, (holder("x", "a", devices=1), math.inf))
    claim = held.earliest(shape(gpus=4), 1, 10.0)
    assert claim.start == math.inf
    assert sorted(uuid for _, grant in claim.keeps for uuid in grant.gpu_uuids) == ["a-1", "a-2", "a-3"]
    assert {where for where, _ in claim.keeps} == {"a"}


def test_a_moment_shows_who_has_left_and_what_is_promised_and_is_undone() -> None:
    held = timeline((node("a", gpus=4),), (holder("x", "a", devices=4), 50.0))
    held.claim(held.earliest(shape(gpus=1), 1, 10.0))
    with held.at(55.0) as rooms:
        assert sum(rooms["a"].gpu_milli.values()) == 3000
    assert sum(held.rooms["a"].gpu_milli.values()) == 0
