"""Three teams over a simulated month: what each asks for at most, and its share beside one that chooses its numbers."""

import pytest

from benchmarks.team_shares import NUM_GPUS, TEAMS, measure, owed_s
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.traces.arrivals import Arrival

THIRD = NUM_GPUS / 3


def arrival(gpus: int, *, at_s: float, duration_s: float) -> Arrival:
    spec = Training(name="a", run="-", team="a", resources=Resources(gpu=GpuRequest(milli=1000 * gpus)))
    return Arrival(at_s=at_s, duration_s=duration_s, spec=spec)


@pytest.mark.parametrize(
    ("runs", "held_s"),
    [
        # One that is narrower than the third takes its time, and one that is over early leaves it empty.
        ([arrival(8, at_s=10.0, duration_s=20.0)], 8 * 20.0),
        ([arrival(8, at_s=90.0, duration_s=20.0)], 8 * 10.0),
        # One as wide as the cluster goes on with a third of its GPUs.
        ([arrival(NUM_GPUS, at_s=0.0, duration_s=100.0)], THIRD * 100.0),
        ([arrival(16, at_s=0.0, duration_s=50.0), arrival(16, at_s=0.0, duration_s=10.0)], 16 * 60.0),
    ],
)
def test_a_team_is_owed_what_its_runs_hold_on_a_third_of_the_gpus(runs: list[Arrival], held_s: float) -> None:
    assert owed_s(runs, "a", 100.0) == pytest.approx(held_s)


@pytest.mark.long
@pytest.mark.parametrize("choice", ["all", "gangs"])
def test_the_others_get_their_share_within_five_percent_over_a_month(choice: str) -> None:
    plain, _ = measure("plain", days=30.0, seed=1)
    shares, _ = measure(choice, days=30.0, seed=1)
    for team in TEAMS[1:]:
        assert shares[team] >= 0.95 * min(1.0, plain[team]), shares
