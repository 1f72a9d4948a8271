"""How long runs take at most: as declared, as others of their name took, or nobody knows."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.queue import durations
from fairlead.policy.queue.duration_estimates import enough_s
from fairlead.policy.queue.durations import SOON_S, Durations, durations_of
from fairlead.policy.queue.occupancy import EARLY_S
from fairlead.state.snapshot import Completed, Grant, Intent, Pod, PodPhase, Workload
from tests.builders import status, training

NOW = 1_000_000_000.0


def run(name: str = "train-7", *, started_at: float | None = None, **spec: Any) -> Workload:
    return Workload(
        uid="u",
        spec=training(name, **spec),
        intent=Intent.RUN,
        status=status(started_at=started_at),
        version=1,
        created_at=NOW,
    )


def pod(terminating_since: float | None = None) -> Pod:
    return Pod(
        uid="u-0-0", workload_uid="u", attempt=0, index=0, node="a", grant=Grant(), phase=PodPhase.RUNNING,
        created_at=NOW, terminating_since=terminating_since,
    )  # fmt: skip


def took(*times_s: float, name: str = "train") -> Durations:
    return Durations([Completed(team="default", name=f"{name}-{n}", took_s=t) for n, t in enumerate(times_s)])


def test_a_declared_duration_and_its_grace_are_the_most() -> None:
    assert took(5, 5, 5).length_s(run(max_duration_s=60.0, grace_s=10.0), NOW) == 70.0 + SOON_S
    limited = run(max_duration_s=60.0, grace_s=10.0, started_at=NOW - 20)
    assert took().ends_at(limited, [pod()], NOW) == NOW + 50.0 + SOON_S


def test_without_one_the_time_counts_that_hardly_any_of_its_name_exceeded() -> None:
    known = took(*range(10, 110, 10))
    assert known.length_s(run(), NOW) == 90.0
    assert known.ends_at(run(started_at=NOW - 75), [pod()], NOW) == NOW + 25.0 + SOON_S
    assert took(10, 20).length_s(run(), NOW) == math.inf
    assert took(10, 20, 30, name="other").length_s(run(), NOW) == math.inf


def test_a_run_that_has_outlived_all_of_its_name_may_take_for_ever() -> None:
    assert took(10, 20, 30).ends_at(run(started_at=NOW - 15), [pod()], NOW) == math.inf


def test_a_run_that_is_told_to_stop_leaves_within_its_grace() -> None:
    leaving = run(max_duration_s=600.0, grace_s=10.0, started_at=NOW)
    assert took().ends_at(leaving, [pod(NOW - 4)], NOW) == NOW + 6 + SOON_S
    assert took().ends_at(leaving, [pod(NOW - 40)], NOW) == NOW + SOON_S


def test_enough_is_for_nine_in_ten_of_at_least_three() -> None:
    assert enough_s(list(range(1, 11))) == 9
    assert enough_s([1.0, 2.0, 3.0]) == 3.0
    assert enough_s([1.0, 2.0]) is None
    assert enough_s([1.0, 2.0, 3.0, 4.0], done_s=1.0) == 4.0


def test_an_expected_duration_counts_until_the_run_has_taken_longer() -> None:
    known = took(500, 500, 500)
    assert known.length_s(run(expected_duration_s=60.0), NOW) == 60.0
    assert known.ends_at(run(expected_duration_s=60.0, started_at=NOW - 20), [pod()], NOW) == NOW + 40.0 + SOON_S
    assert known.ends_at(run(expected_duration_s=60.0, started_at=NOW - 90), [pod()], NOW) == NOW + 410.0 + SOON_S


def told(known: Durations) -> list[float]:
    runs = [run(f"{name}-0", started_at=started_at) for name in "abc" for started_at in (None, NOW - 3.0)]
    return [known.length_s(each, NOW) for each in runs] + [known.ends_at(each, [pod()], NOW) for each in runs]


ENDED = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=60)


@given(ended=ENDED, ends=st.lists(st.integers(0, 60), max_size=8), most=st.integers(1, 20))
def test_what_is_learnt_run_by_run_is_what_all_of_them_tell(
    ended: list[tuple[str, int]], ends: list[int], most: int
) -> None:
    runs = [Completed(team="default", name=f"{name}-{n}", took_s=float(s)) for n, (name, s) in enumerate(ended)]
    for end in sorted(ends):
        seen = tuple(runs[max(0, end - most) : end])
        assert told(durations_of(seen)) == told(Durations(seen))


def test_that_property_catches_who_forgets_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tuple(Completed(team="default", name=f"a-{n}", took_s=float(100 - n)) for n in range(1, 30))
    durations_of(runs[:20])
    after = Durations.after
    monkeypatch.setattr(durations, "_last", (runs[:20], Durations(runs[:20])))
    monkeypatch.setattr(Durations, "after", lambda known, gone, new: after(known, (), new))
    assert told(durations_of(runs[9:29])) != told(Durations(runs[9:29]))


@given(
    times_s=st.lists(st.sampled_from((5.0, 10.0, 40.0, 200.0, 900.0)), max_size=40),
    declared=st.sampled_from(({}, {"expected_duration_s": 60.0}, {"max_duration_s": 120.0})),
    terminating_since=st.sampled_from((None, NOW - 20.0)),
    looks_s=st.lists(st.floats(0.0, 2000.0), min_size=2, max_size=2),
)
def test_an_end_stays_the_same_for_as_long_as_it_is_said_to(
    times_s: list[float], declared: dict[str, Any], terminating_since: float | None, looks_s: list[float]
) -> None:
    known, there, pods = took(*times_s), run(started_at=NOW - 30.0, **declared), (pod(terminating_since),)
    first, then = (NOW + look_s for look_s in sorted(looks_s))
    if then < known.same_until(there, pods, first) - EARLY_S:
        assert known.ends_at(there, pods, then) == known.ends_at(there, pods, first)


def test_an_end_changes_where_a_run_outlives_most_of_its_kind() -> None:
    known, there = took(*[10.0] * 27, *[1000.0] * 3), run(started_at=NOW)
    assert known.ends_at(there, (), NOW) == NOW + 10.0 + SOON_S
    assert known.same_until(there, (), NOW) == NOW + 10.0
    assert known.ends_at(there, (), NOW + 10.0) == NOW + 1000.0 + SOON_S
