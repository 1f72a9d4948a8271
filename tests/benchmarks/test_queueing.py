"""What the choice of who runs promises; each promise with a chooser that breaks it and is caught."""

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings

from fairlead.policy.gpu.stage_interleaving import StageProfile
from fairlead.policy.selection.jobs import Job, JobGroup, Sharable
from fairlead.policy.selection.knapsack import choose
from fairlead.policy.selection.worth import worth
from tests.policy.examples import example_of
from tests.policy.queues import (
    COMPUTING,
    LOADING,
    NUM_GPUS,
    Chooser,
    alone,
    always_in_pairs,
    densest_first,
    gain,
    head_of_line,
    job,
    longest_first,
    one_device_too_many,
    packings,
    queues,
    together,
    twice,
)

Breach = Callable[[Sequence[Job], tuple[JobGroup, ...]], bool]


def overcommits(queue: Sequence[Job], groups: tuple[JobGroup, ...]) -> bool:
    return sum(group.num_gpus for group in groups) > NUM_GPUS


def runs_somebody_twice(queue: Sequence[Job], groups: tuple[JobGroup, ...]) -> bool:
    uids = [member.uid for group in groups for member in group.jobs]
    return len(uids) != len(set(uids)) or not set(uids) <= {each.uid for each in queue}


def idles_beside_one_that_fits(queue: Sequence[Job], groups: tuple[JobGroup, ...]) -> bool:
    free = NUM_GPUS - sum(group.num_gpus for group in groups)
    return any(each.num_gpus <= free for each in _waiting(queue, groups))


def lets_a_longer_one_pass(queue: Sequence[Job], groups: tuple[JobGroup, ...]) -> bool:
    running = [member for group in groups for member in group.jobs]
    return any(
        one.num_gpus == other.num_gpus and one.sharable == other.sharable and worth(one) > worth(other)
        for one in _waiting(queue, groups)
        for other in running
    )


def shares_without_need(queue: Sequence[Job], groups: tuple[JobGroup, ...]) -> bool:
    fits = sum(each.num_gpus for each in queue if each.num_gpus <= NUM_GPUS) <= NUM_GPUS
    return fits and any(len(group.jobs) > 1 for group in groups)


def lowers_the_sum_by_grouping(queue: Sequence[Job], groups: tuple[JobGroup, ...]) -> bool:
    # Where nobody of a size waits, the last to share a slot may cost the sum a little, and all run.
    contested = {each.num_gpus for each in _waiting(queue, groups)}
    return any(
        gain(group) < max(map(worth, group.jobs)) * (1 - 1e-9) for group in groups if group.num_gpus in contested
    )


def misses_a_worthier_set(queue: Sequence[Job], groups: tuple[JobGroup, ...]) -> bool:
    reached = sum(gain(group) for group in groups)
    return any(
        sum(map(worth, chosen)) > reached * (1 + 1e-9)
        for count in range(1, NUM_GPUS + 1)
        for chosen in combinations(queue, count)
        if sum(each.num_gpus for each in chosen) <= NUM_GPUS
    )


PROMISES: list[tuple[Breach, Chooser]] = [
    (overcommits, one_device_too_many),
    (runs_somebody_twice, twice),
    (idles_beside_one_that_fits, head_of_line),
    (lets_a_longer_one_pass, longest_first),
    (shares_without_need, always_in_pairs),
    (lowers_the_sum_by_grouping, always_in_pairs),
]


@pytest.mark.parametrize("breach", [breach for breach, _ in PROMISES])
@pytest.mark.parametrize("chooser", [alone, together])
def test_no_promise_is_broken(breach: Breach, chooser: Chooser) -> None:
    @given(queues())
    @settings(deadline=None, max_examples=80)
    def holds(queue: tuple[Job, ...]) -> None:
        assert not breach(queue, chooser(queue))

    holds()


@pytest.mark.parametrize(("breach", "mutant"), PROMISES)
def test_a_chooser_that_breaks_a_promise_is_caught(breach: Breach, mutant: Chooser) -> None:
    assert example_of(queues(), lambda queue: breach(queue, mutant(queue)))


