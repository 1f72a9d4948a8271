"""Nodes that fail again and again, in a simulation: they are avoided, taken out, and given back."""

from dataclasses import replace

import pytest

from fairlead.control.outcomes import Outcome
from fairlead.control.simulation import simulate
from fairlead.specs.simulation import Failures, Lemons, Programs
from fairlead.specs.training import Retry
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.snapshot import Phase
from fairlead.traces.arrivals import Arrival
from tests.simulation.worlds import pool, run, world

DAY_S = 86400.0
LEMONS = Lemons(mtbf_s=0.5 * DAY_S, share=0.1, cured=1.0)
BLIND = SchedulingPolicy(places_by_risk=False, withdraws_nodes=False)


def wide(duration_s: float, nodes: int) -> Arrival:
    arrival = run("wide", 0, duration_s, nodes=nodes)
    return replace(arrival, spec=replace(arrival.spec, retry=Retry(infrastructure=10_000, backoff_s=0.0)))


def lived(rules: SchedulingPolicy = DEFAULT, *, known: float = 1.0) -> Outcome:
    """Return four days of a wide run on twenty of thirty nodes, of which three are unreliable."""
    failures = Failures(mtbf_s=500 * DAY_S, repair_s=600, known=known, taken_out_s=5 * DAY_S, lemons=LEMONS)
    trace = [wide(4 * DAY_S, 20)]
    told = world(failures=failures, programs=Programs(start_up_s=600, checkpoint_every_s=3600))
    return simulate(trace, [pool(nodes=30)], told, rules=rules)


def test_a_wide_gang_avoids_unreliable_nodes() -> None:
    blind, ours = lived(BLIND), lived()
    assert ours.runs[0].phase is Phase.SUCCEEDED
    assert blind.runs[0].num_failures > 3 * ours.runs[0].num_failures
    assert not blind.taken_out


def test_unreliable_nodes_that_cannot_be_avoided_are_taken_out_and_given_back_repaired() -> None:
    failures = Failures(mtbf_s=500 * DAY_S, repair_s=600, taken_out_s=2 * DAY_S, lemons=LEMONS)
    done = simulate([wide(3 * DAY_S, 29)], [pool(nodes=30)], world(failures=failures))
    assert done.runs[0].phase is Phase.SUCCEEDED
    assert len(done.taken_out) > 1
    assert all(out.is_lemon for out in done.taken_out)
    away_s = [out.until - out.since for out in done.taken_out if out.until is not None]
    assert away_s
    assert away_s == pytest.approx([2 * DAY_S] * len(away_s))


def test_failures_that_name_no_node_take_none_out() -> None:
    done = lived(known=0.0)
    assert done.runs[0].phase is Phase.SUCCEEDED
    assert not done.taken_out


def test_nodes_become_unreliable_in_the_course_of_time() -> None:
    failures = Failures(mtbf_s=1e8, lemons=Lemons(mtbf_s=DAY_S, share=0.0, yearly=1.0))
    trace = [wide(70 * DAY_S, 8)]
    done = simulate(trace, [pool(nodes=8)], world(failures=failures), rules=BLIND)
    assert done.runs[0].num_failures > 3
