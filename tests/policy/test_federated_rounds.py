"""Rounds of a federation are simulated by what is expected of its sites, and `auto` takes the fastest of them."""

import math
from dataclasses import replace

import pytest

from fairlead.policy.kinds.federated_rounds import (
    FLOWER_TIMEOUT_S,
    RoundsForecast,
    choose,
    describe_rounds,
    forecast,
    resolved,
)
from fairlead.specs.federation import Federation, Site, SiteExpectation

NOON = 12 * 3600.0


def a_site(train_s: float, window: str | None = None, **others: float) -> Site:
    fields = {"spread": 0.0, **others}
    return Site(window=window, expect=SiteExpectation(train_s=train_s, **fields))  # type: ignore[arg-type]


def a_federation(*sites: Site, min_sites: int | None = 1, **others: int | bool | float) -> Federation:
    named = {f"s{number}": site for number, site in enumerate(sites)}
    return Federation(name="digits", app="app", sites=named, rounds=50, min_sites=min_sites, **others)  # type: ignore[arg-type]


THREE = a_federation(a_site(10.0), a_site(20.0), a_site(300.0))


@pytest.mark.parametrize(
    ("deadline_s", "round_s", "updates", "never"), [(None, 300.0, 3.0, ()), (60.0, 60.0, 2.0, ("s2",))]
)
def test_a_round_lasts_until_its_slowest_site_or_its_deadline(
    deadline_s: float | None, round_s: float, updates: float, never: tuple[str, ...]
) -> None:
    outcome = forecast(THREE, 3, deadline_s, NOON)
    assert outcome.round_s == pytest.approx(round_s)
    assert (outcome.updates, outcome.never) == (updates, never)
    assert (outcome.worth == 1.0) is (deadline_s is None)


def test_a_transfer_loads_and_sends_the_model() -> None:
    spec = a_federation(a_site(10.0, link=1000), model_size=5000)
    assert forecast(spec, 1, None, NOON).round_s == pytest.approx(20.0)


def test_a_round_of_a_sample_is_worth_less_than_one_of_all_and_takes_less_time() -> None:
    sampled, whole = forecast(THREE, 1, None, NOON), forecast(THREE, 3, None, NOON)
    assert sampled.round_s < whole.round_s
    assert sampled.worth < whole.worth
    assert sampled.rounds_for(50) == round(50 / sampled.worth)


def test_a_site_that_does_not_answer_costs_its_round_the_deadline() -> None:
    spec = a_federation(a_site(10.0, available=0.5))
    outcome = forecast(spec, 1, 100.0, NOON)
    # Half of the tries last 100 s and bring nothing: 10 s and one such try for each round, on average.
    assert 90.0 < outcome.round_s < 135.0
    assert forecast(spec, 1, None, NOON).round_s > FLOWER_TIMEOUT_S / 2


def test_a_federation_waits_for_windows_and_a_closed_site_is_not_sampled() -> None:
    night = a_site(300.0, window="22:00-06:00")
    one_open = a_federation(a_site(10.0), night)
    assert forecast(one_open, 1, None, NOON).round_s == pytest.approx(10.0)
    closed = replace(a_federation(night), rounds=10)
    assert forecast(closed, 1, None, NOON).round_s == pytest.approx((10 * 3600.0 + 10 * 300.0) / 10)
    assert forecast(closed, 1, None, NOON + 11 * 3600.0).round_s == pytest.approx(300.0)


def test_a_site_whose_window_closes_in_a_round_is_lost_to_it() -> None:
    spec = replace(a_federation(a_site(300.0, window="11:00-12:04"), a_site(10.0)), rounds=1)
    outcome = forecast(spec, 2, 600.0, NOON)
    assert outcome.round_s == pytest.approx(600.0)
    assert outcome.updates == 1.0


def test_auto_takes_the_candidate_of_the_greatest_pace_and_tells_it() -> None:
    spec = replace(THREE, sample_auto=True, deadline_auto=True)
    candidates = choose(spec)
    assert len(candidates) > 10
    best = candidates[0]
    assert best.pace == max(candidate.pace for candidate in candidates)
    chosen, (note,) = resolved(spec)
    assert (chosen.sample, chosen.deadline_s) == (best.sample, best.deadline_s)
    assert (chosen.sample_auto, chosen.deadline_auto) == (False, False)
    assert note.startswith(f"sample: {best.sample}, deadline: ")
    assert resolved(chosen) == (chosen, ())
    assert resolved(spec) == (chosen, (note,)), "it does not depend on when it is submitted"


def test_only_what_is_left_to_auto_is_chosen_and_never_fewer_sites_than_a_round_needs() -> None:
    spec = a_federation(*(a_site(10.0 * 3**number) for number in range(4)), min_sites=3, sample_auto=True)
    assert {candidate.deadline_s for candidate in choose(spec)} == {None}
    assert min(candidate.sample for candidate in choose(spec)) == 3
    fixed = replace(spec, sample=3.0, sample_auto=False, deadline_auto=True)
    assert {candidate.sample for candidate in choose(fixed)} == {3}


def test_a_deadline_in_which_too_few_answer_has_no_pace() -> None:
    spec = replace(THREE, min_sites=3)
    outcome = forecast(spec, 3, 60.0, NOON)
    assert (outcome.round_s, outcome.pace, outcome.rounds_for(50)) == (math.inf, 0.0, None)
    assert describe_rounds(spec, outcome) == "no round has 3 updates"
    assert choose(replace(spec, deadline_auto=True))[0].pace > 0


def test_rounds_are_described_with_what_they_are_worth_and_who_is_never_in_time() -> None:
    outcome = RoundsForecast(sample=2, deadline_s=60.0, round_s=60.0, updates=1.5, worth=0.5, never=("s2",))
    assert describe_rounds(THREE, outcome) == (
        "1m a round with 1.5 updates, 100 of them worth 50 of all sites; never in time: s2"
    )
