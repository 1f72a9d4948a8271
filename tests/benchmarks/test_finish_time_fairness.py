"""Who runs next when finish times are to be fair; each promise with a chooser that breaks it and is caught."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fairness import choose_fairly
from fairlead.policy.selection.finish_time import TARGET, JobClass, JobShare, due_s, slack_s, turn
from fairlead.policy.selection.jobs import Job
from tests.policy.examples import example_of

NUM_GPUS = 8
NOW = 1_000.0

Chooser = Callable[[Sequence[JobShare]], Sequence[JobShare]]
Breach = Callable[[Sequence[JobShare], Sequence[JobShare]], bool]


def claim(uid: str = "a", num_gpus: int = 1, remaining_s: float = 100.0, **changes: float) -> JobShare:
    total_s = changes.get("total_s", remaining_s)
    known = Job(uid=uid, num_gpus=num_gpus, remaining_s=remaining_s)
    return JobShare(job=known, submitted_s=changes.get("submitted_s", NOW), total_s=total_s)


@st.composite
def claims(draw: st.DrawFn) -> tuple[JobShare, ...]:
    drawn = draw(
        st.lists(
            st.tuples(st.sampled_from((1, 2, 4, 8)), st.floats(1.0, 1e5), st.floats(0.0, 1.0), st.floats(0.0, NOW)),
            max_size=14,
        )
    )
    return tuple(
        claim(str(index), size, total_s * left, total_s=total_s, submitted_s=submitted_s)
        for index, (size, total_s, left, submitted_s) in enumerate(drawn)
    )


def fairly(queue: Sequence[JobShare]) -> Sequence[JobShare]:
    return choose_fairly(queue, NUM_GPUS, NOW, contention=2.0)


def overcommits(queue: Sequence[JobShare], chosen: Sequence[JobShare]) -> bool:
    return sum(each.job.num_gpus for each in chosen) > NUM_GPUS


def idles_beside_one_that_fits(queue: Sequence[JobShare], chosen: Sequence[JobShare]) -> bool:
    free = NUM_GPUS - sum(each.job.num_gpus for each in chosen)
    return any(each.job.num_gpus <= free for each in queue if each not in chosen)


def lets_the_most_pressed_wait(queue: Sequence[JobShare], chosen: Sequence[JobShare]) -> bool:
    pressed = [each for each in queue if turn(each, NOW, 2.0, drain_s=0.0) is JobClass.PRESSED]
    if not pressed:
        return False
    most = min(pressed, key=lambda each: slack_s(each, NOW, 2.0) / max(each.job.remaining_s, 1.0))
    return most not in chosen


def everybody(queue: Sequence[JobShare]) -> Sequence[JobShare]:
    return queue


def nobody(queue: Sequence[JobShare]) -> Sequence[JobShare]:
    return ()


def largest_first(queue: Sequence[JobShare]) -> Sequence[JobShare]:
    chosen: list[JobShare] = []
    for each in sorted(queue, key=lambda each: -each.job.num_gpus):
        if sum(one.job.num_gpus for one in (*chosen, each)) <= NUM_GPUS:
            chosen.append(each)
    return chosen


PROMISES: list[tuple[Breach, Chooser]] = [
    (overcommits, everybody),
    (idles_beside_one_that_fits, nobody),
    (lets_the_most_pressed_wait, largest_first),
]


@given(claims())
@settings(deadline=None)
def test_no_promise_is_broken(queue: tuple[JobShare, ...]) -> None:
    chosen = fairly(queue)
    assert not [breach.__name__ for breach, _ in PROMISES if breach(queue, chosen)]
    assert fairly(queue) == chosen


@pytest.mark.parametrize(("breach", "mutant"), PROMISES)
def test_a_chooser_that_breaks_a_promise_is_caught(breach: Breach, mutant: Chooser) -> None:
    assert example_of(claims(), lambda queue: breach(queue, mutant(queue)))


def test_a_job_is_due_when_an_equal_share_would_have_finished_it() -> None:
    assert due_s(claim(remaining_s=50.0, total_s=200.0), contention=3.0) == NOW + TARGET * 600.0


def test_an_idle_cluster_gives_no_more_than_the_whole_of_it() -> None:
    assert due_s(claim(total_s=200.0), contention=0.1) == NOW + TARGET * 200.0


def test_a_job_about_to_be_late_passes_a_shorter_one() -> None:
    late = claim("late", 8, 500.0, submitted_s=0.0)
    short = claim("short", 8, 100.0)
    assert choose_fairly([short, late], NUM_GPUS, NOW, contention=2.0) == (late,)


def test_a_job_longer_than_all_work_together_starts_before_short_ones() -> None:
    long = claim("long", 1, 10_000.0)
    short = [claim(f"short{index}", 8, 100.0) for index in range(3)]
    assert choose_fairly([*short, long], NUM_GPUS, NOW, contention=4.0) == (long,)


def test_without_pressure_the_least_service_goes_first() -> None:
    queue = [claim("b", 8, 200.0), claim("a", 8, 100.0), claim("c", 8, 300.0)]
    (first,) = choose_fairly(queue, NUM_GPUS, NOW, contention=9.0)
    assert first.job.uid == "a"
