"""How fast jobs go together."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.gpu.stage_interleaving import INTERFERENCE, StageProfile, round_time_s, speeds
from tests.policy.queues import COMPUTING, LOADING, MIXED

stages = st.tuples(*[st.floats(min_value=0.001, max_value=1.0)] * 3)
profiles = stages.map(lambda drawn: StageProfile(iteration_s=sum(drawn), stages_s=(drawn[0], drawn[1], drawn[2])))


def test_a_job_alone_has_its_own_speed() -> None:
    assert speeds([MIXED]) == (1.0,)


def test_a_loading_and_a_computing_job_overlap_almost_wholly() -> None:
    round_s = INTERFERENCE[2] * 0.45
    assert speeds([LOADING, COMPUTING]) == pytest.approx((0.50 / round_s, 0.43 / round_s), rel=0.1)


def test_two_computing_jobs_take_turns() -> None:
    assert sum(speeds([COMPUTING, COMPUTING])) <= 1.0


def test_four_pipelined_jobs_take_as_long_as_their_busiest_resource() -> None:
    quarter = StageProfile(iteration_s=0.3, stages_s=(0.1, 0.1, 0.1))
    assert round_time_s((quarter.stages_s,) * 4) == pytest.approx(0.4 * INTERFERENCE[4])


@given(st.lists(profiles, min_size=2, max_size=4))
def test_the_order_in_which_members_are_named_does_not_matter(members: list[StageProfile]) -> None:
    expected = dict(zip(members, speeds(members), strict=True))
    for order in permutations(members):
        assert dict(zip(order, speeds(order), strict=True)) == expected


@given(st.lists(profiles, min_size=2, max_size=4))
def test_no_round_is_shorter_than_its_busiest_stage_allows(members: list[StageProfile]) -> None:
    """A stage is a resource that serves one member at a time, so a round takes at least each member's longest stage."""
    round_s = round_time_s(tuple(sorted(member.stages_s for member in members)))
    assert round_s >= 0.999 * INTERFERENCE[len(members)] * max(max(member.stages_s) for member in members)


@given(profiles, profiles, st.floats(min_value=0.1, max_value=10.0))
def test_speeds_do_not_depend_on_the_unit_of_time(first: StageProfile, second: StageProfile, factor: float) -> None:
    scaled = [
        StageProfile(
            iteration_s=each.iteration_s * factor,
            stages_s=(each.stages_s[0] * factor, each.stages_s[1] * factor, each.stages_s[2] * factor),
        )
        for each in (first, second)
    ]
    assert speeds(scaled) == pytest.approx(speeds([first, second]), rel=5e-3)
