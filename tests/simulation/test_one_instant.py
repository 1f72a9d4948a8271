"""While time stands still the queue comes to rest: whoever is stopped for a run is not started again before it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairlead.control import loop
from fairlead.control.simulation import simulate
from fairlead.policy.decide import decide
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.queue.scheduling import SchedulingPass
from fairlead.state.plan import Plan
from fairlead.state.scheduling_policy import POLICIES
from fairlead.state.snapshot import Snapshot
from tests.rounds import ASKED
from tests.simulation.test_incremental_passes import TEAMS, drawn
from tests.simulation.worlds import pool

# Most that was seen in any of the worlds below is 14.
MOST_PASSES = 40
NUM_RUNS = 40
# All 151 that were once looked at take nine minutes of two processors.
NUM_WORLDS = 30
# So many workers can look at those of one policy; some of its worlds take ten times as long as others.
NUM_PARTS = 4
# Worlds that went round: by what teams hold, by quotas, by estimates that were about to be over, by what is left to do.
ROUNDS = [
    ("default", 90, True),
    ("default", 77, True),
    ("default", 145, False),
    ("default", 74, False),
    ("shortest", 3, True),
    ("preempting", 39, True),
    # Room that would soon have been free anyway counted twice.
    ("least-work", 22, False),
    ("least-work", 0, True),
    # Scavengers that gave way counted towards their team's quota, so that another was chosen without them.
    ("least-work", 50, True),
    # Room of one that had not left yet went to a scavenger, in a pass that had proved it for a run that was not chosen.
    ("finish-time", 50, True),
    # Two elastic gangs, each nearer its end than the other while it held more nodes than it asks for.
    ("finish-time", 70, False),
]


class Restless(Exception):
    """The queue goes round at one instant."""


@contextmanager
def bounded() -> Iterator[None]:
    """Have more passes than ``MOST_PASSES`` at one instant raise ``Restless``."""
    at, number = -1.0, 0

    def counted(snapshot: Snapshot, now: float, cache: PassCache | None = None) -> Plan:
        nonlocal at, number
        at, number = now, number + 1 if now == at else 1
        if number > MOST_PASSES:
            raise Restless(f"{number} passes at {now}")
        return decide(snapshot, now, cache)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "decide", counted)
        yield


def run_through(policy: str, seed: int, with_teams: bool) -> None:
    pools = (pool("a", nodes=2), pool("b", nodes=2, spot=True))
    with bounded():
        simulate(drawn(seed, NUM_RUNS), pools, teams=TEAMS if with_teams else (), rules=POLICIES[policy])


@pytest.mark.parametrize(("policy", "seed", "with_teams"), ROUNDS)
def test_queues_that_went_round_come_to_rest(policy: str, seed: int, with_teams: bool) -> None:
    run_through(policy, seed, with_teams)


def test_that_bound_catches_preemptions_for_a_run_that_does_not_come_by_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SchedulingPass, "_comes_by", lambda *_: True)
    with pytest.raises(Restless):
        run_through("default", 90, with_teams=True)


@pytest.mark.long
@pytest.mark.parametrize("first", range(NUM_PARTS))
@pytest.mark.parametrize("with_teams", [False, True])
@pytest.mark.parametrize("policy", ["default", "shortest", "preempting", "least-work", "finish-time"])
def test_the_queue_comes_to_rest_in_many_worlds(policy: str, with_teams: bool, first: int) -> None:
    for seed in range(first, int(os.environ.get(ASKED, NUM_WORLDS)), NUM_PARTS):
        run_through(policy, seed, with_teams)
