"""The replay's rules, on traces small enough to work out by hand."""

from collections.abc import Sequence

import pytest

from benchmarks.baselines.muri import Submitted
from benchmarks.baselines.orders import srsf, srtf
from benchmarks.baselines.replay import Account, Answer, replay
from benchmarks.baselines.tiresias import tiresias_l
from fairlead.policy.gpu.stage_interleaving import StageProfile, speeds
from fairlead.policy.selection.jobs import Job, JobGroup

LOADING = StageProfile(iteration_s=0.50, stages_s=(0.45, 0.01, 0.0))
COMPUTING = StageProfile(iteration_s=0.43, stages_s=(0.001, 0.41, 0.02))


def submitted(uid: str, num_gpus: int, at_s: float, work_s: float, profile: StageProfile = LOADING) -> Submitted:
    return Submitted(
        uid=uid,
        model="bert",
        num_gpus=num_gpus,
        submitted_s=at_s,
        work_s=work_s,
        overhead_s=10.0,
        profile=profile,
    )


def test_a_job_alone_takes_its_work_and_pays_only_when_it_starts() -> None:
    trace = [submitted("a", 8, 5.0, 1000.0)]
    assert replay(trace, srsf()).average_jct_s == 1000.0
    assert replay(trace, srsf(), account=Account.RESUMED).average_jct_s == 1010.0


def test_every_event_costs_whoever_runs_under_the_published_account() -> None:
    """The arrival of b at 100 s costs a 10 s of progress; its completion at 300 s is an event of its own."""
    trace = [submitted("a", 8, 0.0, 1000.0), submitted("b", 8, 100.0, 200.0)]
    assert replay(trace, srsf()).makespan_s == pytest.approx(1000.0 + 10.0 + 10.0)
    assert replay(trace, srsf(), account=Account.RESUMED).makespan_s == pytest.approx(1010.0)


def test_what_does_not_fit_is_skipped_and_larger_gangs_need_whole_nodes() -> None:
    """A job of one GPU leaves seven whole nodes, so only one gang of 32 runs beside it; then b's end costs c 10 s."""
    trace = [submitted("one", 1, 0.0, 500.0), submitted("b", 32, 0.0, 1000.0), submitted("c", 32, 0.0, 2000.0)]
    assert replay(trace, srtf()).makespan_s == pytest.approx(500.0 + 2000.0 + 10.0)


def test_by_service_a_short_wide_gang_waits_for_long_narrow_ones() -> None:
    trace = [submitted("wide", 64, 0.0, 100.0), *(submitted(f"narrow{index}", 8, 0.0, 400.0) for index in range(8))]
    assert replay(trace, srsf()).average_jct_s == pytest.approx((8 * 400.0 + 500.0) / 9)
    assert replay(trace, srtf()).average_jct_s == pytest.approx((100.0 + 8 * 500.0) / 9)


def test_tiresias_lets_new_jobs_pass_those_that_had_their_share() -> None:
    """On 64 GPUs the first leaves the first queue after 3250 / 64 s, so the second runs at once and ends first."""
    trace = [submitted("first", 64, 0.0, 1000.0), submitted("second", 64, 100.0, 20.0)]
    assert replay(trace, tiresias_l()).average_jct_s < (1100.0 + 100.0) / 2


def test_members_of_a_group_progress_at_their_speed_and_pay_for_all_of_it() -> None:
    def together(queue: Sequence[Job], num_gpus: int, now: float) -> Answer:
        return Answer(groups=(JobGroup(jobs=tuple(queue)),))

    trace = [submitted("a", 8, 0.0, 100.0, LOADING), submitted("b", 8, 0.0, 1000.0, COMPUTING)]
    loading, computing = speeds([LOADING, COMPUTING])
    first_s = 100.0 / loading
    left_s = 1000.0 - (first_s - 20.0) * computing
    assert replay(trace, together).makespan_s == pytest.approx(first_s + left_s)


def test_the_99th_percentile_is_that_of_the_published_figures() -> None:
    trace = [submitted(str(index), 1, index * 1e6, 10.0 + index) for index in range(100)]
    assert replay(trace, srsf()).p99_jct_s == 109.0
