"""Passes that begin at once for a team, within its allowance."""

import threading

from fairlead.cluster.kubernetes.informers.urgent_passes import BURST, PER_S, UrgentPasses


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def passes_of(urgent: UrgentPasses, team: str, number: int) -> int:
    """The number of passes that begin at once for a team that requests one after another."""
    begun = 0
    for _ in range(number):
        urgent.request(team)
        begun += urgent.are_there()
        urgent.begin()
    return begun


def test_a_team_that_changes_more_than_its_allowance_waits_and_another_does_not() -> None:
    urgent = UrgentPasses(clock := Clock())
    assert passes_of(urgent, "hostile", 1_000) == BURST
    assert passes_of(urgent, "other", 1) == 1
    assert passes_of(urgent, "hostile", 1_000) == 0
    clock.now += 1.0
    assert passes_of(urgent, "hostile", 1_000) == PER_S


def test_any_number_of_changes_that_one_pass_regards_take_one_of_the_allowance() -> None:
    urgent = UrgentPasses(Clock())
    for _ in range(1_000):
        urgent.request("team")
    urgent.begin()
    assert not urgent.are_there()
    assert passes_of(urgent, "team", 1_000) == BURST - 1


def test_teams_that_have_their_whole_allowance_are_not_remembered() -> None:
    urgent = UrgentPasses(clock := Clock())
    for number in range(1_000):
        urgent.request(f"team-{number}")
    urgent.begin()
    clock.now += 1.0
    urgent.begin()
    assert urgent.num_known == 0


def test_a_request_ends_the_wait_for_the_next_pass_and_so_does_the_end() -> None:
    for is_end in (False, True):
        urgent = UrgentPasses()
        waiting = threading.Thread(target=urgent.wait, args=(3600.0,))
        waiting.start()
        if is_end:
            urgent.end()
        else:
            urgent.request("team")
        waiting.join(60.0)
        assert not waiting.is_alive()
    UrgentPasses().wait(-1.0)