def test_all_of_a_size_run_even_where_one_alone_would_be_worth_a_little_more_than_two_together() -> None:
    loading, computing, mixed = (
        Sharable(kind=StageProfile(iteration_s=length, stages_s=stages), most=4)
        for length, stages in ((0.5, (0.45, 0.01, 0.0)), (0.43, (0.001, 0.41, 0.02)), (0.21, (0.08, 0.08, 0.07)))
    )
    queue = [
        Job(uid="one", num_gpus=1, remaining_s=0.0, sharable=loading),
        *(Job(uid=f"loading-{number}", num_gpus=2, remaining_s=0.0, sharable=loading) for number in range(2)),
        Job(uid="mixed", num_gpus=2, remaining_s=0.0, sharable=mixed),
        Job(uid="long", num_gpus=2, remaining_s=11.0, sharable=computing),
    ]
    groups = together(queue)
    assert not _waiting(queue, groups)
    (pair,) = (group for group in groups if len(group.jobs) == 2)
    assert 0.99 < gain(pair) / max(map(worth, pair.jobs)) < 1.0


@given(queues(max_size=8))
@settings(deadline=None, max_examples=60)
def test_no_set_of_jobs_that_fits_alone_is_worth_more(queue: tuple[Job, ...]) -> None:
    assert not misses_a_worthier_set(queue, alone(queue))


def test_the_greedy_order_misses_a_worthier_set() -> None:
    assert example_of(queues(max_size=8), lambda queue: misses_a_worthier_set(queue, densest_first(queue)))


@given(queues())
@settings(deadline=None, max_examples=60)
def test_what_is_gained_does_not_depend_on_the_order_of_the_queue(queue: tuple[Job, ...]) -> None:
    for chooser in (alone, together):
        there, back = chooser(queue), chooser(tuple(reversed(queue)))
        assert sum(map(gain, there)) == pytest.approx(sum(map(gain, back)), rel=1e-6)
        assert chooser(queue) == there


def test_groups_come_largest_first_so_that_they_leave_no_fragments() -> None:
    queue = [job("one", 1, 10.0), job("two", 2, 20.0), job("four", 4, 30.0), job("late", 4, 1e6)]
    sizes = [group.num_gpus for group in choose(queue, NUM_GPUS)]
    assert sizes == [4, 2, 1]
    assert all(first >= second for first, second in pairwise(sizes))


def test_a_job_larger_than_the_cluster_keeps_nobody_from_running() -> None:
    queue = [job("huge", 16), job("small", 1)]
    assert choose(queue, NUM_GPUS, packings) == (JobGroup(jobs=(queue[1],)),)


def test_a_nearly_finished_gang_passes_small_jobs_that_do_not_fill_its_place() -> None:
    gang = job("gang", 8, 100.0)
    small = [job(f"small{index}", 1, 1000.0) for index in range(3)]
    assert choose([gang, *small], NUM_GPUS) == (JobGroup(jobs=(gang,)),)


def test_jobs_that_need_different_stages_share_when_devices_are_short() -> None:
    queue = [job("loads", 8, 1000.0, LOADING), job("computes", 8, 1100.0, COMPUTING)]
    (group,) = choose(queue, NUM_GPUS, packings)
    assert {member.uid for member in group.jobs} == {"loads", "computes"}


def test_jobs_that_need_the_same_stage_do_not_share() -> None:
    queue = [job("first", 8, 1000.0, COMPUTING), job("second", 8, 1100.0, COMPUTING)]
    assert choose(queue, NUM_GPUS, packings) == (JobGroup(jobs=(queue[0],)),)


def test_a_job_that_was_never_measured_never_shares() -> None:
    queue = [job("known", 8, 1000.0, LOADING), job("unknown", 8, 900.0, None), job("other", 8, 2000.0, COMPUTING)]
    groups = choose(queue, NUM_GPUS, packings)
    assert all(len(group.jobs) == 1 for group in groups if any(member.sharable is None for member in group.jobs))


def _waiting(queue: Sequence[Job], groups: tuple[JobGroup, ...]) -> list[Job]:
    running = {member.uid for group in groups for member in group.jobs}
    return [each for each in queue if each.uid not in running]
