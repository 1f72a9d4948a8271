"""Lists of those that wait: the same turns as sorting all of them, and nobody looked at who is known to wait on."""

import random
from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policy.placement.placement import why_never
from fairlead.policy.queue.dominant_shares import ClusterCapacity
from fairlead.policy.queue.fair_order import fairly
from fairlead.policy.queue.pending_reasons import behind, nodes_left, scavenger
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import Ledger
from fairlead.policy.queue.remaining_work import Remaining
from fairlead.policy.queue.spec_traits import SpecTraits
from fairlead.policy.queue.waiting_lists import Alike, Turns, WaitingLists
from fairlead.specs.team import Quota, Team
from fairlead.state.scheduling_policy import Order
from fairlead.state.snapshot import Workload
from tests.builders import node
from tests.policy.test_fair_order import BEGAN, run

NODES = tuple(node(f"n{number}", cpu_milli=64_000, memory_bytes=2**36) for number in range(4))
WHOLE = ClusterCapacity(cpu_milli=256_000, memory_bytes=2**38)
TEAMS = (Team(name="a", weight=3), Team(name="owed", guaranteed=Quota(cpu_milli=9000)))


def drawn(chance: random.Random, number: int) -> Workload:
    """Most have waited since they came and know it; others were started before, or have just come."""
    made = run(
        f"{number:04x}",
        cpu=chance.choice((1000, 2000, 7000)),
        waited_s=float(chance.randrange(4000)),
        team=chance.choice(("a", "b", "c", "owed")),
        priority=chance.choice((0, 0, 0, 1, 4, -1)),
    )
    told = scavenger(made) if made.spec.priority < 0 else behind(made)
    made = replace(made, status=replace(made.status, reason=told))
    kind = chance.random()
    if kind < 0.1:
        return replace(
            made,
            status=replace(
                made.status,
                queue=replace(made.status.queue, raised=chance.randrange(5)),
                run_time=replace(made.status.run_time, saved_s=60.0),
            ),
        )
    if kind < 0.2:
        return replace(made, created_at=made.created_at - 900.0)
    return made


def lists_of(runs: list[Workload], chance: random.Random) -> WaitingLists:
    """Filled in any order, with some that came and went."""
    lists = WaitingLists(SpecTraits(NODES))
    for each in chance.sample(runs, len(runs)):
        lists.add(each)
    for each in chance.sample(runs, len(runs) // 3):
        lists.remove(each.uid)
        lists.add(each)
    return lists


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10_000), num=st.integers(0, 60), data=st.data())
def test_turns_are_those_of_sorting_all_and_lists_that_are_idle_are_left_out(
    seed: int, num: int, data: st.DataObject
) -> None:
    chance = random.Random(seed)
    runs = [drawn(chance, number) for number in range(num)]
    lists = lists_of(runs, chance)
    more = runs[: num // 5]
    for each in more:
        lists.remove(each.uid)
    standing = Standing(order=Order.FIRST_COME, remaining=Remaining(()), whole=WHOLE, now=BEGAN)
    held = Ledger.of(TEAMS, WHOLE, [run("held", cpu=5000, team=chance.choice("abc"))])
    order, owed = fairly(runs, held.copy(), standing)
    idle_from = {
        key: data.draw(st.integers(0, num)) for key in sorted(map(str, lists.alike)) if data.draw(st.booleans())
    }
    told = list[Workload]()
    names = {id(alike): str(key) for key, alike in lists.alike.items()}

    def is_idle(alike: Alike) -> bool:
        return idle_from.get(names[id(alike)], num + 1) <= len(told)

    turns = Turns(lists, more, {"owed"}, held.copy(), standing)
    assert turns.owed == owed
    held_up = data.draw(st.sets(st.sampled_from("abc")))
    over_from = data.draw(st.none() | st.integers(0, num))

    def is_over(lists: Iterable[Alike], singles: Collection[Workload]) -> bool:
        assert sorted(singles, key=lambda run: run.uid) == sorted(
            (run for run in order if run.uid not in listed and run not in told), key=lambda run: run.uid
        )
        return over_from is not None and over_from <= len(told)

    listed = {run.uid for alike in lists.alike.values() for run in alike.runs if alike.traits.spec.team != "owed"}
    for each in turns.runs(is_idle, held_up, is_over):
        told.append(each)
    if not idle_from and over_from is None:
        assert told == order
    if over_from is not None:
        # Owed runs come first, and it may be over only after another.
        begun = max(over_from, len(owed) + 1)
        assert not listed & {run.uid for run in told[begun:]}
    places = {each.uid: place for place, each in enumerate(order)}
    assert [places[each.uid] for each in told] == sorted(places[each.uid] for each in told)
    # Whoever is left out is in a list that was idle by then.
    left_out = {each.uid for each in order} - {each.uid for each in told}
    in_lists = {each.uid for key, alike in lists.alike.items() if str(key) in idle_from for each in alike.runs}
    assert left_out <= (in_lists if over_from is None else listed)


def test_a_run_that_fits_no_node_waits_in_a_list_of_its_own_kind() -> None:
    lists = WaitingLists(SpecTraits(NODES))
    wide = run("wide", cpu=10**8)
    never = why_never(wide.spec, NODES)
    assert never is not None
    wide = replace(wide, status=replace(wide.status, reason=nodes_left(never)))
    lists.add(wide)
    assert [alike.lacks_nodes for alike in lists.alike.values()] == [True]
    lists.remove("wide")
    narrow = run("narrow")
    lists.add(replace(narrow, status=replace(narrow.status, reason=nodes_left(never))))
    assert list(lists.others) == ["narrow"]


def test_a_list_is_kept_by_arrival_and_gone_when_it_is_empty() -> None:
    runs = [drawn(random.Random(3), number) for number in range(30)]
    lists = lists_of(runs, random.Random(4))
    for alike in lists.alike.values():
        assert alike.places == sorted(alike.places)
        assert alike.places == [(each.created_at, each.uid) for each in alike.runs]
        assert len({each.spec.priority for each in alike.runs}) == 1
    assert len(lists.others) + sum(len(each.runs) for each in lists.alike.values()) == len(runs)
    for each in runs:
        lists.remove(each.uid)
        lists.remove(each.uid)
    assert not lists.alike
    assert not lists.others


def test_who_has_just_come_or_was_told_something_else_is_looked_at() -> None:
    come = run("new")
    told = replace(come, status=replace(come.status, reason=behind(come)))
    lists = WaitingLists(SpecTraits(NODES))
    lists.add(come)
    assert lists.others == {"new": come}
    assert not lists.alike
    lists.remove("new")
    lists.add(told)
    assert not lists.others
    assert [each.runs for each in lists.alike.values()] == [[told]]
