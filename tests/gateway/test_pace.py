"""A client that sends or takes bytes too slowly is waited for no longer."""

import pytest

from fairlead.gateway.pace import LEAST_RATE, WHOLE_S, WINDOW_S, ClientPace


def waited(rate: float, step_s: float) -> float:
    """The seconds after which a client of this rate is given up that lets a step pass between two pieces."""
    pace, now = ClientPace(), 0.0
    while now < 2 * WHOLE_S:
        if pace.patience_s < step_s:
            return now + pace.patience_s
        pace.count(int(rate * step_s), step_s)
        now += step_s
    return now


def test_a_silent_client_is_given_up_after_the_window() -> None:
    assert waited(0, 1e9) == WINDOW_S


@pytest.mark.parametrize("step_s", [0.01, 1.0, 9.0])
def test_a_client_that_trickles_has_hardly_more(step_s: float) -> None:
    assert waited(1, step_s) == pytest.approx(WINDOW_S, rel=0.01)


def test_a_client_at_half_the_rate_has_twice_the_window() -> None:
    assert waited(LEAST_RATE / 2, 1.0) == pytest.approx(2 * WINDOW_S, abs=2.0)


@pytest.mark.parametrize("rate", [LEAST_RATE, 1000 * LEAST_RATE])
def test_no_client_is_waited_for_longer_than_the_whole(rate: float) -> None:
    assert waited(rate, 1.0) == pytest.approx(WHOLE_S)


def test_what_came_fast_buys_no_long_silence() -> None:
    pace = ClientPace()
    pace.count(1_000_000_000, 0.1)
    assert pace.patience_s == WINDOW_S
